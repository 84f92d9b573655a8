"""`autotune`: measures what may answer each convolution of a function, and keeps the times in a file."""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from jaxconv import ffi, transforms
from jaxconv.complex_numbers import is_complex
from jaxconv.fallback import LAX
from jaxconv.lowering import decide, seen_by_kernels
from jaxconv.planner.choose import Times, options
from jaxconv.planner.plan import ANY, Constraint, ConvPlan, Implementation, Lax, constraint_of
from jaxconv.planner.xla import AHEAD, expected_seconds
from jaxconv.problem import ConvProblem
from jaxconv.problem.algorithms import names_algorithm
from jaxconv.problem.conv_problem import ROLES
from jaxconv.problem.product import OPERANDS, RESULT, EpilogueKind, Product
from jaxconv.problem.wider import Compute, has_float8
from jaxconv.traced import pass_of, trace
from jaxconv.transforms import ChannelsLast
from jaxconv.transforms.array_views import AS_IT_IS
from jaxconv.tuning.entries import Entry, operand_types, unstored_reason
from jaxconv.tuning.file import Key, extend
from jaxconv.tuning.timing import CLOCKS, median_us, random_operands

# A candidate is plausible if it is estimated to take at most so many times the least time. At most so many are
# measured, and beside them the cheapest of each family, since estimates of different families differ in their errors.
LIKELY, MOST_LIKELY, LIKELY_OF_FAMILY = 2, 16, 4
FINALISTS = 3
BUDGET_S = 0.02  # of a candidate's calls
# Kernels take longer in a command buffer (a CUDA graph).
COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {"gpu": {"xla_gpu_enable_command_buffer": ""}}

_lock = threading.Lock()

Candidates = dict[ConvPlan | Lax, float | None]  # the estimated microseconds of plans on a GPU
Keys = dict[Key, bool]  # whether lax computes the same


def autotune(fn: Callable, *args: Any, path: str | os.PathLike[str], **kwargs: Any) -> None:
    """Measures the plausible kernels for each convolution and pass of `fn(*args, **kwargs)`, and lax, into a file.

    Programs use the file after `jaxconv.load_tuning(path)`, or where the environment variable JAXCONV_TUNING has its
    path. This gives good plans on GPUs for which the planner's estimates are not fitted, such as an A100, an L40S or a
    B200. `explain` then shows the measured times beside the estimates.

    `fn` is traced, not run. Each distinct convolution is measured alone, on random numbers, with each candidate: on a
    GPU the time of its kernels, on a host the wall time of a call. So nothing else should run there meanwhile. A
    progress bar, by tqdm (`pip install 'jaxconv[tune]'`), counts candidates. Convolutions whose `implementation` is a
    kernel family or "xla" are not measured. A convolution with an epilogue is measured without it. lax is no candidate
    where `precision` names an algorithm, which it does not honour, nor for complex numbers and float8, which kernels
    compute in other types. It is kept as the fastest if it is ahead by more than 5 %: programs on it may give other
    bits in another run. A GPU may plan an int8 weight gradient in two ways: candidates are those of the way with the
    lower estimate. A candidate that fails, for example for lack of memory, is left out, with a warning. So is a
    convolution if none of its candidates runs.

    To tune gradients, pass a function that computes them: `autotune(jax.grad(loss), params, x, path=path)`. With
    sharded arrays the whole convolution is measured, although each device computes a part of it: pass arrays of the
    part's shape.

    Args:
      fn: a function, jitted or not.
      *args, **kwargs: its arguments, as in `explain`. For an argument of `fn` named path, use `functools.partial`.
      path: the JSON file. If it exists, it is extended, and what it has is not measured again. It is written after each
        convolution, and keeps what other processes add meanwhile: a file beside it, `path` with `.lock`, is their lock.
        Measure in one process at a time on a device.

    Raises:
      ImportError: tqdm is not installed.
      NotImplementedError: there are no native kernels for the platform, the program has several processes, or the call
        is inside of `jit`, `grad` or `vmap`.
      ValueError: the file exists, and is of another platform or device, another version of jaxconv, other kernels or
        another format.
      Exception: what `fn` raises while it is traced.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("jaxconv.autotune needs tqdm for its progress bar: pip install 'jaxconv[tune]'") from error
    if jax.process_count() > 1:
        raise NotImplementedError("jaxconv.autotune in a program of several processes: run it in a program of one")
    traced = trace(fn, *args, **kwargs)
    platform = traced.platform
    if platform is None or (reason := ffi.unavailable_reason(platform)) is not None:
        raise NotImplementedError(f"jaxconv.autotune: {reason if platform else 'no native kernels for this platform'}")
    keys = _keys(traced.equations, platform)
    if not keys:
        warnings.warn("jaxconv.autotune found no convolution that it can measure in the function", stacklevel=2)
    with _lock, _alone_on(traced.device):
        _extend(path, keys, platform, traced.device, tqdm)


@contextmanager
def _alone_on(device: Any) -> Iterator[None]:
    """Within this, programs run on the device alone, also in a mesh of the caller, and jit works if it was disabled."""
    try:
        mesh = jax.set_mesh(jax.make_mesh((1,), ("alone",), (AxisType.Auto,), devices=[device]))
    except ValueError as error:
        raise NotImplementedError("jaxconv.autotune inside of jit, grad or vmap: call it outside") from error
    with mesh, jax.disable_jit(False):
        yield


def _extend(path: str | os.PathLike[str], keys: Keys, platform: str, device: Any, tqdm: Callable[..., Any]) -> None:
    entries = extend(path, platform)  # if that fails, before anything is measured
    missing = {key: plausible(platform, *key, or_lax=keys[key]) for key in keys if key not in entries}
    with tqdm(total=sum(map(len, missing.values())), unit="candidate") as bar:
        for key, candidates in missing.items():
            before = bar.n
            try:
                entry = _measured(device, *key, candidates, bar.update)
            except RuntimeError as error:
                bar.update(before + len(candidates) - bar.n)
                warnings.warn(f"jaxconv.autotune leaves out a convolution: {error}. {key[1]}", stacklevel=3)
            else:
                extend(path, platform, [entry])


def _keys(equations: Iterable[Any], platform: str) -> Keys:
    """The convolutions that a native kernel may answer, each once, in their order."""
    keys: Keys = {}
    for equation in equations:
        ours = pass_of(equation, platform)
        if ours is None or not _is_open(ours.implementation, platform):
            continue
        kind, problem = seen_by_kernels(ours.kind, platform, ours.problem, epilogue_kind=ours.epilogue_kind)
        is_same_for_lax = not (is_complex(ours.problem) or has_float8(ours.problem))
        if reason := unstored_reason(problem):
            warnings.warn(f"jaxconv.autotune does not measure a convolution with {reason}: {problem}", stacklevel=3)
        elif decide(kind, platform, problem, platform).plan is not None:  # the platform's name: a kernel of ours
            keys[kind, problem] = keys.get((kind, problem), False) or is_same_for_lax
        elif ours.epilogue_kind is not EpilogueKind.NONE:
            what = f"a convolution with an epilogue to {problem.out_dtype}"
            warnings.warn(f"jaxconv.autotune does not measure {what}: {problem}", stacklevel=3)
    return keys


def _is_open(implementation: Implementation, platform: str) -> bool:
    """Whether all families may answer: nothing is named, or the platform."""
    return dataclasses.replace(constraint_of(implementation), or_lax=False) in (ANY, Constraint(platform))


def plausible(platform: str, kind: str, problem: ConvProblem, or_lax: bool = True) -> Candidates:
    """The plans that are worth a measurement, and lax where it computes as asked."""
    device = ffi.device(platform)
    every = options(platform, Product(kind, problem), ANY, device)
    found = sorted((o for o in every if o.candidate.reason is None), key=lambda o: o.candidate.seconds)
    within = lambda factor: [o for o in found if o.candidate.seconds <= factor * found[0].candidate.seconds]
    likely = within(LIKELY)[:MOST_LIKELY]
    cheapest = {option.family: option for option in reversed(within(LIKELY_OF_FAMILY))}
    likely += [option for option in cheapest.values() if option not in likely]
    microseconds = lambda seconds: _rounded(1e6 * seconds) if platform == "cuda" and seconds is not None else None
    plans: Candidates = {option.plan(platform, kind): microseconds(option.candidate.seconds) for option in likely}
    if or_lax and not names_algorithm(problem.precision):
        plans[Lax()] = microseconds(expected_seconds(kind, problem, device))
    return plans


def _measured(
    device: Any, kind: str, problem: ConvProblem, candidates: Candidates, advance: Callable[[], Any]
) -> Entry:
    """The times of the candidates. The fastest are measured twice, and the lesser time counts.

    Raises RuntimeError if the operands do not fit into memory, or if no candidate runs.
    """
    has_x64 = np.dtype("float64") in map(problem.dtype, ROLES)
    programs: dict[ConvPlan | Lax, jax.stages.Compiled] = {}
    us: dict[ConvPlan | Lax, float] = {}
    with jax.enable_x64(has_x64):
        to_views, between_layers = _in_a_network(kind, problem, device.platform)
        operands = jax.block_until_ready(to_views(*random_operands(operand_types(kind, problem))))

        def measure(plan: ConvPlan | Lax) -> None:
            try:
                if plan not in programs:
                    function = LAX[kind](problem) if isinstance(plan, Lax) else ffi.convolution(plan, problem)
                    lowered = jax.jit(between_layers(function)).lower(*operands)
                    programs[plan] = lowered.compile(COMPILER_OPTIONS.get(device.platform))
                found = median_us(CLOCKS[device.platform], programs[plan], operands, BUDGET_S)
                us[plan] = min(found, us.get(plan, found))
            except RuntimeError as error:  # XLA's errors are such
                us.pop(plan, None)
                message = f"jaxconv.autotune leaves out {plan}, which failed: {error}. {problem}"
                warnings.warn(message, stacklevel=5)

        for plan in candidates:
            measure(plan)
            advance()
        for plan in sorted(us, key=us.__getitem__)[:FINALISTS]:
            measure(plan)
    if not us:
        raise RuntimeError("all candidates failed")
    fastest_first = sorted(us, key=us.__getitem__)
    best = fastest_first[0]
    kernel = next((plan for plan in fastest_first if not isinstance(plan, Lax)), best)
    if us[kernel] <= AHEAD * us[best]:
        best = kernel
    times = {plan: Times(candidates[plan], _rounded(us[plan])) for plan in dict.fromkeys([best, *fastest_first])}
    return Entry(kind, problem, times)


def _in_a_network(kind: str, problem: ConvProblem, platform: str) -> tuple[Callable, Callable[[Compute], Compute]]:
    """What makes the operands what they are between layers, and what makes of a convolution one of these. On a GPU XLA
    keeps a network's images channels last, so that kernels that want them so wait for no transposition."""
    roles = transforms.channels_first(problem) if platform == "gpu" else []
    views = transforms.apply((ChannelsLast(),) if roles else (), problem).views
    view = lambda role: views[role] if role in roles else AS_IT_IS
    of_a, of_b, of_result = map(view, (*OPERANDS[kind], RESULT[kind]))

    def between_layers(function: Compute) -> Compute:
        return lambda a, b: of_result.to(function(of_a.back(a), of_b.back(b)))

    return lambda a, b: (of_a.to(a), of_b.to(b)), between_layers


def _rounded(us: float) -> float:
    return float(f"{us:.4g}")
