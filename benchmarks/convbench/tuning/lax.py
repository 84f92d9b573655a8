"""`python -m benchmarks fit-lax`: fits what the planner expects of lax to rows of the benchmark and of the census."""

import argparse
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from tabulate import tabulate

from convbench import cases, machine, selection
from convbench.cases import Case
from convbench.census.draw import draw
from convbench.programs import problem_of_row
from convbench.rows import RowFile
from convbench.tuning import data_files
from convbench.tuning.fit import OUTLIER, PULL
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import COSTS, MODELS, Device
from jaxconv.planner.xla import AHEAD, FAMILY, Comparison, Constants, Work, compare, kind_of, work_of
from jaxconv.problem.product import Product

# Of bfloat16 on an H200, roughly. What the rows say little of stays near.
START = Constants(4e-6, 7e14, 4e12, 1e13, 5e-8, least_flops=0, ours_seconds=0, error=1)
OF_LAX = Constants._fields[:5]  # in the time of lax
FOLDS = 3  # a third of the layers is held out from the fit that predicts them


@dataclass(frozen=True)
class Row:
    """A measured row of a kind that lax may be taken for. ours: seconds by the planner."""

    row: dict
    kind: str
    work: Work
    ours: float

    @property
    def fold(self) -> int:
        return zlib.crc32(self.row["case"].encode()) % FOLDS

    @property
    def is_right(self) -> bool:
        """Whether lax is so much faster that it should be taken."""
        return self.row["us"] > AHEAD * self.row["lax_us"]

    def compared(self, constants: Constants) -> Comparison:
        return compare(self.work, self.ours, constants)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    files = [RowFile.load(path) for path in options.files]
    gpus = {file.machine["device"] for file in files}
    if len(gpus) > 1:
        raise SystemExit(f"the rows are of several GPUs: {', '.join(sorted(gpus))}")
    (gpu,) = gpus
    selection.refuse_unknown(gpus, MODELS)
    costs = MODELS[gpu].costs
    if options.write and gpu != data_files.owner(costs):
        raise SystemExit(f"the costs {costs} are of {data_files.owner(costs)}, the rows of {gpu}")
    every = cases.load() + [drawn.case for seed in options.seeds for drawn in draw(options.rows, seed)]
    rows = known((row for file in files for row in file.rows), every, MODELS[gpu])
    fitted = fit_kinds(rows)
    print(text(rows, fitted))
    if options.write:
        numbers = {f"{kind} {name}": n for kind, of in fitted.items() for name, n in of._asdict().items()}
        data_files.write(costs, {FAMILY: {**COSTS[costs][FAMILY], **numbers}}, {FAMILY: _record(costs, fitted)})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks fit-lax", description="Fits what the planner expects of lax to measured rows."
    )
    parser.add_argument("files", type=Path, nargs="+", help="of the benchmark and of the census")
    parser.add_argument("--rows", type=int, default=600, help="of each census; default: 600")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the censuses; default: 0")
    parser.add_argument("--write", action="store_true", help="keep the numbers in the data file of the GPU")
    return parser


def _record(costs: str, fitted: dict[str, Constants]) -> dict:
    """The errors of all kinds; those that have no rows now keep theirs."""
    kinds = data_files.record(costs, FAMILY).get("kinds", {}) | {kind: of.error for kind, of in fitted.items()}
    return {"date": machine.origin(commit=None)["date"], "kinds": kinds}


def known(rows: Iterable[dict], every: Iterable[Case], device: Device) -> list[Row]:
    """The rows of kinds that lax may be taken for, with our time and lax's.

    Raises:
      SystemExit: a row is of an unknown case.
    """
    rows = [row for row in rows if row["us"] and row["lax_us"] and row["implementation"] == "cuda"]
    by_name, found = selection.cases_of(rows, every), []
    for row in rows:
        kind, problem = problem_of_row(row, by_name[row["case"]])
        product = Product(kind, problem)
        if (of_lax := kind_of(product)) is not None:
            found.append(Row(row, of_lax, work_of(product), choose("cuda", kind, problem, device=device).cost))
    return found


def fit_kinds(rows: Sequence[Row]) -> dict[str, Constants]:
    return {kind: fit(of_kind) for kind, of_kind in _by_kind(rows).items()}


def fit(rows: Sequence[Row]) -> Constants:
    """The constants of a kind, three digits of each, by the logarithms of predicted / measured, as in fit.py."""
    theirs, ours = (np.log([1e-6 * row.row[name] for row in rows]) for name in ("lax_us", "us"))
    planned = np.array([row.ours for row in rows])

    def of_lax(logs: np.ndarray) -> Constants:
        return START._replace(**{name: at * math.exp(log) for name, at, log in zip(OF_LAX, START, logs)})

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.append(np.log([row.work.seconds(of_lax(logs)) for row in rows]) - theirs, PULL * logs)

    robust: dict[str, Any] = dict(loss="soft_l1", f_scale=OUTLIER)
    constants = of_lax(least_squares(errors, np.zeros(len(OF_LAX)), **robust).x)
    bounds = -0.5e6 * planned.min(), np.inf  # of what estimates lack, in us: less would make a time negative
    lacking = least_squares(lambda us: np.log(planned + 1e-6 * us) - ours, 0.1, bounds=bounds, **robust).x[0]
    constants = constants._replace(ours_seconds=1e-6 * round(lacking, 2))
    constants = constants._replace(error=math.exp(_spread(_wrong(rows, constants))))
    rounded = Constants(*(float(f"{number:.3g}") for number in constants))
    return rounded._replace(least_flops=min(row.work.flops for row in rows))


def _wrong(rows: Sequence[Row], constants: Constants) -> list[float]:
    """Logarithms of ours / lax, as expected over as measured."""
    found = (row.compared(constants) for row in rows)
    return [math.log(c.ours / c.lax * row.row["lax_us"] / row.row["us"]) for c, row in zip(found, rows)]


def _spread(logs: Sequence[float]) -> float:
    return math.sqrt(np.mean(np.square(logs)))


def text(rows: Sequence[Row], fitted: dict[str, Constants]) -> str:
    """Errors of each kind, and what would be taken: with the fit itself, and with thirds of the layers held out."""
    held_out = {fold: fit_kinds([row for row in rows if row.fold != fold]) for fold in range(FOLDS)}
    ways = {"fitted": lambda row: fitted[row.kind], "held out": lambda row: held_out[row.fold].get(row.kind)}
    lines = []
    for kind, of_kind in _by_kind(rows).items():
        line = [kind, len(of_kind)]
        for of in ways.values():
            pairs = [(row, constants) for row in of_kind if (constants := of(row))]
            logs = [math.log(row.compared(c).lax / (1e-6 * row.row["lax_us"])) for row, c in pairs]
            taken = [row for row, c in pairs if row.compared(c).is_lax_faster]
            line += [math.exp(_spread(logs)), len(taken), sum(row.is_right for row in taken)]
        lines.append([*line, sum(row.is_right for row in of_kind)])
    header = [f"{what} {way}" for way in ways for what in ("error", "taken", "right")]
    numbers = [(kind, *(f"{number:.3g}" for number in of)) for kind, of in fitted.items()]
    errors = tabulate(lines, ("kind", "rows", *header, "to be taken"), floatfmt=".3f")
    return f"{errors}\n\n{tabulate(numbers, ('kind', *Constants._fields))}"


def _by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {kind: [row for row in rows if row.kind == kind] for kind in sorted({row.kind for row in rows})}
