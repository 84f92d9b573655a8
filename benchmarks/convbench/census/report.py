"""How the census's ratios to lax and to the floor are distributed, and where they are worst."""

import math
from collections.abc import Sequence

import numpy as np
from tabulate import tabulate

from convbench.programs import PASSES
from convbench.results import geomean_speedup
from convbench.rows import grouped

PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 99)
REACHED = (0.85, 0.95)  # of lax's speed
MOST_CLUSTERS = 20
OF_A_CLUSTER = 3  # rows at least: fewer say nothing of a kind of layers
ALL = "all"
# Fields of a row, and what they are called.
RATIOS = {"speedup": "times as fast as lax", "over_floor": "times the floor"}


def text(rows: Sequence[dict]) -> str:
    """Percentiles and shares by pass, the worst clusters, and the errors."""
    parts = [f"{title}\n\n{percentiles(by_pass)}" for title, by_pass in distributions(rows).items()]
    parts += [f"rows at so much of lax's speed, or more\n\n{_shares(rows)}"]
    parts += [f"the worst templates and passes\n\n{clusters(rows, MOST_CLUSTERS)}"]
    return "\n\n".join(parts + errors(rows))


def distributions(rows: Sequence[dict]) -> dict[str, dict[str, list[float]]]:
    """`ratios` by what they are called. Those that no row has are left out: where no floor is known, say."""
    found = {title: ratios(rows, name) for name, title in RATIOS.items()}
    return {title: by_pass for title, by_pass in found.items() if by_pass}


def ratios(rows: Sequence[dict], name: str) -> dict[str, list[float]]:
    """The values that are there, by pass, and of all passes."""
    of = lambda passes: [row[name] for row in rows if row["pass"] in passes and row[name]]
    by_pass = {which: of([which]) for which in PASSES} | {ALL: of(PASSES)}
    return {which: values for which, values in by_pass.items() if values}


def percentiles(by_pass: dict[str, list[float]], tablefmt: str = "simple") -> str:
    """A table of `ratios`."""
    lines = [
        (which, len(values), math.exp(np.mean(np.log(values))), *np.percentile(values, PERCENTILES))
        for which, values in by_pass.items()
    ]
    header = ("pass", "rows", "geometric mean", *(f"{percent} %" for percent in PERCENTILES))
    return tabulate(lines, header, tablefmt, floatfmt=".3g")


def _shares(rows: Sequence[dict]) -> str:
    lines = [
        (which, *(f"{np.mean(np.array(values) >= least):.1%}" for least in REACHED))
        for which, values in ratios(rows, "speedup").items()
    ]
    return tabulate(lines, ("pass", *map(str, REACHED)))


def clusters(rows: Sequence[dict], most: int, tablefmt: str = "simple") -> str:
    """A table of the worst clusters. A cluster is a template and a pass, of several rows."""
    compared = [row for row in rows if row["speedup"]]
    lines = []
    for (template, which), cluster in grouped(compared, "suite", "pass").items():
        if len(cluster) < OF_A_CLUSTER:
            continue
        worst = min(cluster, key=lambda row: row["speedup"])
        lines.append((template, which, len(cluster), geomean_speedup(cluster), worst["speedup"], worst["case"],
                      worst["plan"]))  # fmt: skip
    lines.sort(key=lambda line: line[3])
    header = ("template", "pass", "rows", "x lax, geometric mean", "worst", "worst row", "its plan")
    return tabulate(lines[:most], header, tablefmt, floatfmt=".3g")


def errors(rows: Sequence[dict]) -> list[str]:
    """Of our kernels, a line each."""
    return [f"{row['case']} {row['pass']}: {row['error']}" for row in rows if row["error"]]
