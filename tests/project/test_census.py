"""The census: that it draws the same plausible layers each time, resumes, and reports what its rows say."""

import dataclasses
import re

import jax
import pytest
from jax import lax

from cases.machines import MACHINE
from convbench import cases
from convbench.cases import Case
from convbench.census import command, default, page, report
from convbench.census.draw import MOST_FLOPS, Drawn, draw, is_plausible
from convbench.census.templates import TEMPLATES
from convbench.command import main
from convbench.floor import bytes_touched, flops
from convbench.programs import PASSES
from convbench.results import Results
from jaxconv.planner.devices import MODELS

DRAWN = draw(600, seed=0)
# On GPUs that costs are fitted to: on others the default is lax for all dense layers.
MEASURED = [path for path in sorted(page.MEASURED.glob("*.json"))
            if (gpu := MODELS.get(Results.load(path).machine["device"])) and gpu.is_fitted]  # fmt: skip
PLAN = "wgmma 128x64x64 of packed columns (2), split 1 (3.0 us)"
LARGE = Case("", "", (128, 28, 28, 256), (3, 3, 256, 256), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
SMALL = Case("", "", (1, 32, 32, 1536), (1, 1, 1536, 512), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)


def row(case, which, dtype="bfloat16", precision="default", implementations=("cuda",), budget_s=0, **fields):
    """As `measure` makes it, if lax takes twice as long as we do and we three times as long as the floor."""
    row = {"case": case.name, "suite": case.suite, "pass": which, "dtype": dtype, "precision": precision}
    row |= {"implementation": implementations[0], "plan": "wgmma", "us": 3.0, "lax_us": 6.0, "speedup": 2.0}
    row |= {"commit": "abc", "date": "2026-11-24", "jax": "0.11.2"}
    return row | {"floor_us": 1.0, "over_floor": 3.0, "error": None, "lax_error": None} | fields


@pytest.fixture
def gpu(an_h200, monkeypatch):
    """What is measured on a machine that seems to have a GPU is listed."""
    calls = []

    def measure(case, which, *others):
        calls.append((case.name, which))
        return [row(case, which, *others, plan=PLAN)]

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "warm_up", lambda implementations: None)
    return calls


def test_draw_is_the_same_each_time():
    assert draw(600, seed=0) == DRAWN
    assert draw(100, seed=0) == DRAWN[:100]
    assert draw(600, seed=1) != DRAWN
    assert len(set(DRAWN)) == 600
    assert [DRAWN[place].case.name for place in (0, 299, 599)] == [
        "resnet_1x1_b64_17x17_256to1024_k1x1",
        "unet2d_b2_194x194_64to128_k3x3",
        "spectrograms_b8_40x500_256to256_k3x3_s2x2",
    ]


def test_draw_has_all_kinds():
    drawn = [case for case, _ in DRAWN]
    assert {case.suite for case in drawn} == {template.name for template in TEMPLATES}
    assert {case.rank for case in drawn} == {1, 2, 3}
    assert {which for _, which in DRAWN} == set(PASSES)
    assert {case.lhs[0] for case in drawn} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    windows = {case.rhs[:-2] for case in drawn}
    assert {(1, 1), (3, 3), (5, 5), (7, 7), (1, 7), (7, 1), (5, 3), (5, 51), (3, 1, 1), (1, 3, 3), (3, 3, 3)} <= windows
    assert {(3,), (128,)} <= windows
    assert {7, 14, 17, 19, 28, 29, 31, 33, 35, 56, 112} <= {size for case in drawn for size in case.lhs[1:-1]}
    widths = {case.rhs[-2] for case in drawn if case.feature_group_count > 1}
    assert 1 in widths and max(widths) > 16
    assert any(max(case.lhs_dilation) > 1 for case in drawn) and any(max(case.rhs_dilation) > 1 for case in drawn)


def test_drawn_layers_are_plausible():
    names = {}
    for case, which in DRAWN:
        assert names.setdefault(case.name, case) == case, "a name is of one layer"
        assert min(case.out) > 0
        assert 0 < flops(case) <= MOST_FLOPS
        assert bytes_touched(case, which, 2) <= 1e9
        lhs, rhs = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in (case.lhs, case.rhs))
        out = jax.eval_shape(lambda x, w, case=case: lax.conv_general_dilated(x, w, **case.arguments), lhs, rhs)
        assert out.shape == case.out


def test_transposed_convolutions_enlarge_by_their_stride():
    transposed = [case for case, _ in DRAWN if max(case.lhs_dilation) > 1]
    assert {case.rank for case in transposed} == {1, 2, 3}
    for case in transposed:
        assert case.out[1:-1] == tuple(size * by for size, by in zip(case.lhs[1:-1], case.lhs_dilation))


@pytest.mark.parametrize("change", [
    {"lhs": (4096, 512, 512, 64)},  # bytes
    {"lhs": (256, 128, 128, 64), "rhs": (7, 7, 64, 64)},  # multiplications
    {"lhs": (1, 3, 3, 64), "rhs": (7, 7, 64, 64), "padding": ((9, 9), (9, 9))},  # a window far larger than the image
    {"lhs": (1, 3, 3, 64), "rhs": (5, 5, 64, 64), "padding": ((0, 0), (0, 0))},  # no output
])  # fmt: skip
def test_what_is_not_plausible(change):
    layer = dict(lhs=(8, 56, 56, 64), rhs=(3, 3, 64, 64), window_strides=(1, 1), padding=((1, 1), (1, 1)),
                 lhs_dilation=(1, 1), rhs_dilation=(1, 1), feature_group_count=1)  # fmt: skip
    assert is_plausible(Case("a", "s", **layer))
    assert not is_plausible(Case("a", "s", **layer | change))


def test_layers_may_be_written_as_cases(tmp_path):
    path = tmp_path / "cases.json"
    assert main(["census", "--draw", str(path), "--rows", "50", "--seed", "3"]) == 0
    assert cases.load(path) == list(dict.fromkeys(case for case, _ in draw(50, seed=3)))


def test_rows_are_not_measured_twice(gpu, tmp_path):
    path = tmp_path / "census.json"
    census = ["census", "--out", str(path), "--commit", "abc", "--rows"]
    assert main([*census, "7", "--seconds-limit", "0"]) == 0
    assert not gpu
    for rows in ("7", "7", "12"):
        assert main([*census, rows]) == 0
    assert gpu == [(case.name, which) for case, which in DRAWN[:12]]
    results = Results.load(path)
    assert [(row["case"], row["pass"], row["commit"]) for row in results.rows] == [(*one, "abc") for one in gpu]


def test_a_part_of_the_rows(gpu, tmp_path):
    """Those that the default leaves to lax are of kinds that it may leave to lax."""
    measured = {}
    for part in ("lax-kinds", "left-to-lax"):
        gpu.clear()
        assert main(["census", "--out", str(tmp_path / part), "--rows", "150", "--part", part]) == 0
        measured[part] = set(gpu)
    assert 0 < len(measured["left-to-lax"]) < len(measured["lax-kinds"]) < 100
    assert measured["left-to-lax"] < measured["lax-kinds"]


def test_each_arithmetic_has_rows_of_its_own(gpu, tmp_path, monkeypatch, capsys):
    """In one file; a report is of one."""
    asked = []
    monkeypatch.setattr(command, "measure", lambda case, which, dtype, precision, *others: asked.append(
        (dtype, precision)) or [row(case, which) | {"dtype": dtype, "precision": precision}])  # fmt: skip
    path = tmp_path / "census.json"
    census = ["--rows", "2", "--out", str(path)]
    for options in (
        [],
        ["--dtype", "float32"],
        ["--dtype", "float32"],
        ["--dtype", "float32", "--precision", "highest"],
    ):
        assert main(["census", *census, *options]) == 0
    assert asked == [("bfloat16", "default")] * 2 + [("float32", "default")] * 2 + [("float32", "highest")] * 2
    assert main(["census", "--rows", "2", "--report", str(path), "--dtype", "float32", "--precision", "highest"]) == 0
    assert (tmp_path / "census_float32_highest.svg").exists()
    with pytest.raises(SystemExit, match="no rows of float16"):
        main(["census", "--rows", "2", "--report", str(path), "--dtype", "float16"])


def test_rows_that_are_measured_stay_if_another_fails(gpu, tmp_path, monkeypatch):
    def interrupted(case, which, *others):
        if len(gpu) == 3:
            raise KeyboardInterrupt
        gpu.append(case.name)
        return [row(case, which)]

    monkeypatch.setattr(command, "measure", interrupted)
    path = tmp_path / "census.json"
    with pytest.raises(KeyboardInterrupt):
        main(["census", "--out", str(path), "--rows", "5"])
    assert len(Results.load(path).rows) == 3


def test_a_row_that_kills_the_process(gpu, tmp_path, monkeypatch):
    """The file says so before, and the next run goes on behind it."""
    seen = []
    killed = lambda case, which, *others: seen.append(Results.load(path).rows[-1]) or [row(case, which)]
    monkeypatch.setattr(command, "measure", killed)
    path = tmp_path / "census.json"
    census = ["census", "--out", str(path), "--rows"]
    assert main([*census, "1"]) == 0
    ((case, which),) = DRAWN[:1]
    assert (seen[0]["case"], seen[0]["pass"], seen[0]["us"]) == (case.name, which, None)
    assert seen[0]["error"] == command.PROCESS_ENDED and Results.load(path).rows[0]["error"] is None
    Results(Results.load(path).machine, seen).save(path)
    assert main([*census, "2"]) == 1  # as for other errors
    assert [each["case"] for each in seen] == [case.name for case, _ in DRAWN[:2]]


def test_rows_of_other_plans_are_renewed(gpu, tmp_path, monkeypatch):
    """If that is asked for. Estimates are no part of a plan, and what killed a process is not tried again."""
    path = tmp_path / "census.json"
    census = ["census", "--out", str(path), "--rows", "3"]
    today = {DRAWN[0].case.name: PLAN.replace("3.0", "9.9"), DRAWN[1].case.name: PLAN.replace("split 1", "split 2")}
    monkeypatch.setattr(command, "planned", lambda case, *others: today.get(case.name, PLAN))
    for options in ([], ["--renew"]):
        assert main([*census, *options]) == 0
    assert gpu == [(case.name, which) for case, which in (*DRAWN[:3], DRAWN[1])]
    results = Results.load(path)
    assert len(results.rows) == 3
    ((case, which),) = DRAWN[3:4]
    results.rows.append(row(case, which, plan=None, us=None, speedup=None, error=command.PROCESS_ENDED))
    results.save(path)
    assert main(["census", "--out", str(path), "--rows", "4", "--renew"]) == 1
    assert (case.name, which) not in gpu


def test_a_report_is_of_what_is_drawn(tmp_path, capsys):
    """Other seeds and longer censuses may be in the file."""
    path = tmp_path / "census.json"
    every = [Drawn(*each) for seed in (0, 1) for each in draw(4, seed)]
    Results(MACHINE | {"device": "NVIDIA B200"}, [row(*each) for each in every]).save(path)
    report_of = ["census", "--report", str(path), "--rows"]
    for rows, seed in ((4, 0), (3, 1)):
        assert main([*report_of, str(rows), "--seed", str(seed)]) == 0
        assert [line[1] for line in lines(capsys.readouterr().out) if line[0] == "all"] == [str(rows)] * 2 + ["100.0%"]
    with pytest.raises(SystemExit, match="no rows of bfloat16 that --rows and --seed draw"):
        main([*report_of, "4", "--seed", "7"])


def test_passes_and_precisions_that_a_dtype_lacks(gpu, tmp_path, capsys):
    path = tmp_path / "census.json"
    assert main(["census", "--out", str(path), "--rows", "20", "--dtype", "int8"]) == 0
    assert {which for _, which in gpu} == {"fprop"}
    with pytest.raises(SystemExit):
        main(["census", "--out", str(path), "--dtype", "bfloat16", "--precision", "highest"])
    assert "--precision is of float32, not of bfloat16" in capsys.readouterr().err


def test_our_errors_fail_the_census(gpu, tmp_path, monkeypatch):
    failed = lambda case, which, *others: [row(case, which, error="no kernel", us=None, speedup=None, over_floor=None)]
    monkeypatch.setattr(command, "measure", failed)
    assert main(["census", "--out", str(tmp_path / "census.json"), "--rows", "2"]) == 1


def test_a_row_that_costs_the_gpu_ends_the_census(gpu, tmp_path, monkeypatch):
    """Rows after it would fail, too. The next run goes on behind it."""
    failed = lambda case, which, *others: gpu.append(case.name) or [row(case, which, lax_error="illegal address")]
    answers = iter((True, False, True))
    monkeypatch.setattr(command, "measure", failed)
    monkeypatch.setattr(command, "device_answers", lambda: next(answers))
    census = ["census", "--out", str(tmp_path / "census.json"), "--rows", "3"]
    with pytest.raises(SystemExit, match=f"lost after {DRAWN[1].case.name} {DRAWN[1].which}.*again"):
        main(census)
    assert main(census) == 0
    assert gpu == [case.name for case, _ in DRAWN[:3]]


def lines(text):
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_report_says_what_the_rows_say(tmp_path, capsys, monkeypatch):
    def case(name, suite):
        return dataclasses.replace(LARGE, name=name, suite=suite)

    speeds = [0.5, 0.8, 0.9, 1.0, 2.0]
    rows = [row(case(f"r{speed}", "good"), "fprop", speedup=speed, over_floor=1 / speed) for speed in speeds]
    rows += [row(case("w1", "bad"), "wgrad", speedup=0.25), row(case("w2", "bad"), "wgrad", speedup=0.36),
             row(case("w4", "bad"), "wgrad", speedup=0.3), row(case("d1", "too few"), "dgrad", speedup=0.1),
             row(case("w3", "bad"), "wgrad", us=None, speedup=None, over_floor=None, error="no kernel")]  # fmt: skip
    monkeypatch.setattr(
        command, "draw", lambda *_: [Drawn(case(row["case"], row["suite"]), row["pass"]) for row in rows]
    )
    path = tmp_path / "census.json"
    Results(MACHINE, rows).save(path)
    assert main(["census", "--report", str(path)]) == 0
    said = lines(capsys.readouterr().out)
    speed = next(line for line in said if line[0] == "fprop")
    assert speed[1:4] == ["5", "0.936", "0.5"] and speed[8] == "0.9"  # the least, the median
    assert ["fprop", "60.0%", "40.0%"] in said and ["all", "33.3%", "22.2%"] in said
    assert said.index(["bad", "wgrad", "3", "0.3", "0.25", "w1", "wgmma"]) + 1 == said.index(
        ["good", "fprop", "5", "0.936", "0.5", "r0.5", "wgmma"])  # fmt: skip
    assert not any(line[:2] == ["too", "few"] and line[2] == "dgrad" for line in said)
    assert ["w3 wgrad: no kernel"] in said
    assert ["all", "9", "0", "0.0%", "0", "7", "33.3%", "22.2%", "33.3%", "22.2%"] in said
    assert report.ratios(rows, "over_floor")["fprop"] == [1 / speed for speed in speeds]
    drawn = path.with_suffix(".svg").read_text()
    assert all(text in drawn for text in (*report.RATIOS.values(), "fprop", "wgrad", MACHINE["device"]))


def test_what_the_default_takes():
    """A large layer by our kernel, a small one of 1x1 windows by lax, which is then as fast as lax."""
    layers = [dataclasses.replace(LARGE, name="large"), dataclasses.replace(SMALL, name="small")]
    rows = [row(case, "fprop", speedup=0.9, us=3.0, lax_us=2.7) for case in layers]
    assert default.takes_lax(rows, layers, MODELS["NVIDIA H200"]) == [False, True]
    assert ["all", "2", "1", "50.0%", "1", "2", "100.0%", "0.0%", "100.0%", "50.0%"] in lines(
        default.text(rows, layers, MODELS["NVIDIA H200"])
    )


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_the_default_takes_lax_seldom_and_rightly(path):
    """In at most 5 % of the measured rows. In two thirds of these or more, our kernel is more than 5 % slower."""
    results = Results.load(path)
    rows = [row for row in results.rows if row["speedup"]]
    taken = default.takes_lax(rows, page.layers(), MODELS[results.machine["device"]])
    slower = [row["us"] > 1.05 * row["lax_us"] for row, is_taken in zip(rows, taken, strict=True) if is_taken]
    assert 0 < len(slower) <= 0.05 * len(rows)
    assert sum(slower) >= 2 / 3 * len(slower)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_left_to_lax_of_layers_that_nothing_was_fitted_to(dtype):
    """Rightly in two thirds or more. Of these censuses `--part left-to-lax` was measured: what is taken besides since
    then is not known."""
    slower = []
    for path in (page.MEASURED / "left_to_lax").glob("*.json"):
        results, seed = Results.load(path), int(path.stem.rpartition("_")[2])
        rows = [row for row in results.rows if row["dtype"] == dtype]
        taken = default.takes_lax(rows, [case for case, _ in draw(page.ROWS, seed)], MODELS[results.machine["device"]])
        slower += [row["us"] > 1.05 * row["lax_us"] for row, is_taken in zip(rows, taken, strict=True) if is_taken]
    assert len(slower) > 10
    assert sum(slower) >= 2 / 3 * len(slower)


@pytest.mark.parametrize(("over_floor", "titles"), [
    (3.0, ["times as fast as lax", "times the floor"]),
    (None, ["times as fast as lax"]),
])  # fmt: skip
def test_page_and_chart_leave_out_an_unknown_floor(tmp_path, over_floor, titles):
    rows = [row(LARGE, which, over_floor=over_floor) for which in PASSES]
    census = page.Census("h200", MACHINE["device"], rows)
    section = page.section(census, [LARGE], "charts")
    assert re.findall("(.*), percentiles:", section) == [title.capitalize() for title in titles]
    assert "](charts/h200_census_bfloat16.svg)" in section
    page.draw_rows(rows, census.gpu, tmp_path / census.chart)
    drawn = (tmp_path / census.chart).read_text()
    assert [title for title in report.RATIOS.values() if f">{title}<" in drawn] == titles


def test_page_says_what_the_rows_say():
    """With the errors of our kernels, under the commits and the precision."""
    layer = dataclasses.replace(LARGE, name="large")
    arithmetic = {"dtype": "float32", "precision": "highest"}
    rows = [row(layer, "fprop", speedup=0.9, us=3.0, lax_us=2.7, **arithmetic),
            row(layer, "wgrad", speedup=None, us=None, over_floor=None, error="no kernel", commit="def",
                **arithmetic)]  # fmt: skip
    section = page.section(page.Census("h200", MACHINE["device"], rows), [layer], "charts")
    head = "2 rows, of commit abc (2026-11-24, jax 0.11.2); commit def (2026-11-24, jax 0.11.2)."
    assert section.startswith(f"## NVIDIA H200, float32 highest\n\n{head}\n\n")
    cells = {line.replace(" ", "") for line in section.splitlines()}
    assert {"|all|1|0|0.0%|0|1|100.0%|0.0%|100.0%|0.0%|", "|fprop|1|0.9|" + 9 * "0.9|"} <= cells
    assert section.endswith("\n\n- large wgrad: no kernel")


@pytest.mark.parametrize("options", [[], ["--out", "a.json", "--draw", "b.json"]])
def test_one_thing_is_done_at_a_time(options):
    with pytest.raises(SystemExit):
        main(["census", *options])


def test_suites_and_templates_have_different_names():
    assert not {case.suite for case in cases.load()} & {template.name for template in TEMPLATES}
