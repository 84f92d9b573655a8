"""A complex convolution as a real one, of the parts of all numbers, real and imaginary.

So a complex product is four real ones. Each of the four has its own sums. At the end two of them are added, and two are
subtracted. lax makes three convolutions of it, and adds parts before it multiplies: then a small part may get lost.
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


def as_real(kind: str, problem: ConvProblem) -> ConvProblem:
    """The real problem: one operand's parts are images (in a weight gradient, input channels), those of the other are
    output channels."""
    for factor in ("c" if kind == "wgrad" else "n", "k"):
        problem = resize(problem, factor, lambda n: 2 * n)
    groups, ins, outs = problem.member
    member = Member(groups, 2 * ins if kind == "wgrad" else ins, 2 * outs)
    dtypes = {f"{role}_dtype": PARTS[problem.dtype(role).name] for role in ROLES}
    return dataclasses.replace(problem, member=member, **dtypes)


def complex_convolution(
    kind: str, problem: ConvProblem, compute: Callable[[Array, Array], Array]
) -> Callable[[Array, Array], Array]:
    """What computes a complex problem by what computes `as_real` of it."""
    lhs, out, rhs = problem.lhs_spec, problem.out_spec, problem.rhs_spec
    # The axes of the parts: of the operands, then those that each of them has in the result.
    operands = (lhs.second, out.second) if kind == "wgrad" else (lhs.first, rhs.first)
    result = (rhs.second, rhs.first) if kind == "wgrad" else (out.first, out.second)

    def convolution(a: Array, b: Array) -> Array:
        parts = [_parts(x, axis) for x, axis in zip((a, b), operands, strict=True)]
        return _complex(compute(*parts), *result)

    return convolution


def _parts(x: Array, axis: int) -> Array:
    """complex [..., C, ...] -> [..., 2 C, ...]: of each index the real part, then the imaginary one."""
    return merged(jnp.stack([x.real, x.imag], axis + 1), axis)


def _complex(products: Array, first: int, second: int) -> Array:
    """The way back, from the sums of products of the parts of one operand, on axis `first`, and the other's."""

    def part(x: Array, axis: int, which: int) -> Array:
        return lax.index_in_dim(split(x, axis, 2), which, axis + 1, keepdims=False)

    sums = lambda a, b: part(part(products, first, a), second, b)
    return lax.complex(sums(0, 0) - sums(1, 1), sums(0, 1) + sums(1, 0))
