"""Rows as text: for a terminal, and in Markdown."""

from collections.abc import Callable

from tabulate import tabulate

from convbench.clients.reports import REPORTS

ISSUES = "https://github.com/jax-ml/jax/issues/"
# By title. Counts of convolutions are those in our compiled text.
COLUMNS: dict[str, Callable[[dict], object]] = {
    "ms": lambda row: _number(row["ms"]),
    "lax ms": lambda row: _number(row["lax_ms"]),
    "x lax": lambda row: row["speedup"] and f"{row['speedup']:.2f}",
    "queued ms": lambda row: _number(row.get("queued_ms")),
    "lax queued ms": lambda row: _number(row.get("lax_queued_ms")),
    "compile s": lambda row: _number(row["compile_s"]),
    "lax compile s": lambda row: _number(row["lax_compile_s"]),
    "convolutions": lambda row: row["ours"],
    "not ours": lambda row: row["others"],
    "difference": lambda row: None if row["difference"] is None else f"{row['difference']:.0e}",
}
PROGRAM: dict[str, Callable[[dict], object]] = {
    name: lambda row, name=name: row[name] for name in ("pass", "dtype", "implementation")
}


def terminal(rows: list[dict]) -> str:
    """A line a row, and notes."""
    return _with_notes(_table({"program": lambda row: row["name"]} | PROGRAM | COLUMNS, rows, "simple"), rows)


def markdown(rows: list[dict]) -> str:
    """Networks, reports, and notes."""
    network: dict[str, Callable[[dict], object]] = {"network": lambda row: f"`{row['name']}`"}
    report: dict[str, Callable[[dict], object]] = {
        "issue": _link,
        "what was reported": lambda row: REPORTS[row["name"]].what,
    }
    parts = (
        (network | PROGRAM | COLUMNS, [row for row in rows if row["name"] not in REPORTS]),
        (report | COLUMNS, [row for row in rows if row["name"] in REPORTS]),
    )
    tables = [_table(columns, of_part, "pipe") for columns, of_part in parts if of_part]
    return _with_notes("\n\n".join(tables), rows)


def _table(columns: dict[str, Callable[[dict], object]], rows: list[dict], format: str) -> str:
    """Without the columns that no row has a number for."""
    cells = {title: [column(row) for row in rows] for title, column in columns.items()}
    known = {title: of for title, of in cells.items() if any(cell is not None for cell in of)}
    return tabulate(known, "keys", tablefmt=format, missingval="–", disable_numparse=True)


def _with_notes(table: str, rows: list[dict]) -> str:
    notes = [f"- {row['name']}, {row['pass']}, {row['dtype']}: {note}" for row in rows for note in _notes(row)]
    return "\n\n".join(part for part in (table, "\n".join(notes)) if part)


def _notes(row: dict) -> list[str]:
    """Why convolutions are not ours, and why there is no time."""
    errors = (row["implementation"], row["error"]), ("lax", row["lax_error"])
    return [f"not ours: {why}" for why in row["reasons"]] + [f"{side}: {error}" for side, error in errors if error]


def _number(number: float | None) -> str | None:
    return None if number is None else f"{number:#.3g}".rstrip(".")


def _link(row: dict) -> str:
    return f"[{row['name']}]({ISSUES}{row['name'].partition('#')[2]})"
