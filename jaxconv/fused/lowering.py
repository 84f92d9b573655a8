"""What answers a convolution with an epilogue: one native kernel, or a convolution, by a kernel or by lax, and XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array
from jax.interpreters import mlir

from jaxconv import ffi
from jaxconv.compiled import planning
from jaxconv.epilogue import LIKE_RESULT
from jaxconv.fused.call import BY_LAX, Call
from jaxconv.lowering import decide, lower_split, seen_by_kernels
from jaxconv.planner.plan import ConvPlan, Lax, constraint_of
from jaxconv.problem import ConvProblem
from jaxconv.problem.wider import holds
from jaxconv.sharding.block import End
from jaxconv.transforms import MultipliersAsDepth, has_more_zeros
from jaxconv.tuning.file import NOTHING, Tuning
from jaxconv.tuning.loaded import loaded_tuning


def lower(
    platform: str | None, ctx: mlir.LoweringRuleContext, *arrays: mlir.Value, **params: Any
) -> Sequence[mlir.Value]:
    """By a kernel, or else as two steps, as where devices have only parts of the sums."""
    call, avals, tuning = Call(**params), ctx.avals_in, loaded_tuning()
    end = End(call.epilogue, lambda problem: fused(platform, call._replace(problem=problem), avals, tuning))
    problem = call.epilogue.ended(call.problem)
    return lower_split("conv", platform, ctx, arrays, problem, call.implementation, tuning, end)


def fused(platform: str | None, call: Call, avals: Sequence[Any], tuning: Tuning) -> Callable[..., Array] | None:
    """One kernel for all of it, or lax and XLA, or None. avals: of the operands."""
    problem, plan = planned(platform, call, avals, tuning)
    like_result = _read_as(platform, call, avals)
    if plan is None or like_result is None:
        return None
    if isinstance(plan, Lax):
        return call._replace(implementation=BY_LAX).decomposed
    by_kernel = ffi.convolution(plan, problem, call.epilogue.for_kernels)
    dtype = call.epilogue.number_dtype(problem)

    def compute(lhs: Array, rhs: Array, *operands: Array) -> Array:
        numbers = {name: x.astype(like_result.get(name, dtype)) for name, x in call.named(operands).items()}
        return by_kernel(lhs.astype(problem.lhs_dtype), rhs.astype(problem.rhs_dtype), *call.in_order(numbers))

    return compute


def planned(
    platform: str | None, call: Call, avals: Sequence[Any], tuning: Tuning = NOTHING
) -> tuple[ConvProblem, ConvPlan | Lax | None]:
    """The problem and the plan of a kernel that ends with the whole epilogue, if there is one. Without a name it may be
    lax: where it was measured to be the fastest, or nothing is known of the GPU."""
    problem = call.epilogue.ended(call.problem)
    constraint = constraint_of(call.implementation)
    seen = seen_by_kernels("conv", platform, problem, constraint, call.epilogue_kind).problem
    if problem.periodic or seen.out_dtype != problem.out_dtype or _read_as(platform, call, avals) is None:
        return problem, None
    plan = decide("conv", platform, seen, call.implementation, tuning, call.epilogue_kind).plan
    return seen, None if isinstance(plan, ConvPlan) and not ends_with(plan, seen) else plan


def _read_as(platform: str | None, call: Call, avals: Sequence[Any]) -> dict[str, np.dtype] | None:
    """Operands like the result, and the dtypes that kernels read them in: on a GPU the result's, on a host any that the
    epilogue's numbers hold. None if these lack some of an operand's numbers."""
    found = {}
    for name, aval in zip(call.epilogue.operands, avals[2:], strict=True):
        if name not in LIKE_RESULT:
            continue
        if platform == "cpu":
            numbers = call.epilogue.number_dtype(call.problem)
            found[name], is_read = aval.dtype, planning.adds_residual_on_host(aval.dtype.name, numbers.name)
        else:
            found[name], is_read = call.epilogue.out_dtype, holds(call.epilogue.out_dtype, aval.dtype)
        if not is_read:
            return None
    return found


def ends_with(plan: ConvPlan, problem: ConvProblem) -> bool:
    """Whether the plan's kernel does."""
    if any(isinstance(step, MultipliersAsDepth) for step in plan.transform):  # its outputs are planes, not channels
        return False
    return not has_more_zeros(plan.transform, problem)  # no kernel ends those
