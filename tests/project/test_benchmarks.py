"""The benchmark: what it counts, what it calls an error, what it keeps, and that the pages show its results."""

import itertools
import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import lax

from cases.machines import MACHINE
from cases.parts import repeated
from convbench import charts, docs
from convbench.cases import Case, load
from convbench.census import page as census
from convbench.command import main
from convbench.floor import PEAKS, Peaks, bytes_touched, floor_us, flops
from convbench.measure import measure
from convbench.programs import PASSES, answered_by_us
from convbench.results import Results, geomean_speedup, key, path_of
from jaxconv.planner.devices import MODELS
from jaxconv.tuning import timing

TINY = Case("tiny", "small", (2, 9, 8, 4), (3, 2, 2, 6), (2, 1), ((2, 0), (-1, 3)), (1, 3), (2, 1), 2)
ROW = {"case": "a", "suite": "s", "pass": "fprop", "dtype": "float32", "precision": "default", "implementation": "cpu",
       "plan": None, "us": 2.0, "tflops": 1.0, "flops_per_byte": 10.0, "lax_us": 4.0, "speedup": 2.0, "floor_us": 1.0,
       "over_floor": 2.0, "lower_s": 0.1, "compile_s": 0.1, "lax_lower_s": 0.1, "lax_compile_s": 0.1, "error": None,
       "lax_error": None, "commit": "abc", "date": "2000-01-02", "jax": "1"}  # fmt: skip


@pytest.fixture
def case_file(tmp_path):
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([vars(TINY)]))
    return path


def random_cases(count):
    rng = np.random.default_rng(0)
    while count:
        rank, groups = rng.integers(1, 4), int(rng.integers(1, 3))
        small = lambda high: tuple(map(int, rng.integers(1, high, rank)))
        padding = tuple((int(low), int(high)) for low, high in rng.integers(-1, 4, (rank, 2)))
        case = Case("random", "", (2, *small(7), 2 * groups), (*small(4), 2, 3 * groups), small(4), padding, small(4),
                    small(4), groups)  # fmt: skip
        if min(case.out) > 0:
            count -= 1
            yield case


def taps_on_elements(case):
    """How often a tap of a result lies on an element of the input, by looking at each."""
    image = np.ones(case.lhs[1:-1], int)
    for axis, (hole, (low, high)) in enumerate(zip(case.lhs_dilation, case.padding)):
        holed = np.zeros((*image.shape[:axis], (image.shape[axis] - 1) * hole + 1, *image.shape[axis + 1 :]), int)
        holed[(slice(None),) * axis + (slice(None, None, hole),)] = image
        inside = (slice(None),) * axis + (slice(max(-low, 0), holed.shape[axis] - max(-high, 0)),)
        pads = [(0, 0)] * axis + [(max(low, 0), max(high, 0))] + [(0, 0)] * (image.ndim - axis - 1)
        image = np.pad(holed[inside], pads)
    positions = itertools.product(np.ndindex(case.out[1:-1]), np.ndindex(case.rhs[: case.rank]))
    return sum(
        image[tuple(np.multiply(position, case.window_strides) + np.multiply(tap, case.rhs_dilation))]
        for position, tap in positions
    )


@pytest.mark.parametrize("case", [TINY, *random_cases(20)])
def test_flops_are_those_of_taps_on_elements(case):
    batch, (in_channels_of_group, out_channels) = case.lhs[0], case.rhs[-2:]
    assert flops(case) == 2 * batch * in_channels_of_group * out_channels * taps_on_elements(case)


def test_every_case_is_one_lax_takes():
    cases = load()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        lhs, rhs = (jax.ShapeDtypeStruct(shape, "float32") for shape in (case.lhs, case.rhs))
        out = jax.eval_shape(lambda x, w, case=case: lax.conv_general_dilated(x, w, **case.arguments), lhs, rhs)
        assert out.shape == case.out


def test_floor_is_the_longer_of_arithmetic_and_memory():
    assert bytes_touched(TINY, "dgrad", itemsize=2) == 2 * (2 * 9 * 8 * 4 + 3 * 2 * 2 * 6 + np.prod(TINY.out))
    for rate, bandwidth, expected in ((1e6, 1e12, flops(TINY)), (1e12, 1e6, bytes_touched(TINY, "fprop", 2))):
        peaks = Peaks(bandwidth, {("float16", "default"): rate})
        assert floor_us(TINY, "fprop", "float16", "default", 2, peaks) == expected
    assert floor_us(TINY, "fprop", "float64", "default", 8, PEAKS["NVIDIA H200"]) is None
    assert floor_us(TINY, "fprop", "float32", "default", 4, None) is None


def test_a_copy_reaches_less_than_the_memorys_bandwidth():
    for kind, peaks in PEAKS.items():
        assert 0.8 < peaks.bandwidth / MODELS[kind].bandwidth < 1


def test_what_a_stride_skips_need_not_be_touched():
    (case,) = (case for case in load() if case.name == "rn50_56_1x1s2_256_512")
    read = 128 * 28 * 28 * 256 + 256 * 512 + 128 * 28 * 28 * 512
    assert bytes_touched(case, "fprop", 1) == bytes_touched(case, "wgrad", 1) == read
    assert bytes_touched(case, "dgrad", 1) == read + 3 * 128 * 28 * 28 * 256


def test_run_measures_every_pass(case_file, implementation, tmp_path, capsys):
    out = tmp_path / "out.json"
    command = ["--case-file", str(case_file), "--suites", "small", "--seconds", "0", "--commit", "abc"]
    assert main([*command, "--out", str(out), "--charts", str(tmp_path / "charts")]) == 0
    results = Results.load(out)
    assert {row["commit"] for row in results.rows} == {"abc"}
    assert [row["pass"] for row in results.rows] == list(PASSES)
    for row in results.rows:
        assert row["implementation"] == implementation
        assert min(row[name] for name in ("us", "lax_us", "tflops", "speedup", "lower_s", "compile_s")) > 0
        assert row["plan"]
        assert (row["error"], row["lax_error"]) == (None, None)
    assert "tiny" in capsys.readouterr().out
    drawn = {path.name for path in (tmp_path / "charts").iterdir()}
    assert drawn == set(charts.names(results, "out"))


def test_run_fails_where_ours_does_not_answer(case_file, tmp_path, capsys):
    out = tmp_path / "out.json"
    command = ["--case-file", str(case_file), "--suites", "small", "--seconds", "0", "--passes", "fprop"]
    assert main([*command, "--implementations", "depthwise", "--out", str(out)]) == 1
    (row,) = Results.load(out).rows
    assert row["error"] and row["error"] in capsys.readouterr().out
    assert row["us"] is None and row["speedup"] is None


def test_lax_failing_is_noted(monkeypatch, implementation):
    def refuse(*args, **kwargs):
        raise ValueError("no such convolution")

    monkeypatch.setattr("convbench.measure.lax", SimpleNamespace(conv_general_dilated=refuse))
    (row,) = measure(TINY, "fprop", "float32", "default", [implementation], budget_s=0)
    assert row["lax_error"] == "ValueError: no such convolution"
    assert row["error"] is None and row["us"] > 0 and row["speedup"] is None


def test_float64_is_measured_as_such(implementation):
    (row,) = measure(TINY, "wgrad", "float64", "default", [implementation], budget_s=0)
    assert row["error"] is None and row["lax_error"] is None
    assert row["flops_per_byte"] == pytest.approx(flops(TINY) / bytes_touched(TINY, row["pass"], 8), rel=1e-3)


def test_int8_is_measured_with_its_sums(case_file, tmp_path):
    """JAX has no gradients of integers."""
    out = tmp_path / "out.json"
    command = ["--case-file", str(case_file), "--suites", "small", "--seconds", "0", "--dtypes", "int8"]
    assert main([*command, "--out", str(out)]) == 0
    (row,) = Results.load(out).rows
    assert (row["pass"], row["error"], row["lax_error"]) == ("fprop", None, None)
    touched = bytes_touched(TINY, "fprop", 1) + 3 * np.prod(TINY.out)
    assert row["flops_per_byte"] == pytest.approx(flops(TINY) / touched, rel=1e-3)


@pytest.mark.parametrize("other", [
    '%c = f32[1] convolution(%a, %b), window={size=3}',
    '%c = (f32[1], u8[0]) custom-call(%a, %b), custom_call_target="__cudnn$convForward"',
])  # fmt: skip
def test_only_our_calls_are_ours(other):
    ours = '%d = f32[1] custom-call(%a), custom_call_target="jaxconv_conv", metadata={op_name="jit(convolution)"}'
    assert answered_by_us(ours)
    assert not answered_by_us(other)
    assert not answered_by_us(f"{ours}\n{other}")


def test_kernel_times_are_summed_by_call(monkeypatch):
    """As Mosaic's profiler gives them: milliseconds by kernel and call, a single call without its list."""
    calls = []

    def measure(compiled, *, aggregate, iterations):
        calls.append(iterations)
        times = [[("main", 1.0 + i), ("helper", 0.5)] for i in range(iterations)]
        return lambda *operands: ("result", times[0] if iterations == 1 else times)

    from jax.experimental.mosaic.gpu import profiler

    monkeypatch.setattr(profiler, "measure", measure)
    assert timing.kernel_seconds(None, (), 1) == pytest.approx([1.5e-3])
    assert timing.kernel_seconds(None, (), 3) == pytest.approx([1.5e-3, 2.5e-3, 3.5e-3])
    calls.clear()
    assert timing.median_us(timing.kernel_seconds, None, (), budget_s=0.0076) == pytest.approx(3500)
    assert calls == [1, 5]


@pytest.mark.parametrize(("budget_s", "calls"), [(0, 3), (0.5, 5), (100, 20)])
def test_budget_bounds_the_calls(budget_s, calls):
    asked = []

    def clock(compiled, operands, count):
        asked.append(count)
        return [0.1] * count

    assert timing.median_us(clock, None, (), budget_s) == pytest.approx(1e5)
    assert asked == [1, calls]


def test_the_newest_row_of_a_key_stays(tmp_path):
    path = tmp_path / "out.json"
    results = Results.continued(path, MACHINE)
    results.merge([ROW, ROW | {"case": "b"}])
    results.save(path)
    again = Results.continued(path, MACHINE)
    again.merge([ROW | {"us": 1.0}, ROW | {"pass": "wgrad"}, ROW | {"case": "b", "us": 1.0, "date": "2000-01-01"}])
    again.save(path)
    assert Results.load(path) == again
    assert [(*key(row)[:2], row["us"]) for row in again.rows] == [
        ("a", "fprop", 1.0), ("b", "fprop", 2.0), ("a", "wgrad", 2.0)]  # fmt: skip


def test_rows_are_in_the_order_of_the_cases():
    cases = load()
    rows = [ROW | {"case": case.name, "pass": which} for case in cases for which in PASSES]
    results = Results(MACHINE)
    results.merge(reversed(rows))
    assert results.rows == rows


@pytest.mark.parametrize("change", [{"device": "NVIDIA H100"}, {"multiprocessors": 114}, {"cores": 2}])
def test_rows_of_another_machine_are_not_merged(tmp_path, change):
    path = tmp_path / "out.json"
    Results(MACHINE, [ROW]).save(path)
    with pytest.raises(ValueError, match=next(iter(change))):
        Results.continued(path, MACHINE | change)


def test_merge_adds_a_file_to_that_of_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("convbench.results.RESULTS", tmp_path)
    monkeypatch.setattr(docs, "write", lambda: None)
    Results(MACHINE, [ROW, ROW | {"case": "b"}]).save(path_of(MACHINE))
    measured = tmp_path / "elsewhere" / "new.json"
    measured.parent.mkdir()
    Results(MACHINE, [ROW | {"us": 1.0, "commit": "def"}]).save(measured)
    assert main(["--merge", str(measured)]) == 0
    merged = Results.load(tmp_path / "nvidia_h200.json").rows
    assert [(row["case"], row["us"], row["commit"]) for row in merged] == [("a", 1.0, "def"), ("b", 2.0, "abc")]


def test_committed_files_are_those_of_their_machines():
    """One a machine, no key twice, and each row says where it comes from."""
    for path in docs.RESULTS.glob("*.json"):
        results = Results.load(path)
        assert path == path_of(results.machine)
        assert len({key(row) for row in results.rows}) == len(results.rows)
        assert all(row["commit"] and row["date"] and row["jax"] for row in results.rows)


def test_geometric_mean_is_over_the_rows_with_both_times():
    assert geomean_speedup([ROW, ROW | {"speedup": 8.0}, ROW | {"speedup": None}]) == pytest.approx(4)
    assert geomean_speedup([ROW | {"speedup": None}]) is None


def test_page_of_a_gpu(tmp_path):
    rows = [ROW, ROW | {"case": "b", "speedup": 8.0}, ROW | {"suite": "t", "case": "c", "us": None, "speedup": None},
            ROW | {"pass": "wgrad", "us": 1500.0, "speedup": None, "lax_us": None, "commit": "def"}]  # fmt: skip
    results = Results(MACHINE, rows)
    section = docs.section("h200", results)
    cells = {line.replace(" ", "") for line in section.splitlines()}
    assert {"|s|4.00×|||", "|a|2.0µs,2.00×||1.50ms,laxrefuses|abc,def|", "|c|error|||abc|"} <= cells
    charts.draw(results, tmp_path, "h200")
    names = charts.names(results, "h200")
    assert names == ["h200_roofline_float32.svg", "h200_speed_float32_cpu.svg"]
    assert all((tmp_path / name).exists() and f"]({docs.CHARTS.name}/{name})" in section for name in names)


def test_summary_is_of_suites():
    rows = [ROW | {"suite": "vgg", "dtype": "bfloat16", "implementation": "cuda"},
            ROW | {"suite": "vgg", "dtype": "bfloat16", "implementation": "cuda", "pass": "wgrad", "speedup": 0.5},
            ROW | {"suite": "sd", "dtype": "bfloat16", "implementation": "simt"}]  # fmt: skip
    lines = [line.replace(" ", "") for line in docs.summary({docs.H200: Results(MACHINE, rows)}).splitlines()]
    assert len(lines) == 3
    assert lines[-1] == "|`vgg`|largedense3x3layers|2.00,–,**0.50**|||||"


def test_every_suite_is_described():
    assert set(docs.SUITES) == {case.suite for case in load()}


def texts(path):
    """What an SVG file says; where it says it is left to the versions of matplotlib and of its fonts."""
    return re.findall(r"<text[^>]*>(.*?)</text>", path.read_text())


def test_chart_says_title_names_passes_and_speeds(tmp_path):
    rows = [ROW, ROW | {"pass": "wgrad", "speedup": 0.5}, ROW | {"case": "b", "speedup": 8.0}]
    for name, field in (("one.svg", "case"), ("again.svg", "case"), ("suites.svg", "suite")):
        charts.draw_bars(rows, field, "A title", tmp_path / name)
    said = texts(tmp_path / "one.svg")
    assert {"A title", "a", "b", "fprop", "wgrad", "1×"} <= set(said)
    assert [text for text in said if re.fullmatch(r"\d+\.\d\d×", text)] == ["2.00×", "8.00×", "0.50×"]
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert {"s", "4.00×", "0.50×"} <= set(texts(tmp_path / "suites.svg"))


@pytest.mark.parametrize(("draw", "path", "page"), [
    (docs.draw_speed, docs.SPEED, docs.README),
    (docs.draw_depthwise, docs.DEPTHWISE, docs.DEPTHWISE.with_suffix(".md")),
])  # fmt: skip
def test_pictures_show_the_committed_results(tmp_path, draw, path, page):
    assert f"]({path.relative_to(page.parent).as_posix()})" in page.read_text()
    draw(tmp_path / "drawn.svg")
    assert texts(path) == texts(tmp_path / "drawn.svg"), "`python -m benchmarks --docs` draws it"


def test_pages_show_the_committed_results():
    parts = {docs.README: docs.summary(docs.committed()), docs.NETWORKS: docs.networks()}
    parts[docs.PERFORMANCE] = docs.cost_of_calls()
    for page, part in parts.items():
        text = page.read_text()
        assert docs.BEGIN in text and docs.END in text
        assert docs.rewritten(text, part) == text, "`python -m benchmarks --docs` rewrites it"
    assert docs.PAGE.read_text() == docs.page(), "`python -m benchmarks --docs` rewrites it"
    for stem, results in docs.committed().items():
        assert all((docs.CHARTS / name).exists() for name in charts.names(results, stem))


def test_page_of_inference_shows_the_committed_rows():
    assert docs.INFERENCE.read_text() == docs.inference_page(), "`python -m benchmarks --docs` rewrites it"


PICTURES_OF_THE_CENSUS = re.findall(r"!\[.*\]\(../results/(.*)\)", docs.CENSUS.read_text())


@pytest.mark.full  # other pages are quick
def test_page_of_the_census_shows_the_committed_rows():
    assert docs.CENSUS.read_text() == docs.census_page(), "`python -m benchmarks --docs` rewrites it"
    assert {each.chart for each in census.committed()} == set(PICTURES_OF_THE_CENSUS)


@pytest.mark.parametrize("name", [PICTURES_OF_THE_CENSUS[0], *map(repeated, PICTURES_OF_THE_CENSUS[1:])])
def test_pictures_of_the_census_show_the_committed_rows(tmp_path, monkeypatch, name):
    drawn = [each for each in census.committed() if each.chart == name]
    monkeypatch.setattr(census, "committed", lambda: drawn)
    census.draw(tmp_path)
    assert texts(docs.CHARTS / name) == texts(tmp_path / name), "`python -m benchmarks --docs` draws it"
