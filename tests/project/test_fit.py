"""The planner's costs: which kernels are measured for them, and that they are fitted to what was measured."""

import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from cases.machines import MACHINE
from cases.tiles import CONVS_ALONE
from convbench import cases
from convbench.command import main
from convbench.measure import Timing
from convbench.programs import PASSES, problem_of, program
from convbench.rows import RowFile, grouped
from convbench.tuning import data_files, report, sample
from convbench.tuning.candidates import candidates, likely, others
from convbench.tuning.fit import FIXED, fit
from convbench.tuning.predictions import log_seconds, measured, trial
from jaxconv import conv_general_dilated
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import COSTS, OWN_COSTS, TYPICAL_DEVICE
from jaxconv.planner.families import FAMILIES

NAMES = ["seed_cudnn_14x14", "rn50_28_3x3_128", "rn50_56_1x1_64_256", "rn50_7_1x1_512_2048"]
CASES = [case for case in cases.load() if case.name in NAMES]
COMMAND = ["--cases", *NAMES, "--families", "mma", "--passes", "fprop", "wgrad", "--random", "12", "--commit", "abc"]

# Layers whose kernels are of all families, and depend on the device's numbers: groups, a gather, and split reductions.
OF_DEVICE = ["host_g2_28_128", "host_7x7s2_112_3_64", "rn50_7_1x1_512_2048", "convnext_7_dw7_1024", "host_dw3_56_128"]
FAMILIES_OF_DEVICE = list(FAMILIES["cuda"])


@pytest.fixture
def gpu(an_h200, monkeypatch):
    """On a machine that seems to have a GPU, each kernel takes a microsecond. Its calls are listed."""
    calls = []

    def timed(side, operands, budget_s, ours):
        calls.append(side)
        return Timing(us=1.0)

    monkeypatch.setattr(sample, "timed", timed)
    return calls


@pytest.fixture
def samples(gpu, tmp_path):
    """A file with the rows of COMMAND."""
    path = tmp_path / "samples.json"
    assert main(["sample", "--out", str(path), *COMMAND]) == 0
    return path


def as_if(rows, costs):
    """Rows with the times that a planner with these costs says."""
    known = measured(rows, cases.load(), TYPICAL_DEVICE)
    assert len(known) == len(rows)
    with trial(TYPICAL_DEVICE, costs) as device:
        return [each.row | {"us": 1e6 * each.seconds(device)} for each in known]


def changed(family, **factors):
    return {family: {name: value * factors.get(name, 1) for name, value in COSTS["h200"][family].items()}}


@pytest.mark.parametrize("which", PASSES)
def test_the_planners_choice_is_a_candidate(which):
    for case in CASES:
        kind, problem = problem_of(program(case, which, "bfloat16", "default", conv_general_dilated))
        every = candidates(kind, problem, FAMILIES["cuda"], TYPICAL_DEVICE)
        choice = choose("cuda", kind, problem)
        assert every == sorted(every, key=lambda candidate: candidate.seconds)
        assert every[0].seconds <= choice.cost
        assert any(math.isclose(candidate.seconds, choice.cost) for candidate in every)
        for constraint, seconds in every[:: len(every) // 8]:
            assert choose("cuda", kind, problem, constraint).cost == pytest.approx(seconds)


def test_likely_are_the_cheapest_of_each_tile():
    kind, problem = problem_of(program(CASES[0], "wgrad", "bfloat16", "default", conv_general_dilated))
    every = candidates(kind, problem, FAMILIES["cuda"], TYPICAL_DEVICE)
    some = likely(every, for_each=2, within=2)
    assert len(set(some)) == len(some)
    assert every[0] in some
    assert all(candidate.seconds <= 2 * every[0].seconds for candidate in some)
    tiles = [(c.constraint.family, c.constraint.tile, c.constraint.transform) for c in some]
    assert {tiles.count(tile) for tile in tiles} <= {1, 2}
    rest = others(every, some, 7)
    assert rest == others(every, some, 7) and len(set(rest)) == 7 and not set(rest) & set(some)
    assert any(candidate.seconds > 2 * every[0].seconds for candidate in rest)


def test_cheapest_and_random_of_all_and_the_fastest_again(gpu, tmp_path, monkeypatch):
    """The three fastest of a pass get another time, which is shorter here."""
    path, budgets = tmp_path / "samples.json", []

    def timed(side, operands, budget_s, ours):
        budgets.append(budget_s)
        gpu.append(side)
        return Timing(us=float(len(gpu) % 35 + 10) if budget_s < 0.1 else 1.0)

    monkeypatch.setattr(sample, "timed", timed)
    command = ["--cases", *NAMES, "--passes", "fprop", "wgrad", "--cheapest", "16", "--random", "16", "--again", "3"]
    assert main(["sample", "--out", str(path), *command]) == 0
    rows, passes = RowFile.load(path).rows, 2 * len(NAMES)
    assert len(rows) == passes * 32 and len(gpu) == passes * 35
    assert budgets == passes * [*[0.02] * 32, *[pytest.approx(0.1)] * 3]
    for place in range(0, len(rows), 32):
        first = [float((1 + i + place // 32 * 35) % 35 + 10) for i in range(32)]
        fastest = sorted(range(32), key=first.__getitem__)[:3]
        assert [row["us"] for row in rows[place : place + 32]] == [1.0 if i in fastest else first[i] for i in range(32)]
    for case in CASES:
        predicted = [row["predicted_us"] for row in rows if (row["case"], row["pass"]) == (case.name, "fprop")]
        assert predicted[:16] == sorted(predicted)[:16]


def test_rows_are_not_measured_twice(samples, gpu):
    before = samples.read_text()
    rows = RowFile.load(samples).rows
    assert len(gpu) == len(rows) == len({sample.key(row) for row in rows})
    assert {row["case"] for row in rows} == set(NAMES)
    assert {row["commit"] for row in rows} == {"abc"}
    assert main(["sample", "--out", str(samples), *COMMAND]) == 0
    assert samples.read_text() == before and len(gpu) == len(rows)
    RowFile(MACHINE, rows[5:]).save(samples)
    assert main(["sample", "--out", str(samples), *COMMAND]) == 0
    assert len(gpu) == len(rows) + 5
    assert {sample.key(row) for row in RowFile.load(samples).rows} == {sample.key(row) for row in rows}


def test_nothing_begins_after_the_limit(gpu, tmp_path):
    assert main(["sample", "--out", str(tmp_path / "none.json"), *COMMAND, "--seconds-limit", "0"]) == 0
    assert not gpu


def test_known_costs_are_recovered(samples):
    true = changed("mma", **{"bandwidth": 0.8, "fill": 1.5, "conv 128x128x64 wgmma": 0.8,
                             "conv 256x128x64 wgmma": 1.2, "wgrad 128x128x64 wgmma": 0.7})  # fmt: skip
    rows = measured(as_if(RowFile.load(samples).rows, true), CASES, TYPICAL_DEVICE)
    fitted = fit(["mma"], rows, TYPICAL_DEVICE)["mma"]
    assert fitted == pytest.approx(true["mma"], rel=0.02)
    with trial(TYPICAL_DEVICE, {"mma": fitted}) as device:
        after = report.quality(rows, log_seconds(rows, device))
    before = report.quality(rows, log_seconds(rows, TYPICAL_DEVICE))
    assert after.error < 1.01 and before.error > 1.1


@pytest.fixture
def samples_of_device(gpu, tmp_path):
    """A file with rows of OF_DEVICE, and the device's numbers that they are made of."""
    path = tmp_path / "of_device.json"
    command = ["--cases", *OF_DEVICE, "--random", "24", "--commit", "abc"]
    assert main(["sample", "--out", str(path), *command]) == 0
    true = changed(OWN_COSTS, launch_seconds=0.7, next_kernel_seconds=1.5, next_group_seconds=1.4,
                   gather_copies_of_byte=1.2)  # fmt: skip
    RowFile(MACHINE, as_if(RowFile.load(path).rows, true)).save(path)
    return path, true[OWN_COSTS]


@pytest.mark.full  # the same of a family is quick
def test_the_devices_numbers_are_recovered(samples_of_device, data):
    """Together with those of families that could say a part of the same: what a kernel takes to begin, say."""
    path, true = samples_of_device
    before = json.loads(data.read_text())
    assert main(["fit", str(path), "--device", "--write"]) == 0
    after = json.loads(data.read_text())
    assert list(after) == list(before)
    assert after[OWN_COSTS] == pytest.approx(true, rel=0.02)
    assert all(after[OWN_COSTS][name] == true[name] for name in FIXED & true.keys())
    for family in FAMILIES_OF_DEVICE:
        assert after[family] == pytest.approx(before[family], rel=0.02)
    record = json.loads((data_files.FITS / "h200.json").read_text())
    assert record.keys() == {OWN_COSTS, *FAMILIES_OF_DEVICE}
    assert record[OWN_COSTS]["passes"]["wgrad"]["error"] < 1.01
    assert record[OWN_COSTS]["passes"]["wgrad"]["rows"] == sum(
        record[family]["passes"]["wgrad"]["rows"] for family in FAMILIES_OF_DEVICE if family not in CONVS_ALONE
    )


def test_the_devices_numbers_are_of_all_families(samples_of_device, data):
    path, _ = samples_of_device
    before = json.loads(data.read_text())
    with pytest.raises(SystemExit):
        main(["fit", str(path), "--device", "--families", "direct", "--write"])
    assert json.loads(data.read_text()) == before
    assert main(["fit", str(path), "--families", "direct", "--write"]) == 0
    after = json.loads(data.read_text())
    assert [section for section in before if after[section] != before[section]] == ["direct"]


def test_the_devices_numbers_are_not_written_for_some_families(samples_of_device, data, capsys):
    path, _ = samples_of_device
    before, missing = data.read_text(), "no rows of families that share the device's numbers: simt depthwise"
    some = [row for row in RowFile.load(path).rows if row["family"] not in ("simt", "depthwise")]
    RowFile(MACHINE, some).save(path)
    with pytest.raises(SystemExit) as refused:
        main(["fit", str(path), "--device", "--write"])
    assert missing in str(refused.value)
    assert f"benchmarks sample --out {path} --families simt depthwise" in str(refused.value)
    assert data.read_text() == before and not data_files.FITS.exists()
    assert main(["fit", str(path), "--device", "--keep"]) == 0
    assert f"warning: {missing}\n" in capsys.readouterr().out


def test_a_device_without_wgmma_needs_no_rows_of_it(samples_of_device, capsys):
    path, _ = samples_of_device
    RowFile(MACHINE | {"device": "NVIDIA A100-SXM4-80GB"}, RowFile.load(path).rows).save(path)
    assert main(["fit", str(path), "--device", "--keep"]) == 0
    assert "warning" not in capsys.readouterr().out


def test_numbers_without_rows_stay(samples):
    """The times of one tile say nothing of others, nor of the other pass, nor of other types."""
    rows = [row for row in RowFile.load(samples).rows if (row["tile"], row["pass"]) == ("128x128x64 wgmma", "fprop")]
    noise = np.random.default_rng(0).lognormal(sigma=0.3, size=len(rows))
    noisy = [row | {"us": row["predicted_us"] * by} for row, by in zip(rows, noise)]
    known = measured(noisy, CASES, TYPICAL_DEVICE)
    before, fitted = COSTS["h200"]["mma"], fit(["mma"], known, TYPICAL_DEVICE)["mma"]
    moved = {name for name in before if fitted[name] != before[name]}
    assert "conv 128x128x64 wgmma" in moved
    assert moved <= {"conv 128x128x64 wgmma", "bandwidth", "fill", "slice_seconds"}
    assert all(fitted[name] == float(f"{fitted[name]:.3g}") for name in moved)


def test_trials_leave_no_costs_behind(samples):
    names = set(COSTS)
    rows = measured(RowFile.load(samples).rows[:3], CASES, TYPICAL_DEVICE)
    with trial(TYPICAL_DEVICE, changed("mma", fill=2)) as device:
        assert not np.array_equal(log_seconds(rows, device), log_seconds(rows, TYPICAL_DEVICE))
    assert set(COSTS) == names


def test_predictions_are_those_of_the_planner(samples):
    rows = RowFile.load(samples).rows
    known = measured(rows, CASES, TYPICAL_DEVICE)
    assert [each.seconds(TYPICAL_DEVICE) * 1e6 for each in known] == pytest.approx(
        [row["predicted_us"] for row in rows], rel=1e-3
    )


def test_kernels_that_are_gone_are_left_out(samples):
    first, *others = RowFile.load(samples).rows
    gone = [first | {"tile": "1x1x1"}, first | {"transform": "magic"}, first | {"us": None}]
    assert len(measured(gone, CASES, TYPICAL_DEVICE)) == 0
    assert len(measured([*gone, *others], CASES, TYPICAL_DEVICE)) == len(others)


def row(case, us, which="fprop", family="a"):
    row = {"case": case, "pass": which, "dtype": "bfloat16", "precision": "default", "family": family, "tile": "t"}
    return SimpleNamespace(row=row | {"transform": "", "settings": {"split": 2}, "us": us})


def test_choice_is_compared_with_the_fastest():
    rows = [row("x", 1.0), row("x", 2.0), row("y", 4.0), row("y", 3.0), row("y", 5.0, "wgrad", family="b")]
    logs = np.log([1e-6 * us for us in (1.0, 2.2, 2.0, 3.0, 5.0)])
    fprop, wgrad = report.quality(rows[:4], logs[:4]), report.quality(rows[4:], logs[4:])
    assert wgrad == (1, 1.0, 1.0, 1.0, 1.0)
    assert (fprop.rows, fprop.worst, fprop.worst_choice) == (4, 2.0, pytest.approx(4 / 3, abs=1e-3))
    assert fprop.choice == pytest.approx(math.sqrt(4 / 3), abs=1e-3)
    assert fprop.error == pytest.approx(math.exp(math.sqrt((math.log(1.1) ** 2 + math.log(2) ** 2) / 4)), abs=1e-3)
    assert report.qualities(rows, logs) == {
        ("a", "fprop"): fprop, ("b", "wgrad"): wgrad, ("all", "fprop"): fprop, ("all", "wgrad"): wgrad
    }  # fmt: skip
    assert "a t, split 2" in report.text(rows, logs, logs)


def test_write_changes_numbers_and_nothing_else(samples, data, capsys):
    before, name = data.read_text(), "conv 256x128x64 wgmma"
    true = changed("mma", **{name: 1.25})
    RowFile(MACHINE, as_if(RowFile.load(samples).rows, true)).save(samples)
    assert main(["fit", str(samples)]) == 0
    assert data.read_text() == before
    assert main(["fit", str(samples), "--families", "mma", "--write"]) == 0
    old, new = COSTS["h200"]["mma"][name], float(f"{true['mma'][name]:.3g}")
    assert data.read_text() == before.replace(f'"{name}": {old}', f'"{name}": {new}') != before
    record = json.loads((data_files.FITS / "h200.json").read_text())
    assert record["mma"]["passes"].keys() == {"fprop", "wgrad"}
    assert record["mma"]["passes"]["fprop"]["error"] < 1.01
    assert name in capsys.readouterr().out


def test_within_leaves_out_what_is_far_from_the_fastest(samples, data):
    rows, before = as_if(RowFile.load(samples).rows, changed("mma")), data.read_text()
    layers = grouped(rows, "case", "pass").items()
    fastest = {layer: min(row["us"] for row in of_layer) for layer, of_layer in layers}
    far = [row["us"] > 1.5 * fastest[row["case"], row["pass"]] for row in rows]
    assert 10 < sum(far) < len(rows) - 10
    slower = [row | {"us": row["us"] * (2 if is_far else 1)} for row, is_far in zip(rows, far, strict=True)]
    RowFile(MACHINE, slower).save(samples)
    command = ["fit", str(samples), "--families", "mma", "--write"]
    assert main([*command, "--within", "1.5"]) == 0
    assert data.read_text() == before
    assert main(command) == 0
    assert data.read_text() != before


def test_keep_notes_how_good_the_numbers_are(samples, data):
    before = data.read_text()
    RowFile(MACHINE, as_if(RowFile.load(samples).rows, changed("mma", fill=1.5))).save(samples)
    assert main(["fit", str(samples), "--families", "mma", "--keep", "--write"]) == 0
    assert data.read_text() == before
    record = json.loads((data_files.FITS / "h200.json").read_text())
    assert 1.001 < record["mma"]["passes"]["fprop"]["error"] < 1.5


def test_costs_are_not_fitted_to_another_gpu(samples, data):
    before = data.read_text()
    other = "NVIDIA H200 NVL"
    RowFile(MACHINE | {"device": other}, RowFile.load(samples).rows).save(samples)
    with pytest.raises(SystemExit, match=f"of {MACHINE['device']}, the rows of {other}"):
        main(["fit", str(samples), "--write"])
    assert data.read_text() == before


@pytest.mark.parametrize("option", ["--families", "--cases", "--suites"])
def test_unknown_names_are_not_sampled(gpu, tmp_path, option):
    with pytest.raises(SystemExit, match="unknown: nonsense"):
        main(["sample", "--out", str(tmp_path / "out.json"), option, "nonsense"])


@pytest.mark.parametrize("change", [{"case": "nonsense"}, {"family": "nonsense"}])
def test_unknown_names_are_not_fitted(samples, change):
    first, *others = RowFile.load(samples).rows
    RowFile(MACHINE, [first | change, *others]).save(samples)
    with pytest.raises(SystemExit, match="unknown: nonsense"):
        main(["fit", str(samples)])


@pytest.mark.parametrize(("machine", "options"), [(MACHINE, ["--families", "wgmma"]), ({"device": "nonsense"}, [])])
def test_what_has_no_rows_or_no_costs_is_not_fitted(samples, machine, options):
    RowFile(machine, RowFile.load(samples).rows).save(samples)
    with pytest.raises(SystemExit, match="unknown: "):
        main(["fit", str(samples), *options])


def test_without_a_gpu_nothing_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(SystemExit, match="no GPU"):
        main(["sample", "--out", str(tmp_path / "out.json"), "--suites", "seed"])
