"""What answers a primitive on a platform: a native kernel, or lax; over several devices, split by XLA's partitioner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.experimental.xla_metadata import set_xla_metadata
from jax.interpreters import mlir
from jax.sharding import NamedSharding

from jaxconv import fallback, ffi
from jaxconv._jax_private import lower_with_sharding_in_types
from jaxconv.compiled import planning
from jaxconv.complex_numbers import as_real, complex_convolution, is_complex
from jaxconv.epilogue import NOTHING as NO_EPILOGUE
from jaxconv.planner.choose import Choice, choose, copy_seconds, widening_seconds
from jaxconv.planner.plan import ANY, Constraint, ConvPlan, Implementation, Lax, constraint_of
from jaxconv.planner.support import unsupported_reason
from jaxconv.planner.xla import choose_or_lax
from jaxconv.problem import ROLES, ConvProblem
from jaxconv.problem.algorithms import Float32, Preset, allows_float8, float32_of
from jaxconv.problem.of_lax import are_summed_wide, exchanged
from jaxconv.problem.product import OPERANDS, RESULT, EpilogueKind
from jaxconv.problem.wider import (
    FLOAT32,
    INT32,
    Compute,
    converted,
    halves_of_int8,
    has_float8,
    in_float32,
    with_result,
    without_float8,
    wraps_to_int8,
)
from jaxconv.sharding import cache_key
from jaxconv.sharding.block import Apart, End, Local
from jaxconv.sharding.partitioning import (
    Automatic,
    blocks_of,
    explicitly_partitioned,
    is_explicit,
    lower_without_mesh,
    partitioned,
    unpartitioned_reason,
)
from jaxconv.tuning.file import NOTHING, Tuning
from jaxconv.tuning.loaded import loaded_tuning


def lower(
    kind: str,
    platform: str | None,
    ctx: mlir.LoweringRuleContext,
    a: mlir.Value,
    b: mlir.Value,
    *,
    problem: ConvProblem,
    implementation: Implementation,
    sharding: NamedSharding | None,
) -> Sequence[mlir.Value]:
    # Taken once: the partitioner asks for the computation later, when another file may be loaded than the digest is of.
    return lower_split(kind, platform, ctx, (a, b), problem, implementation, loaded_tuning())


def lower_split(
    kind: str,
    platform: str | None,
    ctx: mlir.LoweringRuleContext,
    operands: Sequence[mlir.Value],
    problem: ConvProblem,
    implementation: Implementation,
    tuning: Tuning,
    end: End | None = None,
) -> Sequence[mlir.Value]:
    """A primitive over the devices of its program. end: what a conv ends with, if not with its sums."""
    compute = partial(_computation, kind, platform, implementation, tuning)
    local, module = Local(compute), ctx.module_context
    is_export = module.lowering_parameters.for_export
    if kind == "conv" and not is_export:  # an export may run on a GPU whose kernels do not read rows so
        local = Local(compute, partial(_with_rows, platform, implementation, tuning))
    types = [*ctx.avals_in, *ctx.avals_out]
    if is_explicit([aval.sharding for aval in types]):
        compute = explicitly_partitioned(kind, problem, local, types, end)
        return mlir.lower_fun(compute, multiple_results=False)(ctx, *operands)
    automatic = Automatic.of(ctx)
    if automatic.devices == 1:
        compute = blocks_of(kind, problem, local, end)({}, {})
    # XLA would split an exported program by Python of this process.
    elif reason := "an export for several devices" if is_export else unpartitioned_reason(problem, automatic):
        by_lax = Local(partial(_by_lax, reason, kind, implementation))
        compute = blocks_of(kind, problem, by_lax, end and end.by_xla)({}, {})
    else:
        epilogue = end.epilogue if end else NO_EPILOGUE
        name_it = set_xla_metadata(jaxconv=cache_key.digest(kind, platform, problem, implementation, tuning, epilogue))
        compute = name_it(partitioned(kind, problem, local, ctx.avals_in, automatic, end))
    (out,) = lower_without_mesh(compute, ctx, *operands)
    return [lower_with_sharding_in_types(ctx, out, ctx.avals_out[0])]


def _computation(
    kind: str, platform: str | None, implementation: Implementation, tuning: Tuning, problem: ConvProblem
) -> Compute:
    """What answers a problem on a platform: a native kernel; lax, where it is measured or expected to be the fastest;
    or else lax with a warning, if no name forbids that."""
    again = partial(_computation, kind, platform, implementation, tuning)
    kind_seen, seen = seen_by_kernels(kind, platform, problem, constraint_of(implementation))
    if has_float8(problem) and seen != problem:
        return converted(kind, problem, seen, again)
    choice = decide(kind_seen, platform, seen, implementation, tuning)
    if choice.plan is None:
        return _by_lax(choice.unsupported_reason(), kind, implementation, problem)
    if wraps_to_int8(problem):
        return converted(kind, problem, with_result(kind, problem, INT32), again)
    if isinstance(choice.plan, Lax):
        return fallback.LAX[kind](problem)
    by_kernel = ffi.convolution(choice.plan, seen)
    dtypes = [seen.dtype(role) for role in OPERANDS[kind_seen]]
    compute = lambda *operands: by_kernel(*(x.astype(dtype) for x, dtype in zip(operands, dtypes, strict=True)))
    return complex_convolution(kind, problem, compute, platform) if is_complex(problem) else compute


def _with_rows(
    platform: str | None, implementation: Implementation, tuning: Tuning, apart: Apart
) -> Callable[..., Array] | None:
    choice = decide_apart(platform, apart, implementation, tuning)
    return choice and ffi.convolution(choice.plan, apart.problem)


class Seen(NamedTuple):
    """The kind and the problem that kernels are planned for."""

    kind: str
    problem: ConvProblem


def seen_by_kernels(
    kind: str,
    platform: str | None,
    problem: ConvProblem,
    constraint: Constraint = ANY,
    epilogue_kind: EpilogueKind = EpilogueKind.NONE,
) -> Seen:
    """What is planned: of complex numbers, a real problem; of int8, sums of int32. On a GPU: of float8, a problem that
    kernels take; of integers, a weight gradient or the convolution that it is; of int8 with an epilogue to at most 16
    bits, and of float32 that may be rounded to bfloat16, the one of both types that is expected to be faster.
    """
    if is_complex(problem):
        problem = as_real(kind, problem, None if unsupported_reason(problem, kind) else platform)
    if wraps_to_int8(problem) and epilogue_kind is EpilogueKind.NONE:
        problem = with_result(kind, problem, INT32)
    if platform != "cuda":
        return Seen(kind, problem)
    if kind == "wgrad" and are_summed_wide(exchanged(problem)):
        return _faster(integer_readings(problem), constraint)
    if has_float8(problem):
        problem = float8_on_gpu(kind, problem, constraint, epilogue_kind)
    if epilogue_kind is not EpilogueKind.NONE:
        problem = _int8_on_gpu(kind, problem, constraint, epilogue_kind)
    is_float32 = all(problem.dtype(role) == jnp.float32 for role in ROLES)
    if is_float32 and float32_of(problem.precision) is Float32.BF16:
        problem = bfloat16_on_gpu(kind, problem, constraint, epilogue_kind)
    return Seen(kind, problem)


def integer_readings(gradient: ConvProblem) -> list[Seen]:
    """A weight gradient of integers, and the convolution that lax writes for it, if groups are not on the cotangent's
    batch."""
    conv = [] if gradient.out_batch_grouped else [Seen("conv", exchanged(gradient))]
    return [Seen("wgrad", gradient), *conv]


def _faster(readings: list[Seen], constraint: Constraint) -> Seen:
    """Of integers. Tensor cores read bytes only if what is summed comes last: a convolution can be brought to that."""
    if ffi.unavailable_reason("cuda"):
        return readings[0]
    taken = [seen for seen in readings if not unsupported_reason(seen.problem, seen.kind)]
    cost = lambda seen: choose("cuda", *seen, constraint, ffi.device("cuda")).cost
    return min(taken, key=cost, default=readings[0])


def float8_on_gpu(
    kind: str, problem: ConvProblem, constraint: Constraint = ANY, epilogue_kind: EpilogueKind = EpilogueKind.NONE
) -> ConvProblem:
    """A problem of float8 as kernels take it: as it is, if some do and are expected to be faster, or in wider
    types. Precisions above the default are for wider types."""
    taken, wider = problem, _wider_than_float8(kind, problem, constraint, epilogue_kind)
    if epilogue_kind is EpilogueKind.NONE and planning.needs_epilogue_on_cuda(problem.dtype(RESULT[kind]).name):
        taken = with_result(kind, problem, FLOAT32)
    if not allows_float8(problem.precision) or unsupported_reason(taken, kind) or ffi.unavailable_reason("cuda"):
        return wider
    return taken if _is_faster(kind, taken, wider, constraint, epilogue_kind) else wider


def _wider_than_float8(
    kind: str, problem: ConvProblem, constraint: Constraint, epilogue_kind: EpilogueKind
) -> ConvProblem:
    """In 16 bits; or in float32, if results are to be that, and it is expected to be faster: fewer kernels of 16 bits
    have results of float32, and none of depthwise."""
    halves = without_float8(kind, problem)
    is_wide = halves.dtype(RESULT[kind]) == FLOAT32 and float32_of(problem.precision) is not Float32.BF16
    if not is_wide or unsupported_reason(halves, kind) or ffi.unavailable_reason("cuda"):
        return halves
    return min(halves, in_float32(problem), key=lambda wider: _seconds(kind, problem, wider, constraint, epilogue_kind))


def _int8_on_gpu(kind: str, problem: ConvProblem, constraint: Constraint, epilogue_kind: EpilogueKind) -> ConvProblem:
    """A problem of int8 as it is; or with operands of 16 bits, where sums stay exact and that is expected to be faster.
    Depthwise kernels of int8 have results of int8 alone."""
    halves = halves_of_int8(problem)
    if halves is None or unsupported_reason(halves, kind, True) or ffi.unavailable_reason("cuda"):
        return problem
    return min(problem, halves, key=lambda of: _seconds(kind, problem, of, constraint, epilogue_kind))


def bfloat16_on_gpu(
    kind: str, problem: ConvProblem, constraint: Constraint, epilogue_kind: EpilogueKind
) -> ConvProblem:
    """A problem of float32 that is multiplied as bfloat16: of bfloat16; or of float32, where kernels that round less
    are expected to be faster, as those of groups of one channel are."""
    rounded = dataclasses.replace(problem, **{f"{role}_dtype": jnp.dtype("bfloat16") for role in OPERANDS[kind]})
    if unsupported_reason(rounded, kind) or ffi.unavailable_reason("cuda"):
        return rounded
    as_it_is = dataclasses.replace(problem, precision=Preset.TF32_TF32_F32)
    return as_it_is if _is_faster(kind, as_it_is, rounded, constraint, epilogue_kind) else rounded


def _is_faster(
    kind: str, problem: ConvProblem, converted: ConvProblem, constraint: Constraint, epilogue_kind: EpilogueKind
) -> bool:
    """Whether a kernel takes the problem, and is expected to be no slower than one of other types with its casts."""
    as_it_is, of_converted = (_seconds(kind, problem, of, constraint, epilogue_kind) for of in (problem, converted))
    return math.isfinite(as_it_is) and as_it_is <= of_converted


def _seconds(
    kind: str, problem: ConvProblem, converted: ConvProblem, constraint: Constraint, epilogue_kind: EpilogueKind
) -> float:
    """What a problem is expected to take on a GPU as one of other types, or as it is, with its casts."""
    device = ffi.device("cuda")
    cost = choose("cuda", kind, converted, constraint, device, epilogue_kind).cost
    return cost + widening_seconds(kind, problem, converted, device)


def _by_lax(reason: str, kind: str, implementation: Implementation, problem: ConvProblem) -> Compute:
    fallback.warn_or_raise(reason, implementation, problem)
    return fallback.LAX[kind](problem)


def decide(
    kind: str,
    platform: str | None,
    problem: ConvProblem,
    implementation: Implementation,
    tuning: Tuning = NOTHING,
    epilogue_kind: EpilogueKind = EpilogueKind.NONE,
) -> Choice:
    """The plan for a problem on a platform, measured or else estimated, or lax, or why no native kernel answers it.

    Lax, where it is faster, is for those who name no implementation; others have the best that was measured of what
    they name. Complex numbers are planned as real ones: what is known of lax is then of another convolution. What is
    measured is a convolution without its epilogue. For an epilogue lax would store the sums of 16 bits as float32,
    which it was not measured with.
    """
    constraint, has_epilogue = constraint_of(implementation), epilogue_kind is not EpilogueKind.NONE
    is_measured = not has_epilogue or problem.lhs_dtype.itemsize >= 4
    may_be_lax = implementation is None and not is_complex(problem) and is_measured
    asked = kind, platform, problem, constraint
    kind, problem = seen_by_kernels(kind, platform, problem, constraint, epilogue_kind)
    reason = _platform_reason(platform, constraint) or unsupported_reason(problem, kind, has_epilogue)
    if reason:
        return Choice.nothing(reason)
    device = ffi.device(platform)
    tuned = None
    if tuning is not NOTHING:
        tuned = tuning.choice(platform, *seen_by_kernels(*asked), constraint, may_be_lax)
    if tuned and isinstance(tuned.plan, ConvPlan) and has_epilogue:
        ended = choose(platform, kind, problem, tuned.plan.constraint, device, epilogue_kind)
        tuned = None if ended.plan is None else dataclasses.replace(tuned, plan=ended.plan)
    if tuned:
        return tuned
    if may_be_lax:
        return choose_or_lax(platform, kind, problem, device, epilogue_kind)
    return choose(platform, kind, problem, constraint, device, epilogue_kind)


class ChoiceOfRows(NamedTuple):
    """The plan of a kernel that reads rows where they lie, and what `choose` says of it."""

    plan: ConvPlan
    choice: Choice


def decide_apart(
    platform: str | None, apart: Apart, implementation: Implementation, tuning: Tuning = NOTHING
) -> ChoiceOfRows | None:
    """A kernel that reads the rows where they lie, if it is expected to be faster than a copy of the lhs with its rows,
    and the kernel that `decide` finds for that. What was measured is not expected, but taken."""
    constraint, problem = constraint_of(implementation), apart.problem
    seen = seen_by_kernels("conv", platform, problem, constraint).problem
    is_as_it_is = constraint.transform in (None, ()) and seen == problem
    if platform != "cuda" or not is_as_it_is:
        return None
    joined = decide("conv", platform, apart.joined, implementation, tuning)
    if not isinstance(joined.plan, ConvPlan) or joined.times is not None:
        return None
    before, after = apart.rows
    asked = dataclasses.replace(constraint, rows_before=before, rows_after=after, transform=())
    device = ffi.device(platform)
    choice = choose(platform, "conv", problem, asked, device)
    is_faster = choice.cost <= joined.cost + copy_seconds(apart.joined, "lhs", device)
    return ChoiceOfRows(choice.plan, choice) if isinstance(choice.plan, ConvPlan) and is_faster else None


def _platform_reason(platform: str | None, constraint: Constraint) -> str | None:
    if not constraint.is_for(platform):
        return f"it is being compiled for another platform ({platform or 'neither cpu nor cuda'})"
    if platform is None:
        return "no native kernels for this platform (cpu and cuda have them)"
    return ffi.unavailable_reason(platform)
