"""Loading of the native modules: what does not fit the running jaxlib is refused before it reaches JAX."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxconv import ffi

ROOT = Path(__file__).parents[2]


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
    assert set(jaxconv._cpu.registrations()) == {"jaxconv_conv", "jaxconv_wgrad"}


def import_from_sources(*paths) -> str:
    """What Python says in the sources' folder, which comes first, with these paths and no editable install (-S)."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-S", "-c", "import jaxconv"]
    return subprocess.run(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True).stderr


def test_sources_that_hide_the_installed_package():
    import jaxconv._cpu

    installed = Path(jaxconv._cpu.__file__).parent
    error = import_from_sources(Path(jax.__file__).parents[1], installed.parent)
    assert f"ImportError: the sources in {ROOT} hide the jaxconv installed in {installed}" in error
    assert "pip install --editable" in error


def test_sources_that_hide_nothing(tmp_path):
    for package in Path(jax.__file__).parents[1].iterdir():
        if "jaxconv" not in package.name:
            (tmp_path / package.name).symlink_to(package)
    error = import_from_sources(tmp_path)
    assert "ImportError: jaxconv's native module jaxconv._planning is missing: install the package" in error
