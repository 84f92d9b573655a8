"""Forms: arrays on their way to those of another convolution, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxconv.problem import ConvProblem, Shape

ROLES = ("lhs", "rhs", "out")


class Form(NamedTuple):
    """An array's way to its new form, and back. is_view: it lies in memory as before."""

    to: Callable[[Array], Array]
    back: Callable[[Array], Array]
    is_view: bool = False

    def then(self, other: Form) -> Form:
        return Form(lambda x: other.to(self.to(x)), lambda x: self.back(other.back(x)), self.is_view and other.is_view)


AS_IT_IS = Form(lambda x: x, lambda x: x, is_view=True)


class Rewritten(NamedTuple):
    """The new problem, and for each of its roles (lhs, rhs, out) its array's form there.

    swapped: what was lhs is out there, and the other way round.
    """

    problem: ConvProblem
    forms: dict[str, Form]
    swapped: bool = False


def resized(shape: Shape, sizes: dict[int, int]) -> Shape:
    return tuple(sizes.get(axis, size) for axis, size in enumerate(shape))


def placed(shape: Shape, places: dict[int, tuple[int, int]]) -> Form:
    """An array among zeros: for some axes the index of its first element, and the new size."""
    if all((low, size) == (0, shape[axis]) for axis, (low, size) in places.items()):
        return AS_IT_IS
    edges = [(0, 0, 0)] * len(shape)
    for axis, (low, size) in places.items():
        edges[axis] = (low, size - low - shape[axis], 0)

    def back(x: Array) -> Array:
        for axis, (low, _) in places.items():
            x = lax.slice_in_dim(x, low, low + shape[axis], axis=axis)
        return x

    return Form(lambda x: lax.pad(x, x.dtype.type(0), edges), back)


def reshaped(shape: Shape, to: Shape) -> Form:
    return Form(partial(jnp.reshape, shape=to), partial(jnp.reshape, shape=shape), is_view=True)


def split(x: Array, axis: int, many: int) -> Array:
    """An axis as two: its last factor, of `many`, behind the rest of it."""
    return x.reshape(*x.shape[:axis], x.shape[axis] // many, many, *x.shape[axis + 1 :])


def joined(x: Array, axis: int) -> Array:
    """An axis and the one behind it as one."""
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def swapped(forms: dict[str, Form]) -> dict[str, Form]:
    """Those of a data gradient."""
    return {"lhs": forms["out"], "rhs": forms["rhs"], "out": forms["lhs"]}
