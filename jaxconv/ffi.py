"""The native modules: loads them, checks that they fit the running jaxlib, registers them; the only `ffi_call`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax import Array, lax

from jaxconv.compiled import missing_reason, planning
from jaxconv.epilogue import LIKE_RESULT, NOTHING, Epilogue
from jaxconv.planner import devices
from jaxconv.planner.devices import Device
from jaxconv.planner.plan import ConvPlan
from jaxconv.problem import ConvProblem
from jaxconv.problem.offsets import offset_tables
from jaxconv.problem.product import OPERANDS, RESULT
from jaxconv.transforms import apply, channel_numbers

PLUGIN = "jaxconv-cuda13-plugin"  # the CUDA module as a wheel of its own, beside the host's
# The first one that is installed.
MODULES = {"cpu": ("jaxconv._cpu",), "cuda": ("jaxconv._cuda", "jaxconv_cuda13_plugin._cuda")}
FORMAT = planning.FORMAT  # of custom calls: what their attributes and tables mean
FFI_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}


def running_ffi_api() -> tuple[int, int]:
    """(major, minor) of the FFI that the running jaxlib speaks, off the headers it ships."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    major, minor = (re.findall(rf"#define XLA_FFI_API_{part} (\d+)", header)[0] for part in ("MAJOR", "MINOR"))
    return int(major), int(minor)


def check_fits(name: str, built: tuple[int, int], running: tuple[int, int]) -> None:
    """Raises ImportError if a module built for one FFI API cannot run on another.

    XLA accepts handlers of its own major version and of its own or an earlier minor version. It must be asked
    beforehand: registering a handler that it refuses can stop the whole backend from initialising.
    """
    if built[0] != running[0] or built[1] > running[1]:
        raise ImportError(
            f"{name} was built for XLA FFI API {built[0]}.{built[1]}, but the installed jaxlib "
            f"{jaxlib.version.__version__} has {running[0]}.{running[1]}. Reinstall jaxconv, or install a jaxlib "
            "from 0.10 on."
        )


def check_plugin(digest: str) -> None:
    """Raises ImportError if the plugin is of another version than this package, or for another CUDA than JAX.

    digest: the plugin's own, of its version and of all native sources.
    """
    if digest != planning.DIGEST:
        ours, version = map(importlib.metadata.version, ("jaxconv", PLUGIN))
        raise ImportError(
            f"{PLUGIN} {version} was built from other sources than jaxconv {ours}. "
            f"Install the same version of both: pip install 'jaxconv[cuda13]=={ours}'"
        )
    if importlib.util.find_spec("jax_cuda12_plugin") and not importlib.util.find_spec("jax_cuda13_plugin"):
        raise ImportError(
            f"JAX is installed for CUDA 12, and {PLUGIN} needs JAX for CUDA 13: "
            "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt, then pip install 'jax[cuda13]'"
        )


def find_module(platform: str) -> str | None:
    """The name of a platform's native module; None if it is not installed."""
    is_there = lambda name: importlib.util.find_spec(name.partition(".")[0]) and importlib.util.find_spec(name)
    return next(filter(is_there, MODULES[platform]), None)


def _load(platform: str) -> ModuleType:
    """Imports, checks and registers a platform's native module. Raises ImportError if it cannot be used."""
    name = find_module(platform)
    if name is None:
        raise ImportError(missing_reason(MODULES[platform][0]))
    module = importlib.import_module(name)
    check_fits(name, module.ffi_api_version(), running_ffi_api())
    if not name.startswith("jaxconv."):
        check_plugin(module.DIGEST)
    for type_name, registration in module.types().items():
        jax.ffi.register_ffi_type(type_name, registration, platform=FFI_PLATFORMS[platform])
    for target, handler in module.registrations().items():
        jax.ffi.register_ffi_target(target, handler, platform=FFI_PLATFORMS[platform])
    return module


def _load_cuda() -> ModuleType | str:
    """The CUDA module, or why it cannot be used: everything else works without it."""
    if find_module("cuda") is None:
        return (
            "this installation of jaxconv has no cuda kernels (pip install 'jaxconv[cuda13]' brings them, "
            "JAXCONV_CUDA=ON builds them)"
        )
    try:
        return _load("cuda")
    except ImportError as error:
        return f"the cuda kernels cannot be used: {error}"


_LOADED: dict[str, ModuleType | str] = {"cpu": _load("cpu"), "cuda": _load_cuda()}


def missing_module_reason(platform: str) -> str | None:
    """Why there is no native module for a platform, or why it cannot be used; None if it can. No backend is started."""
    module = _LOADED.get(platform, f"jaxconv has no kernels for the platform {platform}")
    return module if isinstance(module, str) else None


@lru_cache(maxsize=len(MODULES))
def unavailable_reason(platform: str) -> str | None:
    """Why the native kernels for a platform do not run here; None if they do.

    Where there are GPUs, one kernel is loaded on each: an old driver, or a GPU that this installation has no code for,
    would make an error of every call.
    """
    module = _LOADED.get(platform)
    if module is None or isinstance(module, str):
        return missing_module_reason(platform)
    for gpu in gpus() if platform == "cuda" else ():
        is_here = gpu.process_index == jax.process_index()
        reason = devices.unsupported_reason(gpu)
        if (
            reason is None
            and is_here
            and (error := module.unsupported_device_reason(gpu.local_hardware_id)) is not None
        ):
            reason = f"{gpu.device_kind} does not load the kernels of this installation of jaxconv: {error}"
        if reason is not None:
            return (
                f"{reason}. Build jaxconv for that GPU (JAXCONV_CUDA_ARCHS), update the driver, or hide the GPU "
                "(CUDA_VISIBLE_DEVICES)"
            )
    return None


@lru_cache(maxsize=len(MODULES))
def device(platform: str) -> Device:
    """What plans for a platform depend on: of all visible GPUs, or of a typical one."""
    return devices.planned_for(gpus() if platform == "cuda" else [], wgmma=getattr(_LOADED["cuda"], "has_wgmma", True))


def devices_of(platform: str) -> list[Any]:
    """The `jax.Device`s of all processes; none where JAX runs without them, as while exporting from another machine."""
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def gpus() -> list[Any]:
    return devices_of("cuda")


def convolution(plan: ConvPlan, problem: ConvProblem, epilogue: Epilogue = NOTHING) -> Callable[..., Array]:
    """The custom call of a plan: `conv` maps (lhs, rhs) to out, `wgrad` maps (lhs, out) to rhs.

    A `conv` may end with an epilogue, whose operands follow: scale, bias, residual_scale and out_scale in the dtype
    that it is computed in (float32, or float64), the residual in that of the result, which is the problem's. Behind
    them are the rows of neighbours that the plan asks for.
    """
    call = _call(plan, problem, epilogue)
    return lambda *operands: call(*operands)[0]


def wgrad_and_sums(plan: ConvPlan, problem: ConvProblem) -> Callable[[Array, Array], tuple[Array, Array]]:
    """The custom call of a wgrad that also gives the sums of its cotangent over positions, by channels."""
    call, rows = _call(plan, problem), plan.gradient_sum_rows(problem)
    seen = apply(plan.transform, problem).problem
    channels, summed = (p.groups * p.out_channels for p in (problem, seen))

    def compute(lhs: Array, out: Array) -> tuple[Array, Array]:
        rhs, workspace = call(lhs, out)
        parts = workspace[: rows * summed * 4].reshape(rows, summed, 4)
        return rhs, jnp.sum(lax.bitcast_convert_type(parts, jnp.float32), axis=0)[:channels]

    return compute


def _call(plan: ConvPlan, problem: ConvProblem, epilogue: Epilogue = NOTHING) -> Callable[..., list[Array]]:
    """The custom call's result and, on a platform whose kernels take one, the workspace.

    The call is that of the transformed problem, between the array views of its operands and its result.
    """
    workspace = plan.workspace_bytes(problem)
    to_channels = partial(channel_numbers, plan.transform, problem)
    problem, views, swapped = apply(plan.transform, problem)
    result = RESULT[plan.kind]
    results = [jax.ShapeDtypeStruct(problem.stored_shape(result), problem.dtype(result))]
    if workspace is not None:  # XLA owns it, so that a call allocates nothing
        results.append(jax.ShapeDtypeStruct((workspace,), np.uint8))
    call = jax.ffi.ffi_call(f"jaxconv_{plan.kind}", results)
    names = (*epilogue.operands, *plan.rows)
    tables = offset_tables(problem)
    attributes = _attributes(problem, epilogue, plan.rows) | _kernel(plan, problem)
    into_a, into_b = (views[role].to for role in OPERANDS[plan.kind])
    back = views[result].back
    # XLA would hand over slices of larger arrays, wherever they begin.
    whole = lax.optimization_barrier if plan.needs_aligned else lambda arrays: arrays

    def as_kernels_see(name: str, x: Array) -> Array:
        """The operand of the transformed problem."""
        if name in LIKE_RESULT:
            return views[result].to(x)
        if name in plan.rows:
            return x
        return to_channels(x) if x.ndim else x

    def convolve(a: Array, b: Array, *operands: Array) -> list[Array]:
        if swapped:
            a, b = b, a
        a, b, *more = whole((into_a(a), into_b(b), *map(as_kernels_see, names, operands)))
        result, *workspaces = call(a, b, *tables, *more, **attributes)
        return [back(whole(result)), *workspaces]

    return convolve


def _attributes(
    problem: ConvProblem, epilogue: Epilogue = NOTHING, rows: tuple[str, ...] = ()
) -> dict[str, np.generic | np.ndarray | str]:
    """The attributes that src_common/ffi_decode.h reads, one for one; the sizes it takes from the buffers."""
    activation, numbers = epilogue.activation.kernel_form() if epilogue.activation else ("", (0.0, 0.0, 0.0))
    return {
        "format": np.int64(FORMAT),
        "src_spec": _int64(problem.lhs_spec.axes),
        "filter_spec": _int64(problem.rhs_spec.axes),
        "dst_spec": _int64(problem.out_spec.axes),
        "window_strides": _int64(problem.window_strides),
        "padding_low": _int64(problem.pad_low),
        "lhs_dilation": _int64(problem.lhs_dilation),
        "rhs_dilation": _int64(problem.rhs_dilation),
        "groups": np.int64(problem.groups),
        "src_batch_grouped": np.bool_(problem.lhs_batch_grouped),
        "dst_batch_grouped": np.bool_(problem.out_batch_grouped),
        "filter_in_grouped": np.bool_(problem.reverse),
        "dst_in_blocks": np.bool_(problem.out_in_blocks),
        "operands": " ".join((*epilogue.operands, *rows)),
        "activation": activation,
        "activation_numbers": np.array(numbers, np.float64),
    }


def _kernel(plan: ConvPlan, problem: ConvProblem) -> dict[str, Any]:
    """Which kernel the handler launches. The tile and the settings travel by name: a handler that does not know them
    refuses them. It also refuses settings of another problem. problem: transformed.
    """
    digest = plan.fit_digest(problem)
    if digest is None:
        return {"family": plan.family}
    return {
        "family": plan.family,
        "tile": plan.tile,
        "setting_names": " ".join(plan.settings),
        "settings": _int64(plan.settings.values()),
        "fit_digest": np.int64(digest),
    }


def _int64(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)
