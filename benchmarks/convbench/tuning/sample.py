"""`python -m benchmarks sample`: the times of kernels that the planner may choose, to fit its costs to.

A row has the fields

    case, suite, pass, dtype, precision
    family, tile, transform, settings   the candidate
    predicted_us                        its time by the planner, microseconds
    us, error                           its median time, or why there is none
    commit, date, ...                   as rows of the benchmark

All but the times, commit, date and versions are its key.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import jax
from tqdm import tqdm

import jaxconv
from convbench import machine, selection
from convbench.cases import Case
from convbench.measure import operands_of, rounded, timed
from convbench.programs import problem_of, program
from convbench.rows import RowFile
from convbench.tuning.candidates import Candidate, candidates, likely, others, transform_text
from convbench.tuning.predictions import LAYER
from jaxconv.ffi import device
from jaxconv.planner.families import FAMILIES

LONGER = 5  # the times that are measured again
KEY = (*LAYER, "family", "tile", "transform", "settings")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if a kernel failed."""
    options = _parser().parse_args(arguments)
    selected = selection.selected(options)
    selection.refuse_unknown(options.families, FAMILIES["cuda"])
    if jax.default_backend() != "gpu":
        raise SystemExit("sample: there is no GPU")
    return int(any(row["error"] for row in sample(selected, options).rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks sample", description="Measures kernels that the planner may choose, and adds them to a file."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="what it has is not measured again")
    selection.add_selection(parser, "bfloat16")
    parser.add_argument("--families", **selection.SEVERAL, default=list(FAMILIES["cuda"]), help="default: all")
    parser.add_argument(
        "--for-each",
        type=int,
        default=2,
        metavar="N",
        help="the cheapest settings of each tile and transform; default: 2",
    )
    parser.add_argument(
        "--cheapest", type=int, metavar="N", help="of all tiles and transforms, in place of --for-each and --within"
    )
    parser.add_argument(
        "--within", type=float, default=2, metavar="FACTOR", help="of the least estimate of all; default: 2"
    )
    parser.add_argument("--random", type=int, default=0, metavar="N", help="candidates among the others; default: none")
    parser.add_argument(
        "--again", type=int, default=0, metavar="N", help=f"the fastest, which are timed again, {LONGER} times as long"
    )
    selection.add_run(parser, seconds=0.02)
    selection.add_limit(parser)
    return parser


def sample(cases: list[Case], options: argparse.Namespace) -> RowFile:
    """Measures what the file of the options does not have, and saves it after each pass of a case."""
    rows = RowFile.continued(options.out, machine.describe())
    origin = machine.origin(options.commit)
    known = {key(row) for row in rows.rows}
    end = monotonic() + options.seconds_limit
    passes = [(case, dtype, which) for case in cases for dtype in options.dtypes for which in options.passes]
    for case, dtype, which in (bar := tqdm(passes, unit="pass")):
        if monotonic() > end:
            break
        bar.set_description(case.name)
        with jax.enable_x64(dtype == "float64"):
            rows.rows += [row | origin for row in _measured(case, which, dtype, known, options)]
        rows.save(options.out)
    return rows


def key(row: dict) -> tuple[str, ...]:
    return tuple(json.dumps(row[name], sort_keys=True) for name in KEY)


def _measured(case: Case, which: str, dtype: str, known: set, options: argparse.Namespace) -> list[dict]:
    on = partial(program, case, which, dtype, options.precision)
    by_planner = on(jaxconv.conv_general_dilated)
    operands = operands_of(by_planner)
    every = candidates(*problem_of(by_planner), options.families, device("cuda"))
    names = {"case": case.name, "suite": case.suite, "pass": which, "dtype": dtype, "precision": options.precision}
    chosen = likely(every, options.for_each, options.within) if options.cheapest is None else every[: options.cheapest]
    chosen += others(every, chosen, options.random)
    rows = {candidate: names | _described(candidate) for candidate in chosen}
    rows = {candidate: row for candidate, row in rows.items() if key(row) not in known}

    def measure(candidate: Candidate, seconds: float) -> None:
        constraint: Any = candidate.constraint  # which may stand for a name
        ours = partial(jaxconv.conv_general_dilated, implementation=constraint)
        timing = timed(on(ours), operands, seconds, ours=True)
        rows[candidate] |= rounded({"us": timing.us}) | {"error": timing.error}

    for candidate in rows:
        measure(candidate, options.seconds)
    by_time = sorted((c for c in rows if rows[c]["us"]), key=lambda candidate: rows[candidate]["us"])
    for candidate in by_time[: options.again]:
        measure(candidate, LONGER * options.seconds)
    return list(rows.values())


def _described(candidate: Candidate) -> dict:
    c = candidate.constraint
    row = {"family": c.family, "tile": c.tile, "transform": transform_text(c.transform), "settings": c.asked.settings}
    return row | rounded({"predicted_us": 1e6 * candidate.seconds})
