"""The gradients of a filter and of a bias, which both read the output's cotangent: one kernel, where there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from jaxconv import ffi, primitives
from jaxconv._jax_private import simple_impl
from jaxconv.fused.call import BY_LAX, wgrad
from jaxconv.lowering import decide, seen_by_kernels
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import ConvPlan, Implementation, constraint_of
from jaxconv.problem import ConvProblem
from jaxconv.problem.product import Product
from jaxconv.problem.wider import BFLOAT16, FLOAT16, FLOAT32
from jaxconv.sharding.partitioning import Automatic, lower_without_mesh
from jaxconv.tuning.loaded import loaded_tuning

PRIMITIVE = Primitive("jaxconv_wgrad_and_bias")
PRIMITIVE.multiple_results = True


def wgrad_and_bias(
    lhs: Array, out: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> tuple[Array, Array]:
    """The filter's cotangent for an output's cotangent `out`, and the sums of `out` over all axes but that of the
    channels, in float32."""
    is_split = any(s.mesh.explicit_axes for s in (sharding, jax.typeof(lhs).sharding, jax.typeof(out).sharding))
    are_16_bits = {lhs.dtype, out.dtype} in ({BFLOAT16}, {FLOAT16})
    params: dict[str, Any] = dict(problem=problem, implementation=implementation, sharding=sharding)
    if problem.reverse or is_split or not are_16_bits or implementation == BY_LAX:
        return in_two_steps(lhs, out, **params)
    rhs, bias = PRIMITIVE.bind(*primitives.promote(lhs, out), **params)
    return rhs, bias


def in_two_steps(
    lhs: Array, out: Array, *, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> tuple[Array, Array]:
    return wgrad(lhs, out, problem, implementation, sharding), _sums(problem, out)


def planned(platform: str | None, problem: ConvProblem, implementation: Implementation) -> ConvPlan | None:
    """The plan for the filter's gradient, if its kernel adds up the cotangent as well."""
    constraint = constraint_of(implementation)
    if platform != "cuda" or seen_by_kernels("wgrad", platform, problem, constraint).problem != problem:
        return None
    if not Product("wgrad", problem).has_known_batch:
        return None
    plan = decide("wgrad", platform, problem, implementation, loaded_tuning()).plan
    if not isinstance(plan, ConvPlan) or plan.transform:
        return None
    asked = dataclasses.replace(plan.constraint, gradient_sums=1)
    with_sums = choose(platform, "wgrad", problem, asked, ffi.device(platform)).plan
    return with_sums if isinstance(with_sums, ConvPlan) else None


def _sums(problem: ConvProblem, out: Array) -> Array:
    return jnp.sum(out.astype(FLOAT32), axis=(problem.out_spec.first, *problem.out_spec.spatial))


def _abstract(lhs: ShapedArray, out: ShapedArray, *, problem: ConvProblem, **params: Any) -> list[ShapedArray]:
    rhs = primitives.abstract("wgrad", lhs, out, problem=problem, **params)
    channels = (out.shape[problem.out_spec.second],)
    sharding = NamedSharding(rhs.sharding.mesh, PartitionSpec(None))
    return [rhs, rhs.update(shape=channels, dtype=FLOAT32, weak_type=False, sharding=sharding)]


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Array | ad.Zero], *, problem: ConvProblem, **params: Any
) -> tuple[Sequence[Array], Sequence[Array | ad.Zero]]:
    """Both results are linear in the cotangent. The filter's is linear in the lhs, too."""
    (lhs, out), (of_lhs, of_out) = primals, tangents
    results = PRIMITIVE.bind(lhs, out, problem=problem, **params)
    of_rhs, of_bias = (ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results)
    if not isinstance(of_lhs, ad.Zero):
        of_rhs = ad.add_tangents(of_rhs, wgrad(of_lhs, out, problem, **params))
    if not isinstance(of_out, ad.Zero):
        of_rhs, of_bias = ad.add_tangents(of_rhs, wgrad(lhs, of_out, problem, **params)), _sums(problem, of_out)
    return results, [of_rhs, of_bias]


def _batch(
    axis_data: Any, operands: Sequence[Array], mapped_axes: Sequence[int | None], **params: Any
) -> tuple[Sequence[Array], Sequence[int]]:
    mapped = jax.vmap(partial(in_two_steps, **params), mapped_axes, axis_size=axis_data.size)
    return mapped(*operands), (0, 0)


def _lower(
    platform: str | None, ctx: mlir.LoweringRuleContext, lhs: mlir.Value, out: mlir.Value, **params: Any
) -> Sequence[mlir.Value]:
    """In two steps where XLA may split the arrays: the partitioner takes a kernel with one result."""
    plan = planned(platform, params["problem"], params["implementation"]) if Automatic.of(ctx).devices == 1 else None
    if plan is None:
        return mlir.lower_fun(partial(in_two_steps, **params), multiple_results=True)(ctx, lhs, out)
    return lower_without_mesh(ffi.wgrad_and_sums(plan, params["problem"]), ctx, lhs, out)


simple_impl(PRIMITIVE)
PRIMITIVE.def_abstract_eval(_abstract)
ad.primitive_jvps[PRIMITIVE] = _jvp
batching.fancy_primitive_batchers[PRIMITIVE] = _batch
mlir.register_lowering(PRIMITIVE, partial(_lower, None))
for _platform in ffi.FFI_PLATFORMS:
    mlir.register_lowering(PRIMITIVE, partial(_lower, _platform), platform=_platform)
