"""`autotune`: measures what programs then use, in one process and in several."""

import json
import subprocess
import sys
import threading
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.meshes import ONE_AXIS, mesh, place
from cases.parts import every_other, repeated
from cases.problems import channels_first, passes_of, problem_of
from cases.processes import free_port
from cases.reference import HOST, assert_same, integers, lax_channels_last, run_on_host
from cases.small import CASES
from jaxconv import ffi
from jaxconv.explain import lines
from jaxconv.fallback import LAX
from jaxconv.planner.choose import Times
from jaxconv.planner.plan import Lax
from jaxconv.planner.xla import AHEAD
from jaxconv.problem.product import OPERANDS, RESULT
from jaxconv.tuning import autotune as autotuning
from jaxconv.tuning import file, timing
from jaxconv.tuning.entries import Entry

X, W = integers((2, 7, 6, 4)), integers((3, 3, 4, 8))


pytestmark = pytest.mark.usefixtures("on_the_host", "without_tuning")


def strided(x, w):
    return jaxconv.conv2d(x, w, window_strides=2)


def gradients(conv):
    return jax.value_and_grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=(0, 1))


def tuned(tmp_path, fn, *args, **kwargs):
    """Measured and loaded: the file's entries."""
    path = tmp_path / "tuning.json"
    jaxconv.autotune(fn, *args, path=path, **kwargs)
    jaxconv.load_tuning(path)
    return json.loads(path.read_text())["entries"]


def names(entry):
    """The families of its candidates, or lax, the best first."""
    return [one["plan"]["family"] if one["plan"] else "lax" for one in entry["measured"]]


def times(entry):
    return [one["us"]["measured"] for one in entry["measured"]]


def test_all_passes_of_a_jitted_gradient(tmp_path, capfd):
    """Each has an entry of its own, with the times of our kernels and of lax, and the results stay right."""
    step = gradients(strided)
    found = tuned(tmp_path, jax.jit(step), X, W)
    assert "candidate" in capfd.readouterr().err
    assert Counter((entry["kind"], entry["problem"]["reverse"]) for entry in found) == {
        ("conv", False): 1, ("conv", True): 1, ("wgrad", False): 1
    }  # fmt: skip
    for entry in found:
        assert {"gemm", "lax"} <= set(names(entry))
        best, *others = times(entry)
        assert all(AHEAD * other >= best > 0 for other in others)  # lax may be ahead by a hair
    explained = lines(step, X, W)
    assert len(explained) == 3 and all(" us measured)" in line for line in explained)
    expected = run_on_host(gradients(lambda x, w: lax_channels_last(x, w, window_strides=(2, 2))), X, W)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(step)(X, W), expected)


def test_lax_with_install(tmp_path, uninstalled):
    """The convolutions of lax's functions are measured as what they are."""
    step = gradients(lambda x, w: lax_channels_last(x, w, window_strides=(2, 2)))
    jaxconv.install()
    found = tuned(tmp_path, step, X, W)
    explained = lines(step, X, W)
    assert Counter(entry["kind"] for entry in found) == {"conv": 2, "wgrad": 1}
    assert all("lax" in names(entry) for entry in found)
    assert len(explained) == 3 and all(" us measured)" in line for line in explained)


@pytest.mark.parametrize("case", every_other(CASES), ids=str)
def test_whatever_is_the_fastest_is_right(case, tmp_path):
    operands = case.operands()
    tuned(tmp_path, case.general(None), *operands)
    (line,) = lines(case.general(None), *operands)
    assert " us measured)" in line
    result = jax.jit(case.general(None))(*operands)
    np.testing.assert_array_equal(result, run_on_host(case.lax(), *operands))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8"])
def test_dtypes(dtype, tmp_path):
    operands = integers(X.shape, dtype), integers(W.shape, dtype)
    result = "int32" if dtype == "int8" else None
    conv = lambda x, w: jaxconv.conv2d(x, w, preferred_element_type=result)
    with jax.enable_x64(dtype == "float64"):
        (entry,) = tuned(tmp_path, conv, *operands)
        assert entry["problem"]["lhs_dtype"] == dtype and len(names(entry)) == 2
        assert " us measured)" in lines(conv, *operands)[0]


def test_only_what_the_file_lacks_is_measured(tmp_path, monkeypatch):
    """Each distinct convolution once, from types alone; a longer file keeps what it has."""
    types = jax.ShapeDtypeStruct(X.shape, X.dtype), jax.ShapeDtypeStruct(W.shape, W.dtype)
    measured = []
    original = autotuning._measured
    monkeypatch.setattr(autotuning, "_measured", lambda *args: (measured.append(args[1:3]), original(*args))[1])
    twice = lambda x, w: strided(x, w) + strided(2 * x, w)
    first = tuned(tmp_path, twice, *types)
    assert len(first) == len(measured) == 1
    both = lambda x, w: (strided(x, w), jaxconv.conv2d(x, w))
    second = tuned(tmp_path, both, *types)
    assert len(second) == len(measured) == 2 and second[0] == first[0]
    tuned(tmp_path, both, *types)
    assert len(measured) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"tuning.json", "tuning.json.lock"}


NOTHING_TO_MEASURE = {
    "named": lambda x, w: jaxconv.conv2d(x, w, implementation="gemm") + jaxconv.conv2d(x, w, implementation="xla"),
    "lax's own": lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "none": lambda x, w: x,
}


@pytest.mark.parametrize("name", NOTHING_TO_MEASURE)
def test_nothing_to_measure(tmp_path, name):
    with pytest.warns(UserWarning, match="found no convolution that it can measure") as caught:
        jaxconv.autotune(NOTHING_TO_MEASURE[name], X, W, path=tmp_path / "tuning.json")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", ["cpu", "gemm"])
def test_a_named_platform_is_measured(tmp_path, monkeypatch, name):
    """As without a name, so also for a name of a family: each has the best of what it allows."""
    measured = iter([2.0, 1.0, 1.0, 2.0])
    monkeypatch.setattr(autotuning, "median_us", lambda *_: next(measured))
    named = lambda x, w, implementation=name: jaxconv.conv2d(x, w, implementation=implementation)
    (entry,) = tuned(tmp_path, lambda x, w: named(x, w) + named(x, w, "cpu"), X, W)
    assert names(entry) == ["lax", "gemm"]
    (line,) = lines(named, X, W)
    assert line.endswith(": gemm (2.0 us measured); not lax: 1.0 us measured")
    assert lines(lambda x, w: named(x, w, None), X, W)[0].endswith(": lax (1.0 us measured); not gemm: 2.0 us measured")


def test_another_platform_by_name_is_not_measured(tmp_path):
    with pytest.warns(UserWarning, match="found no convolution that it can measure"):
        jaxconv.autotune(lambda x, w: jaxconv.conv2d(x, w, implementation="cuda"), X, W, path=tmp_path / "tuning.json")


def test_what_another_process_measures_meanwhile_stays(tmp_path, monkeypatch):
    path, original = tmp_path / "tuning.json", autotuning._measured

    def with_another(device, kind, problem, *rest):
        of_one_image = passes_of(problem_of(lax_channels_last, (1, *X.shape[1:]), W.shape))["fprop"][1]
        file.extend(path, "cpu", [Entry("conv", of_one_image, {Lax(): Times(None, 1.0)})])
        return original(device, kind, problem, *rest)

    monkeypatch.setattr(autotuning, "_measured", with_another)
    assert len(tuned(tmp_path, strided, X, W)) == 2


@pytest.mark.filterwarnings("ignore:.*found no convolution")
def test_a_symbolic_batch_is_not_measured(tmp_path):
    batch = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("batch"), *X.shape[1:]), X.dtype)
    with pytest.warns(UserWarning, match="does not measure a convolution with a symbolic batch") as caught:
        assert tuned(tmp_path, strided, batch, W) == []
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:.*leaves out")
def test_a_candidate_that_fails_is_left_out(tmp_path, monkeypatch):
    def fails(plan, problem):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ffi, "convolution", fails)
    with pytest.warns(UserWarning, match="leaves out gemm, which failed: out of memory"):
        (entry,) = tuned(tmp_path, strided, X, W)
    assert names(entry) == ["lax"]
    monkeypatch.setattr(autotuning, "LAX", {"conv": lambda problem: fails(None, problem)})
    with pytest.warns(UserWarning, match=r"leaves out a convolution: all candidates .*\. float32\[2,7,6,4\]") as caught:
        jaxconv.autotune(strided, X, W, path=tmp_path / "another.json")
    assert {warning.filename for warning in caught} == {__file__}
    assert file.read(tmp_path / "another.json").entries == {}


def test_operands_that_do_not_fit_into_memory(tmp_path, monkeypatch):
    """The other convolutions are measured."""

    def in_little_memory(types):
        if types[0].shape == X.shape:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return timing.random_operands(types)

    monkeypatch.setattr(autotuning, "random_operands", in_little_memory)
    both = lambda x, w: (strided(x, w), strided(x[:1], w))
    with pytest.warns(
        UserWarning, match=r"leaves out a convolution: RESOURCE_EXHAUSTED\. float32\[2,7,6,4\]"
    ) as caught:
        (entry,) = tuned(tmp_path, both, X, W)
    assert caught[0].filename == __file__ and entry["problem"]["lhs_shape"][0] == 1


def test_a_finalist_that_fails_is_left_out(tmp_path, monkeypatch):
    """And of two times of a candidate, the lesser one counts: none that was measured once looks faster."""
    results = iter([1.0, 3.0, RuntimeError("RESOURCE_EXHAUSTED"), 4.0])

    def next_time(*_):
        if isinstance(found := next(results), RuntimeError):
            raise found
        return found

    monkeypatch.setattr(autotuning, "median_us", next_time)
    with pytest.warns(UserWarning, match="leaves out gemm, which failed: RESOURCE_EXHAUSTED"):
        (entry,) = tuned(tmp_path, strided, X, W)
    assert names(entry) == ["lax"] and times(entry) == [3.0]


@pytest.mark.parametrize("ahead, fastest", [(0.96, "gemm"), (0.94, "lax")])
def test_lax_must_be_clearly_ahead(tmp_path, monkeypatch, ahead, fastest):
    """Programs on it may give other bits in another run."""
    measured = iter([1.0, ahead, ahead, 1.0])
    monkeypatch.setattr(autotuning, "median_us", lambda *_: next(measured))
    (entry,) = tuned(tmp_path, strided, X, W)
    other = "lax" if fastest == "gemm" else "gemm"
    assert names(entry) == [fastest, other]


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn"])
def test_lax_is_no_candidate_where_it_computes_something_else(tmp_path, dtype):
    """Kernels compute complex numbers as real ones, and float8 in wider types: lax's time is of another convolution."""
    found = tuned(tmp_path, strided, X.astype(dtype), W.astype(dtype))
    assert found and all("lax" not in names(entry) for entry in found)
    assert " us measured)" in lines(strided, X.astype(dtype), W.astype(dtype))[0]


def with_bias(x, w):
    return jaxconv.conv2d(x, w, window_strides=2, bias=jnp.ones(w.shape[-1]), activation="relu")


@pytest.mark.parametrize("fastest", ["gemm", "lax"])
def test_a_convolution_with_an_epilogue(tmp_path, fastest, monkeypatch):
    """It is measured without, and then has that kernel, or lax."""
    measured = iter([1.0, 2.0, 1.0, 2.0] if fastest == "gemm" else [2.0, 1.0, 1.0, 2.0])
    monkeypatch.setattr(autotuning, "median_us", lambda *_: next(measured))
    (entry,) = tuned(tmp_path, with_bias, X, W)
    assert names(entry)[0] == fastest
    (line,) = lines(with_bias, X, W)
    assert line.startswith("fprop with its epilogue ") and f": {fastest} (1.0 us measured)" in line
    text = jax.jit(lambda x, w: with_bias(x, w)).lower(X, W).as_text()
    assert ('operands = "bias"' in text) == (fastest == "gemm") and ("jaxconv_conv" in text) == (fastest == "gemm")
    expected = run_on_host(lambda x, w: jax.nn.relu(lax_channels_last(x, w, window_strides=(2, 2)) + 1), X, W)
    np.testing.assert_array_equal(jax.jit(with_bias)(X, W), expected)


@pytest.mark.filterwarnings("ignore:.*found no convolution")
def test_an_epilogue_of_int8_is_not_measured(tmp_path):
    conv = lambda x, w: jaxconv.conv2d(x, w, scale=0.5, out_dtype="bfloat16")
    with pytest.warns(UserWarning, match="does not measure a convolution with an epilogue to bfloat16") as caught:
        jaxconv.autotune(conv, X.astype("int8"), W.astype("int8"), path=tmp_path / "tuning.json")
    assert caught[0].filename == __file__


def test_integers_of_numpy(tmp_path, uninstalled):
    """JAX keeps them as they are given. A file has them as others, for all who ask for the same."""
    two, one = np.int64(2), np.int32(1)
    axes = lambda *numbers: tuple(map(np.int64, numbers))
    numbers = lax.ConvDimensionNumbers(axes(0, 3, 1, 2), axes(3, 2, 0, 1), axes(0, 3, 1, 2))
    conv = lambda x, w: lax.conv_general_dilated(
        x, w, (two, two), ((one, one), (one, one)), (one, one), (one, one), numbers, feature_group_count=two
    )
    w, ours = W[:, :, :2], lambda x, w: jaxconv.conv2d(x, w, window_strides=2, padding=((1, 1),) * 2, **GROUPS)
    jaxconv.install()
    tuned(tmp_path, conv, X, w)
    assert " us measured)" in lines(conv, X, w)[0]
    assert " us measured)" in lines(ours, X, w)[0]


GROUPS = dict(feature_group_count=np.int64(2))


def test_no_place_for_the_file(tmp_path, monkeypatch):
    """Found before anything is measured."""
    monkeypatch.setattr(autotuning, "_measured", None)
    with pytest.raises(FileNotFoundError):
        jaxconv.autotune(strided, X, W, path=tmp_path / "missing" / "tuning.json")


def test_a_platform_without_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: f"no {platform} kernels")
    with pytest.raises(NotImplementedError, match="no cpu kernels"):
        jaxconv.autotune(strided, X, W, path=tmp_path / "tuning.json")


def test_without_tqdm(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxconv\[tune\]'"):
        jaxconv.autotune(strided, X, W, path=tmp_path / "tuning.json")


@pytest.fixture
def seen(monkeypatch):
    """The compiled programs that are measured."""
    programs = []
    original = timing.median_us
    monkeypatch.setattr(
        autotuning, "median_us", lambda clock, c, *rest: (programs.append(c), original(clock, c, *rest))[1]
    )
    return programs


def devices(program):
    return {device for sharding in jax.tree.leaves(program.input_shardings) for device in sharding.device_set}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_inside_of_a_mesh(tmp_path, kind, seen):
    """One device's program is measured, not that of the mesh."""
    with jax.set_mesh(mesh(kind=kind)):
        jaxconv.autotune(strided, X, W, path=tmp_path / "tuning.json")
    assert seen and all(len(devices(program)) == 1 for program in seen)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "default"])
def test_the_device_of_the_function(tmp_path, committed, seen):
    """That of committed arrays, or else the default one, as for calls."""
    device = jax.devices("cpu")[3]
    with jax.default_device(HOST if committed else device):
        jaxconv.autotune(strided, jax.device_put(X, device) if committed else X, W, path=tmp_path / "tuning.json")
    assert seen and all(devices(program) == {device} for program in seen)


def test_results_of_more_bits_than_the_operands(tmp_path, seen, x64):
    jaxconv.autotune(
        lambda x, w: jaxconv.conv2d(x, w, preferred_element_type="float64"), X, W, path=tmp_path / "t.json"
    )
    assert seen and all(program.out_info.dtype == "float64" for program in seen)


def test_without_jit(tmp_path):
    with jax.disable_jit():
        (entry,) = tuned(tmp_path, strided, X, W)
    assert len(names(entry)) == 2


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_inside_of_a_transform(tmp_path, transform):
    function = lambda x: (jaxconv.autotune(strided, X, W, path=tmp_path / "tuning.json"), x)[1]
    with pytest.raises(NotImplementedError, match="inside of jit, grad or vmap: call it outside"):
        transform(function)(np.float32(1) if transform is jax.grad else X)
    assert list(tmp_path.iterdir()) == []


def test_threads_take_turns(tmp_path):
    path = tmp_path / "tuning.json"
    conv = lambda stride: lambda x, w: jaxconv.conv2d(x, w, window_strides=stride)
    threads = [
        threading.Thread(target=lambda stride: jaxconv.autotune(conv(stride), X, W, path=path), args=(1 + number % 2,))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.read(path).entries) == 2


def test_another_file_between_lowering_and_compiling(tmp_path, monkeypatch):
    """The program is that of its key in the persistent cache: of the file at lowering."""
    operands = place(ONE_AXIS(), (integers((16, *X.shape[1:])), W), (P("a"), P()))
    lowered = jax.jit(lambda x, w: strided(x, w)).lower(*operands)
    monkeypatch.setattr(autotuning, "median_us", lambda clock, compiled, operands, budget_s: next(measured))
    measured = iter([2.0, 1.0, 1.0, 2.0])
    assert names(tuned(tmp_path, strided, X, W)[0])[0] == "lax"
    assert "jaxconv_conv" in (lowered.compile().as_text() or "")
    assert "jaxconv_conv" not in (jax.jit(lambda x, w: strided(x, w)).lower(*operands).compile().as_text() or "")


@pytest.mark.parametrize("fastest", ["gemm", "lax"])
def test_the_parts_of_a_sharded_convolution(tmp_path, fastest, monkeypatch):
    """Each device's part is what was measured."""
    monkeypatch.setattr(autotuning, "median_us", lambda clock, compiled, operands, budget_s: next(measured))
    measured = iter([1.0, 2.0, 1.0, 2.0] if fastest == "gemm" else [2.0, 1.0, 1.0, 2.0])
    x = integers((16, *X.shape[1:]))
    tuned(tmp_path, strided, x[:2], W)
    operands = place(ONE_AXIS(), (x, W), (P("a"), P()))
    compiled = jax.jit(lambda x, w: strided(x, w)).lower(*operands).compile()  # another function than before
    assert ("jaxconv_conv" in (compiled.as_text() or "")) == (fastest == "gemm")
    expected = run_on_host(lambda x, w: lax_channels_last(x, w, window_strides=(2, 2)), x, W)
    np.testing.assert_array_equal(compiled(*operands), expected)


# Several processes of one program.

PROCESS = """
import json, os, sys, time
import jax, jaxconv, numpy as np
from jaxconv.tuning import loaded

address, process, steps = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
jax.config.update("jax_platforms", "cpu")
operands = np.ones((2, 7, 6, 4), "f"), np.ones((3, 3, 4, 8), "f")

def until_there_is(path):
    while not os.path.exists(path):
        time.sleep(0.05)

does = {
    "initialize": lambda: (jax.distributed.initialize(address, num_processes=2, process_id=process), jax.devices()),
    "load": jaxconv.load_tuning,
    "explain": lambda: jaxconv.explain(jaxconv.conv2d, *operands),
    "autotune": lambda: jaxconv.autotune(jaxconv.conv2d, *operands, path="another.json"),
    "longest_wait": lambda seconds: setattr(loaded, "LONGEST_WAIT_S", seconds),
    "say": lambda path: open(path, "w").close(),
    "until": until_there_is,
}
for name, *arguments in steps:
    try:
        does[name](*arguments)
    except (ValueError, NotImplementedError) as error:
        print(name, "fails:", type(error).__name__, error)
jax.distributed.shutdown()
"""
START, EXPLAIN = ["initialize"], ["explain"]


def load(path):
    return ["load", path and str(path)]


def in_two_processes(tmp_path, *steps):
    """What each prints, given its steps."""
    address = f"localhost:{free_port()}"
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, address, str(number), json.dumps(of_process)], cwd=tmp_path,
                         stdout=subprocess.PIPE, text=True)
        for number, of_process in enumerate(steps)
    ]  # fmt: skip
    return [process.communicate(timeout=120)[0] for process in processes]


@pytest.fixture
def files(tmp_path):
    """Two that differ, and a copy of the first."""
    first, second, copy = (tmp_path / f"{name}.json" for name in ("first", "second", "copy"))
    jaxconv.autotune(jaxconv.conv2d, X, W, path=first)
    file.extend(second, "cpu")
    copy.write_bytes(first.read_bytes())
    return first, second, copy


@pytest.mark.parametrize("loaded", ["before", repeated("after")])
def test_processes_with_different_files_are_refused(tmp_path, files, loaded):
    """All of them, with a message that names both files. Files that differ are no obstacle to later ones that agree."""
    first, second, copy = files
    failing = (lambda path: [load(path), START, EXPLAIN]) if loaded == "before" else lambda path: [START, load(path)]
    steps = [[*failing(first), load(first), EXPLAIN], [*failing(second), load(copy), EXPLAIN]]
    for printed in in_two_processes(tmp_path, *steps):
        refused, explained = printed.splitlines()
        assert "fails: ValueError the processes of one program must hold the same tuning file" in refused
        assert f"process 0 has {first} (sha256 " in refused and f"process 1 has {second} (sha256 " in refused
        assert "us measured)" in explained


def test_a_process_without_a_file_is_refused(tmp_path, files):
    """By the one that has one, which waits for it."""
    with_file, _ = in_two_processes(tmp_path, [START, load(files[0])], [START, EXPLAIN])
    assert f"process 0 has {files[0]}" in with_file and "process 1 has no file" in with_file


def test_one_process_alone_cannot_go_back_to_estimates(tmp_path, files):
    """It waits for the others, also without a file. What was loaded stays."""
    first, _, copy = files
    back = [["longest_wait", 1], load(None), EXPLAIN, ["say", "tried"]]
    for_both = in_two_processes(tmp_path, [START, load(first), *back], [START, load(copy), ["until", "tried"], EXPLAIN])
    assert "fails: ValueError process 1 did not say within 1 s which tuning file it holds" in for_both[0]
    for printed in for_both:
        assert "us measured)" in printed.splitlines()[-1]


def test_a_process_that_was_too_late(tmp_path, files):
    """The other one can load the file again, and then both agree; in the next comparison, too."""
    first, _, copy = files
    late = [START, ["until", "tried"], load(first), load(None), EXPLAIN]
    waiting = [
        START,
        ["longest_wait", 1],
        load(copy),
        ["longest_wait", 100],
        ["say", "tried"],
        load(copy),
        load(None),
        EXPLAIN,
    ]
    of_late, of_waiting = in_two_processes(tmp_path, late, waiting)
    assert "fails: ValueError process 0 did not say within 1 s" in of_waiting
    assert "fails" not in of_late and of_waiting.count("fails") == 1
    assert "us measured)" not in of_late + of_waiting


@pytest.mark.parametrize("which", ["one file", repeated("none")])
def test_processes_that_agree(tmp_path, files, which):
    """They do not measure: each would choose for itself."""
    loads = ([load(files[0])], [load(files[2])]) if which == "one file" else ([], [])
    steps = [[START, *of_process, EXPLAIN, ["autotune"]] for of_process in loads]
    for printed in in_two_processes(tmp_path, *steps):
        assert printed.startswith("fprop ") and "ValueError" not in printed
        assert ("us measured)" in printed) == (which == "one file")
        assert "NotImplementedError jaxconv.autotune in a program of several processes" in printed


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_operands_are_as_between_layers_of_a_network(which):
    """Images channels last: what a GPU's XLA makes of a network with channels first."""
    kind, problem = passes_of(channels_first((2, 5, 7, 6), (4, 5, 3, 3)))[which]
    convolution, shapes = LAX[kind](problem), [problem.shape(role) for role in OPERANDS[kind]]
    a, b = (integers(shape, "bfloat16") for shape in shapes)
    to_views, between_layers = autotuning._in_a_network(kind, problem, "gpu")
    last = [np.moveaxis(x, 1, -1) if role != "rhs" else x for x, role in zip((a, b), OPERANDS[kind], strict=True)]
    expected = run_on_host(convolution, a, b)
    assert_same(run_on_host(to_views, a, b), tuple(last))
    expected = expected if RESULT[kind] == "rhs" else np.moveaxis(expected, 1, -1)
    assert_same(run_on_host(between_layers(convolution), *last), expected)
    as_on_a_host, _ = autotuning._in_a_network(kind, problem, "cpu")
    assert_same(run_on_host(as_on_a_host, a, b), (a, b))


@pytest.mark.gpu
def test_channels_first_is_not_timed_with_transpositions(tmp_path):
    x, w = integers((16, 64, 56, 56)), integers((64, 64, 3, 3))
    conv = lambda x, w: jaxconv.conv_general_dilated(x, w, (1, 1), "SAME", precision="highest")
    last = lambda x, w: jaxconv.conv2d(x, w, precision="highest")
    with jax.default_device(jax.devices("gpu")[0]):
        (first,) = tuned(tmp_path, conv, x, w)
        (path := tmp_path / "last").mkdir()
        (entry,) = tuned(path, last, np.moveaxis(x, 1, -1), np.transpose(w, (2, 3, 1, 0)))
    assert "ChannelsLast" in str(first["measured"][0])
    assert times(first)[0] < 1.5 * times(entry)[0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_a_gpu(tmp_path, dtype):
    """All passes of a small convolution, by CUPTI: times of several candidates and of lax, and right results."""
    operands = integers((4, 16, 16, 32), dtype), integers((3, 3, 32, 32), dtype)
    step = gradients(strided)
    with jax.default_device(jax.devices("gpu")[0]):
        found = tuned(tmp_path, step, *operands)
        explained = lines(step, *operands)
        value, results = jax.jit(step)(*operands)
    assert len(found) == len(explained) == 3
    for entry, line in zip(found, explained):
        assert len(names(entry)) >= 3 and "us measured)" in line
        assert all(one["us"]["predicted"] or one["plan"] is None for one in entry["measured"])
        (of_lax,) = (one["us"]["predicted"] for one in entry["measured"] if one["plan"] is None)
        assert of_lax is None  # too little work
        assert "us predicted, " in line
    theirs = lambda x, w: lax_channels_last(x, w, window_strides=(2, 2), precision="highest")
    _, expected = run_on_host(gradients(theirs), *operands)
    for result, reference in zip(results, expected):
        result, reference = (np.asarray(a, np.float64) for a in (result, reference))
        assert np.isfinite(result).all() and np.abs(result - reference).max() <= 0.02 * np.abs(reference).max()
