"""The primitive of a convolution with an epilogue: lhs, rhs, and the operands of the epilogue that are present.

It has no transpose. Its tangent is made of the bilinear primitives, which have.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxconv import ffi
from jaxconv._jax_private import simple_impl
from jaxconv.epilogue import FLOAT32, INT8, LIKE_RESULT, PER_CHANNEL
from jaxconv.fused import lowering
from jaxconv.fused.call import BY_LAX, Call, conv
from jaxconv.primitives import promote
from jaxconv.problem import ConvProblem, factors
from jaxconv.problem.wider import has_float8, in_float32, wider_dtype
from jaxconv.sharding.partitioning import has_explicit_axes

PRIMITIVE = Primitive("jaxconv_fused_conv")
Tangent = Array | ad.Zero


def bind(call: Call, lhs: Array, rhs: Array, operands: dict[str, Array]) -> Array:
    """The convolution with its epilogue. Over explicit mesh axes, a result in blocks is two steps already here."""
    arrays = promote(lhs, rhs, *call.in_order(operands))
    if call.implementation == BY_LAX or (call.epilogue.in_blocks and _is_explicit(call, arrays)):
        return call.decomposed(*arrays)
    return PRIMITIVE.bind(*arrays, **call._asdict())


def _is_explicit(call: Call, arrays: Sequence[Array]) -> bool:
    return has_explicit_axes([call.sharding, *(jax.typeof(x).sharding for x in arrays)])


def _abstract(lhs: ShapedArray, rhs: ShapedArray, *operands: ShapedArray, **params: Any) -> ShapedArray:
    call = Call(**params)
    p, epilogue = call.problem, call.epilogue
    assert (lhs.shape, rhs.shape, lhs.dtype) == (p.lhs_shape, p.rhs_shape, p.lhs_dtype), (lhs, rhs, p)
    assert len(operands) == len(epilogue.operands), (operands, epilogue)
    shape = epilogue.ended(p).stored_shape("out")
    return lhs.update(shape=shape, dtype=epilogue.out_dtype, weak_type=False, sharding=call.sharding)


# The tangent.


def _jvp(primals: Sequence[Array], tangents: Sequence[Tangent], **params: Any) -> tuple[Array, Tangent]:
    call = Call(**params)
    (lhs, rhs, *operands), (of_lhs, of_rhs, *of_operands) = primals, tangents
    operands = call.named(operands)
    of_operands = dict(zip(operands, of_operands, strict=True))
    if call.epilogue.out_dtype == INT8:
        y = bind(call, lhs, rhs, operands)
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    dz = _tangent_of_linear(call, lhs, rhs, operands, of_lhs, of_rhs, of_operands)
    activation = call.epilogue.activation
    if not call.epilogue.keeps_sums:
        y = bind(call, lhs, rhs, operands)
        dy = dz if activation is None else activation.backward(y.astype(dz.dtype), dz)
        return y, dy.astype(y.dtype)
    z = bind(call.before_activation, lhs, rhs, operands)
    activated = partial(call.epilogue.activated, call.problem)
    out_scale, of_out_scale = operands.get("out_scale"), of_operands.get("out_scale")
    if out_scale is None:
        y, dy = jax.jvp(lambda z: activated(z, None), (z,), (dz.astype(z.dtype),))
    else:
        of_out_scale = ad.instantiate_zeros(of_out_scale)
        y, dy = jax.jvp(activated, (z, out_scale), (dz.astype(z.dtype), of_out_scale))
    y = call.epilogue.rounded(y)
    return y, dy.astype(y.dtype)


def _tangent_of_linear(
    call: Call,
    lhs: Array,
    rhs: Array,
    operands: dict[str, Array],
    of_lhs: Tangent,
    of_rhs: Tangent,
    of_operands: dict[str, Tangent],
) -> Array:
    """Of scale * conv(lhs, rhs) + bias + residual_scale * residual, which is linear in each.

    scale times the convolution is that with scale * rhs.
    """
    p, dtype = call.differentiated, call.epilogue.number_dtype(call.problem)
    known = {name: tangent for name, tangent in of_operands.items() if not isinstance(tangent, ad.Zero)}
    dz = jnp.zeros(p.out_shape, dtype)
    if p.lhs_dtype == INT8 or has_float8(p):
        p, lhs, rhs = in_float32(p), lhs.astype(FLOAT32), rhs.astype(FLOAT32)
        of_lhs, of_rhs = (x if isinstance(x, ad.Zero) else x.astype(FLOAT32) for x in (of_lhs, of_rhs))
    product = lambda a, b: conv(a, b, p, call.implementation, call.sharding).astype(dtype)
    scaled = partial(of_filter, p, operands.get("scale"))
    if not isinstance(of_lhs, ad.Zero):
        dz = dz + product(of_lhs, scaled(rhs))
    if not isinstance(of_rhs, ad.Zero):
        dz = dz + product(lhs, scaled(of_rhs))
    if "scale" in known:
        dz = dz + product(lhs, of_filter(p, known["scale"], rhs))
    others = {name: known[name] for name in ("bias", "residual") if name in known}
    residual_scale = {name: operands[name] for name in ("residual_scale",) if name in operands}
    dz = call.epilogue.linear(call.problem, dz, others | residual_scale)
    if "residual_scale" in known:
        dz = dz + known["residual_scale"].astype(dtype) * operands["residual"].astype(dtype)
    return dz


def of_filter(problem: ConvProblem, numbers: Array | None, rhs: Array) -> Array:
    """The filter, times a number for each output channel; None: the filter."""
    if numbers is None:
        return rhs
    if numbers.ndim:
        axis = problem.rhs_spec.first
        numbers = jnp.expand_dims(numbers, tuple(i for i in range(rhs.ndim) if i != axis))
    return (numbers * rhs.astype(wider_dtype(numbers.dtype, rhs.dtype))).astype(rhs.dtype)


# vmap.


def _batch(
    axis_data: Any, arrays: Sequence[Array], mapped_axes: Sequence[int | None], **params: Any
) -> tuple[Array, int | None]:
    """Folds the mapped axis into the convolution, if that is then one with an epilogue. Else the epilogue is mapped."""
    call, size = Call(**params), axis_data.size
    lhs, rhs, *operands = mapped_axes
    if all(axis is None for axis in mapped_axes):
        return bind(call, arrays[0], arrays[1], call.named(arrays[2:])), None
    factor = "n" if rhs is None else "k" if lhs is None else "g"
    foldable = set(LIKE_RESULT) if factor == "n" else {*LIKE_RESULT, *PER_CHANNEL}
    mapped = {name for name, axis in zip(call.epilogue.operands, operands, strict=True) if axis is not None}
    is_conv_mapped = lhs is not None or rhs is not None
    is_folded_inside = call.epilogue.in_blocks and factor != "n"  # of a block
    is_foldable = is_conv_mapped and not is_folded_inside and mapped <= foldable and not _is_explicit(call, arrays)
    if not is_foldable or (isinstance(size, int) and size == 0):
        return jax.vmap(call.decomposed, mapped_axes, axis_size=size)(*arrays), 0
    problem = factors.with_group_axis(call.problem) if factor == "g" else call.problem
    folded = [
        _folded(problem, factor, size, name, x, axis)
        for name, x, axis in zip(("lhs", "rhs", *call.epilogue.operands), arrays, mapped_axes, strict=True)
    ]
    big = call._replace(problem=factors.resize(problem, factor, lambda n: n * size))
    out = bind(big, folded[0], folded[1], big.named(folded[2:]))
    return factors.unfold(out, size, problem, "out", factor)


def _folded(problem: ConvProblem, factor: str, size: Any, name: str, x: Array, axis: int | None) -> Array:
    """An operand of the problem that has the mapped axis in a factor."""
    role = "out" if name in LIKE_RESULT else name
    if role in ("lhs", "rhs", "out"):
        if axis is None and role == "out":
            x, axis = jnp.broadcast_to(x, (size, *x.shape)), 0
        return x if axis is None else factors.fold(x, axis, problem, role, factor)
    if factor == "n" or (axis is None and x.ndim == 0):
        return x
    channels = problem.groups * problem.out_channels
    x = jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
    x = jnp.broadcast_to(x.reshape(size, -1), (size, channels))
    if factor == "k":  # inside of each group
        x = jnp.swapaxes(x.reshape(size, problem.groups, problem.out_channels), 0, 1)
    return x.reshape(size * channels)


simple_impl(PRIMITIVE)
PRIMITIVE.def_abstract_eval(_abstract)
ad.primitive_jvps[PRIMITIVE] = _jvp
batching.fancy_primitive_batchers[PRIMITIVE] = _batch
mlir.register_lowering(PRIMITIVE, partial(lowering.lower, None))
for _platform in ffi.FFI_PLATFORMS:
    mlir.register_lowering(PRIMITIVE, partial(lowering.lower, _platform), platform=_platform)
