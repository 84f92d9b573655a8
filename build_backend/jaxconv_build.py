"""The build backend: scikit-build-core's, told what to build by the machine it runs on.

The headers of XLA's FFI come from the oldest jaxlib supported, whichever jaxlib will run the package.
The CUDA module is built where an NVIDIA driver is, or as JAXCONV_CUDA says, with the nvcc of a CUDA toolkit,
or with that of the package index if there is none, and for this machine's GPUs alone.
"""

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from scikit_build_core import build as scikit_build
from scikit_build_core.build import (  # noqa: F401  (hooks that stay as they are)
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

OLDEST_JAXLIB = "0.10.0"
OLDEST_NVCC = "12.5"  # whose runtime has cudaGetDriverEntryPointByVersion
OLDEST_CAPABILITY = (8, 0)  # of GPUs, as in CMakeLists.txt
INDEX_NVCC = [f"nvidia-{part}==13.0.*" for part in ("cuda-nvcc", "cuda-crt", "cuda-runtime", "cuda-cccl", "nvvm")]


def cuda_wanted(env: Mapping[str, str], driver: bool) -> bool:
    """Whether to build the CUDA module: as JAXCONV_CUDA says, else if there is a driver."""
    setting = env.get("JAXCONV_CUDA", "")
    if setting not in ("", "ON", "OFF"):
        raise SystemExit(f"jaxconv: JAXCONV_CUDA is {setting!r}; it may be ON, OFF or unset")
    return setting == "ON" or (setting == "" and driver)


def build_requirements(env: Mapping[str, str], driver: bool, toolkit_nvcc: str | None) -> list[str]:
    """What the package index must provide, besides the requirements in pyproject.toml."""
    requirements = []
    if not env.get("JAXCONV_FFI_INCLUDE_DIR"):
        requirements.append(f"jaxlib=={OLDEST_JAXLIB}")
    if cuda_wanted(env, driver) and toolkit_nvcc is None:
        requirements += INDEX_NVCC
    return requirements


def driver_present() -> bool:
    if Path("/proc/driver/nvidia/version").exists():
        return True
    try:  # under WSL there is a driver, but no such file
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def gpu_capabilities() -> list[tuple[int, ...]]:
    """The compute capability of each GPU of this machine; none where there is no nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        output = subprocess.run(query, capture_output=True, text=True).stdout
    except OSError:
        return []
    return [version(line) for line in re.findall(r"^\d+\.\d+$", output, re.MULTILINE)]


def architectures(capabilities: Iterable[tuple[int, ...]]) -> str:
    """CUDA architectures in CMake's notation, of the GPUs that can run kernels; empty if none can."""
    found = {architecture(capability) for capability in capabilities if capability >= OLDEST_CAPABILITY}
    if "80" in found:
        found.discard("80-real")
    return ";".join(sorted(found))


def architecture(capability: tuple[int, ...]) -> str:
    """8.x runs code for 8.0; what comes after 9.0 compiles PTX for 8.0."""
    return "80-real" if capability < (9, 0) else "90a-real" if capability == (9, 0) else "80"


def new_enough(nvcc: str) -> bool:
    """Whether this is an nvcc that runs, of OLDEST_NVCC or later."""
    try:
        output = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return False
    release = re.search(r"release ([\d.]+)", output)
    return release is not None and version(release[1]) >= version(OLDEST_NVCC)


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def find_toolkit_nvcc(env: Mapping[str, str]) -> str | None:
    """The nvcc of a CUDA toolkit on this machine, or None: then it comes from the package index.

    JAXCONV_NVCC names one, or says `index`.
    """
    named = env.get("JAXCONV_NVCC")
    if named == "index":
        return None
    if named:
        if not new_enough(named):
            raise SystemExit(f"jaxconv: JAXCONV_NVCC={named} is no nvcc of CUDA {OLDEST_NVCC} or newer")
        return named
    candidates = [shutil.which("nvcc", path=env.get("PATH")), "/usr/local/cuda/bin/nvcc"]
    if env.get("CUDA_HOME"):
        candidates.insert(0, env["CUDA_HOME"] + "/bin/nvcc")
    return next((nvcc for nvcc in candidates if nvcc and new_enough(nvcc)), None)


def find_ffi_headers(env: Mapping[str, str]) -> str:
    """XLA's FFI headers: JAXCONV_FFI_INCLUDE_DIR, else those of the build environment's jaxlib."""
    if env.get("JAXCONV_FFI_INCLUDE_DIR"):
        return env["JAXCONV_FFI_INCLUDE_DIR"]
    try:
        jaxlib = importlib.metadata.distribution("jaxlib")
        found = f"jaxlib {jaxlib.version}"
    except importlib.metadata.PackageNotFoundError:
        found = "no jaxlib"
    if found != f"jaxlib {OLDEST_JAXLIB}":
        raise SystemExit(
            f"jaxconv: the build needs the headers of jaxlib {OLDEST_JAXLIB}, and the build environment has "
            f"{found}. Build in isolation (pip's default), or get the headers by\n"
            f"  pip download --no-deps jaxlib=={OLDEST_JAXLIB}\n"
            f"  python -m zipfile -e jaxlib-{OLDEST_JAXLIB}-*.whl DIR\n"
            "and set JAXCONV_FFI_INCLUDE_DIR=DIR/jaxlib/include"
        )
    return str(jaxlib.locate_file("jaxlib/include"))


def find_index_nvcc() -> Path:
    """The nvcc that INDEX_NVCC put into the build environment."""
    try:
        nvcc = Path(str(importlib.metadata.distribution("nvidia-cuda-nvcc").locate_file("nvidia/cu13/bin/nvcc")))
    except importlib.metadata.PackageNotFoundError:
        nvcc = None
    if nvcc is None or not nvcc.exists():
        raise SystemExit(
            "jaxconv: the CUDA module is to be built (JAXCONV_CUDA=ON, or there is an NVIDIA driver),\n"
            f"and there is no nvcc of CUDA {OLDEST_NVCC} or newer. Install a CUDA toolkit, or build in\n"
            f"isolation (pip's default), or\n  pip install {' '.join(map(repr, INDEX_NVCC))}\n"
            "or set JAXCONV_CUDA=OFF to build the host's kernels only"
        )
    return nvcc


def cmake_definitions(env: Mapping[str, str]) -> dict[str, str]:
    """What CMakeLists.txt must be told, as scikit-build-core's config settings."""
    defines = {"JAXCONV_CUDA": "OFF", "JAXCONV_FFI_INCLUDE_DIR": find_ffi_headers(env)}
    if cuda_wanted(env, driver_present()):
        defines["JAXCONV_CUDA"] = "ON"
        toolkit_nvcc = find_toolkit_nvcc(env)
        if toolkit_nvcc:
            defines["CMAKE_CUDA_COMPILER"] = toolkit_nvcc
        else:
            nvcc = find_index_nvcc()
            defines["CMAKE_CUDA_COMPILER"] = str(nvcc)
            # This nvcc looks for its libraries in lib64, and the packages put them into lib.
            defines["CMAKE_CUDA_FLAGS"] = f"-L{nvcc.parent.parent / 'lib'}"
        # CMakeLists.txt reads JAXCONV_CUDA_ARCHS itself, and has a default.
        if not env.get("JAXCONV_CUDA_ARCHS") and (found := architectures(gpu_capabilities())):
            defines["JAXCONV_CUDA_ARCHS"] = found
    return {f"cmake.define.{name}": value for name, value in defines.items()}


def get_requires_for_build_wheel(config_settings=None):
    requirements = build_requirements(os.environ, driver_present(), find_toolkit_nvcc(os.environ))
    return scikit_build.get_requires_for_build_wheel(config_settings) + requirements


def get_requires_for_build_editable(config_settings=None):
    requirements = build_requirements(os.environ, driver_present(), find_toolkit_nvcc(os.environ))
    return scikit_build.get_requires_for_build_editable(config_settings) + requirements


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = cmake_definitions(os.environ) | (config_settings or {})
    return scikit_build.build_wheel(wheel_directory, settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    settings = cmake_definitions(os.environ) | (config_settings or {})
    return scikit_build.build_editable(wheel_directory, settings, metadata_directory)
