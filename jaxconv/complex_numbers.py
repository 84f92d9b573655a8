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

from jaxconv.problem import ROLES, ConvProblem, Member
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


def _parts(x: Array, axis: int) -> Array:
    """[..., C, ...] -> [..., 2 C, ...]: of each channel the real part, then the imaginary one."""
    return merged(jnp.stack([x.real, x.imag], axis + 1), axis)


def _complex(x: Array, axis: int) -> Array:
    """The way back."""
    x = split(x, axis, 2)
    return lax.complex(*(lax.index_in_dim(x, part, axis + 1, keepdims=False) for part in (0, 1)))


def _matrices(w: Array, spec) -> Array:
    """The filter of a real convolution: from the two parts of an input channel to those of an output channel."""
    of_real = merged(jnp.stack([w.real, w.imag], spec.first + 1), spec.first)
    of_imaginary = merged(jnp.stack([-w.imag, w.real], spec.first + 1), spec.first)
    return merged(jnp.stack([of_real, of_imaginary], spec.second + 1), spec.second)


def _sums_of_products(products: Array, spec) -> Array:
    """A complex filter's gradient, from the products of all parts of input and output channels."""

    def part(x: Array, axis: int, which: int) -> Array:
        return lax.index_in_dim(split(x, axis, 2), which, axis + 1, keepdims=False)

    product = lambda of_in, of_out: part(part(products, spec.second, of_in), spec.first, of_out)
    return lax.complex(product(0, 0) - product(1, 1), product(0, 1) + product(1, 0))
