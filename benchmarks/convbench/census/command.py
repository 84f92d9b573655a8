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
from convbench.census import default, report
from convbench.census.draw import Drawn, draw
from convbench.measure import device_answers, measure, warm_up
from convbench.results import Results, key
from jaxconv.planner.devices import MODELS

IMPLEMENTATION = "cuda"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our kernels failed."""
    options = _parser().parse_args(arguments)
    drawn = draw(options.rows, options.seed)
    if options.report:
        return _report(options, drawn)
    if options.draw:
        return _write_cases(options.draw, drawn)
    if jax.default_backend() != "gpu":
        raise SystemExit("census: there is no GPU")
    jax.config.update("jax_enable_compilation_cache", False)  # what it finds is not a compilation
    warm_up([IMPLEMENTATION])
    return int(any(row["error"] for row in measured(drawn, options).rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks census", description="jaxconv beside lax, on layers drawn from kinds of networks."
    )
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--out", type=Path, metavar="FILE", help="measure; what the file has is not measured again")
    work.add_argument("--report", type=Path, metavar="FILE", help="print and draw what --out has measured of a --seed")
    work.add_argument("--draw", type=Path, metavar="FILE", help="write the layers as a --case-file")
    parser.add_argument("--rows", type=int, default=600, help="pairs of a layer and a pass; default: 600")
    parser.add_argument("--seed", type=int, default=0)
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
    known, arithmetic = {key(row) for row in results.rows}, (options.dtype, options.precision)
    end = monotonic() + options.seconds_limit
    for case, which in (bar := tqdm(drawn, unit="row")):
        if monotonic() > end:
            break
        bar.set_description(case.name)
        if (case.name, which, *arithmetic, IMPLEMENTATION) not in known:
            (row,) = measure(case, which, *arithmetic, [IMPLEMENTATION], options.seconds)
            results.rows.append(row | origin)
            results.save(options.out)
            if (row["error"] or row["lax_error"]) and not device_answers():
                raise SystemExit(f"census: the GPU is lost after {case.name} {which}; run the command again to go on")
    return results


def _report(options: argparse.Namespace, drawn: list[Drawn]) -> int:
    """Of the rows of one dtype and precision."""
    from convbench.census import page  # measuring needs no matplotlib

    results, name = Results.load(options.report), tables.arithmetic(options.dtype, options.precision)
    rows = [row for row in results.rows if tables.arithmetic_of(row) == name]
    if not rows:
        raise SystemExit(f"census: {options.report} has no rows of {name}")
    gpu = results.machine["device"]
    selection.refuse_unknown([gpu], MODELS)
    print(report.text(rows))
    print(f"\n{default.text(rows, [case for case, _ in drawn], MODELS[gpu])}")
    suffix = "" if name == "bfloat16" else f"_{name.replace(' ', '_')}"
    path = options.report.with_name(f"{options.report.stem}{suffix}.svg")
    page.draw_rows(rows, gpu, path)
    return 0


def _write_cases(path: Path, drawn: list[Drawn]) -> int:
    cases = dict.fromkeys(case for case, _ in drawn)
    path.write_text("[\n " + ",\n ".join(json.dumps(asdict(case)) for case in cases) + "\n]\n")
    return 0
