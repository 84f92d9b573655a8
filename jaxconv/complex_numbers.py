"""A complex convolution as a real one, of the parts of all numbers, real and imaginary.

So a complex product is four real ones. lax makes three convolutions of it, and adds parts before it multiplies: then a
small part may get lost. On a host, sums of float32 are sums of float64 where they may be less exact than lax's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxconv.problem import ROLES, ConvProblem, Member
from jaxconv.problem.factors import axis_of, resize
from jaxconv.problem.native import native
from jaxconv.problem.product import OPERANDS, RESULT, Product
from jaxconv.problem.wider import with_result
from jaxconv.transforms.array_views import merged, split

COMPLEX64, FLOAT64 = np.dtype("complex64"), np.dtype("float64")
PARTS = {"complex64": np.dtype("float32"), "complex128": FLOAT64}

# The products of a dense sum that a host's kernels add in float32 more exactly than lax does. A wgrad splits long sums.
FEWEST_PRODUCTS = 512
MOST_PRODUCTS = {"conv": 5000, "wgrad": math.inf}


def is_complex(problem: ConvProblem) -> bool:
    return all(problem.dtype(role).name in PARTS for role in ROLES)


def as_real(kind: str, problem: ConvProblem, platform: str | None = None) -> ConvProblem:
    """The real problem: one operand's parts are images or input channels, those of the other are output channels.

    platform: whose kernels compute it. A host's may have wider sums, if the problem is one that they take.
    """
    factor, real = _factor_of_parts(kind, problem, platform), _of_parts(problem)
    for doubled in (factor, "k"):
        real = resize(real, doubled, lambda n: 2 * n)
    groups, ins, outs = problem.member
    member = Member(groups, 2 * ins if factor == "c" else ins, 2 * outs)
    real = dataclasses.replace(real, member=member)
    return with_result(kind, real, FLOAT64) if _has_wider_sums(kind, problem, platform) else real


def complex_convolution(
    kind: str, problem: ConvProblem, compute: Callable[[Array, Array], Array], platform: str | None = None
) -> Callable[[Array, Array], Array]:
    """What computes a complex problem by what computes `as_real` of it."""
    factor = _factor_of_parts(kind, problem, platform)
    of_a, of_b, of_result = (axis_of(problem, role, factor) for role in (*OPERANDS[kind], RESULT[kind]))
    k_of_b, k_of_result = (axis_of(problem, role, "k") for role in (OPERANDS[kind][1], RESULT[kind]))
    dtype = PARTS[problem.dtype(RESULT[kind]).name]

    def convolution(a: Array, b: Array) -> Array:
        with jax.enable_x64(True):  # the kernel's sums may be of float64, whatever JAX is set to
            if of_result is None:  # the kernel adds the products of both parts: a b is Re(a) b + Im(a) (i b)
                b = _in_turn(b, lax.complex(-b.imag, b.real), of_b)
            sums = compute(_parts(a, of_a), _parts(b, k_of_b))
            return _complex(sums, of_result, k_of_result, dtype)

    return convolution


def _has_wider_sums(kind: str, problem: ConvProblem, platform: str | None) -> bool:
    """Whether a kernel sums in float64, and the sums are rounded once: on a host, where float32 is not known to be at
    least as exact as lax."""
    if platform != "cpu" or any(problem.dtype(role) != COMPLEX64 for role in ROLES):
        return False  # sums of a float64 operand are of float64
    is_dense = problem.groups == 1 and problem.out_channels > 1
    return not (is_dense and FEWEST_PRODUCTS <= _products(kind, problem) <= MOST_PRODUCTS[kind])


def _products(kind: str, problem: ConvProblem) -> int:
    """Of a sum."""
    return native(Product(kind, _of_parts(problem))).k


def _of_parts(problem: ConvProblem) -> ConvProblem:
    """The convolution of one part of each number."""
    return dataclasses.replace(problem, **{f"{role}_dtype": PARTS[problem.dtype(role).name] for role in ROLES})


def _factor_of_parts(kind: str, problem: ConvProblem, platform: str | None) -> str:
    """Where the parts of the first operand are: images, n, or input channels, c.

    If the result has that factor, each of the four products has its own sums. Else the kernel adds them up: float64 is
    exact enough, and the result is half as large. Groups of one channel stay such, for `depthwise`.
    """
    if _has_wider_sums(kind, problem, platform):
        return "n" if problem.groups > 1 and problem.in_channels == 1 else "c"
    return "c" if kind == "wgrad" else "n"


def _in_turn(first: Array, second: Array, axis: int) -> Array:
    """[..., C, ...] twice -> [..., 2 C, ...]: of each index the first, then the second."""
    return merged(jnp.stack([first, second], axis + 1), axis)


def _parts(x: Array, axis: int) -> Array:
    return _in_turn(x.real, x.imag, axis)


def _complex(sums: Array, first: int | None, second: int, dtype: np.dtype) -> Array:
    """The way back, from the sums of products of the parts of one operand, on axis `first`, and the other's. Without
    that axis, they are added up."""

    def part(x: Array, axis: int, which: int) -> Array:
        return lax.index_in_dim(split(x, axis, 2), which, axis + 1, keepdims=False)

    real, imag = part(sums, second, 0), part(sums, second, 1)
    if first is not None:
        of_real, of_imag = (lambda x: part(x, first, 0)), (lambda x: part(x, first, 1))
        real, imag = of_real(real) - of_imag(imag), of_real(imag) + of_imag(real)
    return lax.complex(real.astype(dtype), imag.astype(dtype))
