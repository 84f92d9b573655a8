"""The gradients of a filter and of a bias, which both read the output's cotangent: one kernel, where there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import NamedSharding, PartitionSpec

from jaxconv import ffi, primitives
from jaxconv._jax_private import simple_impl
from jaxconv.fused.call import BY_LAX, wgrad
from jaxconv.lowering import decide
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import ConvPlan, Implementation
from jaxconv.problem import ConvProblem
from jaxconv.problem.product import Product
from jaxconv.problem.wider import BFLOAT16, FLOAT16, FLOAT32
from jaxconv.sharding.partitioning import Automatic, has_explicit_axes, lower_without_mesh
from jaxconv.transforms import keeps_output_sums
from jaxconv.tuning.loaded import loaded_tuning

PRIMITIVE = Primitive("jaxconv_wgrad_and_bias")
PRIMITIVE.multiple_results = True
BOTH = ("filter", "bias")


def wgrad_and_bias(
    lhs: Array, out: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> tuple[Array, Array]:
    """The filter's cotangent for an output's cotangent `out`, and the sums of `out` over all axes but that of the
    channels, in float32."""
    params: dict[str, Any] = dict(problem=problem, implementation=implementation, sharding=sharding)
    is_split = has_explicit_axes([sharding, *(jax.typeof(x).sharding for x in (lhs, out))])
    are_16_bits = {lhs.dtype, out.dtype} in ({BFLOAT16}, {FLOAT16})
    if problem.reverse or is_split or not are_16_bits or implementation == BY_LAX:
        of_filter, of_bias = _in_two_steps(lhs, out, results=BOTH, **params)
    else:
        of_filter, of_bias = PRIMITIVE.bind(*primitives.promote(lhs, out), results=BOTH, **params)
    return of_filter, of_bias


def planned(platform: str | None, problem: ConvProblem, implementation: Implementation) -> ConvPlan | None:
    """The plan for the filter's gradient, if its kernel adds up the cotangent as well."""
    if platform != "cuda" or not Product("wgrad", problem).has_known_batch:
        return None
    plan = decide("wgrad", platform, problem, implementation, loaded_tuning()).plan
    if not isinstance(plan, ConvPlan) or not keeps_output_sums(plan.transform, problem):
        return None
    asked = dataclasses.replace(plan.constraint, gradient_sums=1)
    with_sums = choose(platform, "wgrad", problem, asked, ffi.device(platform)).plan
    return with_sums if isinstance(with_sums, ConvPlan) else None


def _in_two_steps(lhs: Array, out: Array, *, results: Sequence[str], **params: Any) -> list[Array]:
    of = {"filter": lambda: wgrad(lhs, out, **params), "bias": lambda: _sums(params["problem"], out)}
    return [of[name]() for name in results]


def _sums(problem: ConvProblem, out: Array) -> Array:
    return jnp.sum(out.astype(FLOAT32), axis=(problem.out_spec.first, *problem.out_spec.spatial))


def _abstract(
    lhs: ShapedArray, out: ShapedArray, *, problem: ConvProblem, results: Sequence[str], **params: Any
) -> list[ShapedArray]:
    of_filter = primitives.abstract("wgrad", lhs, out, problem=problem, **params)
    channels = (out.shape[problem.out_spec.second],)
    sharding = NamedSharding(of_filter.sharding.mesh, PartitionSpec(None))
    of_bias = of_filter.update(shape=channels, dtype=FLOAT32, weak_type=False, sharding=sharding)
    return [{"filter": of_filter, "bias": of_bias}[name] for name in results]


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Array | ad.Zero], *, results: Sequence[str], **params: Any
) -> tuple[Sequence[Array], Sequence[Array | ad.Zero]]:
    """Both results are linear in the cotangent. The filter's is linear in the lhs, too."""
    (lhs, out), (of_lhs, of_out) = primals, tangents
    found = PRIMITIVE.bind(lhs, out, results=results, **params)
    changes: dict[str, Any] = {
        name: ad.Zero(jax.typeof(x).to_tangent_aval()) for name, x in zip(results, found, strict=True)
    }
    if "filter" in changes and not isinstance(of_lhs, ad.Zero):
        changes["filter"] = wgrad(of_lhs, out, **params)
    if not isinstance(of_out, ad.Zero):
        by_out = dict(zip(results, _in_two_steps(lhs, of_out, results=results, **params), strict=True))
        changes = {name: ad.add_tangents(change, by_out[name]) for name, change in changes.items()}
    return found, list(changes.values())


def _transpose(
    cotangents: Sequence[Array | ad.Zero], lhs: Any, out: Any, *, results: Sequence[str], **params: Any
) -> list[Array | ad.Zero | None]:
    """That of the filter's gradient, and a bias for all positions. The operand whose cotangent is computed is an
    `ad.UndefinedPrimal`."""
    of = {name: x for name, x in zip(results, cotangents, strict=True) if not isinstance(x, ad.Zero)}
    into_lhs, into_out = primitives.TRANSPOSES["wgrad"]
    if ad.is_undefined_primal(lhs):
        return [into_lhs(of["filter"], lhs, out, **params) if "filter" in of else ad.Zero(lhs.aval), None]
    total: Any = into_out(of["filter"], lhs, out, **params) if "filter" in of else ad.Zero(out.aval)
    if "bias" in of:
        dtype, shape = out.aval.dtype, out.aval.shape
        spread = lax.broadcast_in_dim(of["bias"].astype(dtype), shape, (params["problem"].out_spec.second,))
        total = ad.add_tangents(total, spread)
    return [None, total]


def _batch(
    axis_data: Any, operands: Sequence[Array], mapped_axes: Sequence[int | None], **params: Any
) -> tuple[Sequence[Array], Sequence[int | None]]:
    results = params["results"]
    if all(axis is None for axis in mapped_axes):
        return PRIMITIVE.bind(*operands, **params), (None,) * len(results)
    mapped = jax.vmap(partial(_in_two_steps, **params), mapped_axes, axis_size=axis_data.size)
    return mapped(*operands), (0,) * len(results)


def _without_unused(used: list[bool], equation: JaxprEqn) -> tuple[list[bool], JaxprEqn | None]:
    """XLA takes out no part of a custom call. A filter that is not trained must cost no convolution."""
    kept = [(name, var) for name, var, is_used in zip(equation.params["results"], equation.outvars, used) if is_used]
    if not kept:
        return [False, False], None
    results, outvars = zip(*kept, strict=True)
    return [True, True], equation.replace(outvars=list(outvars), params=equation.params | {"results": results})


def _lower(
    platform: str | None, ctx: mlir.LoweringRuleContext, lhs: mlir.Value, out: mlir.Value, **params: Any
) -> Sequence[mlir.Value]:
    """In two steps where XLA may split the arrays: the partitioner takes a kernel with one result."""
    may_be_one = params["results"] == BOTH and Automatic.of(ctx).devices == 1
    plan = planned(platform, params["problem"], params["implementation"]) if may_be_one else None
    if plan is None:
        return mlir.lower_fun(partial(_in_two_steps, **params), multiple_results=True)(ctx, lhs, out)
    return lower_without_mesh(ffi.wgrad_and_sums(plan, params["problem"]), ctx, lhs, out, multiple_results=True)


simple_impl(PRIMITIVE)
PRIMITIVE.def_abstract_eval(_abstract)
ad.primitive_jvps[PRIMITIVE] = _jvp
ad.primitive_transposes[PRIMITIVE] = _transpose
batching.fancy_primitive_batchers[PRIMITIVE] = _batch
partial_eval.dce_rules[PRIMITIVE] = _without_unused
mlir.register_lowering(PRIMITIVE, partial(_lower, None))
for _platform in ffi.FFI_PLATFORMS:
    mlir.register_lowering(PRIMITIVE, partial(_lower, _platform), platform=_platform)
