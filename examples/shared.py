"""What examples share: the time of a call, and a figure of bar charts."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib

CALLS = 50


def seconds(program: jax.stages.Compiled, *arguments: Any) -> float:
    """Median of a call, with its result."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def draw(path: Path, names: Sequence[str], charts: Mapping[str, Sequence[float]], inches: int, label: str) -> None:
    """A bar chart for each title, with a bar for each name. label: the format of the numbers above the bars."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(charts), figsize=(inches, 4), layout="constrained")
    for ax, (title, values) in zip(axes, charts.items(), strict=True):
        ax.bar_label(ax.bar(names, values), fmt=label)
        ax.set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
