"""`python -m benchmarks clients`: whole networks and reported programs, on jaxconv and on lax."""

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from time import monotonic

import jax
from tqdm import tqdm

from convbench import machine, selection
from convbench.clients.networks import NETWORKS
from convbench.clients.programs import PASSES, REPORT, Measured
from convbench.clients.reports import REPORTS
from convbench.clients.rows import KEY, NAMES, key, key_of, ordered, row_of
from convbench.clients.tables import terminal
from convbench.clients.worker import Side, Worker
from convbench.rows import RowFile
from jaxconv.planner.plan import IMPLEMENTATIONS

NATIVE = {"cpu": "cpu", "gpu": "cuda"}
DEFAULT = "default"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our programs failed."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # three processes share the GPU
    implementation = options.implementation or NATIVE[jax.default_backend()]
    rows, origin = RowFile.continued(options.out, machine.describe()), machine.origin(options.commit)
    done = {key(row) for row in rows.rows if row["error"] is None}
    every = [measured for measured in asked(options) if key_of(measured, implementation) not in done]
    ours, theirs = Worker(None if implementation == DEFAULT else implementation, True), Worker(None, False)
    end = monotonic() + options.seconds_limit
    for measured in (bar := tqdm(every, unit="program")):
        if monotonic() > end:
            break
        bar.set_description(f"{measured.name} {measured.which} {measured.dtype}")
        reference, answer = in_turns((theirs, ours), measured, options)
        row = row_of(measured, implementation, answer, reference) | {"rounds": options.rounds} | origin
        rows.put(row, KEY)
        rows.rows = ordered(rows.rows)
        rows.save(options.out)
    ours.close()
    theirs.close()
    print(terminal(rows.rows))
    return int(any(row["error"] for row in rows.rows))


def in_turns(sides: Sequence[Worker], measured: Measured, options: argparse.Namespace) -> list[Side]:
    """Each side's, with the median time of rounds in which all take turns, so that both have the same clock."""
    rounds = [[side.ask(measured, options.calls, options.patience) for side in sides]]
    while len(rounds) < options.rounds and not any(side.error for side in rounds[-1]):
        rounds.append([side.again(options.calls, options.patience) for side in sides])
    return [combined(of_side) for of_side in zip(*rounds)]


def combined(rounds: Sequence[Side]) -> Side:
    """The first, with the median times of all, or with the first error."""
    if error := next((side.error for side in rounds if side.error), None):
        return Side(error=error)
    median = lambda field: statistics.median(getattr(side, field) for side in rounds)
    return rounds[0]._replace(ms=median("ms"), queued_ms=median("queued_ms"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks clients", description="Whole networks, and what users reported, on jaxconv and on lax."
    )
    parser.add_argument("--models", nargs="+", choices=NAMES, metavar="NAME", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--dtypes", nargs="+", choices=selection.DTYPES, default=("bfloat16", "float32"))
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=tuple(PASSES))
    parser.add_argument(
        "--implementation", choices=(*IMPLEMENTATIONS, DEFAULT), help="what is installed; default: the platform's"
    )
    parser.add_argument("--small", action="store_true", help="networks of a size for a test on a host")
    parser.add_argument("--calls", type=int, default=20, help="of a round; default: 20")
    parser.add_argument("--rounds", type=int, default=3, help="in which the sides take turns; default: 3")
    parser.add_argument(
        "--patience", type=float, default=200, metavar="SECONDS", help="give a program up after these; default: 200"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", required=True,
        help="JSON; what it has without an error is not measured again",
    )  # fmt: skip
    parser.add_argument("--commit", help="to be noted with the rows; default: git's")
    selection.add_limit(parser)
    return parser


def asked(options: argparse.Namespace) -> Iterator[Measured]:
    """Networks in each dtype and pass; then reports, which have a dtype of their own."""
    for dtype, name, which in product(options.dtypes, options.models, options.passes):
        if name in NETWORKS and which != REPORT:
            yield Measured(name, which, dtype, options.small)
    for name in options.models:
        if name in REPORTS and REPORT in options.passes:
            yield Measured(name, REPORT, REPORTS[name].dtype)
