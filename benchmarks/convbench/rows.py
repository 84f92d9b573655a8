"""A file of rows that were measured on one machine: {"machine": what it is, "rows": [...]}, one row a line."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


@dataclass
class RowFile:
    machine: dict
    rows: list[dict] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    @classmethod
    def continued(cls, path: Path, machine: dict) -> Self:
        """The rows of a file, if there is one, to be added to.

        Raises:
          ValueError: the file is of another machine.
        """
        rows = cls.load(path) if path.exists() else cls(machine)
        differing = [name for name in machine | rows.machine if machine.get(name) != rows.machine.get(name)]
        if differing:
            raise ValueError(f"{path} is of another machine: {', '.join(differing)} differ")
        return rows

    def put(self, row: dict, key: Iterable[str]) -> None:
        """Adds a row, in place of one with the same values of the fields `key`."""
        names = tuple(key)
        self.rows = [other for other in self.rows if any(other[name] != row[name] for name in names)] + [row]

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        rows = ",\n".join("  " + json.dumps(row) for row in self.rows)
        partial = path.with_suffix(".partial")
        partial.write_text(f'{{\n "machine": {json.dumps(self.machine)},\n "rows": [\n{rows}\n ]\n}}\n')
        partial.replace(path)


def grouped(rows: Iterable[dict], *fields: str) -> dict[tuple[str, ...], list[dict]]:
    """Rows by the values of fields, in the order in which they are met."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[field] for field in fields)].append(row)
    return dict(groups)
