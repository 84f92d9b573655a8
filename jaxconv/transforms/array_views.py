"""Array views: the way of an array to that of another convolution, and back."""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, auto
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxconv.problem import ROLES, ConvProblem, Shape
from jaxconv.problem.product import vector_elements
from jaxconv.transforms.row_major import row_major


class Moves(Flag):
    """What a kernel of XLA does with an array's elements. Each has a time of its own."""

    NONE = 0
    COPY = auto()
    TRANSPOSE = auto()
    GATHER = auto()


class ArrayView(NamedTuple):
    """`to` makes the new array, `back` the old one.

    moves: by one kernel, together; NONE: nothing moves in memory. is_spread: the new array's elements
    lie apart in the old one. `to` reads no others, and `back` puts zeros between them. is_summed: an element is
    several times in the new array, and `back` adds them. packs: so many positions become channels of one.
    """

    to: Callable[[Array], Array]
    back: Callable[[Array], Array]
    moves: Moves = Moves.COPY
    is_spread: bool = False
    is_summed: bool = False
    packs: int = 1

    def then(self, other: ArrayView) -> ArrayView:
        """This view, then the other one. XLA makes one copy of both."""
        return ArrayView(
            lambda x: other.to(self.to(x)),
            lambda x: self.back(other.back(x)),
            self.moves | other.moves,
            self.is_spread or other.is_spread,
            self.is_summed or other.is_summed,
            self.packs * other.packs,
        )

    def of_row_major(self) -> ArrayView:
        """This view, of an array that XLA keeps in the order of its axes."""
        return self._replace(to=lambda x: self.to(row_major(x)))


AS_IT_IS = ArrayView(lambda x: x, lambda x: x, moves=Moves.NONE)
ALL_AS_THEY_ARE: dict[str, ArrayView] = dict.fromkeys(ROLES, AS_IT_IS)


class Transformed(NamedTuple):
    """The new problem, and the array view of each role (lhs, rhs, out) that changed.

    swapped: the old lhs is the new out, and the old out is the new lhs.
    """

    problem: ConvProblem
    views: dict[str, ArrayView]
    swapped: bool = False

    def of_dgrad(self) -> Transformed:
        """The same transform, seen from the data gradient: lhs and out change places."""
        lhs, out = self.views["out"], self.views["lhs"]
        return Transformed(self.problem.dgrad(), self.views | {"lhs": lhs, "out": out}, self.swapped)


def chained(views: dict[str, ArrayView], changes: dict[str, ArrayView]) -> dict[str, ArrayView]:
    """The views, followed by the changes."""
    return views | {role: views[role].then(change) for role, change in changes.items()}


def resized(shape: Shape, sizes: dict[int, int]) -> Shape:
    """The shape with new sizes of some axes."""
    return tuple(sizes.get(axis, size) for axis, size in enumerate(shape))


def padded(shape: Shape, extents: dict[int, tuple[int, int]]) -> ArrayView:
    """The array among zeros. extents: for an axis, the index of the first element, and the new size."""
    if all((low, size) == (0, shape[axis]) for axis, (low, size) in extents.items()):
        return AS_IT_IS
    edges = [(0, 0, 0)] * len(shape)
    for axis, (low, size) in extents.items():
        edges[axis] = (low, size - low - shape[axis], 0)

    def back(x: Array) -> Array:
        for axis, (low, _) in extents.items():
            x = lax.slice_in_dim(x, low, low + shape[axis], axis=axis)
        return x

    return ArrayView(lambda x: lax.pad(x, x.dtype.type(0), edges), back)


def spread(shape: Shape, indices: dict[int, range]) -> ArrayView:
    """The elements at some indices along axes: ranges that stop right behind their last. What lies between them is
    zeros on the way back."""
    if all(len(at) == shape[axis] for axis, at in indices.items()):
        return AS_IT_IS
    edges = [(0, 0, 0)] * len(shape)
    for axis, at in indices.items():
        edges[axis] = (at.start, shape[axis] - at.stop, at.step - 1)

    def taken(x: Array) -> Array:
        for axis, at in indices.items():
            x = lax.slice_in_dim(x, at.start, at.stop, at.step, axis)
        return x

    among_zeros = lambda x: lax.pad(x, x.dtype.type(0), edges)
    to, back = (move if len(shape) - 1 in indices else partial(_in_words, move) for move in (taken, among_zeros))
    return ArrayView(to, back, Moves.TRANSPOSE, is_spread=True)


def _in_words(move: Callable[[Array], Array], x: Array) -> Array:
    """What `move` makes of elements, which stay neighbours in the last axis.

    XLA's kernels move an element at a time: pairs of 16 bits go as one. Channels that are no whole 16-byte vectors are
    padded or cut as well, which XLA does in the same kernel if it moves the same elements.
    """
    if x.dtype.itemsize != 2 or x.shape[-1] % vector_elements(x.dtype):
        return move(x)
    words = lax.bitcast_convert_type(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), jnp.uint32)
    moved = lax.optimization_barrier(move(lax.optimization_barrier(words)))
    return lax.bitcast_convert_type(moved, x.dtype).reshape(*moved.shape[:-1], x.shape[-1])


def transposed(shape: Shape, axes: Shape) -> ArrayView:
    """The array with its axes in a new order."""
    if axes == tuple(range(len(axes))):
        return AS_IT_IS
    inverse = tuple(map(axes.index, range(len(axes))))
    made = Moves.TRANSPOSE if moves(shape, axes) else Moves.NONE
    return ArrayView(partial(jnp.transpose, axes=axes), partial(jnp.transpose, axes=inverse), made)


def moves(shape: Shape, axes: Shape) -> bool:
    """Whether elements change places when an array's axes get a new order."""
    longer = [axis for axis in axes if shape[axis] != 1]
    return longer != sorted(longer)


def reshaped(shape: Shape, to: Shape) -> ArrayView:
    return ArrayView(partial(jnp.reshape, shape=to), partial(jnp.reshape, shape=shape), moves=Moves.NONE)


def split(x: Array, axis: int, factor: int) -> Array:
    """[..., n, ...] -> [..., n / factor, factor, ...]."""
    return x.reshape(*x.shape[:axis], x.shape[axis] // factor, factor, *x.shape[axis + 1 :])


def merged(x: Array, axis: int) -> Array:
    """[..., n, factor, ...] -> [..., n * factor, ...]."""
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
