"""`python -m jaxconv doctor`: what is installed, which kernels run here, and what to do where they do not."""

from __future__ import annotations

import os
import platform as host
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np

from jaxconv import ffi
from jaxconv.api import conv2d
from jaxconv.compiled import planning
from jaxconv.ffi import devices_of
from jaxconv.planner.families import FAMILIES
from jaxconv.tuning.file import read
from jaxconv.tuning.loaded import VARIABLE, load_tuning

SECONDS = 1.0  # of a family's check
CUDA_PACKAGES = (ffi.PLUGIN, "jax-cuda12-plugin", "jax-cuda13-plugin")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# x, w, feature groups: each family takes one of them at least, where its instructions are.
LAYERS = (((2, 9, 8, 16), (3, 3, 16, 24), 1), ((2, 9, 8, 16), (3, 3, 1, 16), 16), ((2, 9, 8, 16), (3, 3, 4, 16), 4))
DTYPES = ("float32", "bfloat16")

Findings = Iterable[tuple[str, str | None]]  # what was looked at, and what is wrong with it


def main() -> int:
    """Prints what was found. Exit status: 1 if something is wrong."""
    print(f"{_versions()}\n\nnative modules")
    for name, where in _modules():
        print(f"  {name}: {where}")
    load_tuning(None)  # kernels are checked with plans of the planner, also if a file of measured ones cannot be read
    problems = 0
    for title, findings in _sections():
        print(f"\n{title}")
        for what, reason in findings:
            problems += reason is not None
            print(f"  {what}: {reason or 'ok'}", flush=True)
    print(f"\nproblems found: {problems}" if problems else "\nno problem found")
    return int(problems > 0)


def _versions() -> str:
    names = ["jaxconv", "jax", "jaxlib"]
    names += [name for name in CUDA_PACKAGES if find_spec(name.replace("-", "_"))]
    packages = ", ".join(f"{name} {_version(name)}" for name in names)
    return f"{packages}, Python {host.python_version()} on {sys.platform}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(version unknown)"


def _modules() -> Iterator[tuple[str, str]]:
    """The file of each, or why it is not used. Without those of the host, jaxconv is not imported at all."""
    yield planning.__name__, str(planning.__file__)
    for platform in FAMILIES:
        reason, name = ffi.missing_module_reason(platform), ffi.find_module(platform)
        yield name or platform, reason or str(sys.modules[str(name)].__file__)


def _sections() -> Iterator[tuple[str, Findings]]:
    """Each with its title."""
    try:
        jax.devices()
    except Exception as error:  # of any type, an AssertionError too
        yield "jax", [("devices", _why_no_start(error)), *_unused_driver()]
        return
    for platform in FAMILIES:
        yield f"{platform}: {_devices_text(platform)}", _findings(platform)
    if path := os.environ.get(VARIABLE):
        yield f"measured plans: {VARIABLE}={path}", [("file", _unread_reason(path))]


def _unread_reason(path: str) -> str | None:
    try:
        read(path)
    except (OSError, ValueError) as error:
        return f"{error}. The first convolution fails by it: unset {VARIABLE}, or measure again by jaxconv.autotune"
    return None


def _platforms() -> str | None:
    """JAX_PLATFORMS, or what a program set in its place."""
    return jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue] (JAX adds its options)


def _why_no_start(error: Exception) -> str:
    names = _platforms()
    text = f"{type(error).__name__} {error}".strip()
    if not names:
        return f"JAX does not start: {text}"
    return f"JAX does not start with JAX_PLATFORMS={names}: {text}. Unset it, or install JAX for what it names"


def _unused_driver() -> Findings:
    may_see_gpus = not (names := _platforms()) or "cuda" in names or "gpu" in names
    if may_see_gpus and NVIDIA_DRIVER.exists():
        yield (
            "driver",
            f"{NVIDIA_DRIVER} is there, but JAX sees no GPU: pip install 'jax[cuda13]', which needs the driver "
            "580 or newer",
        )


def _devices_text(platform: str) -> str:
    kinds = [device.device_kind for device in devices_of(platform)]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) or "JAX sees no such device"


def _findings(platform: str) -> Findings:
    devices = devices_of(platform)
    if not devices:
        if platform == "cuda":
            yield from _unused_driver()
        if ffi.find_module(platform) is not None:
            yield "kernels", ffi.unavailable_reason(platform)
        return
    reason = ffi.unavailable_reason(platform)
    if reason is not None:
        yield "kernels", f"{reason}. Until then lax answers every convolution"
        return
    with jax.default_device(devices[0]):
        for family in FAMILIES[platform]:
            checks, wrong = _check(family)
            yield family if checks or wrong else f"{family}, which takes none of the checked layers here", wrong


def _check(family: str) -> tuple[int, str | None]:
    """How often a family gave what numpy gives, in a second, and what is wrong with it."""
    end, checks = time.monotonic() + SECONDS, 0
    for seed, layer, dtype in _cases():
        try:
            wrong = _wrong_passes(family, seed, layer, dtype)
        except NotImplementedError:  # another layer, or dtype, is for this family
            continue
        except Exception as error:
            return checks, f"{type(error).__name__}: {error}"
        if wrong:
            return checks, f"wrong results of {', '.join(wrong)}: {layer}, {dtype}"
        checks += 1
        if time.monotonic() > end:
            break
    return checks, None


def _cases() -> Iterator[tuple[int, tuple, str]]:
    return ((seed, layer, dtype) for seed in range(20) for layer in LAYERS for dtype in DTYPES)


def _wrong_passes(family: str, seed: int, layer: tuple, dtype: str) -> list[str]:
    """The passes whose results are not numpy's. Sums of so small integers are exact in every dtype and order."""
    x_shape, w_shape, groups = layer
    rng = np.random.default_rng(seed)
    integers: Callable = lambda shape: rng.integers(-1, 2, shape).astype(np.float32)
    operands = integers(x_shape), integers(w_shape), integers((*x_shape[:-1], w_shape[-1]))
    conv = partial(conv2d, padding="SAME", feature_group_count=groups, implementation=family)
    ours = _passes(conv, *(a.astype(dtype) for a in operands))
    exact = _exact_passes(groups, *operands)
    return [name for name, mine in ours.items() if not np.array_equal(mine, exact[name].astype(mine.dtype))]


def _passes(conv: Callable, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    y, pull = jax.jit(partial(jax.vjp, conv))(x, w)
    dx, dw = jax.jit(lambda pull, g: pull(g))(pull, g)
    return {"fprop": np.asarray(y), "dgrad": np.asarray(dx), "wgrad": np.asarray(dw)}


def _exact_passes(groups: int, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    """By numpy, because JAX may run without its CPU. The window is 3x3, with the padding "SAME"."""
    _, height, width, _ = x.shape
    x, g = (a.reshape(*a.shape[:3], groups, -1) for a in (x, g))
    w = w.reshape(*w.shape[:3], groups, -1)
    y, dw = np.zeros_like(g), np.zeros_like(w)
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    dx = np.zeros_like(x)
    for tap in np.ndindex(3, 3):
        seen = (slice(None), slice(tap[0], tap[0] + height), slice(tap[1], tap[1] + width))
        y += np.einsum("nhwgi,igo->nhwgo", x[seen], w[tap])
        dx[seen] += np.einsum("nhwgo,igo->nhwgi", g, w[tap])
        dw[tap] = np.einsum("nhwgi,nhwgo->igo", x[seen], g)
    whole = lambda a: a.reshape(*a.shape[:3], -1)
    return {"fprop": whole(y), "dgrad": whole(dx[:, 1:-1, 1:-1]), "wgrad": whole(dw)}
