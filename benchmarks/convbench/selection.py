"""The options of a command line that say what is measured: layers, their passes and their arithmetic."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from convbench import cases
from convbench.programs import PASSES, PRECISIONS

HOST_SUITE = "host"
DTYPES = ("bfloat16", "float16", "float32", "float64", "int8")
SEVERAL: dict[str, Any] = dict(nargs="+", metavar="NAME")


def add_case_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case-file", type=Path, default=cases.CASES, help="JSON list of layers")


def add_cases(parser: argparse.ArgumentParser) -> None:
    """What `selected` reads."""
    add_case_file(parser)
    parser.add_argument("--suites", **SEVERAL, help=f"default: {HOST_SUITE} on a host, all others on a GPU")
    parser.add_argument("--cases", **SEVERAL, help="of these suites; default: all")
    parser.add_argument("--without", **SEVERAL, help="cases that are left out")


def add_dtypes(parser: argparse.ArgumentParser, dtype: str) -> None:
    """dtype: what is measured if none is named."""
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=[dtype], help=f"default: {dtype}")


def add_selection(parser: argparse.ArgumentParser, dtype: str) -> None:
    """Layers, their passes and their arithmetic. dtype: what is measured if none is named."""
    add_cases(parser)
    add_dtypes(parser, dtype)
    _add_precision(parser)
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)


def add_arithmetic(parser: argparse.ArgumentParser) -> None:
    """One dtype and precision."""
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=f"default: {DTYPES[0]}")
    _add_precision(parser)


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", choices=PRECISIONS, default="default", help="of float32")


def add_run(parser: argparse.ArgumentParser, seconds: float) -> None:
    """seconds: what is spent on a program if nothing else is asked."""
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"to spend on a program: 3 to 20 calls; default: {seconds}"
    )
    parser.add_argument("--commit", help="to be noted with the rows; default: git's")


def add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds-limit", type=float, default=float("inf"), metavar="SECONDS", help="begin nothing new after these"
    )


def selected(options: argparse.Namespace) -> list[cases.Case]:
    """The cases that are asked for.

    Raises:
      SystemExit: a name is unknown.
    """
    every = cases.load(options.case_file)
    suites, names = {case.suite for case in every}, {case.name for case in every}
    refuse_unknown(options.suites, suites)
    refuse_unknown(options.cases, names)
    refuse_unknown(options.without, names)
    on_host = jax.default_backend() == "cpu"
    asked = options.suites or [suite for suite in suites if options.cases or (suite == HOST_SUITE) == on_host]
    chosen = set(options.cases or names) - set(options.without or ())
    return [case for case in every if case.suite in asked and case.name in chosen]


def cases_of(rows: Iterable[dict], every: Iterable[cases.Case]) -> dict[str, cases.Case]:
    """The cases by name.

    Raises:
      SystemExit: a row is of an unknown case.
    """
    by_name = {case.name: case for case in every}
    refuse_unknown({row["case"] for row in rows}, by_name)
    return by_name


def refuse_unknown(asked, known) -> None:
    """Raises SystemExit if a name is not among those that are known."""
    if unknown := set(asked or ()) - set(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
