"""Before JAX starts: what XLA does on the host. After: which native implementation the tests force."""

import gc
import os
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# Compiling thousands of small programs is most of the work: each in one piece, and without LLVM's optimizations.
os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] += "" if Path("/dev/nvidiactl").exists() else " --xla_backend_optimization_level=0"

import jax
import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("cases")

# No test fails because a machine is slow.
settings.register_profile("jaxconv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("jaxconv")

NATIVE = {"cpu": "cpu", "gpu": "cuda"}


def pytest_collection_modifyitems(items):
    if jax.default_backend() == "gpu":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU"))


def pytest_collection_finish():
    """The garbage collector need not visit thousands of tests each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def implementation():
    """The native implementation of the default platform: naming it turns a silent fallback into an error."""
    return NATIVE[jax.default_backend()]


@pytest.fixture
def on_the_host():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def warned_anew(monkeypatch):
    """No FallbackWarning was given yet."""
    from jaxconv import fallback

    monkeypatch.setattr(fallback, "_warned", set())


@pytest.fixture
def cuda_kernels(monkeypatch):
    """As with a GPU: programs are planned and lowered for its kernels, but not run."""
    from jaxconv import ffi

    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: None)


@pytest.fixture
def uninstalled():
    """After the test, lax's functions are lax's again."""
    import jaxconv

    yield
    jaxconv.uninstall()


@pytest.fixture(params=["shardy", "gspmd"])
def partitioner(request):
    name, before = "jax_use_shardy_partitioner", jax.config.jax_use_shardy_partitioner
    jax.config.update(name, request.param == "shardy")
    yield
    jax.config.update(name, before)


@pytest.fixture
def without_tuning(monkeypatch):
    """No tuning file is loaded, before and after."""
    import jaxconv

    monkeypatch.delenv("JAXCONV_TUNING", raising=False)
    yield
    jaxconv.load_tuning(None)


@pytest.fixture
def full_precision():
    """On GPUs, too, float32 must stay float32."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
