"""A complex convolution as a real one: each channel becomes two neighbours, its real and its imaginary part.

So a complex product is four real ones, which are summed together with all others. lax makes three convolutions of it,
whose results it adds and subtracts: then large parts may cancel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxconv.problem import ROLES, ConvProblem, Member, Spec
from jaxconv.problem.factors import resize
from jaxconv.transforms.array_views import merged, split

PARTS = {"complex64": np.dtype("float32"), "complex128": np.dtype("float64")}


def is_complex(problem: ConvProblem) -> bool:
    return all(problem.dtype(role).name in PARTS for role in ROLES)


def as_real(problem: ConvProblem) -> ConvProblem:
    """The real convolution of a complex one, also of a weight gradient: it has all products of parts."""
    for channels in ("c", "k"):
        problem = resize(problem, channels, lambda n: 2 * n)
    groups, ins, outs = problem.member
    dtypes = {f"{role}_dtype": PARTS[problem.dtype(role).name] for role in ROLES}
    return dataclasses.replace(problem, member=Member(groups, 2 * ins, 2 * outs), **dtypes)


def complex_convolution(
    kind: str, problem: ConvProblem, compute: Callable[[Array, Array], Array]
) -> Callable[[Array, Array], Array]:
    """What computes a complex problem by what computes `as_real` of it."""
    lhs, out, rhs = problem.lhs_spec, problem.out_spec, problem.rhs_spec
    if kind == "wgrad":
        return lambda x, g: _sums_of_products(compute(_parts(x, lhs.second), _parts(g, out.second)), rhs)
    return lambda x, w: _complex(compute(_parts(x, lhs.second), _matrices(w, rhs)), out.second)


def _pairs(first: Array, second: Array, axis: int) -> Array:
    """[..., C, ...] each -> [..., 2 C, ...]: of each channel the first, then the second."""
    return merged(jnp.stack([first, second], axis + 1), axis)


def _of_pairs(x: Array, axis: int, which: int) -> Array:
    """The way back, to one of the two."""
    return lax.index_in_dim(split(x, axis, 2), which, axis + 1, keepdims=False)


def _parts(x: Array, axis: int) -> Array:
    return _pairs(x.real, x.imag, axis)


def _complex(x: Array, axis: int) -> Array:
    return lax.complex(_of_pairs(x, axis, 0), _of_pairs(x, axis, 1))


def _matrices(w: Array, spec: Spec) -> Array:
    """The filter of a real convolution: from the two parts of an input channel to those of an output channel."""
    return _pairs(_pairs(w.real, w.imag, spec.first), _pairs(-w.imag, w.real, spec.first), spec.second)


def _sums_of_products(products: Array, spec: Spec) -> Array:
    """A complex filter's gradient, from the products of all parts of input and output channels."""
    product = lambda of_in, of_out: _of_pairs(_of_pairs(products, spec.second, of_in), spec.first, of_out)
    return lax.complex(product(0, 0) - product(1, 1), product(0, 1) + product(1, 0))
