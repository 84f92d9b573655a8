"""What commands of forward passes share: rows of a file, which take the place of older ones."""

from types import SimpleNamespace

from convbench.forward import measure_all
from convbench.rows import RowFile


def test_rows_replace_those_of_their_key(tmp_path, capsys):
    options = SimpleNamespace(out=tmp_path / "rows.json", commit="now", seconds=0.5)
    cases = [SimpleNamespace(name=name) for name in ("one", "two")]

    def measure_as(us, error=None):
        def measure(case, dtype, seconds):
            return {"case": case.name, "dtype": dtype, "us": us, "seconds": seconds, "error": error}

        return measure

    run = lambda every, measure: measure_all(
        options, every, measure, ("case", "dtype"), lambda rows: f"{len(rows)} rows"
    )
    assert run([(case, "int8") for case in cases], measure_as(1)) == 0
    assert run([(cases[0], "int8"), (cases[0], "float32")], measure_as(2, "failed")) == 1
    assert capsys.readouterr().out == "2 rows\n3 rows\n"
    rows = RowFile.load(options.out).rows
    assert [(row["case"], row["dtype"], row["us"], row["commit"]) for row in rows] == [
        ("two", "int8", 1, "now"), ("one", "int8", 2, "now"), ("one", "float32", 2, "now"),
    ]  # fmt: skip
