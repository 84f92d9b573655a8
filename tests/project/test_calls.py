"""What a call costs besides its kernel: both sides compute the same, and every cost is a row."""

import jax
import numpy as np
import pytest
from jax import lax

import jaxconv
from convbench import calls
from convbench.calls import BARS, KEY, eager_calls, table, training_step
from convbench.command import main
from convbench.results import path_of
from convbench.rows import RowFile
from jaxconv.explain import answers

ROW = {"what": "a", "s": 0.5, "lax_s": 0.25, "ratio": 2.0}


@pytest.mark.parametrize("name", eager_calls())
def test_both_sides_are_the_same(name):
    call = eager_calls()[name]
    jax.tree.map(np.testing.assert_array_equal, call.ours(*call.operands), call.lax(*call.operands))


@pytest.mark.parametrize("of", [jaxconv, lax], ids=["jaxconv", "lax"])
def test_the_step_has_all_passes_of_each_layer(of):
    """But no gradient of the images. None is by lax if the layers have our function."""
    function, operands = training_step(of.conv_general_dilated)
    by = [answer.by for answer in answers(function, *operands)]
    assert len(by) == 3 * 53 - 1
    assert {one == "lax, as asked" for one in by} == {of is lax}


def test_table_has_what_is_promised():
    lines = table([ROW, *({**ROW, "what": what} for what in BARS)]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["a", "500.00 ms", "250.00 ms", "2.00", ""]
    assert {what: bar for what, *_, bar in cells[1:]} == BARS


def test_committed_files_have_what_is_promised():
    for path in calls.RESULTS.glob("*.json"):
        file = RowFile.load(path)
        assert path.name == path_of(file.machine).name
        assert BARS.keys() <= {row["what"] for row in file.rows}


@pytest.mark.full
def test_rows(tmp_path, capsys):
    """Timings are never wrong. A second run's rows take the place of the first's."""
    out = tmp_path / "calls.json"
    command = ["calls", "--rounds", "1", "--processes", "1", "--out", str(out)]
    for commit in ("abc", "def"):
        assert main([*command, "--commit", commit]) == 0
        rows, printed = RowFile.load(out).rows, capsys.readouterr().out
        assert len({row[KEY[0]] for row in rows}) == len(rows) == len(eager_calls()) + 6
        assert BARS.keys() <= {row["what"] for row in rows}
        for row in rows:
            assert row["what"] in printed and min(row["s"], row["lax_s"], row["ratio"]) > 0 and row["commit"] == commit
