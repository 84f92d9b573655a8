"""What plans depend on of GPUs: their models, the same in every process; and GPUs that do not load the kernels."""

import dataclasses
import json
import re
import subprocess
import sys
import textwrap
import warnings
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxconv
from cases.problems import problem_of
from cases.reference import lax_channels_last, run
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import MODELS, TYPICAL_DEVICE, Device, planned_for
from jaxconv.problem.product import EpilogueKind


def gpu(kind, capability="9.0", multiprocessors=132, number=0, process=0):
    return SimpleNamespace(device_kind=kind, compute_capability=capability, core_count=multiprocessors,
                           local_hardware_id=number, process_index=process)  # fmt: skip


H200, H100 = gpu("NVIDIA H200"), gpu("NVIDIA H100 80GB HBM3")


def test_a_model_is_planned_for_by_its_name():
    assert planned_for([H100, H100]) == MODELS["NVIDIA H100 80GB HBM3"]
    assert planned_for([]) == TYPICAL_DEVICE == planned_for([H200])


def test_several_models_have_what_each_of_them_has():
    mixed = planned_for([H200, gpu("NVIDIA A100-SXM4-80GB", "8.0", 108)])
    assert not mixed.wgmma
    for name in ("multiprocessors", "clock_hz", "bandwidth", "l2_bytes", "shared_bytes"):
        assert getattr(mixed, name) == getattr(MODELS["NVIDIA A100-SXM4-80GB"], name)


@pytest.mark.parametrize("first", [H200, H100])
def test_costs_are_fitted_to_a_mix_only_if_it_is_planned_as_one_of_them(first):
    assert planned_for([first, H100, H200]) == MODELS["NVIDIA H100 80GB HBM3"]
    assert not planned_for([first, gpu("NVIDIA A100-SXM4-80GB", "8.0", 108)]).is_fitted
    assert planned_for([first]).is_fitted


@pytest.mark.parametrize(("capability", "known"), [
    ("8.0", MODELS["NVIDIA A100-SXM4-80GB"]),
    ("8.6", Device(72, 1.695e9, 600e9, 6 << 20, 101376, wgmma=False)),  # A10
    ("8.7", Device(16, 1.3e9, 204.8e9, 4 << 20, 166912, wgmma=False)),  # Jetson AGX Orin
    ("8.9", Device(128, 2.52e9, 1008e9, 72 << 20, 101376, wgmma=False)),  # GeForce RTX 4090
    ("9.0", MODELS["NVIDIA H100 80GB HBM3"]),
    ("10.0", dataclasses.replace(MODELS["NVIDIA H100 80GB HBM3"], wgmma=False)),
    ("12.0", Device(170, 2.407e9, 1792e9, 96 << 20, 101376, wgmma=False)),  # GeForce RTX 5090
])  # fmt: skip
def test_other_models_by_their_architecture(capability, known):
    """They are about what a known one is with as many multiprocessors, and have no more L2."""
    device = planned_for([gpu("NVIDIA Unheard-of", capability, known.multiprocessors)])
    assert (device.shared_bytes, device.wgmma, device.is_fitted) == (known.shared_bytes, known.wgmma, False)
    assert known.l2_bytes / 2 < device.l2_bytes <= known.l2_bytes
    assert 0.7 < device.bandwidth / known.bandwidth < 1.25
    assert 0.7 < device.clock_hz / known.clock_hz < 1.25
    twice = planned_for([gpu("NVIDIA Unheard-of", capability, 2 * known.multiprocessors)])
    assert (twice.bandwidth, twice.l2_bytes) == (2 * device.bandwidth, 2 * device.l2_bytes)


def test_an_installation_without_wgmma():
    assert not planned_for([H200], wgmma=False).wgmma


# Lowers for CUDA in a process of its own, whose driver reports a clock.
LOWER = textwrap.dedent("""
    import hashlib, importlib.machinery, json, sys, types
    import jax, jax.numpy as jnp
    from types import SimpleNamespace
    jax.config.update("jax_platforms", "cpu")
    clock = float(sys.argv[1])
    module = types.ModuleType("jaxconv._cuda")
    module.__spec__ = importlib.machinery.ModuleSpec("jaxconv._cuda", None)
    module.ffi_api_version = lambda: (0, 3)
    module.types = module.registrations = dict
    module.has_wgmma = True
    module.unsupported_device_reason = lambda device: None
    sys.modules["jaxconv._cuda"] = module
    import jaxconv
    every = jax.devices
    def devices(backend=None):
        if backend != "cuda":
            return every(backend)
        return [SimpleNamespace(device_kind="NVIDIA H200", compute_capability="9.0", core_count=132, clock_rate=clock,
                                local_hardware_id=0, process_index=0)]
    jax.devices = devices
    texts = []
    for dtype in ("bfloat16", "float32"):
        for size in (7, 14, 28, 56):
            for channels in (24, 64, 96, 160, 256, 512):
                x = jax.ShapeDtypeStruct((32, size, size, channels), dtype)
                w = jax.ShapeDtypeStruct((3, 3, channels, channels), dtype)
                traced = jax.jit(jax.grad(lambda x, w: jaxconv.conv2d(x, w).sum(), (0, 1))).trace(x, w)
                texts.append(hashlib.sha256(traced.lower(lowering_platforms=("cuda",)).as_text().encode()).hexdigest())
    print(json.dumps(texts))
""")


@pytest.mark.full
def test_processes_lower_the_same_program(tmp_path):
    """Whatever clocks their own devices report."""
    lowered = []
    for clock in (1.98e9, 1.8216e9, 1.41e9):
        process = subprocess.run([sys.executable, "-c", LOWER, str(clock)], check=True, cwd=tmp_path,
                                 stdout=subprocess.PIPE, text=True)  # fmt: skip
        lowered.append(json.loads(process.stdout.splitlines()[-1]))
    assert lowered[0] == lowered[1] == lowered[2]


@pytest.fixture
def installed_with(monkeypatch):
    """An installation with CUDA kernels, and GPUs that may not load them."""

    def install(*gpus, error=None):
        asked = []

        def unsupported_device_reason(device):
            asked.append(device)
            return error

        monkeypatch.setattr(ffi, "gpus", lambda: list(gpus))
        monkeypatch.setitem(
            ffi._LOADED, "cuda", SimpleNamespace(unsupported_device_reason=unsupported_device_reason, has_wgmma=True)
        )
        ffi.unavailable_reason.cache_clear()
        ffi.device.cache_clear()
        return asked

    yield install
    monkeypatch.undo()
    ffi.unavailable_reason.cache_clear()
    ffi.device.cache_clear()


def test_gpus_that_load_the_kernels(installed_with):
    asked = installed_with(H200, gpu("NVIDIA H200", number=3), gpu("NVIDIA H200", number=0, process=1))
    assert ffi.unavailable_reason("cuda") is None is ffi.unavailable_reason("cuda")
    assert asked == [0, 3]  # once each, and none of another process


def test_a_fused_call_has_the_plan_of_its_ending(installed_with):
    installed_with(H200)
    x, w = jax.ShapeDtypeStruct((128, 14, 14, 256), "bfloat16"), jax.ShapeDtypeStruct((1, 1, 256, 1024), "bfloat16")
    bias = jax.ShapeDtypeStruct((1024,), "float32")
    problem = problem_of(lax_channels_last, x.shape, w.shape, "bfloat16")

    def kernel(conv, *operands):
        text = jax.jit(conv).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
        (numbers,) = re.findall(r"[^_]settings = dense<\[([^]]*)\]>", text)
        (tile,) = re.findall(r'tile = "([^"]*)"', text)
        return tile, list(map(int, numbers.split(",")))

    def planned(epilogue_kind):
        plan = choose("cuda", "conv", problem, epilogue_kind=epilogue_kind).plan
        return plan.tile, list(plan.settings.values())

    plain = kernel(jaxconv.conv2d, x, w)
    fused = kernel(lambda x, w, bias: jaxconv.conv2d(x, w, bias=bias, implementation="cuda"), x, w, bias)
    assert (plain, fused) == (planned(EpilogueKind.NONE), planned(EpilogueKind.PLAIN))
    assert plain != fused


def test_a_gpu_that_does_not_load_the_kernels(installed_with):
    installed_with(H200, error="no kernel image is available for execution on the device")
    reason = ffi.unavailable_reason("cuda")
    for what in ("NVIDIA H200", "no kernel image", "JAXCONV_CUDA_ARCHS", "driver", "CUDA_VISIBLE_DEVICES"):
        assert what in reason


def test_a_gpu_of_an_older_architecture(installed_with):
    asked = installed_with(gpu("Tesla V100-SXM2-16GB", "7.0", 80))
    assert "Tesla V100-SXM2-16GB has compute capability 7.0" in ffi.unavailable_reason("cuda")
    assert not asked


def test_lax_answers_with_one_warning_where_kernels_do_not_load(installed_with):
    installed_with(H200, error="the driver is too old")
    x, w = jax.ShapeDtypeStruct((2, 8, 8, 8), "float32"), jax.ShapeDtypeStruct((3, 3, 8, 8), "float32")
    texts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", jaxconv.FallbackWarning)
        for stride in (1, 2):
            traced = jax.jit(lambda x, w, s=stride: jaxconv.conv2d(x, w, window_strides=s)).trace(x, w)
            texts.append(traced.lower(lowering_platforms=("cuda",)).as_text())
    assert all("stablehlo.convolution" in text and "jaxconv_conv" not in text for text in texts)
    assert ["the driver is too old" in str(w.message) for w in caught] == [True]


def test_a_name_is_an_error_where_kernels_do_not_load(installed_with):
    installed_with(H200, error="the driver is too old")
    x, w = jax.ShapeDtypeStruct((2, 8, 8, 8), "float32"), jax.ShapeDtypeStruct((3, 3, 8, 8), "float32")
    traced = jax.jit(lambda x, w: jaxconv.conv2d(x, w, implementation="cuda")).trace(x, w)
    with pytest.raises(NotImplementedError, match="the driver is too old"):
        traced.lower(lowering_platforms=("cuda",))


@pytest.mark.gpu
def test_this_gpu_loads_the_kernels():
    for device in jax.local_devices():
        assert ffi._LOADED["cuda"].unsupported_device_reason(device.local_hardware_id) is None
    assert ffi._LOADED["cuda"].unsupported_device_reason(99) is not None
    x, w = np.ones((1, 8, 8, 8), np.float32), np.ones((3, 3, 8, 8), np.float32)
    ours = partial(jaxconv.conv2d, implementation="cuda")
    np.testing.assert_array_equal(run(ours, jnp.asarray(x), w), run(lax_channels_last, x, w))
