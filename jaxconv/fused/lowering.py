"""What answers a convolution with an epilogue: one native kernel, or a convolution, by a kernel or by lax, and XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array
from jax.core import ShapedArray

from jaxconv import ffi
from jaxconv._jax_private import lower_with_sharding_in_types
from jaxconv.fused.call import BY_LAX, Call
from jaxconv.lowering import decide, seen_by_kernels
from jaxconv.planner.plan import ConvPlan, Lax, constraint_of
from jaxconv.problem import ConvProblem
from jaxconv.sharding.partitioning import Automatic, lower_without_mesh
from jaxconv.transforms import MultipliersAsDepth, has_more_zeros
from jaxconv.tuning.file import NOTHING, Tuning
from jaxconv.tuning.loaded import loaded_tuning


def lower(platform: str | None, ctx, *arrays, **params):
    """By a kernel, or else as two steps. Over several devices the sums are complete only after the first step."""
    call = Call(**params)
    is_one_device = Automatic.of(ctx).devices == 1
    compute = fused(platform, call, ctx.avals_in) if is_one_device else None
    if compute is None:
        plain = ShapedArray(call.problem.out_shape, call.epilogue.out_dtype)
        compute = call._replace(sharding=plain.sharding).decomposed
    (out,) = lower_without_mesh(compute, ctx, *arrays)
    return [lower_with_sharding_in_types(ctx, out, ctx.avals_out[0])]


def fused(platform: str | None, call: Call, avals: Sequence[Any]) -> Callable[..., Array] | None:
    """One kernel for all of it, or lax and XLA, or None. avals: of the operands."""
    problem, plan = planned(platform, call, avals, loaded_tuning())
    if plan is None:
        return None
    if isinstance(plan, Lax):
        return call._replace(implementation=BY_LAX).decomposed
    by_kernel = ffi.convolution(plan, problem, call.epilogue.for_kernels)
    dtype = call.epilogue.number_dtype(problem)

    def compute(lhs: Array, rhs: Array, *operands: Array) -> Array:
        numbers = {name: x if name == "residual" else x.astype(dtype) for name, x in call.named(operands).items()}
        return by_kernel(lhs.astype(problem.lhs_dtype), rhs.astype(problem.rhs_dtype), *call.in_order(numbers))

    return compute


def planned(
    platform: str | None, call: Call, avals: Sequence[Any], tuning: Tuning = NOTHING
) -> tuple[ConvProblem, ConvPlan | Lax | None]:
    """The problem and the plan of a kernel that ends with the whole epilogue, if there is one. Without a name it may be
    lax: where it was measured to be the fastest, or nothing is known of the GPU."""
    problem = call.epilogue.ended(call.problem)
    constraint = constraint_of(call.implementation)
    seen = seen_by_kernels("conv", platform, problem, constraint, call.ending).problem
    if problem.periodic or seen.out_dtype != problem.out_dtype or not _has_native_residual(call, avals):
        return problem, None
    plan = decide("conv", platform, seen, call.implementation, tuning, call.ending).plan
    return seen, None if isinstance(plan, ConvPlan) and not ends_with(plan, seen) else plan


def _has_native_residual(call: Call, avals: Sequence[Any]) -> bool:
    """Whether kernels can read the residual, if there is one."""
    named = zip(call.epilogue.operands, avals[2:], strict=True)
    return all(aval.dtype == call.epilogue.out_dtype for name, aval in named if name == "residual")


def ends_with(plan: ConvPlan, problem: ConvProblem) -> bool:
    """Whether the plan's kernel does."""
    if any(isinstance(step, MultipliersAsDepth) for step in plan.transform):  # its outputs are planes, not channels
        return False
    return not has_more_zeros(plan.transform, problem)  # no kernel ends those
