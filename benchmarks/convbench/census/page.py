"""What docs/performance/census.md says of the committed censuses, in Markdown, and its charts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from convbench import charts
from convbench.cases import Case
from convbench.census import default, report
from convbench.census.draw import draw as drawn_layers
from convbench.results import Results
from convbench.rows import grouped
from convbench.tables import arithmetic_of, runs
from jaxconv.planner.devices import MODELS
from jaxconv.planner.xla import AHEAD

MEASURED = Path(__file__).parents[2] / "census"
ROWS, SEEDS = 600, (0, 1)  # of the censuses that may be there
WORST = 10  # clusters that are shown
PIPE = "pipe"  # tabulate's name for Markdown

INTRODUCTION = f"""\
The census compares our kernels with lax on hundreds of layers and passes of many kinds of networks. They are drawn at
random from templates, with a fixed seed, so they are the same each time. Both sides run in one process, on the same
arrays, and our kernels are forced. [CONTRIBUTING](../../CONTRIBUTING.md#the-census) says how to measure it,
[performance](README.md#how-it-is-measured) what is timed and what the floor is.

- **ours**: our kernels, forced.
- **default**: `implementation=None`, which takes lax for [some layers](../usage.md#where-lax-is-the-default). There it
  is as fast as lax. Which layers these are is what the planner says today.
- **by lax**: rows that lax takes by default. **rightly**: those of them in which our kernel is more than
  {100 * (AHEAD - 1):.0f} % slower. **ours slower**: all rows in which it is.
- **>= {report.REACHED[0]}**: the share of rows that have so much of lax's speed, or more.
- **{report.PERCENTILES[0]} %** to **{report.PERCENTILES[-1]} %**: percentiles. 0 % is the least, 50 % the median.
- float32 is computed as tf32, unless a precision is named.
- **seed 1**: a second draw. No number of our kernels was fitted to its rows, only lax's."""


class Census(NamedTuple):
    """The rows of a file of one dtype and precision. A file of another seed has a name that ends so: `_seed_1`."""

    stem: str
    gpu: str
    rows: list[dict]

    @property
    def title(self) -> str:
        _, _, seed = self.stem.partition("_seed_")
        return ", ".join([self.gpu, arithmetic_of(self.rows[0]), *([f"seed {seed}"] if seed else [])])

    @property
    def chart(self) -> str:
        """The name of its file."""
        return f"{self.stem}_census_{arithmetic_of(self.rows[0]).replace(' ', '_')}.svg"


def layers() -> list[Case]:
    """All that the committed files may have."""
    return [case for seed in SEEDS for case, _ in drawn_layers(ROWS, seed)]


def committed() -> list[Census]:
    files = {path.stem: Results.load(path) for path in sorted(MEASURED.glob("*.json"))}
    return [
        Census(stem, results.machine["device"], rows)
        for stem, results in files.items()
        for _, rows in sorted(grouped(results.rows, "dtype", "precision").items())
    ]


def draw(folder: Path) -> None:
    """Writes the charts of the page."""
    for census in committed():
        draw_rows(census.rows, census.gpu, folder / census.chart)


def draw_rows(rows: Sequence[dict], gpu: str, path: Path) -> None:
    """Writes an SVG file: how the ratios of rows of one dtype and precision are distributed."""
    title = f"{len(rows)} layers and passes, {arithmetic_of(rows[0])}, {gpu}"
    charts.draw_distribution(report.distributions(rows), title, path)


def text(folder: str) -> str:
    """The page, but its title. folder: of the charts, as a link."""
    every = layers()
    return "\n\n".join([INTRODUCTION, *(section(census, every, folder) for census in committed())])


def section(census: Census, every: Sequence[Case], folder: str) -> str:
    """Markdown. every: layers, among them those of the rows."""
    rows = census.rows
    percentiles = [
        f"{title.capitalize()}, percentiles:\n\n{report.percentiles(by_pass, PIPE)}"
        for title, by_pass in report.distributions(rows).items()
    ]
    parts = (
        f"## {census.title}",
        f"{len(rows)} rows, {runs(rows)}.",
        f"![The census: {census.title}]({folder}/{census.chart})",
        default.table(rows, every, MODELS[census.gpu], PIPE) if census.gpu in MODELS else "",
        *percentiles,
        f"The {WORST} worst pairs of a template and a pass, of {report.OF_A_CLUSTER} rows or more:\n\n"
        f"{report.clusters(rows, WORST, PIPE)}",
        "\n".join(f"- {error}" for error in report.errors(rows)),
    )
    return "\n\n".join(part for part in parts if part)
