"""How well the planner's costs say what was measured."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from convbench.programs import PASSES
from convbench.tuning.predictions import Measured, layer_of

ALL = "all"  # families together
MOST_CHOICES = 10
HEADER = ("family", "pass", "rows", "error", "worst", "choice", "worst choice")


class Quality(NamedTuple):
    """Factors, 1 is the best: predicted / measured, and the planner's choices in measured time / the least measured.

    error: by the standard deviation of the logarithms from 0. choice: geometric mean.
    """

    rows: int
    error: float
    worst: float
    choice: float
    worst_choice: float


class Choice(NamedTuple):
    """What the planner takes of the candidates of a problem, and the fastest of them."""

    chosen: dict
    best: dict

    @property
    def factor(self) -> float:
        return self.chosen["us"] / self.best["us"]


def quality(rows: Sequence[Measured], logs: np.ndarray) -> Quality:
    """logs: of the predicted seconds."""
    wrong = logs - np.log([1e-6 * each.row["us"] for each in rows])
    factors = np.log([choice.factor for choice in choices(rows, logs)])
    return Quality(
        len(rows),
        error=_factor(np.sqrt(np.mean(wrong**2))),
        worst=_factor(np.abs(wrong).max()),
        choice=_factor(factors.mean()),
        worst_choice=_factor(factors.max()),
    )


def choices(rows: Sequence[Measured], logs: np.ndarray) -> list[Choice]:
    """One of each problem."""
    problems = defaultdict(list)
    for each, log in zip(rows, logs):
        problems[layer_of(each.row)].append((log, each.row))
    by_prediction, by_time = lambda pair: pair[0], lambda pair: pair[1]["us"]
    return [Choice(min(of, key=by_prediction)[1], min(of, key=by_time)[1]) for of in problems.values()]


def qualities(rows: Sequence[Measured], logs: np.ndarray) -> dict[tuple[str, str], Quality]:
    """By family, or all together, and pass."""
    return {
        (family, which): quality([rows[place] for place in places], logs[places])
        for family, which, places in _groups(rows)
    }


def text(rows: Sequence[Measured], before: np.ndarray, after: np.ndarray) -> str:
    """Both qualities of each family and pass, then the choices that remain the worst. before, after: logarithms."""
    then, now = qualities(rows, before), qualities(rows, after)
    lines = [(*place, of.rows, *map(_change, of[1:], now[place][1:])) for place, of in then.items()]
    worst = sorted(choices(rows, after), key=lambda choice: -choice.factor)[:MOST_CHOICES]
    chosen = [
        (c.best["case"], c.best["pass"], c.factor, _kernel(c.chosen), c.chosen["us"], _kernel(c.best), c.best["us"])
        for c in worst
    ]
    header = ("case", "pass", "choice", "chosen", "us", "best", "us")
    return f"{tabulate(lines, HEADER)}\n\n{tabulate(chosen, header, floatfmt='.4g')}"


def _groups(rows: Sequence[Measured]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Family, pass, places of the rows."""
    family, which = (np.array([each.row[name] for each in rows]) for name in ("family", "pass"))
    for name in (*dict.fromkeys(family), ALL):
        for each_pass in PASSES:
            places = np.flatnonzero((which == each_pass) & ((family == name) | (name == ALL)))
            if places.size:
                yield name, each_pass, places


def _factor(log: np.floating) -> float:
    return float(f"{np.exp(log):.3f}")


def _change(before: float, after: float) -> str:
    return f"{before:.3f} -> {after:.3f}"


def _kernel(row: dict) -> str:
    kernel = f"{row['family']} {row['tile']}" + (f" of {row['transform']}" if row["transform"] else "")
    return ", ".join([kernel, *(f"{name} {value}" for name, value in row["settings"].items())])
