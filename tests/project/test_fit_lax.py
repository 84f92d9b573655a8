"""What the planner expects of lax: that it is fitted to what was measured."""

import json

import pytest

from cases.machines import MACHINE
from convbench import cases
from convbench.command import main
from convbench.rows import RowFile
from convbench.tuning import data_files
from convbench.tuning.lax import fit_kinds, known, text
from jaxconv.planner.devices import COSTS, TYPICAL_DEVICE
from jaxconv.planner.xla import Constants, constants_of

CASES = [case for case in cases.load() if case.suite in ("resnet50", "latency")]
TRUE = Constants(3e-6, 6e14, 3.5e12, 2e13, 9e-8, least_flops=0, ours_seconds=2e-6, error=1)


def row(case, which, us=1.0, lax_us=1.0, implementation="cuda"):
    arithmetic = {"dtype": "bfloat16", "precision": "default"}
    return {"case": case.name, "pass": which, "implementation": implementation, "us": us, "lax_us": lax_us} | arithmetic


ROWS = [row(case, which) for case in CASES for which in ("fprop", "dgrad")]


@pytest.fixture(scope="module")
def measured():
    """Rows of kinds that lax may be taken for, with the times of a lax that is as TRUE says."""
    rows = known(ROWS, CASES, TYPICAL_DEVICE)
    for each in rows:
        each.row.update(us=1e6 * (each.ours + TRUE.ours_seconds), lax_us=1e6 * each.work.seconds(TRUE))
    return rows


def test_rows_of_kinds_that_lax_may_be_taken_for(measured):
    assert {each.kind for each in measured} == {"1x1 fprop", "1x1 dgrad", "window"}
    assert 0 < len(measured) < len(ROWS)
    case = CASES[1]
    assert not known([row(case, "fprop", us=None), row(case, "fprop", implementation="mma")], CASES, TYPICAL_DEVICE)


def test_known_times_are_recovered(measured):
    for kind, constants in fit_kinds(measured).items():
        of_kind = [each for each in measured if each.kind == kind]
        for each in of_kind:
            assert each.work.seconds(constants) == pytest.approx(each.work.seconds(TRUE), rel=0.08)
        assert constants.ours_seconds == pytest.approx(TRUE.ours_seconds, rel=0.02)
        assert 1 <= constants.error < 1.05
        assert constants.least_flops == min(each.work.flops for each in of_kind)


def test_the_report_holds_layers_out(measured):
    said = text(measured, fit_kinds(measured))
    assert "held out" in said and all(name in said for name in ("1x1 dgrad", "window", *Constants._fields))


def test_write_changes_what_is_expected_of_lax_alone(measured, data, tmp_path, capsys):
    before, path = json.loads(data.read_text()), tmp_path / "rows.json"
    RowFile(MACHINE, [each.row for each in measured]).save(path)
    assert main(["fit-lax", str(path)]) == 0
    assert json.loads(data.read_text()) == before
    assert main(["fit-lax", str(path), "--write"]) == 0
    after = json.loads(data.read_text())
    assert after.pop("lax") != before.pop("lax") and after == before
    assert data_files.record("h200", "lax")["kinds"].keys() >= {"window"}
    assert "1x1 fprop" in capsys.readouterr().out


def test_kinds_without_rows_keep_their_numbers(measured, data, tmp_path):
    path = tmp_path / "rows.json"
    for kinds in ({"window"}, {"1x1 fprop"}):
        RowFile(MACHINE, [each.row for each in measured if each.kind in kinds]).save(path)
        assert main(["fit-lax", str(path), "--write"]) == 0
    assert data_files.record("h200", "lax")["kinds"].keys() == {"window", "1x1 fprop"}
    assert "1x1 wgrad error" in json.loads(data.read_text())["lax"]


def test_the_planner_has_what_was_fitted():
    names = {name.partition(" begin")[0] for name in COSTS["h200"]["lax"] if name.endswith("begin_seconds")}
    for kind in names:
        assert 1 < constants_of(kind, TYPICAL_DEVICE).error < 1.3


@pytest.mark.parametrize("gpu, case, message", [
    ("nonsense", CASES[0].name, "unknown: nonsense"), (MACHINE["device"], "nonsense", "unknown: nonsense"),
    ("NVIDIA A100-SXM4-80GB", CASES[0].name, "of NVIDIA H200, the rows of NVIDIA A100"),
])  # fmt: skip
def test_other_gpus_and_unknown_layers(gpu, case, message, data, tmp_path):
    path = tmp_path / "rows.json"
    RowFile(MACHINE | {"device": gpu}, [ROWS[0] | {"case": case}]).save(path)
    with pytest.raises(SystemExit, match=message):
        main(["fit-lax", str(path), "--write"])
