"""`python -m jaxconv doctor`: what it finds, and its exit status."""

import os
import subprocess
import sys
from functools import partial
from importlib import metadata

import jax
import numpy as np
import pytest

from cases.reference import integers
from jaxconv import conv2d, doctor, ffi
from jaxconv.planner.families import FAMILIES

WITHOUT_FIXTURE = doctor.devices_of


@pytest.fixture(autouse=True)
def on_a_host_alone(monkeypatch, tmp_path):
    """One check of each family, and no GPU."""
    monkeypatch.setattr(doctor, "SECONDS", 0.0)
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr(
        doctor, "devices_of", lambda platform, devices=doctor.devices_of: devices("cpu")[: platform == "cpu"]
    )


def found(capsys):
    status = doctor.main()
    return status, capsys.readouterr().out


def command(**environment):
    arguments = [sys.executable, "-P", "-m", "jaxconv", "doctor"]
    return subprocess.run(arguments, env=os.environ | environment, capture_output=True, text=True)


def test_a_sound_installation():
    process = command()
    assert process.returncode == 0, process.stderr
    assert "no problem found" in process.stdout and "jaxlib" in process.stdout
    assert all(f"  {family}: ok" in process.stdout for family in FAMILIES["cpu"])


def test_measured_plans_that_cannot_be_read(tmp_path):
    """Kernels are checked without them."""
    process = command(JAXCONV_TUNING=str(tmp_path / "none.json"))
    assert process.returncode == 1 and "problems found: 1" in process.stdout
    assert "No such file" in process.stdout and "unset JAXCONV_TUNING" in process.stdout
    assert all(f"  {family}: ok" in process.stdout for family in FAMILIES["cpu"])


def test_a_platform_that_jax_does_not_know():
    process = command(JAX_PLATFORMS="abacus")
    assert process.returncode == 1 and not process.stderr
    assert "JAX does not start with JAX_PLATFORMS=abacus: RuntimeError" in process.stdout
    assert "Unset it, or install JAX for what it names" in process.stdout


def test_a_platform_that_is_not_here(capsys, monkeypatch, tmp_path):
    """Of one that it knows JAX says nothing. The driver tells more."""

    def fail():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setattr(doctor, "_platforms", lambda: "cuda")
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path)
    status, text = found(capsys)
    assert status == 1 and "JAX does not start" in text and ": AssertionError" in text
    assert "pip install 'jax[cuda13]'" in text and "problems found: 2" in text


def test_jax_without_the_cpu(capsys, monkeypatch):
    """As where JAX_PLATFORMS=cuda: the host's kernels are not checked, and nothing is wrong."""

    def devices(platform=None):
        raise RuntimeError(f"Unknown backend {platform}")

    monkeypatch.setattr(doctor, "devices_of", WITHOUT_FIXTURE)
    monkeypatch.setattr(jax, "devices", lambda platform=None: devices(platform) if platform else [object()])
    status, text = found(capsys)
    assert status == 0 and "cpu: JAX sees no such device" in text and "gemm" not in text


@pytest.mark.parametrize("layer", doctor.LAYERS, ids=str)
def test_exact_results_are_those_of_lax(layer, on_the_host):
    x, w, groups = layer
    operands = integers(x), integers(w), integers((*x[:-1], w[-1]))
    conv = partial(conv2d, padding="SAME", feature_group_count=groups, implementation="xla")
    exact = doctor._exact_passes(groups, *operands)
    for name, by_lax in doctor._passes(conv, *operands).items():
        np.testing.assert_array_equal(exact[name], by_lax, name)


def test_native_modules(capsys, monkeypatch):
    """The file of each, or why there is none: that of CUDA is no problem on a host."""
    monkeypatch.setattr(ffi, "find_module", lambda platform: "jaxconv._cpu" if platform == "cpu" else None)
    monkeypatch.setattr(
        ffi, "missing_module_reason", lambda platform: "it is not built" if platform == "cuda" else None
    )
    status, text = found(capsys)
    for name in ("_cpu", "_planning"):
        assert f"  jaxconv.{name}: {sys.modules[f'jaxconv.{name}'].__file__}\n" in text
    assert "  cuda: it is not built\n" in text and status == 0


def test_without_metadata(capsys, monkeypatch):
    """As where the package is only on the path."""

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    status, text = found(capsys)
    assert status == 0 and "jaxconv (version unknown)" in text


@pytest.mark.parametrize("platforms", [None, "cpu"])
def test_a_driver_that_jax_does_not_use(capsys, monkeypatch, tmp_path, platforms):
    """No problem if JAX_PLATFORMS asks for the host alone."""
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setattr(doctor, "_platforms", lambda: platforms)
    status, text = found(capsys)
    assert (status == 1) == ("pip install 'jax[cuda" in text) == (platforms is None)


def test_kernels_that_are_missing(capsys, monkeypatch):
    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: "they are not built")
    status, text = found(capsys)
    assert status == 1 and "they are not built. Until then lax answers" in text


@pytest.mark.parametrize("reason", [None, "the plugin is too old"])
def test_cuda_kernels_without_a_gpu(capsys, monkeypatch, reason):
    """If they are installed, whether they fit is known without it."""
    ours = ffi.unavailable_reason
    find = ffi.find_module
    monkeypatch.setattr(ffi, "find_module", lambda platform: "jaxconv._cpu" if platform == "cuda" else find(platform))
    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: reason if platform == "cuda" else ours(platform))
    status, text = found(capsys)
    assert status == (reason is not None) and f"kernels: {reason or 'ok'}\n" in text


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_wrong_results(capsys, monkeypatch, which):
    """Of one pass of one family."""

    def wrong(conv, *operands, passes=doctor._passes):
        results = passes(conv, *operands)
        return results | {which: results[which] + (conv.keywords["implementation"] == "gemm")}

    monkeypatch.setattr(doctor, "_passes", wrong)
    status, text = found(capsys)
    assert status == 1 and f"gemm: wrong results of {which}: " in text and "depthwise: ok" in text


def test_a_kernel_that_fails(capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(doctor, "_passes", fail)
    status, text = found(capsys)
    assert status == 1 and "gemm: RuntimeError: an illegal address" in text and "problems found: 2" in text


def test_a_family_without_its_instructions(capsys, monkeypatch):
    """As wgmma on an older GPU: no problem."""

    def refuse(*_):
        raise NotImplementedError

    monkeypatch.setattr(doctor, "_passes", refuse)
    status, text = found(capsys)
    assert status == 0 and "gemm, which takes none of the checked layers here: ok" in text
