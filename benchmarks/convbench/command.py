"""The command line: the benchmark, or the command that its first word names."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import jax
from tqdm import tqdm

from convbench import machine, selection, tables
from convbench.measure import measure, warm_up
from convbench.programs import passes_of
from convbench.results import RESULTS, Results, path_of
from jaxconv.planner.plan import IMPLEMENTATIONS

DEFAULT = {"cpu": "cpu", "gpu": "cuda"}
# The modules of other commands, by the word that a command line begins with.
COMMANDS = {
    "sample": "convbench.tuning.sample",
    "fit": "convbench.tuning.command",
    "fit-lax": "convbench.tuning.lax",
    "census": "convbench.census.command",
    "epilogue": "convbench.endings",
    "narrow": "convbench.narrow",
    "folded": "convbench.folded",
    "halos": "convbench.halos",
    "calls": "convbench.calls",
    "clients": "convbench.clients.command",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if one of our kernels failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        return import_module(COMMANDS[arguments[0]]).main(arguments[1:])
    options = _parser().parse_args(arguments)
    if options.merge:
        _merge(options.merge)
    if options.merge or options.docs:
        return _write_docs()
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description="jaxconv beside lax, each pass of each layer.",
        epilog=f"Other commands, each with its own --help: {', '.join(COMMANDS)}.",
    )
    selection.add_selection(parser, "float32")
    parser.add_argument(
        "--implementations", nargs="+", choices=IMPLEMENTATIONS, help="of jaxconv; default: the platform's"
    )
    selection.add_run(parser, seconds=0.2)
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
    selected = selection.selected(options)
    on, origin = machine.describe(), machine.origin(options.commit)
    out = path_of(on) if options.save else options.out
    results = Results.continued(out, on) if out else Results(on)
    implementations = options.implementations or [DEFAULT[jax.default_backend()]]
    warm_up(implementations)
    measured = []
    asked = [(dtype, which) for dtype in options.dtypes for which in passes_of(dtype, options.passes)]
    with tqdm(total=len(selected) * len(asked), unit="pass") as bar:
        for case in selected:
            bar.set_description(case.name)
            rows = []
            for dtype, which in asked:
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
