"""The derivatives of a convolution with an epilogue, as a `jax.custom_vjp`: it says what is kept for them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from jaxconv.activations import Masking
from jaxconv.epilogue import FLOAT32, INT8, of_channels
from jaxconv.fused.bias_gradient import wgrad_and_bias
from jaxconv.fused.call import Call, conv, wgrad
from jaxconv.fused.primitive import bind, of_filter
from jaxconv.problem.wider import BFLOAT16, FLOAT16, has_float8, in_float32, wider_dtype, with_dtypes

Operands = dict[str, Array]
Cotangents = dict[str, Array | None]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Absent:
    """In the place of an operand that is not kept: the dtype and the sharding that its cotangent has."""

    dtype: np.dtype
    sharding: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
    """What derivatives read. trains_both: whether both the filter and the bias, if there is one, are differentiated."""

    lhs: Array
    rhs: Array
    operands: dict[str, Any]  # one may be `Absent`
    result: Array | None
    trains_both: bool = dataclasses.field(metadata=dict(static=True))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_conv(call: Call, lhs: Array, rhs: Array, operands: Operands) -> Array:
    """The convolution of lhs and rhs with its epilogue, whose operands are by name."""
    return bind(call, lhs, rhs, operands)


def _fwd(call: Call, *primals: Any) -> tuple[Array, Kept | None]:
    """Keeps the result if the activation's derivative can be had from it, or a mask if that is the derivative, or what
    the activation is applied to."""
    trains_both = all(x.perturbed for x in (primals[1], primals[2].get("bias")) if x is not None)
    lhs, rhs, operands = jax.tree.map(lambda x: x.value, primals, is_leaf=lambda x: isinstance(x, CustomVJPPrimal))
    kept = partial(Kept, lhs, rhs, _kept(operands), trains_both=trains_both)
    if call.epilogue.out_dtype == INT8:  # which has no derivative
        return bind(call, lhs, rhs, operands), None
    if not call.epilogue.keeps_sums:
        y = bind(call, lhs, rhs, operands)
        return y, kept(y if call.epilogue.activation else None)
    z = bind(call.before_activation, lhs, rhs, operands)
    activation, out_scale = call.epilogue.activation, operands.get("out_scale")
    activated = call.epilogue.activated(call.problem, z, out_scale)
    result = activation.mask(z) if isinstance(activation, Masking) and out_scale is None else z
    return call.epilogue.rounded(activated), kept(result)


def _kept(operands: Operands) -> dict[str, Any]:
    """Without a residual that no derivative reads: it would take memory until the backward pass."""
    if "residual" not in operands or "residual_scale" in operands:
        return operands
    residual = operands["residual"]
    return operands | {"residual": Absent(residual.dtype, jax.typeof(residual).sharding)}


def _bwd(
    call: Call, kept: Kept | None, dy: Array | SymbolicZero
) -> tuple[Array | None, Array | None, Cotangents | None]:
    if kept is None or isinstance(dy, SymbolicZero):  # an int8 result, or one that nothing depends on
        return None, None, None
    dz, cotangents = _through_activation(call, kept.operands, kept.result, dy)
    is_exact = call.epilogue.activation is None or isinstance(call.epilogue.activation, Masking)
    narrow = dy.dtype if is_exact and "out_scale" not in kept.operands else dz.dtype
    dlhs, drhs, of_numbers = _of_convolution(call, kept, dz, narrow)
    cotangents |= of_numbers | _of_summands(call, kept.operands, dz, has_bias="bias" in of_numbers)
    cotangents = {name: _like(cotangents[name], x) for name, x in kept.operands.items()}
    return dlhs, _like(drhs, kept.rhs), cotangents


fused_conv.defvjp(_fwd, _bwd, symbolic_zeros=True)


def _through_activation(call: Call, operands: Operands, result: Array | None, dy: Array) -> tuple[Array, Cotangents]:
    """The cotangent of what the activation is applied to, and that of out_scale."""
    dy = dy.astype(call.epilogue.number_dtype(call.problem))
    if result is None:
        return dy, {}
    if result.dtype == bool:
        return jnp.where(result, dy, 0), {}
    if not call.epilogue.keeps_sums:
        assert call.epilogue.activation is not None
        return call.epilogue.activation.backward(result.astype(dy.dtype), dy), {}
    activated = partial(call.epilogue.activated, call.problem)
    z, out_scale = result.astype(dy.dtype), operands.get("out_scale")
    _, pullback = jax.vjp(activated, z, out_scale)
    dz, d_out_scale = pullback(dy)
    return dz, {} if out_scale is None else {"out_scale": d_out_scale}


def _of_convolution(
    call: Call, kept: Kept, dz: Array, narrow: np.dtype
) -> tuple[Array | None, Array | None, Cotangents]:
    """The cotangents of lhs, rhs and the scale, and that of the bias where it comes with the filter's. narrow: a dtype
    that holds dz exactly.

    scale * conv(lhs, rhs) is linear in rhs: so the filter's cotangent has the scale's, without the output. Of 16 bits
    it is float32 until it is scaled: float16 might be too narrow for it, as it might be for a scaled filter.
    """
    p, lhs, rhs, scale = call.differentiated, kept.lhs, kept.rhs, kept.operands.get("scale")
    is_integer = p.lhs_dtype == INT8  # such have no cotangents, but the scale has
    if is_integer:
        p, lhs, rhs = in_float32(p), lhs.astype(dz.dtype), rhs.astype(dz.dtype)
    elif has_float8(p) and scale is None:
        p = dataclasses.replace(p, out_dtype=narrow)
    elif has_float8(p):  # which would hold neither the scaled filter nor the gradient that is scaled next
        p, rhs = with_dtypes(p, rhs_dtype=FLOAT32, out_dtype=FLOAT32), rhs.astype(FLOAT32)
    sums_bias = _comes_with_filter(kept, p.out_dtype, narrow)
    is_rounded = sums_bias and (kept.result is not None or narrow != p.out_dtype)
    scaled, dz = dz, (_as_convolved(call, dz) if is_rounded else dz).astype(p.out_dtype)
    drhs, cotangents = None, {}
    if not is_integer or scale is not None:
        is_scaled_later = scale is not None and p.lhs_dtype == p.out_dtype and p.rhs_dtype.itemsize == 2
        of_rhs = dataclasses.replace(p, rhs_dtype=FLOAT32) if is_scaled_later else p
        arguments = lhs, dz, of_rhs, call.implementation, jax.typeof(rhs).sharding
        if sums_bias:
            drhs, cotangents["bias"] = wgrad_and_bias(*arguments)
        else:
            drhs = wgrad(*arguments)
    if scale is not None and drhs is not None:
        wide = wider_dtype(scale.dtype, rhs.dtype)
        products = rhs.astype(wide) * drhs.astype(wide)
        cotangents["scale"] = _total(products, p.rhs_spec.first, scale)
        drhs = of_filter(p, scale, drhs)
    if is_integer:
        return None, None, cotangents
    if scale is not None and p.rhs_dtype == FLOAT16:
        dz = (of_channels(p, scale) * scaled).astype(dz.dtype)
    else:
        rhs = of_filter(p, scale, rhs)
    dlhs = conv(dz, rhs, p.dgrad(), call.implementation, jax.typeof(lhs).sharding)
    return dlhs, drhs, cotangents


def _comes_with_filter(kept: Kept, convolved: np.dtype, narrow: np.dtype) -> bool:
    """Whether the bias's cotangent is a sum of what the filter's convolution reads. bfloat16 is rounded for both."""
    is_summed = convolved == BFLOAT16 or convolved == narrow == FLOAT16
    return is_summed and kept.trains_both and "bias" in kept.operands and kept.operands["bias"].ndim == 1


def _of_summands(call: Call, operands: Operands, dz: Array, has_bias: bool) -> Cotangents:
    """has_bias: the bias's cotangent is there already."""
    cotangents: Cotangents = {}
    convolved = _as_convolved(call, dz)
    if "bias" in operands and not has_bias:
        cotangents["bias"] = _total(convolved, call.problem.out_spec.second, operands["bias"])
    if "residual" in operands:
        scale, dtype = operands.get("residual_scale"), operands["residual"].dtype
        own = convolved if dtype == call.differentiated.out_dtype else dz
        cotangents["residual"] = None if dtype == INT8 else own if scale is None else scale.astype(dz.dtype) * own
    if "residual_scale" in operands:
        cotangents["residual_scale"] = jnp.sum(convolved * operands["residual"].astype(dz.dtype))
    return cotangents


def _as_convolved(call: Call, dz: Array) -> Array:
    """dz as the convolutions read it, if that is bfloat16. Then XLA sums it in the pass that stores it for them: it
    would store float32 if that were summed, and read it once more. float16 might be too narrow for what is summed."""
    if call.differentiated.out_dtype != BFLOAT16:
        return dz
    # Without reduce_precision, which changes nothing, XLA would leave out both conversions.
    return lax.reduce_precision(dz.astype(BFLOAT16), exponent_bits=8, mantissa_bits=7).astype(dz.dtype)


def _total(x: Array, channels: int, like: Array) -> Array:
    """The sum over all axes but that of the channels, or over all for a scalar."""
    return jnp.sum(x, axis=tuple(axis for axis in range(x.ndim) if like.ndim == 0 or axis != channels))


def _like(cotangent: Array | None, x: Array | Absent) -> Array | None:
    """In x's dtype, and under an explicit mesh with x's sharding."""
    if cotangent is None:
        return None
    sharding = x.sharding if isinstance(x, Absent) else jax.typeof(x).sharding
    cotangent = cotangent.astype(x.dtype)
    return jax.sharding.reshard(cotangent, sharding) if sharding.mesh.explicit_axes else cotangent
