"""The rows of the benchmark, in a file for each machine.

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
    commit, date                     of jaxconv, and of the measurement
    driver, jax, jaxlib, python      versions

and what is not there is None. Case, pass, dtype, precision and implementation are its key: a file has one row of each,
the newest.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path

from convbench import cases
from convbench.programs import PASSES
from convbench.rows import RowFile

RESULTS = Path(__file__).parent.parent / "results"
KEY = ("case", "pass", "dtype", "precision", "implementation")


def key(row: dict) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def path_of(machine: dict) -> Path:
    """The committed file of a machine: nvidia_h200.json, amd_epyc_2cores.json."""
    cores = f" {machine['cores']}cores" if "cores" in machine else ""
    return RESULTS / (re.sub(r"\W+", "_", (machine["device"] + cores).lower()).strip("_") + ".json")


class Results(RowFile):
    def merge(self, rows: Iterable[dict]) -> None:
        """Adds rows, of which each takes the place of one with its key, unless that is of a later day."""
        newest = {key(row): row for row in self.rows}
        for row in rows:
            if row["date"] >= newest.get(key(row), row)["date"]:
                newest[key(row)] = row
        self.rows = _ordered(newest.values())


def _ordered(rows: Iterable[dict]) -> list[dict]:
    """By arithmetic and implementation, then in the order of the list of cases, then by pass."""
    places = {case.name: place for place, case in enumerate(cases.load())}

    def place(row: dict) -> tuple:
        arithmetic = row["dtype"], row["precision"], row["implementation"]
        return *arithmetic, places.get(row["case"], len(places)), PASSES.index(row["pass"])

    return sorted(rows, key=place)


def geomean_speedup(rows: Iterable[dict]) -> float | None:
    """Geometric mean of lax's time over ours, over the rows that have both."""
    logs = [math.log(row["speedup"]) for row in rows if row["speedup"]]
    return math.exp(sum(logs) / len(logs)) if logs else None
