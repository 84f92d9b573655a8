"""Where lax answers the census's layers if no implementation is named, and whether it is the faster one there."""

from collections.abc import Iterable, Sequence

import numpy as np
from tabulate import tabulate

from convbench.cases import Case
from convbench.census.draw import Drawn
from convbench.census.report import REACHED
from convbench.programs import PASSES, problem_of_row
from convbench.selection import cases_of
from jaxconv.planner.devices import Device
from jaxconv.planner.plan import Lax
from jaxconv.planner.xla import AHEAD, choose_or_lax, expected_seconds
from jaxconv.problem import ConvProblem


def text(rows: Sequence[dict], every: Iterable[Case], device: Device) -> str:
    return f"what implementation=None takes\n\n{table(rows, every, device)}"


def table(rows: Sequence[dict], every: Iterable[Case], device: Device, tablefmt: str = "simple") -> str:
    """By pass: rows that lax answers, those of them where ours is clearly slower, all of these; shares of speed."""
    compared = [row for row in rows if row["speedup"]]
    taken = takes_lax(compared, every, device)
    lines = []
    for passes in (*((which,) for which in PASSES), PASSES):
        places = [place for place, row in enumerate(compared) if row["pass"] in passes]
        ours = np.array([compared[place]["speedup"] for place in places])
        by_lax = np.array([taken[place] for place in places], bool)
        if places:
            shares = [np.mean(speed >= least) for speed in (ours, np.where(by_lax, 1, ours)) for least in REACHED]
            slower = AHEAD * ours < 1
            counts = len(places), by_lax.sum(), np.mean(by_lax), (by_lax & slower).sum(), slower.sum()
            lines.append(("all" if len(passes) > 1 else passes[0], *counts, *shares))
    reached = [f"{who} >= {least}" for who in ("ours", "default") for least in REACHED]
    header = ("pass", "rows", "by lax", "share", "rightly", "ours slower", *reached)
    percent = (".0f", ".0f", ".0f", ".1%", ".0f", ".0f", *[".1%"] * len(reached))
    return tabulate(lines, header, tablefmt, floatfmt=percent)


def takes_lax(rows: Iterable[dict], every: Iterable[Case], device: Device) -> list[bool]:
    """For each row.

    Raises:
      SystemExit: a row is of an unknown case.
    """
    rows = list(rows)
    by_name = cases_of(rows, every)
    problems = (problem_of_row(row, by_name[row["case"]]) for row in rows)
    return [is_left_to_lax(*problem, device) for problem in problems]


def is_left_to_lax(kind: str, problem: ConvProblem, device: Device) -> bool:
    return isinstance(choose_or_lax("cuda", kind, problem, device).plan, Lax)


def is_of_lax_kind(kind: str, problem: ConvProblem, device: Device) -> bool:
    return expected_seconds(kind, problem, device) is not None


PARTS = {"lax-kinds": is_of_lax_kind, "left-to-lax": is_left_to_lax}


def part(name: str, drawn: Iterable[Drawn], dtype: str, precision: str, device: Device) -> list[Drawn]:
    """Those of a part of a census, on a device."""
    arithmetic = {"dtype": dtype, "precision": precision}
    return [
        Drawn(case, which)
        for case, which in drawn
        if PARTS[name](*problem_of_row({"pass": which, **arithmetic}, case), device)
    ]
