"""Rows as text: for a terminal, and in Markdown."""

from collections.abc import Callable

from tabulate import tabulate

from convbench.programs import PASSES
from convbench.results import geomean_speedup
from convbench.rows import grouped

HEADER = ("case", "pass", "dtype", "implementation", "us", "TFLOP/s", "lax us", "x lax", "x floor", "compile s",
          "lax compile s")  # fmt: skip


def terminal(rows: list[dict]) -> str:
    """A line a row, then the geometric means, then the errors."""
    lines = [
        (row["case"], row["pass"], arithmetic_of(row), row["implementation"], row["us"], row["tflops"], row["lax_us"],
         row["speedup"], row["over_floor"], row["compile_s"], row["lax_compile_s"])
        for row in rows
    ]  # fmt: skip
    means = [
        (*group, geomean_speedup(of_group))
        for group, of_group in grouped(rows, "suite", "dtype", "precision", "implementation", "pass").items()
    ]
    errors = dict.fromkeys(
        f"{row['case']} {row['pass']} {arithmetic_of(row)} {side}: {error}"
        for row in rows
        for side, error in ((row["implementation"], row["error"]), ("lax", row["lax_error"]))
        if error
    )
    mean_header = ("suite", "dtype", "precision", "implementation", "pass", "x lax, geometric mean")
    parts = (
        tabulate(lines, HEADER, floatfmt=".4g", missingval="-"),
        tabulate(means, mean_header, floatfmt=".3g", missingval="-"),
        "\n".join(errors),
    )
    return "\n\n".join(part for part in parts if part)


def mean_table(rows: list[dict]) -> str:
    """Markdown: the geometric mean of the speed against lax, by suite and pass."""
    return _markdown("suite", _by_pass(rows, "suite", lambda cell: _times(geomean_speedup(cell))))


def case_table(rows: list[dict]) -> str:
    """Markdown: time and speed against lax, by case and pass, and the commits that were measured."""
    cells = _by_pass(rows, "case", lambda cell: _time_and_speed(cell[0]))
    for (case,), of_case in grouped(rows, "case").items():
        cells[case]["commit"] = ", ".join(dict.fromkeys(row["commit"] for row in of_case))
    return _markdown("case", cells)


def _by_pass(rows: list[dict], field: str, text: Callable[[list[dict]], str]) -> dict[str, dict[str, str]]:
    """The cells of a table: a line for each value of the field, a column for each pass."""
    cells = {name: {which: "" for which in PASSES} for (name,) in grouped(rows, field)}
    for (name, which), cell in grouped(rows, field, "pass").items():
        cells[name][which] = text(cell)
    return cells


def _markdown(field: str, cells: dict[str, dict[str, str]]) -> str:
    lines = [{field: name} | of_name for name, of_name in cells.items()]
    return tabulate(lines, "keys", tablefmt="github", disable_numparse=True)


def _time_and_speed(row: dict) -> str:
    if row["us"] is None:
        return "error"
    return f"{time_text(row['us'])}, {_times(row['speedup']) if row['speedup'] else 'lax refuses'}"


def time_text(us: float) -> str:
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.2f} ms"


def runs(rows: list[dict]) -> str:
    """Which commits the rows are of, and when they were measured."""
    found = sorted(grouped(rows, "date", "commit", "jax"))
    return "of " + "; ".join(f"commit {commit} ({date}, jax {jax})" for date, commit, jax in found)


def _times(factor: float | None) -> str:
    return f"{factor:.2f}×" if factor else ""


def arithmetic(dtype: str, precision: str) -> str:
    return dtype if precision == "default" else f"{dtype} {precision}"


def arithmetic_of(row: dict) -> str:
    return arithmetic(row["dtype"], row["precision"])
