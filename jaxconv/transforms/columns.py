"""Steps that make channels of neighbouring columns. Few channels leave most of a tile, or of a vector, to zeros."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxconv.problem import ConvProblem
from jaxconv.problem.factors import fold, unfold
from jaxconv.problem.product import ceil_div, operand_dtype, vector_elements
from jaxconv.transforms.array_views import AS_IT_IS, ArrayView, Moves, Transformed, merged, padded, resized, split


def _unsupported_columns(problem: ConvProblem) -> str | None:
    if problem.groups > 1:
        return "there are groups"
    return None if problem.kernel else "there are no columns"


@dataclasses.dataclass(frozen=True)
class PackedColumns:
    """`columns` neighbours along the last spatial dimension become channels of one column.

    lhs [..., W, C] becomes [..., ceil(W / columns), columns * C']. The filter's columns change likewise; zeros in
    front of them bring the first one to the beginning of a pack. A window that moved by `columns` moves by one pack.
    columns=1 only pads channels.

    whole: zeros fill up channels to whole 16-byte vectors. Else the number of channels stays.
    """

    columns: int
    whole: bool = True

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := _unsupported_columns(problem):
            return reason
        if self.columns == 1:
            is_same = self.channels(problem) == (problem.in_channels, problem.out_channels)
            return "channels are whole 16-byte vectors already" if is_same else None
        if self.columns != problem.window_strides[-1]:
            return f"the window's stride along columns is {problem.window_strides[-1]}"
        if (problem.lhs_dilation[-1], problem.rhs_dilation[-1]) != (1, 1):
            return "columns are dilated"
        return None

    def apply(self, problem: ConvProblem) -> Transformed:
        p, by = problem, self.columns
        ins, outs = self.channels(p)
        pad_low = ceil_div(p.pad_low[-1], by)
        front = by * pad_low - p.pad_low[-1]
        width, kernel = ceil_div(p.in_spatial[-1], by), ceil_div(front + p.kernel[-1], by)
        lhs_channel, lhs_column, out_channel = p.lhs_spec.second, p.lhs_spec.spatial[-1], p.out_spec.second
        rhs_out, rhs_in, rhs_column = p.rhs_spec.first, p.rhs_spec.second, p.rhs_spec.spatial[-1]
        lhs = padded(p.lhs_shape, {lhs_column: (0, by * width), lhs_channel: (0, ins)})
        rhs = padded(p.rhs_shape, {rhs_column: (front, by * kernel), rhs_in: (0, ins), rhs_out: (0, outs)})
        out = padded(p.out_shape, {out_channel: (0, outs)})
        packed = dataclasses.replace(
            p,
            lhs_shape=resized(p.lhs_shape, {lhs_column: width, lhs_channel: by * ins}),
            rhs_shape=resized(p.rhs_shape, {rhs_column: kernel, rhs_in: by * ins, rhs_out: outs}),
            out_shape=resized(p.out_shape, {out_channel: outs}),
            window_strides=(*p.window_strides[:-1], p.window_strides[-1] // by),
            pad_low=(*p.pad_low[:-1], pad_low),
        )
        views = {"lhs": lhs.then(_packed(p, "lhs", by)), "rhs": rhs.then(_packed(p, "rhs", by)), "out": out}
        return Transformed(packed, views)

    def channels(self, problem: ConvProblem) -> tuple[int, int]:
        """Input and output channels, with the padding."""
        if not self.whole:
            return problem.in_channels, problem.out_channels
        vector = vector_elements(operand_dtype(problem))
        least = vector // math.gcd(self.columns, vector)
        return ceil_div(problem.in_channels, least) * least, ceil_div(problem.out_channels, vector) * vector

    def __str__(self) -> str:
        if self.columns == 1:
            return "padded channels"
        return f"packed columns ({self.columns})" if self.whole else f"packed columns ({self.columns}) alone"


def _packed(problem: ConvProblem, role: str, by: int) -> ArrayView:
    """[..., W, C] -> [..., W / by, by * C] of a role's array, in any order of axes."""
    if by == 1:
        return AS_IT_IS
    spec, factor = problem.spec(role), "k" if role == "out" else "c"
    axis = spec.spatial[-1]

    def to(x: Array) -> Array:
        return fold(split(x, axis, by), axis + 1, problem, role, factor)

    def back(x: Array) -> Array:
        x, mapped = unfold(x, by, problem, role, factor)
        return merged(jnp.moveaxis(x, mapped, axis + 1), axis)

    return ArrayView(to, back, Moves.NONE if spec.second == axis + 1 else Moves.COPY, packs=by)


@dataclasses.dataclass(frozen=True)
class PackedOutputs:
    """`columns` neighbours of out along the last spatial dimension become channels of one column.

    out [..., W, C] becomes [..., ceil(W / columns), columns * C], and the window moves by `columns` times as much. It
    gets wider, to see what all of them saw: the filter is repeated for each of them, among zeros. A few output channels
    so fill a tile.
    """

    columns: int

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := _unsupported_columns(problem):
            return reason
        is_dilated = (problem.lhs_dilation[-1], problem.rhs_dilation[-1]) != (1, 1)
        return "columns are dilated" if is_dilated else None

    def apply(self, problem: ConvProblem) -> Transformed:
        p, by, stride = problem, self.columns, problem.window_strides[-1]
        rhs_column, out_column = p.rhs_spec.spatial[-1], p.out_spec.spatial[-1]
        kernel, width = p.kernel[-1] + (by - 1) * stride, ceil_div(p.out_spatial[-1], by)
        packed = dataclasses.replace(
            p,
            rhs_shape=resized(p.rhs_shape, {rhs_column: kernel, p.rhs_spec.first: by * p.out_channels}),
            out_shape=resized(p.out_shape, {out_column: width, p.out_spec.second: by * p.out_channels}),
            window_strides=(*p.window_strides[:-1], by * stride),
            member=p.member._replace(out_channels=by * p.out_channels),
        )
        views = [padded(p.rhs_shape, {rhs_column: (n * stride, kernel)}) for n in range(by)]
        out = padded(p.out_shape, {out_column: (0, by * width)}).then(_packed(p, "out", by))
        return Transformed(packed, {"rhs": _repeated(p, views), "out": out})

    def __str__(self) -> str:
        return f"packed outputs ({self.columns})"


def _repeated(problem: ConvProblem, views: list[ArrayView]) -> ArrayView:
    """The filter in each of some views, for as many times its output channels."""

    def to(x: Array) -> Array:
        return fold(jnp.stack([view.to(x) for view in views]), 0, problem, "rhs", "k")

    def back(x: Array) -> Array:
        x, mapped = unfold(x, len(views), problem, "rhs", "k")
        each = jnp.moveaxis(x, mapped, 0)
        return _added(view.back(each[n]) for n, view in enumerate(views))

    return ArrayView(to, back, is_summed=True)


@dataclasses.dataclass(frozen=True)
class TapsAsChannels:
    """`columns` neighbouring taps of a row become channels of one tap, and so do the numbers that they see.

    lhs [..., W, C] becomes [..., W', columns * C]: im2col along the last spatial dimension. An element is there as
    often as taps see it, and the window has a `columns`-th of its taps. A few input channels so fill a step of the
    multiplication, and in a data gradient, where they are results, a tile.

    role: "out" does the same with the problem whose data gradient this one is. Its lhs is the out, which is then a sum.
    """

    columns: int
    role: str = "lhs"

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := _unsupported_columns(problem):
            return reason
        is_lhs = self.role == "lhs"
        if (problem.in_spatial if is_lhs else problem.out_spatial)[-1] == 0:
            return f"the {self.role} has no columns"
        has_holes = (problem.lhs_dilation if is_lhs else problem.window_strides)[-1] > 1
        return f"the {self.role} has holes along columns" if has_holes else None

    def apply(self, problem: ConvProblem) -> Transformed:
        if self.role == "out":
            mirrored, turned = _mirrored(problem)
            after = TapsAsChannels(self.columns).apply(mirrored)
            again, turned_back = _mirrored(after.problem)
            rhs = turned.then(after.views["rhs"]).then(turned_back)
            return Transformed(again, {"out": after.views["lhs"], "rhs": rhs})
        p, by, stride = problem, self.columns, problem.window_strides[-1]
        kernel, dilation = ceil_div(p.kernel[-1], by), by * p.rhs_dilation[-1]
        step = stride if dilation % stride == 0 else 1  # no window begins between these columns
        width = (max(p.out_spatial[-1] - 1, 0) * stride + (kernel - 1) * dilation) // step + 1
        (*_, lhs_column), (*_, rhs_column) = p.lhs_spec.spatial, p.rhs_spec.spatial
        ins = by * p.in_channels
        unrolled = dataclasses.replace(
            p,
            lhs_shape=resized(p.lhs_shape, {lhs_column: width, p.lhs_spec.second: ins}),
            rhs_shape=resized(p.rhs_shape, {rhs_column: kernel, p.rhs_spec.second: ins}),
            window_strides=(*p.window_strides[:-1], stride // step),
            pad_low=(*p.pad_low[:-1], 0),
            rhs_dilation=(*p.rhs_dilation[:-1], dilation // step),
            member=p.member._replace(in_channels=by * p.member.in_channels),
        )
        rhs = padded(p.rhs_shape, {rhs_column: (0, by * kernel)}).then(_packed(p, "rhs", by))
        return Transformed(unrolled, {"lhs": _unrolled(p, by, range(0, width * step, step)), "rhs": rhs})

    def __str__(self) -> str:
        return f"taps as {'' if self.role == 'lhs' else 'output '}channels ({self.columns})"


def _mirrored(problem: ConvProblem) -> tuple[ConvProblem, ArrayView]:
    """The problem without groups whose data gradient this one is, and the way of the filter to that: turned around."""
    turn = functools.partial(lax.rev, dimensions=problem.rhs_spec.spatial)
    return dataclasses.replace(problem.dgrad(), reverse=problem.reverse), ArrayView(turn, turn)


def _unrolled(problem: ConvProblem, by: int, columns: range) -> ArrayView:
    """What `by` neighbouring taps see from each of some columns. Column 0 is the first one of the padding."""
    axis, size = problem.lhs_spec.spatial[-1], problem.in_spatial[-1]
    firsts = range(-problem.pad_low[-1], by * problem.rhs_dilation[-1] - problem.pad_low[-1], problem.rhs_dilation[-1])

    def to(x: Array) -> Array:
        seen = jnp.add.outer(_counted(columns), _counted(firsts))
        seen = jnp.where(seen < 0, size, seen)  # behind the end, as other padding is
        return fold(jnp.take(x, seen, axis, mode="fill", fill_value=0), axis + 1, problem, "lhs", "c")

    def back(x: Array) -> Array:
        x, mapped = unfold(x, by, problem, "lhs", "c")
        edges = [(0, 0, 0)] * len(problem.lhs_shape)

        def at(n: int) -> Array:
            edges[axis] = (firsts[n], size - firsts[n] - columns[-1] - 1, columns.step - 1)
            return lax.pad(lax.index_in_dim(x, n, mapped, keepdims=False), x.dtype.type(0), edges)

        return _added(map(at, range(by)))

    return ArrayView(to, back, Moves.GATHER, is_summed=True)


def _counted(numbers: range) -> Array:
    """Computed where it is needed, not stored in the program."""
    return numbers.start + numbers.step * lax.iota(np.int32, len(numbers))


def _added(arrays: Iterable[Array]) -> Array:
    """In their order."""
    return functools.reduce(jnp.add, arrays)
