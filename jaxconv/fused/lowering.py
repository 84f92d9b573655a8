"""What answers a convolution with an epilogue: one native kernel, or a convolution and XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array
from jax.core import ShapedArray

from jaxconv import ffi
from jaxconv._jax_private import lower_with_sharding_in_types
from jaxconv.fused.call import Call
from jaxconv.lowering import decide, seen_by_kernels
from jaxconv.planner.plan import ConvPlan, constraint_of
from jaxconv.problem import ConvProblem
from jaxconv.sharding.partitioning import Automatic, lower_without_mesh
from jaxconv.transforms import MultipliersAsDepth, has_more_zeros


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
    """One kernel for all of it, or None. avals: of the operands.

    Without a name the native kernel is taken, not compared with lax: no times of lax with an epilogue are known.
    """
    problem, plan = planned(platform, call, avals)
    if plan is None:
        return None
    by_kernel = ffi.convolution(plan, problem, call.epilogue.for_kernels)
    dtype = call.epilogue.number_dtype(problem)

    def compute(lhs: Array, rhs: Array, *operands: Array) -> Array:
        numbers = {name: x if name == "residual" else x.astype(dtype) for name, x in call.named(operands).items()}
        return by_kernel(lhs.astype(problem.lhs_dtype), rhs.astype(problem.rhs_dtype), *call.in_order(numbers))

    return compute


def planned(platform: str | None, call: Call, avals: Sequence[Any]) -> tuple[ConvProblem, ConvPlan | None]:
    """The problem and the plan of a kernel that ends with the whole epilogue, if there is one."""
    problem = call.epilogue.ended(call.problem)
    constraint = constraint_of(call.implementation)
    seen = seen_by_kernels("conv", platform, problem, constraint, call.ending).problem
    if problem.periodic or seen.out_dtype != problem.out_dtype or not _has_native_residual(call, avals):
        return problem, None
    plan = decide("conv", platform, seen, constraint, ending=call.ending).plan
    return seen, plan if isinstance(plan, ConvPlan) and ends_with(plan, seen) else None


def _has_native_residual(call: Call, avals: Sequence[Any]) -> bool:
    """Whether kernels can read the residual, if there is one."""
    named = zip(call.epilogue.operands, avals[2:], strict=True)
    return all(aval.dtype == call.epilogue.out_dtype for name, aval in named if name == "residual")


def ends_with(plan: ConvPlan, problem: ConvProblem) -> bool:
    """Whether the plan's kernel does."""
    if any(isinstance(step, MultipliersAsDepth) for step in plan.transform):  # its outputs are planes, not channels
        return False
    return not has_more_zeros(plan.transform, problem)  # no kernel ends those
