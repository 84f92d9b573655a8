"""What commands have in common that measure forward passes on a GPU, each of a case and something more."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from convbench import machine, selection
from convbench.rows import RowFile


def parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = without_cases(name, description, seconds=0.1)
    selection.add_cases(parser)
    return parser


def without_cases(name: str, description: str, seconds: float) -> argparse.ArgumentParser:
    """seconds: what is spent on a program if nothing else is asked."""
    parser = argparse.ArgumentParser(prog=f"benchmarks {name}", description=description)
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="merge the rows into this JSON file")
    selection.add_run(parser, seconds)
    return parser


def begin(name: str) -> None:
    """Raises SystemExit without a GPU."""
    if jax.default_backend() != "gpu":
        raise SystemExit(f"{name}: there is no GPU")
    jax.config.update("jax_enable_compilation_cache", False)  # what it finds is not a compilation


def measure_all(
    options: argparse.Namespace,
    every: Sequence[tuple[Any, ...]],
    measure: Callable[..., dict],
    key: Sequence[str],
    table: Callable[[list[dict]], str],
) -> int:
    """Merges a row of each into the file, and prints the table of all. Exit status: 1 if one of our kernels failed.

    every: the arguments of `measure`, a case or what has a name first, before the seconds to spend on a program.
      key: the fields that tell rows apart.
    """
    rows, origin = RowFile.continued(options.out, machine.describe()), machine.origin(options.commit)
    for arguments in (bar := tqdm(every, unit="row")):
        bar.set_description(arguments[0].name)
        rows.put(measure(*arguments, options.seconds) | origin, key)
        rows.save(options.out)
    print(table(rows.rows))
    return int(any(row["error"] for row in rows.rows))
