"""The pages and pictures that are made from the committed results.

README.md, docs/performance/README.md and networks.md: a part between two marks; docs/results.md, and census.md and
inference.md of docs/performance: all of them, and their pictures; pictures of README.md and depthwise.md.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tabulate import tabulate

from convbench import calls, charts, endings, folded, narrow
from convbench.census import page as census
from convbench.clients.rows import RESULTS as NETWORK_RESULTS
from convbench.clients.tables import markdown
from convbench.programs import PASSES
from convbench.results import RESULTS, Results, geomean_speedup
from convbench.rows import RowFile, grouped
from convbench.tables import case_table, mean_table, runs

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "results.md"
INFERENCE = ROOT / "docs" / "performance" / "inference.md"
CENSUS = ROOT / "docs" / "performance" / "census.md"
NETWORKS = ROOT / "docs" / "performance" / "networks.md"
PERFORMANCE = ROOT / "docs" / "performance" / "README.md"
CHARTS = ROOT / "docs" / "results"
SPEED = ROOT / "docs" / "speed.svg"
DEPTHWISE = ROOT / "docs" / "performance" / "depthwise.svg"
BEGIN, END = "<!-- by `python -m benchmarks --docs` -->", "<!-- until here -->"

# What a suite is, for whoever has not seen its layers.
SUITES = {
    "seed": "one 3x3 layer, 14x14, 256 to 512 channels",
    "resnet50": "the layers of ResNet-50, 128 images",
    "vgg": "large dense 3x3 layers",
    "sd": "the layers of Stable Diffusion",
    "depthwise": "ConvNeXt, MobileNet, EfficientNet, RepLKNet (31x31), Mamba, Conformer",
    "grouped": "ResNeXt, RegNet, a dilated one",
    "dilated": "dense, dilated by 6 and 18, 2048 channels",
    "latency": "ResNet-50, one image",
    "odd": "sizes that are not multiples of anything; 1x7",
    "transposed": "transposed, 2-D and 3-D",
    "conv3d": "3-D networks",
    "conv1d": "speech networks",
    "patchify": "a 16x16 patch embedding",
    "host": "small layers of all kinds",
}
# The columns of the README's table: the file of a machine, dtype, precision and implementation.
H200, HOST = "nvidia_h200", "amd_epyc_2cores"
SUMMARY = {
    "bfloat16": (H200, "bfloat16", "default", "cuda"),
    "float16": (H200, "float16", "default", "cuda"),
    "float32 as tf32": (H200, "float32", "default", "cuda"),
    "float32 `HIGHEST`": (H200, "float32", "highest", "cuda"),
    "float32 on a CPU": (HOST, "float32", "default", "cpu"),
}

# What the page of all results begins with.
HEAD = f"""# Results

{BEGIN}

This page shows every row of the files in `benchmarks/results/`, one for each machine. A number with `×` says how many
times as fast as lax a layer is. Means are geometric. Both sides ran in one process, on the same arrays,
and our kernels were forced. [performance](performance/README.md) explains the numbers."""

# What the page of inference has, by the folder of its rows.
MEASURED_FORWARD = {
    "folded": (
        """## ResNet-50, its normalisation folded into the convolutions

All kernels of an inference. Scale, bias, residual and relu are in our kernels, and filters of one byte are prepared
before. `lax` is the network as it is written, `lax folded` has the scale in the filter.""",
        folded.table,
    ),
    "epilogue": (
        """## Layers with an epilogue

Each ends in our kernel, or all gradients are computed besides. XLA compiles the same expression on lax's convolution,
and fuses what it likes.""",
        endings.table,
    ),
    "narrow": (
        """## Layers of int8 and float8

Filters are prepared before. "x bfloat16" is the speed against our own bfloat16. "as given" is the same with filters
that each call converts. "x lax" is the speed against lax in the same type: lax has no int8 on a GPU.""",
        narrow.table,
    ),
}


def write() -> None:
    """Draws the charts and rewrites the pages."""
    CHARTS.mkdir(exist_ok=True)
    for stem, results in committed().items():
        charts.draw(results, CHARTS, stem)
    draw_speed(SPEED)
    draw_depthwise(DEPTHWISE)
    README.write_text(rewritten(README.read_text(), summary(committed())))
    NETWORKS.write_text(rewritten(NETWORKS.read_text(), networks()))
    PERFORMANCE.write_text(rewritten(PERFORMANCE.read_text(), cost_of_calls()))
    PAGE.write_text(page())
    census.draw(CHARTS)
    CENSUS.write_text(census_page())
    INFERENCE.write_text(inference_page())


def committed() -> dict[str, Results]:
    """By the stem of the file's name."""
    return {path.stem: Results.load(path) for path in sorted(RESULTS.glob("*.json"))}


def draw_speed(path: Path) -> None:
    """The README's picture: each suite in bfloat16."""
    title = "bfloat16 on an NVIDIA H200: times as fast as lax, by suite"
    charts.draw_bars(_drawn(), "suite", title, path)


def draw_depthwise(path: Path) -> None:
    """Each depthwise layer in bfloat16."""
    rows = [row for row in _drawn() if row["suite"] == "depthwise"]
    charts.draw_bars(rows, "case", "Depthwise layers, bfloat16, NVIDIA H200: times as fast as lax", path)


def _drawn() -> list[dict]:
    return _group(committed(), SUMMARY["bfloat16"])


def _group(machines: dict[str, Results], group: tuple[str, ...]) -> list[dict]:
    machine, *arithmetic = group
    rows = machines[machine].rows if machine in machines else []
    return grouped(rows, "dtype", "precision", "implementation").get(tuple(arithmetic), [])


def rewritten(page: str, part: str) -> str:
    """A page's text with a part between the two marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{part}\n\n{END}", page, flags=re.DOTALL)


def networks() -> str:
    """Markdown: what is measured of whole networks, by machine."""
    sections = [
        f"## {of.machine['device']}\n\n{len(of.rows)} rows, {runs(of.rows)}.\n\n{markdown(of.rows)}"
        for of in _machines(NETWORK_RESULTS)
    ]
    return "\n\n".join(sections) or "Nothing is measured yet."


def cost_of_calls() -> str:
    """Markdown: what calls cost besides their kernels, by machine."""
    return _tables_of_machines(calls.RESULTS, calls.table)


def _tables_of_machines(folder: Path, table: Callable[[list[dict]], str]) -> str:
    return "\n\n".join(f"{_name(of.machine)}, {runs(of.rows)}:\n\n{table(of.rows)}" for of in _machines(folder))


def _machines(folder: Path) -> list[RowFile]:
    return [RowFile.load(path) for path in sorted(folder.glob("*.json"))]


def summary(machines: dict[str, Results]) -> str:
    """Markdown: a line for each suite, the geometric means of its passes."""
    columns = {title: _group(machines, group) for title, group in SUMMARY.items()}
    lines = [
        (f"`{suite}`", layers, *(_means(rows, suite) for rows in columns.values())) for suite, layers in SUITES.items()
    ]
    measured = [line for line in lines if any(line[2:])]
    return tabulate(measured, ("suite", "layers", *columns), tablefmt="pipe", disable_numparse=True)


def _means(rows: list[dict], suite: str) -> str:
    """The speeds of fprop, dgrad and wgrad against lax; in bold where lax is faster."""
    of_suite = [row for row in rows if row["suite"] == suite]
    if not of_suite:
        return ""
    means = [geomean_speedup(row for row in of_suite if row["pass"] == which) for which in PASSES]
    return ", ".join("–" if mean is None else f"{mean:.2f}" if mean >= 0.995 else f"**{mean:.2f}**" for mean in means)


def page() -> str:
    """The page of all results, in Markdown."""
    return "\n\n".join([HEAD, *(section(stem, results) for stem, results in committed().items())]) + "\n"


def census_page() -> str:
    """The page of the census, in Markdown."""
    return f"# The census\n\n{BEGIN}\n\n{census.text(f'../{CHARTS.name}')}\n"


def inference_page() -> str:
    """The page of epilogues and of types of one byte, in Markdown: a table for each machine."""
    parts = [f"# Inference: epilogues, int8 and float8\n\n{BEGIN}"]
    for name, (head, table) in MEASURED_FORWARD.items():
        parts += [head, _tables_of_machines(ROOT / "benchmarks" / name, partial(table, tablefmt="pipe"))]
    return "\n\n".join(parts) + "\n"


def section(stem: str, results: Results) -> str:
    """Markdown: what a file of results holds, and its charts."""
    groups = grouped(results.rows, "dtype", "precision", "implementation")
    tables = [_tables(rows, *group) for group, rows in groups.items()]
    pictures = [_picture(name) for name in charts.names(results, stem)]
    title = f"## {_name(results.machine)}"
    return "\n\n".join((title, f"{len(results.rows)} rows, {runs(results.rows)}.", *tables, "### Charts", *pictures))


def _name(machine: dict) -> str:
    cores = f", {machine['cores']} cores" if "cores" in machine else ""
    return f"{machine['device']}{cores}"


def _tables(rows: list[dict], dtype: str, precision: str, implementation: str) -> str:
    arithmetic = dtype if precision == "default" else f"{dtype}, precision {precision}"
    each = f"<details><summary>Each layer: time, and speed against lax</summary>\n\n{case_table(rows)}\n\n</details>"
    return f"### {implementation}, {arithmetic}\n\n{mean_table(rows)}\n\n{each}"


def _picture(name: str) -> str:
    return f"![{Path(name).stem.replace('_', ' ')}]({CHARTS.name}/{name})"
