"""`python -m jaxconv doctor`: what it finds, and its exit status."""

import subprocess
import sys

import pytest

from jaxconv import doctor, ffi
from jaxconv.planner.families import FAMILIES


@pytest.fixture(autouse=True)
def on_a_host_alone(monkeypatch):
    """One check of each family, and no GPU."""
    monkeypatch.setattr(doctor, "SECONDS", 0.0)
    monkeypatch.setattr(
        doctor, "_devices", lambda platform, devices=doctor._devices: devices("cpu")[: platform == "cpu"]
    )


def found(capsys):
    status = doctor.main()
    return status, capsys.readouterr().out


def test_a_sound_installation():
    process = subprocess.run([sys.executable, "-P", "-m", "jaxconv", "doctor"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "no problem found" in process.stdout and "jaxlib" in process.stdout
    assert all(f"  {family}: ok" in process.stdout for family in FAMILIES["cpu"])


def test_a_driver_that_jax_does_not_use(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path)
    status, text = found(capsys)
    assert status == 1 and "pip install 'jax[cuda" in text


def test_kernels_that_are_missing(capsys, monkeypatch):
    monkeypatch.setattr(ffi, "why_no_kernels", lambda platform: "they are not built")
    status, text = found(capsys)
    assert status == 1 and "they are not built. Until then lax answers" in text


@pytest.mark.parametrize("reason", [None, "the plugin is too old"])
def test_cuda_kernels_without_a_gpu(capsys, monkeypatch, reason):
    """If they are installed, whether they fit is known without it."""
    ours = ffi.why_no_kernels
    monkeypatch.setattr(ffi, "find_module", lambda platform: "jaxconv_cuda13_plugin._cuda")
    monkeypatch.setattr(ffi, "why_no_kernels", lambda platform: reason if platform == "cuda" else ours(platform))
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
