"""Tuning files: what they hold, that it comes back as it was, and what of it is refused."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.plans import device
from cases.problems import PASSES, halves, layer
from jaxconv import ffi
from jaxconv.compiled import planning
from jaxconv.explain import lines
from jaxconv.lowering import decide
from jaxconv.planner.choose import Times
from jaxconv.planner.plan import Constraint, Lax
from jaxconv.planner.xla import choose_or_lax, expected_seconds, kind_of
from jaxconv.problem.product import Product
from jaxconv.sharding import cache_key
from jaxconv.transforms import STEPS, PackedColumns, SwappedOperands
from jaxconv.tuning import file
from jaxconv.tuning.autotune import plausible
from jaxconv.tuning.entries import Entry, unstored_reason
from jaxconv.tuning.loaded import loaded_tuning
from jaxconv.tuning.machine import model

X, W = jax.ShapeDtypeStruct((2, 4, 3, 5), np.float32), jax.ShapeDtypeStruct((3, 3, 1, 5), np.float32)
DEPTHWISE = layer(X.shape, W.shape, feature_group_count=5)


pytestmark = pytest.mark.usefixtures("on_the_host", "without_tuning")


def depthwise(x, w, implementation=None):
    return jaxconv.conv2d(x, w, feature_group_count=5, implementation=implementation)


def planned(implementation):
    """A plan of the depthwise convolution, which the planner gives to the family of that name."""
    return decide("conv", "cpu", DEPTHWISE, implementation).plan


def entry(plan, others=()):
    return Entry("conv", DEPTHWISE, {plan: Times(None, 12.34), **dict(others)})


def written(tmp_path, *entries, platform="cpu"):
    path = tmp_path / "tuning.json"
    file.extend(path, platform, entries)
    return path


def changed(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def through_json(platform, entry):
    return Entry.from_json(platform, json.loads(json.dumps(entry.to_json())))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PASSES)
def test_plausible_plans_come_back(name, platform):
    """As they were, equal also as keys, and the planner makes the same plan again."""
    kind, problem = PASSES[name]
    found = plausible(platform, kind, problem)
    assert len(found) >= 2 and list(found)[-1] == Lax()
    for plan, predicted in found.items():
        before = Entry(kind, problem, {plan: Times(predicted, 1.5), Lax(): Times(None, 2.5)})
        after = through_json(platform, before)
        assert after == before and hash(after.problem) == hash(problem)
        assert [choice.plan for choice in after.choices(platform)] == list(before.measured)


def test_plausible_plans_are_few_and_of_several_families():
    found = plausible("cuda", *PASSES["stem_of_halves_fprop"])
    assert 5 < len(found) <= 25
    assert len({plan.family for plan in found if plan != Lax()}) > 1
    assert all(us > 0 for plan, us in found.items() if plan != Lax())


NAMED = dataclasses.replace(DEPTHWISE, precision=lax.DotAlgorithmPreset.F32_F32_F32)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_lax_is_no_candidate_of_a_named_algorithm(platform):
    """It takes the name, and honours none."""
    assert Lax() in plausible(platform, "conv", DEPTHWISE)
    found = plausible(platform, "conv", NAMED)
    assert found and Lax() not in found


def test_lax_is_not_loaded_for_a_named_algorithm(tmp_path):
    path = written(tmp_path, dataclasses.replace(entry(planned("gemm"), {Lax(): Times(None, 13.0)}), problem=NAMED))
    with pytest.raises(ValueError, match="lax does not honour the algorithm F32_F32_F32"):
        jaxconv.load_tuning(path)


@pytest.mark.parametrize("precision", [None, "highest", ("default", "high"), "BF16_BF16_F32_X6"])
def test_precision_comes_back(precision):
    problem = layer(X.shape, W.shape, feature_group_count=5, precision=precision)
    before = dataclasses.replace(entry(Lax()), problem=problem)
    assert through_json("cpu", before) == before


def test_every_step_has_a_name():
    assert STEPS["PackedColumns"] is PackedColumns and STEPS["SwappedOperands"] is SwappedOperands and len(STEPS) == 14


def test_what_is_not_stored():
    (batch,) = jax.export.symbolic_shape("batch")
    assert unstored_reason(layer((batch, 4, 3, 5), W.shape, feature_group_count=5)) == "a symbolic batch"
    algorithm = lax.DotAlgorithm(np.float32, np.float32, np.float32)
    assert "DotAlgorithm" in (unstored_reason(dataclasses.replace(DEPTHWISE, precision=algorithm)) or "")
    assert unstored_reason(layer((0, 4, 3, 5), W.shape, feature_group_count=5)) == "no elements"
    assert unstored_reason(DEPTHWISE) is None


# What a loaded file changes.


def test_a_measured_plan_is_used(tmp_path):
    """In what explain prints, with all times, and in the program."""
    text = lambda: jax.jit(lambda x, w: depthwise(x, w)).lower(X, W).as_text()
    assert 'family = "depthwise"' in text()
    others = {planned("depthwise"): Times(None, 13.0), Lax(): Times(None, 20.0)}
    jaxconv.load_tuning(written(tmp_path, entry(planned("gemm"), others)))
    (line,) = lines(depthwise, X, W)
    assert line.endswith(": gemm (12.3 us measured); not depthwise: 13.0 us measured; not lax: 20.0 us measured")
    assert 'family = "gemm"' in text()
    (another,) = lines(jaxconv.conv2d, X, jax.ShapeDtypeStruct((3, 3, 5, 5), np.float32))
    assert another.endswith(": gemm; not depthwise: it is for groups of one channel")
    jaxconv.load_tuning(None)
    assert 'family = "depthwise"' in text()


OF_NAMES = {
    None: "lax (12.3 us measured); not gemm: 13.0 us measured; not depthwise: 14.0 us measured",
    "cpu": "gemm (13.0 us measured); not lax: 12.3 us measured; not depthwise: 14.0 us measured",
    "gemm": "gemm (13.0 us measured); not lax: 12.3 us measured; not depthwise: 14.0 us measured",
    "depthwise": "depthwise (14.0 us measured); not lax: 12.3 us measured; not gemm: 13.0 us measured",
}


@pytest.mark.parametrize("name", OF_NAMES)
def test_a_named_implementation_has_its_best_measured_plan(tmp_path, name):
    """Never lax."""
    others = {planned("gemm"): Times(None, 13.0), planned("depthwise"): Times(None, 14.0)}
    jaxconv.load_tuning(written(tmp_path, entry(Lax(), others)))
    conv = lambda x, w: depthwise(x, w, name)
    (line,) = lines(conv, X, W)
    assert line.endswith(f": {OF_NAMES[name]}")
    family = OF_NAMES[name].partition(" ")[0]
    text = jax.jit(conv).lower(X, W).as_text()
    assert ("jaxconv_conv" not in text) if family == "lax" else (f'family = "{family}"' in text)


def test_a_name_of_which_nothing_was_measured(tmp_path):
    """It is planned by estimates."""
    jaxconv.load_tuning(written(tmp_path, entry(Lax(), {planned("gemm"): Times(None, 13.0)})))
    (line,) = lines(lambda x, w: depthwise(x, w, "depthwise"), X, W)
    assert line.endswith(": depthwise; not gemm: depthwise was asked for")


def test_installed_by_name(tmp_path):
    """As if each convolution named it."""
    jaxconv.load_tuning(written(tmp_path, entry(Lax(), {planned("gemm"): Times(None, 13.0)})))
    conv = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=5
    )
    jaxconv.install("cpu")
    try:
        assert ": gemm (13.0 us measured); not lax" in lines(conv, X, W)[0]
        assert 'family = "gemm"' in jax.jit(conv).lower(X, W).as_text()
    finally:
        jaxconv.uninstall()


def test_names_on_a_gpu(monkeypatch):
    """Of a family the fastest that was measured, whatever its tile; of a constraint, what it is."""
    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: None)
    kind, problem = PASSES["dense_fprop"]
    found = [plan for plan in plausible("cuda", kind, problem) if plan != Lax()]
    times = {Lax(): Times(None, 1.0)} | {plan: Times(1.0, 2.0 + n) for n, plan in enumerate(reversed(found))}
    entry = Entry(kind, problem, times)
    tuning = file.Tuning("cuda", {}, {(kind, problem): entry.choices("cuda")}, None, "a file")
    first_of = lambda asked: decide(kind, "cuda", problem, asked, tuning).plan
    assert first_of("cuda") == found[-1]
    for family in {plan.family for plan in found}:
        assert first_of(family) == next(plan for plan in reversed(found) if plan.family == family)
    for plan in found:
        assert first_of(plan.constraint) == first_of(dataclasses.replace(plan.constraint, or_lax=True)) == plan
        assert not dataclasses.replace(plan.constraint, tile="another").allows(plan)


def test_lax_answers_in_silence_where_it_was_the_fastest(tmp_path):
    """A FallbackWarning would be an error here."""
    jaxconv.load_tuning(written(tmp_path, entry(Lax(), {planned("depthwise"): Times(None, 13.0)})))
    (line,) = lines(depthwise, X, W)
    assert line.endswith(": lax (12.3 us measured); not depthwise: 13.0 us measured")
    lowered = jax.jit(lambda x, w: depthwise(x, w)).lower(X, W).as_text()
    assert "stablehlo.convolution" in lowered and "jaxconv_conv" not in lowered


def test_predicted_beside_measured():
    """On a GPU, where estimates are times."""
    kind, problem = PASSES["dense_fprop"]
    plan, predicted = next(iter(plausible("cuda", kind, problem).items()))
    choice, _ = Entry(kind, problem, {plan: Times(predicted, 11.94), Lax(): Times(None, 20.0)}).choices("cuda")
    assert str(choice.times) == f"{predicted:.1f} us predicted, 11.9 us measured"
    assert 1e6 * choice.cost == pytest.approx(predicted, rel=1e-3)


def test_lax_is_predicted_where_it_is_known():
    """On a GPU that its costs are fitted to, of kinds that it may be faster in, with as much work as was measured."""
    dense, dilated = (halves((64, 28, 28, 256), (3, 3, 256, 256), rhs_dilation=(apart, apart)) for apart in (1, 2))
    small = layer((1, 7, 9, 32), (3, 3, 32, 32))
    for kind in ("conv", "wgrad"):
        reasons = dict(choose_or_lax("cuda", kind, dense, ffi.device("cuda")).rejected)
        assert reasons["lax"].startswith(f"{plausible('cuda', kind, dense)[Lax()]:.1f} us expected")
        assert [plausible("cuda", kind, problem)[Lax()] for problem in (dilated, small)] == [None, None]
        assert expected_seconds(kind, dense, device(is_fitted=False)) is None
    assert kind_of(Product("conv", small)) is not None  # it has too little work, and no other reason


def test_compiled_programs_keep_their_plans(tmp_path):
    """Until JAX forgets them; calls outside of jit are such programs, too."""
    calls = []
    conv = jax.jit(lambda x, w: (calls.append(loaded_tuning().digest), depthwise(x, w))[1])
    x, w = np.ones(X.shape, np.float32), np.ones(W.shape, np.float32)
    conv(x, w)
    jaxconv.load_tuning(written(tmp_path, entry(planned("gemm"))))
    conv(x, w)
    assert len(calls) == 1
    jax.clear_caches()
    conv(x, w)
    assert len(calls) == 2


def test_the_key_of_the_persistent_cache(tmp_path):
    """The whole file is part of it."""
    digests = lambda: [cache_key.digest("conv", "cpu", DEPTHWISE, name, loaded_tuning()) for name in (None, "cpu")]
    before = digests()
    jaxconv.load_tuning(written(tmp_path, entry(planned("gemm"))))
    with_gemm = digests()
    jaxconv.load_tuning(written(tmp_path, entry(Lax())))
    with_lax = digests()
    assert len({*before, *with_gemm, *with_lax}) == 6
    jaxconv.load_tuning(None)
    assert digests() == before


def test_a_constraint_is_not_the_default_in_the_persistent_cache():
    """Without a name lax may answer, and under an empty constraint it may not."""
    of_default, of_constraint = (
        cache_key.digest("conv", "cuda", DEPTHWISE, x, file.NOTHING) for x in (None, Constraint())
    )
    assert of_default != of_constraint


PROCESS = """
import jax, jaxconv, numpy as np
jax.config.update("jax_platforms", "cpu")
conv = lambda x, w: jaxconv.conv2d(x, w, feature_group_count=5)
jaxconv.explain(conv, np.ones((2, 4, 3, 5), "f"), np.ones((3, 3, 1, 5), "f"))
"""


def in_a_process(tmp_path, monkeypatch, path):
    monkeypatch.setenv("JAXCONV_TUNING", str(path))
    return subprocess.run([sys.executable, "-c", PROCESS], cwd=tmp_path, capture_output=True, text=True)


def test_the_environment_names_a_file(tmp_path, monkeypatch):
    run = in_a_process(tmp_path, monkeypatch, written(tmp_path, entry(planned("gemm"))))
    assert ": gemm (12.3 us measured)" in run.stdout, run.stderr
    assert ": depthwise; not gemm" in in_a_process(tmp_path, monkeypatch, "").stdout
    missing = in_a_process(tmp_path, monkeypatch, tmp_path / "missing.json")
    assert missing.returncode != 0 and "missing.json" in missing.stderr
    assert "The environment variable JAXCONV_TUNING is the path of this file" in missing.stderr


# What is refused.

OTHER_HEADERS = {
    "format": (3, "with format 3, but here is format 2"),
    "device": ("NVIDIA A100", f"with device 'NVIDIA A100', but here is device {model('cpu')!r}"),
    "jaxconv": ("0.0.1", "with jaxconv '0.0.1', but here is jaxconv '"),
    "kernels": ("0123", f"with kernels '0123', but here is kernels '{planning.DIGEST[:16]}'"),
}


@pytest.mark.parametrize("name", OTHER_HEADERS)
def test_another_header(tmp_path, name):
    """By those who load it and by those who would extend it. What was loaded before stays."""
    good = written(tmp_path, entry(planned("gemm")))
    jaxconv.load_tuning(good)
    value, message = OTHER_HEADERS[name]
    path = changed(good, lambda content: content.update({name: value}))
    for use in (jaxconv.load_tuning, lambda path: jaxconv.autotune(depthwise, X, W, path=path)):
        with pytest.raises(ValueError) as error:
            use(path)
        assert str(path) in str(error.value) and message in str(error.value)
    assert json.loads(path.read_text())[name] == value
    assert ": gemm (12.3 us measured)" in lines(depthwise, X, W)[0]


def test_a_format_without_entries(tmp_path):
    """Who reads it hears that it is of another format, not what it lacks."""
    path = tmp_path / "later.json"
    path.write_text('{"format": 3, "platform": "cpu", "measurements": []}')
    with pytest.raises(ValueError, match="later.json was measured with format 3, but here is format 2"):
        jaxconv.load_tuning(path)


def test_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "model", lambda platform: {"cuda": "NVIDIA L40S"}[platform])
    path = written(tmp_path, platform="cuda")
    monkeypatch.setattr(file, "model", lambda platform: None)
    with pytest.raises(ValueError, match="on 'NVIDIA L40S', but JAX has no cuda device here"):
        jaxconv.load_tuning(path)


@pytest.mark.parametrize("content", [
    "", "[]", "{}", "3", '{"format": 2, "platform": "cpu"}', '{"platform": ["cpu"], "entries": []}',
    '{"platform": "tpu", "entries": []}', b"\xff\x00",
])  # fmt: skip
def test_no_tuning_file(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="other.json is no tuning file"):
        jaxconv.load_tuning(path)
    with pytest.raises(FileNotFoundError):
        jaxconv.load_tuning(tmp_path / "none.json")


BY_GEMM = {"family": "gemm", "tile": None, "settings": {}, "transform": []}
EDITS = {
    "kind": ({"kind": "fprop"}, ""),
    "family": ({"plan": BY_GEMM | {"family": "fast"}}, "fast cannot run"),
    "tile": ({"plan": BY_GEMM | {"tile": "8x8x8"}}, "gemm 8x8x8 cannot run"),
    "settings": ({"plan": BY_GEMM | {"settings": {"split": 2}}}, "gemm, split 2 cannot run: .*has no settings"),
    "step": ({"plan": BY_GEMM | {"transform": [{"step": "Winograd"}]}}, "there is no transform 'Winograd'"),
    "transform": (
        {"plan": BY_GEMM | {"transform": [{"step": "SwappedOperands"}]}},
        "gemm of swapped operands cannot run: .*only a wgrad",
    ),
    "incomplete": ({"plan": {"family": "gemm"}}, "transform"),
    "nothing": ({"measured": []}, "nothing was measured"),
    "times": ({"us": {"measured": 1.0}}, "predicted"),
    "no time": ({"us": {"predicted": None, "measured": None}}, "positive numbers of microseconds"),
    "words": ({"us": {"predicted": None, "measured": "fast"}}, "positive numbers of microseconds"),
    "no number": ({"us": {"predicted": None, "measured": True}}, "positive numbers of microseconds"),
    "negative": ({"us": {"predicted": None, "measured": -1.0}}, "positive numbers of microseconds"),
    "not finite": ({"us": {"predicted": 1e999, "measured": 1.0}}, "positive numbers of microseconds"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_entry(tmp_path, edit):
    """The message names it, whichever of its candidates was edited."""
    of_images = layer((3, *X.shape[1:]), W.shape, feature_group_count=5)
    before = entry(Lax(), {planned("gemm"): Times(None, 13.0)})
    path = written(tmp_path, before, dataclasses.replace(before, problem=of_images))
    change, message = EDITS[edit]
    whole = change.keys() & {"kind", "measured"}

    def edited(content):
        found = content["entries"][1]
        (found if whole else found["measured"][1]).update(change)

    changed(path, edited)
    with pytest.raises(ValueError, match=rf"entries\[1\] cannot be used: .*{message}.*Measure again, .*another file"):
        jaxconv.load_tuning(path)


@pytest.mark.parametrize("field, value", [
    ("groups", 4), ("lhs_shape", [2, 4, 3]), ("lhs_shape", [2, 4, "three", 5]), ("window_strides", [1]),
    ("out_shape", [2, 4, 3, 6]), ("lhs_dtype", "float99"), ("rhs_dtype", "int8"), ("precision", ["SOME", "SOME"]),
    ("rhs_spec", [3, 2, 0, 9]), ("another", 1), ("pad_low", [1]),
])  # fmt: skip
def test_an_edited_problem(tmp_path, field, value):
    path = written(tmp_path, entry(planned("gemm")))
    changed(path, lambda content: content["entries"][0]["problem"].update({field: value}))
    with pytest.raises(ValueError, match=r"entries\[0\] cannot be used: "):
        jaxconv.load_tuning(path)


SETTINGS = {"split": 7, "rows": 0, "made_up": 1, "channels": "many"}


@pytest.mark.parametrize("name", SETTINGS)
def test_edited_settings_of_a_gpu(name):
    """What the planner would not choose for the tile never reaches a kernel."""
    kind, problem = PASSES["depthwise_fprop"]
    plan = next(plan for plan in plausible("cuda", kind, problem) if plan and plan.family == "depthwise")
    edited = dataclasses.replace(plan, settings={**plan.settings, name: SETTINGS[name]})
    with pytest.raises((ValueError, TypeError)):
        through_json("cuda", Entry(kind, problem, {edited: Times(1.0, 1.0)})).choices("cuda")


# How it is written.


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    """Leaves nothing but the old one, and the lock."""
    path = written(tmp_path)
    before, names = path.read_text(), sorted(tmp_path.iterdir())
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        written(tmp_path, entry(planned("gemm")))
    assert sorted(tmp_path.iterdir()) == names == [path, path.with_suffix(".json.lock")] and path.read_text() == before


def test_a_link_to_a_file_stays_one(tmp_path):
    link = tmp_path / "tuning.json"
    link.symlink_to(tmp_path / "there.json")
    written(tmp_path, entry(planned("gemm")))
    assert link.is_symlink() and len(file.read(tmp_path / "there.json").entries) == 1


def test_what_others_added_stays(tmp_path):
    """Of what two measured, the later one."""
    of_three = dataclasses.replace(entry(Lax()), problem=layer((3, *X.shape[1:]), W.shape, feature_group_count=5))
    written(tmp_path, entry(Lax()))
    written(tmp_path, of_three)
    path = written(tmp_path, entry(planned("gemm")))
    assert list(file.read(path).entries.values()) == [entry(planned("gemm")), of_three]


def mode_of(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_the_mode_of_a_file_stays(tmp_path, mode):
    path = written(tmp_path)
    path.chmod(mode)
    written(tmp_path, entry(planned("gemm")))
    assert mode_of(path) == oct(mode)


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_the_mode_of_a_new_file_is_by_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        assert mode_of(written(tmp_path)) == oct(mode)
    finally:
        os.umask(before)


WRITER = """
import json, sys
import jax
jax.config.update("jax_platforms", "cpu")
from jaxconv.tuning import file
from jaxconv.tuning.entries import Entry

path, *entries = sys.argv[1:]
entries = [Entry.from_json("cpu", json.loads(entry)) for entry in entries]
print("ready", flush=True)
sys.stdin.readline()
for entry in entries:
    file.extend(path, "cpu", [entry])
"""


def test_processes_and_threads_that_write_at_once(tmp_path):
    """No entry is lost."""
    path, each = tmp_path / "tuning.json", 10
    entries = [
        dataclasses.replace(entry(Lax()), problem=layer((n, *X.shape[1:]), W.shape, feature_group_count=5))
        for n in range(1, 4 * each + 1)
    ]
    parts = [entries[first : first + each] for first in range(0, len(entries), each)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), *(json.dumps(entry.to_json()) for entry in part)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for part in parts[:2]
    ]  # fmt: skip
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    threads = [
        threading.Thread(target=lambda part: [file.extend(path, "cpu", [entry]) for entry in part], args=(part,))
        for part in parts[2:]
    ]
    for thread in threads:
        thread.start()
    for process in processes:
        process.communicate("go\n", timeout=120)
        assert process.returncode == 0
    for thread in threads:
        thread.join()
    assert file.read(path).entries.keys() == {(entry.kind, entry.problem) for entry in entries}


# The device.


def test_the_device_of_a_host_is_its_model_and_its_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 2, 3})
    assert (model("cpu") or "").endswith(", 3 cores")


def test_the_device_of_a_gpu_is_its_model(monkeypatch):
    device = lambda kind: type("Gpu", (), {"device_kind": kind})
    kinds = ["NVIDIA L4", "NVIDIA A10", "NVIDIA L4"]
    monkeypatch.setattr(jax, "devices", lambda platform: [device(kind) for kind in kinds])
    assert model("cuda") == "NVIDIA A10 and NVIDIA L4"
