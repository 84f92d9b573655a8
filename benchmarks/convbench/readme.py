"""The part of the README that is made from the committed results, and their charts."""

import re
from pathlib import Path

from convbench import charts
from convbench.results import Results, grouped
from convbench.tables import case_table, mean_table

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
DEPTHWISE = ROOT / "docs" / "depthwise.svg"
FEW = 20  # rows, whose means would say little
BEGIN, END = "<!-- by `python -m benchmarks --readme` -->", "<!-- until here -->"


def write() -> None:
    """Draws the charts and rewrites the README."""
    for path in sorted(RESULTS.glob("*.json")):
        charts.draw(Results.load(path), RESULTS, path.stem)
    draw_depthwise(DEPTHWISE)
    README.write_text(rewritten(README.read_text()))


def draw_depthwise(path: Path) -> None:
    """The picture above the tables: each depthwise layer in bfloat16."""
    results = Results.load(RESULTS / "h200_channels.json")
    rows = grouped(results.rows, "suite", "dtype", "implementation")["depthwise", "bfloat16", "cuda"]
    title = f"Depthwise layers, bfloat16, {results.machine['device']}: times as fast as lax"
    charts.draw_cases(rows, title, path)


def rewritten(readme: str) -> str:
    """A README's text with the results between the two marks."""
    sections = "\n\n".join(section(path) for path in sorted(RESULTS.glob("*.json")))
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{sections}\n\n{END}", readme, flags=re.DOTALL)


def section(path: Path) -> str:
    """Markdown: what a file of results holds, and its charts."""
    results = Results.load(path)
    groups = grouped(results.rows, "dtype", "precision", "implementation")
    tables = [_tables(rows, *group) for group, rows in groups.items()]
    pictures = [_picture(path.with_name(name)) for name in charts.names(results, path.stem)]
    charts_apart = _details("Charts", "\n\n".join(pictures))
    return "\n\n".join((f"### {results.machine['device']}", _origin(results.machine, path), *tables, charts_apart))


def _origin(machine: dict, path: Path) -> str:
    cores = f"{machine['cores']} cores, " if "cores" in machine else ""
    return (
        f"{cores}jax {machine['jax']}, {machine['date']}, commit {machine['commit']}. All numbers are in\n"
        f"[{path.name}]({path.relative_to(ROOT).as_posix()})."
    )


def _tables(rows: list[dict], dtype: str, precision: str, implementation: str) -> str:
    arithmetic = dtype if precision == "default" else f"{dtype}, precision {precision}"
    title = f"**{implementation}, {arithmetic}**"
    if len(grouped(rows, "suite")) == 1 or len(rows) <= FEW:
        return f"{title}: time, and how many times as fast as lax\n\n{case_table(rows)}"
    return f"{title}: how many times as fast as lax, geometric mean of a suite\n\n{mean_table(rows)}\n\n" + _details(
        "Each layer", case_table(rows)
    )


def _picture(path: Path) -> str:
    return f"![{path.stem.replace('_', ' ')}]({path.relative_to(ROOT).as_posix()})"


def _details(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
