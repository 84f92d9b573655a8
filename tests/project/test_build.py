"""The build backend's decisions: what is built, and what the package index must provide."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from cases.files import ROOT, module_at
from jaxconv.compiled import planning

BACKEND = ROOT / "build_backend" / "jaxconv_build.py"
HEADERS = ["jaxlib==0.10.0"]


@pytest.fixture(scope="module")
def backend():
    return module_at(BACKEND)


def write_nvcc(folder: Path, release: str) -> str:
    """A program that says it is nvcc."""
    folder.mkdir(parents=True, exist_ok=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def put_nvidia_smi_on_path(monkeypatch, folder: Path, says: str) -> None:
    """A program that answers as nvidia-smi does."""
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.parametrize(
    "setting, driver, wanted",
    [
        ({}, False, False),
        ({}, True, True),
        ({"JAXCONV_CUDA": "ON"}, False, True),
        ({"JAXCONV_CUDA": "ON"}, True, True),
        ({"JAXCONV_CUDA": "OFF"}, False, False),
        ({"JAXCONV_CUDA": "OFF"}, True, False),
    ],
)
@pytest.mark.parametrize("toolkit_nvcc", [None, "/usr/local/cuda/bin/nvcc"])
def test_requirements(backend, setting, driver, wanted, toolkit_nvcc):
    from_index = backend.INDEX_NVCC if wanted and toolkit_nvcc is None else []
    assert backend.cuda_wanted(setting, driver) == wanted
    assert backend.build_requirements(setting, driver, toolkit_nvcc) == HEADERS + from_index


def test_given_headers_need_no_jaxlib(backend, tmp_path):
    env = {"JAXCONV_FFI_INCLUDE_DIR": str(tmp_path)}
    assert backend.build_requirements(env, driver=False, toolkit_nvcc=None) == []
    assert backend.find_ffi_headers(env) == str(tmp_path)


def test_other_headers_are_refused(backend, monkeypatch):
    monkeypatch.setattr(backend, "OLDEST_JAXLIB", "0.0.1")
    with pytest.raises(SystemExit, match="(?s)jaxlib 0.0.1, and .*pip download .*JAXCONV_FFI_INCLUDE_DIR="):
        backend.find_ffi_headers({})


def test_unknown_setting_is_refused(backend):
    with pytest.raises(SystemExit, match="JAXCONV_CUDA is 'yes'; it may be ON, OFF or unset"):
        backend.cuda_wanted({"JAXCONV_CUDA": "yes"}, driver=True)


def test_cuda_home_comes_before_path(backend, tmp_path):
    at_home = write_nvcc(tmp_path / "home" / "bin", "13.0")
    on_path = write_nvcc(tmp_path / "path", "12.5")
    env = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert backend.find_toolkit_nvcc(env) == at_home
    assert backend.find_toolkit_nvcc({"PATH": env["PATH"]}) == on_path


def test_an_old_nvcc_is_passed_over(backend, tmp_path):
    write_nvcc(tmp_path / "home" / "bin", "12.4")
    new = write_nvcc(tmp_path / "path", "12.10")
    env = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert backend.find_toolkit_nvcc(env) == new


def test_named_nvcc(backend, tmp_path):
    old = write_nvcc(tmp_path / "old", "12.4")
    new = write_nvcc(tmp_path / "new", "13.1")
    assert backend.find_toolkit_nvcc({"JAXCONV_NVCC": new, "PATH": str(tmp_path / "old")}) == new
    assert backend.find_toolkit_nvcc({"JAXCONV_NVCC": "index", "PATH": str(tmp_path / "new")}) is None
    for refused in (old, str(tmp_path / "absent")):
        with pytest.raises(SystemExit, match="is no nvcc of CUDA 12.5 or newer"):
            backend.find_toolkit_nvcc({"JAXCONV_NVCC": refused})


def test_cuda_without_nvcc_is_an_error(backend, monkeypatch, tmp_path):
    def not_installed(name):
        raise backend.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(backend.importlib.metadata, "distribution", not_installed)
    env = {"JAXCONV_FFI_INCLUDE_DIR": str(tmp_path), "JAXCONV_CUDA": "ON", "JAXCONV_NVCC": "index"}
    with pytest.raises(SystemExit, match="no nvcc of CUDA 12.5 or newer"):
        backend.cmake_definitions(env)


@pytest.mark.parametrize(
    "says, archs",
    [
        ("9.0", "90a-real"),
        ("9.0\n9.0", "90a-real"),
        ("8.0", "80-real"),
        ("8.6\n8.9", "80-real"),
        ("8.6\n9.0", "80-real;90a-real"),
        ("10.0", "80"),
        ("12.1\n8.9\n9.0", "80;90a-real"),  # the code of "80" is what 8.9 runs
        ("7.5\n9.0", "90a-real"),
        ("7.5", ""),
        ("No devices were found", ""),
        ("[N/A]", ""),
    ],
)
def test_architectures_of_gpus(backend, monkeypatch, tmp_path, says, archs):
    put_nvidia_smi_on_path(monkeypatch, tmp_path, says)
    assert backend.architectures(backend.gpu_capabilities()) == archs


def test_the_oldest_gpu_is_that_of_the_kernels(backend):
    """The build asks before there is a CMake to say it."""
    assert backend.OLDEST_CAPABILITY == planning.OLDEST_CAPABILITY


def test_without_nvidia_smi_there_are_no_gpus(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backend.gpu_capabilities() == []


def test_named_architectures_come_first(backend, monkeypatch, tmp_path):
    put_nvidia_smi_on_path(monkeypatch, tmp_path, "9.0")
    nvcc = write_nvcc(tmp_path, "13.0")
    env = {"JAXCONV_FFI_INCLUDE_DIR": str(tmp_path), "JAXCONV_CUDA": "ON", "JAXCONV_NVCC": nvcc}
    archs = "cmake.define.JAXCONV_CUDA_ARCHS"
    assert backend.cmake_definitions(env)[archs] == "90a-real"
    assert archs not in backend.cmake_definitions(env | {"JAXCONV_CUDA_ARCHS": "80"})
    assert archs not in backend.cmake_definitions(env | {"JAXCONV_CUDA": "OFF"})


def test_definitions(backend, monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "gpu_capabilities", list)
    nvcc = write_nvcc(tmp_path, "13.0")
    env = {"JAXCONV_FFI_INCLUDE_DIR": str(tmp_path), "JAXCONV_CUDA": "ON", "JAXCONV_NVCC": nvcc}
    host = {"cmake.define.JAXCONV_FFI_INCLUDE_DIR": str(tmp_path)}
    assert backend.cmake_definitions(env) == host | {
        "cmake.define.JAXCONV_CUDA": "ON",
        "cmake.define.CMAKE_CUDA_COMPILER": nvcc,
    }
    host_only = backend.cmake_definitions(env | {"JAXCONV_CUDA": "OFF"})
    assert host_only == host | {"cmake.define.JAXCONV_CUDA": "OFF"}


def test_the_extra_brings_the_plugin_of_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = tomllib.loads((ROOT / "packages" / "cuda13" / "pyproject.toml").read_text())["project"]
    assert f"{plugin['name']}=={project['version']}" in project["optional-dependencies"]["cuda13"]


def test_hooks_have_the_versions_of_the_group_dev():
    hooks = re.findall(r"\[([\w-]+==[\d.]+)\]", (ROOT / ".pre-commit-config.yaml").read_text())
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert hooks and set(hooks) <= set(groups["dev"])
