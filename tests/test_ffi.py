"""Loading of the native modules: what does not fit the running jaxlib is refused before it reaches JAX."""

import jax
import pytest

from jaxconv import ffi


def test_the_running_api_is_read_off_jaxlib():
    major, minor = ffi.running_ffi_api()
    assert (major, minor) >= (0, 3)


@pytest.mark.parametrize("built", [(0, 3), (0, 2)])
def test_an_older_api_fits(built):
    ffi.check_fits("jaxconv._cpu", built, running=(0, 3))


@pytest.mark.parametrize("built", [(0, 4), (1, 0)])
def test_a_newer_api_is_refused_with_both_versions(built):
    with pytest.raises(ImportError, match=rf"FFI API {built[0]}\.{built[1]}.*jaxlib.*0\.3"):
        ffi.check_fits("jaxconv._cpu", built, running=(0, 3))


def test_a_module_that_does_not_fit_registers_nothing(monkeypatch):
    """The refusal comes before any handler is handed to XLA, and JAX goes on working."""
    registered = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *a, **k: registered.append(a))
    monkeypatch.setattr(ffi, "running_ffi_api", lambda: (0, 1))
    with pytest.raises(ImportError, match="Reinstall jaxconv"):
        ffi._load("cpu")
    assert not registered
    assert float(jax.numpy.ones(3).sum()) == 3


def test_native_modules_are_built_for_the_oldest_supported_api():
    import jaxconv._cpu

    assert jaxconv._cpu.ffi_api_version() == (0, 3)
    assert set(jaxconv._cpu.registrations()) == {"jaxconv_gather", "jaxconv_reduce"}
