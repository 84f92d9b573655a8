"""`python -m benchmarks census`: draws layers, measures them, reports on them."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import jax
from tqdm import tqdm

from convbench import machine, selection, tables
from convbench.cases import Case
from convbench.census import default, report
from convbench.census.draw import Drawn, draw
from convbench.measure import device_answers, measure, planned, unmeasured, warm_up
from convbench.programs import PASSES, passes_of
from convbench.results import KEY, Results, key
from jaxconv import ffi
from jaxconv.planner.devices import MODELS

IMPLEMENTATION = "cuda"
PROCESS_ENDED = "the process ended while it was measured"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our kernels failed."""
    options = _options(arguments)
    passes = passes_of(options.dtype, PASSES)
    drawn = [each for each in draw(options.rows, options.seed) if each.which in passes]
    if options.part:
        drawn = default.part(options.part, drawn, options.dtype, options.precision, ffi.device("cuda"))
    if options.report:
        return _report(options, drawn)
    if options.draw:
        return _write_cases(options.draw, drawn)
    if jax.default_backend() != "gpu":
        raise SystemExit("census: there is no GPU")
    jax.config.update("jax_enable_compilation_cache", False)  # what it finds is not a compilation
    warm_up([IMPLEMENTATION])
    return int(any(row["error"] for row in measured(drawn, options).rows))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.precision != "default" and not options.dtype.startswith("float32"):
        parser.error(f"--precision is of float32, not of {options.dtype}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks census", description="jaxconv beside lax, on layers drawn from kinds of networks."
    )
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--out", type=Path, metavar="FILE", help="measure; what the file has is not measured again")
    work.add_argument("--report", type=Path, metavar="FILE", help="print and draw what --out has measured of a --seed")
    work.add_argument("--draw", type=Path, metavar="FILE", help="write the layers as a --case-file")
    parser.add_argument("--renew", action="store_true", help="measure rows again whose plan is another one today")
    parser.add_argument("--rows", type=int, default=600, help="pairs of a layer and a pass; default: 600")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--part", choices=default.PARTS, help="rows of the kinds that lax may be taken for, or that it is taken for"
    )
    selection.add_arithmetic(parser)
    selection.add_run(parser, seconds=0.05)
    selection.add_limit(parser)
    return parser


def measured(drawn: list[Drawn], options: argparse.Namespace) -> Results:
    """The rows of the file of the options. What it does not have is measured, and saved row by row.

    Raises:
      SystemExit: a row cost this process its GPU. The other rows need a process that has one.
    """
    results, origin = Results.continued(options.out, machine.describe()), machine.origin(options.commit)
    known, arithmetic = {key(row): row for row in results.rows}, (options.dtype, options.precision)
    end = monotonic() + options.seconds_limit
    for case, which in (bar := tqdm(drawn, unit="row")):
        if monotonic() > end:
            break
        bar.set_description(case.name)
        row = known.get((case.name, which, *arithmetic, IMPLEMENTATION))
        is_old = row and options.renew and _has_another_plan(row, case)
        if row is None or is_old:
            row = _measured(results, case, which, origin, options)
            if (row["error"] or row["lax_error"]) and not device_answers():
                raise SystemExit(f"census: the GPU is lost after {case.name} {which}; run the command again to go on")
    return results


def _measured(results: Results, case: Case, which: str, origin: dict, options: argparse.Namespace) -> dict:
    """Measures and saves a row. If that kills the process, the file says so, and the next run goes on behind it."""
    before, arithmetic = list(results.rows), (options.dtype, options.precision)
    results.put(unmeasured(case, which, *arithmetic, IMPLEMENTATION, PROCESS_ENDED) | origin, KEY)
    results.save(options.out)
    try:
        (row,) = measure(case, which, *arithmetic, [IMPLEMENTATION], options.seconds)
    except BaseException:  # also an interruption: the row is measured by the next run
        results.rows = before
        results.save(options.out)
        raise
    results.put(row | origin, KEY)
    results.save(options.out)
    return row


def _has_another_plan(row: dict, case: Case) -> bool:
    """Than the planner makes today. Estimates behind it are no part of it. Rows that failed have none."""
    if row["plan"] is None:
        return False
    today = planned(case, row["pass"], row["dtype"], row["precision"], row["implementation"])
    return row["plan"].rsplit(" (", 1)[0] != today.rsplit(" (", 1)[0]


def _report(options: argparse.Namespace, drawn: list[Drawn]) -> int:
    """Of the rows of one dtype and precision."""
    from convbench.census import page  # measuring needs no matplotlib

    if not options.report.exists():
        raise SystemExit(f"census: there is no {options.report}")
    results, name = Results.load(options.report), tables.arithmetic(options.dtype, options.precision)
    of_draw = {(case.name, which) for case, which in drawn}
    rows = [row for row in results.rows if (row["case"], row["pass"]) in of_draw and tables.arithmetic_of(row) == name]
    if not rows:
        raise SystemExit(f"census: {options.report} has no rows of {name} that --rows and --seed draw")
    gpu = results.machine["device"]
    print(f"{len(rows)} of the {len(drawn)} rows that are drawn\n")
    print(report.text(rows))
    if gpu in MODELS:  # what the default takes elsewhere is not known here
        print(f"\n{default.text(rows, [case for case, _ in drawn], MODELS[gpu])}")
    suffix = "" if name == "bfloat16" else f"_{name.replace(' ', '_')}"
    path = options.report.with_name(f"{options.report.stem}{suffix}.svg")
    page.draw_rows(rows, gpu, path)
    return 0


def _write_cases(path: Path, drawn: list[Drawn]) -> int:
    cases = dict.fromkeys(case for case, _ in drawn)
    path.write_text("[\n " + ",\n ".join(json.dumps(asdict(case)) for case in cases) + "\n]\n")
    return 0
