"""Rows as pictures: rooflines, speed against lax, distributions."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from convbench.floor import PEAKS
from convbench.programs import PASSES
from convbench.results import Results, geomean_speedup
from convbench.rows import grouped

# Okabe and Ito's colours, which colour-blind readers tell apart; lax is grey.
OURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
FASTER, SLOWER = OURS[:2]
LAX = "#8C8C8C"
WIDTH = 9  # inches
# Of bars: blues for fprop and dgrad, orange for wgrad.
BY_PASS: dict[str, str] = dict(zip(PASSES, (OURS[0], "#56B4E9", OURS[4])))
# The same file for the same rows: no random names, no date, and text that is left to the reader's fonts.
STABLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "jaxconv"}
UNDATED = {"Date": None, "Creator": None}


def draw(results: Results, folder: Path, stem: str) -> None:
    """Writes the files of `names` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in _charts(results, stem):
        _save(figure, folder / name)


def names(results: Results, stem: str) -> list[str]:
    """File names: a roofline for each arithmetic whose floors are known, the speed of each implementation in each."""
    return [name for name, _ in _charts(results, stem)]


def draw_bars(rows: list[dict], field: str, title: str, path: Path) -> None:
    """Writes an SVG file: the speed of one implementation by case or by suite, a bar for each pass."""
    _save(partial(_bars, rows, field, title), path)


def draw_distribution(ratios: dict[str, dict[str, list[float]]], title: str, path: Path) -> None:
    """Writes an SVG file: for each title, the share of rows up to each ratio, by pass and of all."""
    _save(partial(_distribution, ratios, title), path)


def _save(figure: Callable[[], Figure], path: Path) -> None:
    with rc_context(STABLE):
        figure().savefig(path, metadata=UNDATED)


def _charts(results: Results, stem: str) -> Iterator[tuple[str, Callable[[], Figure]]]:
    device = results.machine["device"]
    for (dtype, precision), rows in grouped(results.rows, "dtype", "precision").items():
        arithmetic = dtype if precision == "default" else f"{dtype}_{precision}"
        if any(row["floor_us"] for row in rows):
            yield f"{stem}_roofline_{arithmetic}.svg", partial(_roofline, rows, device)
        for (implementation,), of_one in grouped(rows, "implementation").items():
            title = f"{implementation}, {arithmetic.replace('_', ' ')}, {device}: times as fast as lax"
            yield f"{stem}_speed_{arithmetic}_{implementation}.svg", partial(_speed, of_one, title)


def _roofline(rows: list[dict], device: str) -> Figure:
    """TFLOP/s over FLOP/byte, a panel for each pass."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    passes = _passes(rows)
    panels = figure.subplots(1, len(passes), sharex=True, sharey=True, squeeze=False)[0]
    for panel, which in zip(panels, passes):
        of_pass = [row for row in rows if row["pass"] == which]
        by_implementation = grouped(of_pass, "implementation")
        once = next(iter(by_implementation.values()))
        _points(panel, once, [row["tflops"] and row["speedup"] and row["tflops"] / row["speedup"] for row in once],
                color=LAX, marker="x", label="lax")  # fmt: skip
        for colour, ((implementation,), of_one) in zip(OURS, by_implementation.items()):
            _points(panel, of_one, [row["tflops"] for row in of_one], color=colour, marker="o", label=implementation)
        _ceiling(panel, rows[0], device)
        panel.set(xscale="log", yscale="log", title=which, xlabel="FLOP/byte")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("TFLOP/s")
    panels[-1].legend(loc="lower right", fontsize="small")
    figure.suptitle(f"{rows[0]['dtype']}, precision {rows[0]['precision']}, {device}")
    return figure


def _points(panel, rows: list[dict], tflops: list[float | None], **style) -> None:
    shown = [(row["flops_per_byte"], rate) for row, rate in zip(rows, tflops) if rate]
    panel.scatter(*zip(*shown) if shown else ((), ()), s=14, alpha=0.8, linewidths=1, **style)


def _ceiling(panel, row: dict, device: str) -> None:
    peaks = PEAKS[device]
    rate = peaks.rates[row["dtype"], row["precision"]]
    intensity = np.geomspace(0.3, 3e4, 200)
    panel.plot(intensity, np.minimum(rate, intensity * peaks.bandwidth) / 1e12, color="black", linewidth=1)


def _speed(rows: list[dict], title: str) -> Figure:
    """Bars to the right where jaxconv is faster: a line for each case, a panel for each pass."""
    by_suite = grouped(rows, "suite")
    cases = [(suite, case) for (suite,), of_suite in by_suite.items() for (case,) in grouped(of_suite, "case")]
    speeds = {(row["case"], row["pass"]): row["speedup"] for row in rows}
    figure = Figure(figsize=(WIDTH, 1.2 + 0.19 * len(cases)), layout="constrained")
    panels = figure.subplots(1, len(_passes(rows)), sharex=True, sharey=True, squeeze=False)[0]
    heights = np.arange(len(cases))
    for panel, which in zip(panels, _passes(rows)):
        values = np.array([speeds.get((case, which)) or np.nan for _, case in cases])
        colours = [FASTER if value >= 1 else SLOWER for value in values]
        panel.barh(heights, values - 1, left=1, color=colours)
        panel.axvline(1, color="black", linewidth=1)
        panel.set(xscale="log", title=which, xlabel="× lax")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        for boundary in _boundaries(suite for suite, _ in cases):
            panel.axhline(boundary, color=LAX, linewidth=0.5)
    panels[0].set_yticks(heights, [case for _, case in cases], fontsize="small")
    panels[0].set_ylim(len(cases) - 0.5, -0.5)
    figure.suptitle(title)
    return figure


def _bars(rows: list[dict], field: str, title: str) -> Figure:
    """Bars to the right where jaxconv is faster: a group for each value of the field, a bar for each pass."""
    named, passes = [name for (name,) in grouped(rows, field)], _passes(rows)
    speeds = {place: geomean_speedup(cell) or np.nan for place, cell in grouped(rows, field, "pass").items()}
    height = 1.15 + 0.56 * len(named)
    figure = Figure(figsize=(WIDTH, height))
    panel = figure.add_axes((0.25, 0.4 / height, 0.72, 1 - 1.15 / height))
    bar = 0.8 / len(passes)
    for place, which in enumerate(passes):
        values = np.array([speeds.get((name, which), np.nan) for name in named])
        heights = np.arange(len(named)) + (place - (len(passes) - 1) / 2) * bar
        bars = panel.barh(heights, values - 1, 0.9 * bar, left=1, color=BY_PASS[which], label=which)
        panel.bar_label(bars, [f"{value:.2f}×" for value in values], padding=3, fontsize="small")
    panel.axvline(1, color="black", linewidth=1)
    panel.margins(x=0.1)
    panel.set(xscale="log", ylim=(len(named) - 0.5, -0.5))
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter("{x:g}×")
    panel.minorticks_off()
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.set_yticks(range(len(named)), named)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(passes), frameon=False)
    figure.text(0.02, 1 - 0.3 / height, title, fontsize="large", fontweight="bold")
    return figure


def _distribution(ratios: dict[str, dict[str, list[float]]], title: str) -> Figure:
    figure = Figure(figsize=(WIDTH, 4), layout="constrained")
    panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False)[0]
    for panel, (name, by_pass) in zip(panels, ratios.items()):
        for which, values in by_pass.items():
            panel.ecdf(values, color=BY_PASS.get(which, "black"), label=which)
        panel.axvline(1, color="black", linewidth=1)
        panel.set(xscale="log", xlabel=name)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("share of rows")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1))
    panels[-1].legend(loc="lower right")
    figure.suptitle(title)
    return figure


def _boundaries(suites: Iterator[str]) -> np.ndarray:
    """Heights between the last case of a suite and the first of the next."""
    return np.cumsum([len(list(cases)) for _, cases in groupby(suites)])[:-1] - 0.5


def _passes(rows: list[dict]) -> list[str]:
    return [which for which in PASSES if any(row["pass"] == which for row in rows)]
