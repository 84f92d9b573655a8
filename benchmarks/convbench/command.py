"""The command line."""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from convbench import cases, machine, tables
from convbench.measure import measure, warm_up
from convbench.programs import PASSES, PRECISIONS
from convbench.results import RESULTS, Results, path_of
from jaxconv.planner.plan import IMPLEMENTATIONS

HOST_SUITE = "host"
DEFAULT = {"cpu": "cpu", "gpu": "cuda"}
DTYPES = ("bfloat16", "float16", "float32", "float64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if one of our kernels failed."""
    options = _parser().parse_args(arguments)
    if options.merge:
        _merge(options.merge)
    if options.merge or options.docs:
        return _write_docs()
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description="jaxconv beside lax, each pass of each layer.")
    several: dict[str, Any] = dict(nargs="+", metavar="NAME")
    parser.add_argument("--case-file", type=Path, default=cases.CASES, help="JSON list of layers")
    parser.add_argument("--suites", **several, help=f"default: {HOST_SUITE} on a host, all others on a GPU")
    parser.add_argument("--cases", **several, help="of these suites; default: all")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--precision", choices=PRECISIONS, default="default", help="of float32, on both sides")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument(
        "--implementations", nargs="+", choices=(*IMPLEMENTATIONS, "xla"), help="of jaxconv; default: the platform's"
    )
    parser.add_argument("--seconds", type=float, default=0.2, help="to spend on the calls of a program (3 to 20 calls)")
    parser.add_argument("--commit", help="to be noted with the results; default: git's")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="draw charts into this folder")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--out", type=Path, metavar="FILE", help="merge the rows into this JSON file")
    kept.add_argument(
        "--save", action="store_true", help=f"merge the rows into the machine's file in {RESULTS.name}/, and --docs"
    )
    kept.add_argument(
        "--merge", type=Path, metavar="FILE", help="measure nothing: --save the rows of a file that --out wrote"
    )
    kept.add_argument(
        "--docs", action="store_true", help="measure nothing: rewrite the pages and pictures that show the results"
    )
    return parser


def _merge(path: Path) -> None:
    measured = Results.load(path)
    target = path_of(measured.machine)
    results = Results.continued(target, measured.machine)
    results.merge(measured.rows)
    results.save(target)


def _write_docs() -> int:
    from convbench import docs  # it needs matplotlib

    docs.write()
    return 0


def _run(options: argparse.Namespace) -> int:
    jax.config.update("jax_enable_compilation_cache", False)  # what it finds is not a compilation
    selected = _selected(options)
    on, origin = machine.describe(), machine.origin(options.commit)
    out = path_of(on) if options.save else options.out
    results = Results.continued(out, on) if out else Results(on)
    implementations = options.implementations or [DEFAULT[jax.default_backend()]]
    warm_up(implementations)
    measured = []
    with tqdm(total=len(selected) * len(options.dtypes) * len(options.passes), unit="pass") as bar:
        for case in selected:
            bar.set_description(case.name)
            rows = []
            for dtype, which in product(options.dtypes, options.passes):
                timed = measure(case, which, dtype, options.precision, implementations, options.seconds)
                rows += [row | origin for row in timed]
                bar.update()
            measured += rows
            results.merge(rows)
            if out:
                results.save(out)
    print(tables.terminal(measured))
    if options.charts:
        from convbench import charts  # measuring needs no matplotlib

        charts.draw(results, options.charts, out.stem if out else "benchmark")
    if options.save:
        _write_docs()
    return int(any(row["error"] for row in measured))


def _selected(options: argparse.Namespace) -> list[cases.Case]:
    every = cases.load(options.case_file)
    known = {case.suite for case in every}, {case.name for case in every}
    for asked, names in zip((options.suites, options.cases), known):
        if unknown := set(asked or ()) - names:
            raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    on_host = jax.default_backend() == "cpu"
    suites = options.suites or [suite for suite in known[0] if options.cases or (suite == HOST_SUITE) == on_host]
    return [case for case in every if case.suite in suites and (not options.cases or case.name in options.cases)]
