"""docs/numerics.md, whose tables are written by the modules that measure them."""

from cases.files import ROOT

PAGE = ROOT / "docs" / "numerics.md"


def write_table(module, text):
    """Replaces a module's table, where there is a page: not beside installed tests."""
    begin, end = f"<!-- by `python -m {module}`, in tests/ -->", "<!-- until here -->"
    if PAGE.exists():
        before, _, rest = PAGE.read_text().partition(begin)
        PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")
