"""A file of rows: {"machine": what they were measured on, "rows": [...]}, one row a line.

A row has the fields

    case, suite, pass, dtype, precision, implementation
    plan                             what jaxconv planned, as text
    us, lax_us                       median time of a call, microseconds
    tflops                           of the multiplications and additions that no zero makes void
    flops_per_byte                   of both operands and the result, each once
    speedup                          lax_us / us
    floor_us, over_floor             the least time the GPU could take, and us / floor_us
    lower_s, compile_s               tracing and lowering, and XLA's compilation: wall time, seconds
    lax_lower_s, lax_compile_s       the same of lax
    error, lax_error                 why there is no time

and what is not there is None. Case, pass, dtype, precision and implementation are its key.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KEY = ("case", "pass", "dtype", "precision", "implementation")


def key(row: dict) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


@dataclass
class Results:
    machine: dict
    rows: list[dict]

    @classmethod
    def load(cls, path: Path) -> "Results":
        return cls(**json.loads(path.read_text()))

    @classmethod
    def continued(cls, path: Path | None, machine: dict) -> "Results":
        """The results of a file, if there is one, to be added to; its machine must be this one, on any day.

        Raises:
          ValueError: the file is from another machine, version or commit.
        """
        if path is None or not path.exists():
            return cls(machine, [])
        earlier = cls.load(path)
        differing = [name for name in machine | earlier.machine if machine.get(name) != earlier.machine.get(name)]
        if set(differing) - {"date"}:
            raise ValueError(f"{path} is not from this machine, versions and commit: {', '.join(differing)} differ")
        return cls(machine, earlier.rows)

    def add(self, rows: Iterable[dict]) -> None:
        """Rows in place of those of the same key, and new ones behind."""
        self.rows = list(({key(row): row for row in self.rows} | {key(row): row for row in rows}).values())

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


def geomean_speedup(rows: Iterable[dict]) -> float | None:
    """Geometric mean of lax's time over ours, over the rows that have both."""
    logs = [math.log(row["speedup"]) for row in rows if row["speedup"]]
    return math.exp(sum(logs) / len(logs)) if logs else None
