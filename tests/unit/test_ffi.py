"""Loading of the native modules: what does not fit the running jaxlib is refused before it reaches JAX."""

import importlib.metadata
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

import jaxconv
from cases.files import ROOT
from jaxconv import ffi
from jaxconv.compiled import planning


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


OURS = importlib.metadata.version("jaxconv")


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """Installs the CUDA module as a package of its own, and says what becomes of it: the module, or a reason."""

    def install(version=OURS, digest=planning.DIGEST, source="", jax_cuda=()):
        (tmp_path / "jaxconv_cuda13_plugin").mkdir()
        (tmp_path / "jaxconv_cuda13_plugin" / "_cuda.py").write_text(f"""
{source}
DIGEST = {digest!r}
types = registrations = dict
unsupported_device_reason = lambda device: None
has_wgmma = True
ffi_api_version = lambda: (0, 3)
""")
        about = tmp_path / f"jaxconv_cuda13_plugin-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jaxconv-cuda13-plugin\nVersion: {version}\n")
        for cuda in jax_cuda:
            (tmp_path / f"jax_cuda{cuda}_plugin").mkdir()
        loaded = ffi._load_cuda()
        monkeypatch.setitem(ffi._LOADED, "cuda", loaded)
        return loaded

    def forget():
        for name in [name for name in sys.modules if name.startswith("jaxconv_cuda13_plugin")]:
            del sys.modules[name]
        ffi.unavailable_reason.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ffi.MODULES, "cuda", ("jaxconv_cuda13_plugin._cuda",))
    forget()
    yield install
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("jax_cuda", [(), (13,), (12, 13)])
def test_a_plugin_that_fits(plugin, jax_cuda):
    assert plugin(jax_cuda=jax_cuda).__name__ == "jaxconv_cuda13_plugin._cuda"
    assert ffi.unavailable_reason("cuda") is None


@pytest.mark.parametrize(
    "installed, reason",
    [
        ({"version": "0.0.1", "digest": "another"}, f"plugin 0.0.1 was built from other sources than jaxconv {OURS}"),
        ({"jax_cuda": (12,)}, "JAX is installed for CUDA 12.*pip install 'jax.cuda13.'"),
        ({"source": "raise ImportError('version GLIBC_2.99 not found')"}, "GLIBC_2.99 not found"),
        ({"source": "import absent"}, "No module named 'absent'"),
    ],
)
def test_a_plugin_that_does_not_fit(plugin, installed, reason, monkeypatch):
    """Nothing is registered, and lax answers, with one warning."""
    registered = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *a, **k: registered.append(a))
    plugin(**installed)
    x, w = jax.ShapeDtypeStruct((2, 8, 8, 4), "float32"), jax.ShapeDtypeStruct((3, 3, 4, 6), "float32")
    with pytest.warns(jaxconv.FallbackWarning, match=f"the cuda kernels cannot be used: .*{reason}"):
        traced = jax.jit(lambda *operands: jaxconv.conv2d(*operands)).trace(x, w)  # not what another test has traced
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.convolution" in text and "jaxconv_conv" not in text and not registered
    with warnings.catch_warnings():
        warnings.simplefilter("error", jaxconv.FallbackWarning)
        assert jaxconv.conv2d(jax.numpy.ones(x.shape), jax.numpy.ones(w.shape), implementation="cpu").sum() > 0


def test_without_a_plugin(plugin):
    assert "pip install 'jaxconv[cuda13]'" in ffi._load_cuda()
