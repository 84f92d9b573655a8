"""Steps for dense and grouped convolutions, which give tensor cores contiguous and wide channels."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxconv.problem import ROLES, ConvProblem, Member, Shape, Spec
from jaxconv.problem.product import ceil_div, vector_elements
from jaxconv.transforms.array_views import (
    ArrayView,
    Moves,
    Transformed,
    moves,
    reshaped,
    resized,
    spread,
    transposed,
)


@dataclasses.dataclass(frozen=True)
class ChannelsLast:
    """Activations become [batch, *spatial, channel], filters [*spatial, in, out], where channels are not last.

    XLA has a network's layers write what their readers want. So images in another order, [batch, channel, *spatial],
    lie channels last in memory without a copy.
    """

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        return None if _orders(problem) else "channels are last already"

    def apply(self, problem: ConvProblem) -> Transformed:
        reordered = _reordered(problem, _orders(problem))
        free = {role: reordered.views[role]._replace(moves=Moves.NONE) for role in channels_first(problem)}
        return reordered._replace(views=reordered.views | free)

    def __str__(self) -> str:
        return "channels last"


def channels_first(problem: ConvProblem) -> list[str]:
    """The activations that are images one after the other, with channels that are not last in memory."""
    orders = {role: order for role, order in _orders(problem).items() if role != "rhs" and order[0] == 0}
    return [role for role, order in orders.items() if moves(problem.shape(role), order)]


def _reordered(problem: ConvProblem, orders: dict[str, Shape]) -> Transformed:
    """The problem with the axes of some arrays in new orders."""
    changes, views = {}, {}
    for role, order in orders.items():
        shape = problem.shape(role)
        changes[f"{role}_spec"] = Spec.of([order.index(axis) for axis in problem.spec(role).axes])
        changes[f"{role}_shape"] = tuple(shape[axis] for axis in order)
        views[role] = transposed(shape, order)
    return Transformed(dataclasses.replace(problem, **changes), views)


def _orders(problem: ConvProblem) -> dict[str, Shape]:
    """The new order of the axes of each array that needs one."""
    orders = {}
    for role in ROLES:
        first, second, spatial = problem.spec(role)
        last = len(spatial) + 1
        if role == "rhs" and last not in (first, second):
            orders[role] = (*spatial, second, first)
        elif role != "rhs" and last != second:
            orders[role] = (first, *spatial, second)
    return orders


@dataclasses.dataclass(frozen=True)
class KMajorFilter:
    """The filter becomes [*spatial, out, in], or of_dgrad [*spatial, in, out]: the channels that are summed are last.

    Hopper's tensor cores read operands of 8 and 32 bits in no other order.
    """

    of_dgrad: bool = False

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        is_last = self._order(problem)[-1] == len(problem.rhs_shape) - 1
        return "the channels that are summed are last already" if is_last else None

    def apply(self, problem: ConvProblem) -> Transformed:
        return _reordered(problem, {"rhs": self._order(problem)})

    def _order(self, problem: ConvProblem) -> Shape:
        """The axes of the filter as they will be."""
        outs, ins, spatial = problem.rhs_spec
        return (*spatial, ins, outs) if self.of_dgrad else (*spatial, outs, ins)

    def __str__(self) -> str:
        return "K-major filter"


@dataclasses.dataclass(frozen=True)
class PositionsLast:
    """The lhs or the out becomes [channel, batch, *spatial]: what a wgrad sums over is last, see KMajorFilter."""

    role: str

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if problem.lhs_batch_grouped if self.role == "lhs" else problem.out_batch_grouped:
            return "there are groups of images"
        first, _, spatial = problem.spec(self.role)
        positions = math.prod(problem.shape(self.role)[axis] for axis in (first, *spatial))
        if not isinstance(positions, int):
            return "the batch is symbolic"
        vector = vector_elements(problem.dtype(self.role))
        return f"{positions} positions are no whole 16-byte vectors" if positions % vector else None

    def apply(self, problem: ConvProblem) -> Transformed:
        first, second, spatial = problem.spec(self.role)
        reordered = _reordered(problem, {self.role: (second, first, *spatial)})
        return reordered._replace(views={role: view.of_row_major() for role, view in reordered.views.items()})

    def __str__(self) -> str:
        return f"{self.role} with positions last"


@dataclasses.dataclass(frozen=True)
class PatchRowsAsImages:
    """Where windows neither overlap nor leave gaps: each row of windows becomes an image, as high as the window.

    lhs [batch, H, ...] becomes [batch * H / kernel, kernel, ...], and out [batch, H / kernel, ...] becomes
    [batch * H / kernel, 1, ...]. Nothing moves in memory.
    """

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if not problem.kernel or problem.kernel[0] == 1 or not are_side_by_side(problem, 0):
            return "rows of windows do not lie side by side"
        if any(spec.spatial[0] != spec.first + 1 for spec in (problem.lhs_spec, problem.out_spec)):
            return "rows are not next to images"
        if problem.lhs_batch_grouped or problem.out_batch_grouped:
            return "there are groups of images"
        return None if isinstance(problem.batch, int) else "the batch is symbolic"  # a cost needs a size

    def apply(self, problem: ConvProblem) -> Transformed:
        shapes, views = {}, {}
        for role, height in (("lhs", problem.kernel[0]), ("out", 1)):
            spec, shape = problem.spec(role), problem.shape(role)
            images, rows = shape[spec.first], shape[spec.spatial[0]]
            new = resized(shape, {spec.first: images * rows // height, spec.spatial[0]: height})
            shapes[f"{role}_shape"] = new
            views[role] = reshaped(shape, new)
        strides = (1, *problem.window_strides[1:])
        return Transformed(dataclasses.replace(problem, window_strides=strides, **shapes), views)

    def __str__(self) -> str:
        return "rows of patches as images"


@dataclasses.dataclass(frozen=True)
class SeenPixels:
    """Where windows of one pixel move by several, the pixels that they see become an image of their own.

    lhs [batch, H, W, C] becomes [batch, OH, OW, C], with strides of 1. Of a dilated lhs, the outputs that see a pixel
    become an image likewise. The other outputs are zeros.
    """

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        return None if _dims_with_gaps(problem) else "no windows of one pixel leave gaps"

    def apply(self, problem: ConvProblem) -> Transformed:
        p, dims = problem, _dims_with_gaps(problem)
        lhs = {p.lhs_spec.spatial[d]: seen.ins for d, seen in dims.items()}
        out = {p.out_spec.spatial[d]: seen.outs for d, seen in dims.items()}
        smaller = dataclasses.replace(
            p,
            lhs_shape=resized(p.lhs_shape, {axis: len(at) for axis, at in lhs.items()}),
            out_shape=resized(p.out_shape, {axis: len(at) for axis, at in out.items()}),
            window_strides=resized(p.window_strides, dict.fromkeys(dims, 1)),
            lhs_dilation=resized(p.lhs_dilation, dict.fromkeys(dims, 1)),
            pad_low=resized(p.pad_low, {d: seen.pad_low for d, seen in dims.items()}),
        )
        return Transformed(smaller, {"lhs": spread(p.lhs_shape, lhs), "out": spread(p.out_shape, out)})

    def __str__(self) -> str:
        return "seen pixels"


class _Seen(NamedTuple):
    """Along a spatial dimension: the elements that windows see, the outputs that see one, and then the low padding."""

    ins: range
    outs: range
    pad_low: int


def _dims_with_gaps(p: ConvProblem) -> dict[int, _Seen]:
    """The spatial dimensions along which windows are one pixel each, and some pixels or outputs are in none."""
    found = {d: _seen(p, d) for d, size in enumerate(p.kernel) if size == 1}
    return {d: seen for d, seen in found.items() if seen and max(seen.ins.step, seen.outs.step) > 1}


def _seen(p: ConvProblem, d: int) -> _Seen | None:
    """Of windows of one pixel; None if no window sees one. An array without gaps is taken whole."""
    stride, dilation, low = p.window_strides[d], p.lhs_dilation[d], p.pad_low[d]
    sizes, common = (p.in_spatial[d], p.out_spatial[d]), math.gcd(stride, dilation)
    if low % common:
        return None
    # Output o sees pixel i if i * dilation + low == o * stride.
    steps = stride // common, dilation // common
    i = -low // common * pow(steps[1], -1, steps[0]) % steps[0]
    o = (i * dilation + low) // stride
    later = max(0, ceil_div(-o, steps[1]))
    firsts = i + later * steps[0], o + later * steps[1]
    each = list(zip(firsts, steps, sizes, strict=True))
    count = min(ceil_div(size - first, step) for first, step, size in each)
    if count < 1:
        return None
    ins, outs = (
        range(first, first + (count - 1) * step + 1, step) if step > 1 and size > 1 else range(size)
        for first, step, size in each
    )
    return _Seen(ins, outs, outs.index(firsts[1]) - ins.index(firsts[0]))


def are_side_by_side(problem: ConvProblem, dim: int) -> bool:
    """Whether windows cover the input along a spatial dimension, each element once."""
    size, kernel = problem.in_spatial[dim], problem.kernel[dim]
    covered = problem.out_spatial[dim] * kernel == size and problem.pad_low[dim] == 0
    dilations = problem.lhs_dilation[dim], problem.rhs_dilation[dim]
    return covered and kernel == problem.window_strides[dim] and dilations == (1, 1)


@dataclasses.dataclass(frozen=True)
class PackedGroups:
    """`groups` groups become one.

    The filter [*spatial, in, groups * out] becomes [*spatial, groups * in, groups * out]: the blocks [in, out] of the
    groups lie on the diagonal, among zeros. Activations stay as they are.
    """

    groups: int

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if problem.groups == 1 or problem.lhs_batch_grouped or problem.out_batch_grouped:
            return "there are no groups of features"
        if self.groups < 2 or problem.groups % self.groups:
            return f"there are {problem.groups} groups"
        return None

    def apply(self, problem: ConvProblem) -> Transformed:
        p, pack, ins = problem, self.groups, problem.in_channels
        axes = (p.rhs_spec.second, p.rhs_spec.first)
        packs, outs = p.groups // pack, p.out_channels

        # In a matrix of `pack` rows and columns, every (pack + 1)-th element is on the diagonal.
        def to(rhs: Array) -> Array:
            rhs = jnp.moveaxis(rhs, axes, (-2, -1))
            window = rhs.shape[:-2]
            diagonal = rhs.reshape(*window, ins, packs, pack, outs)
            edges = [(0, 0, 0)] * (rhs.ndim + 2)
            edges[-2] = (0, 0, pack)
            matrix = lax.pad(diagonal, rhs.dtype.type(0), edges)
            blocks = jnp.moveaxis(matrix.reshape(*window, ins, packs, pack, pack, outs), -3, -5)
            return jnp.moveaxis(blocks.reshape(*window, pack * ins, packs * pack * outs), (-2, -1), axes)

        def back(rhs: Array) -> Array:
            rhs = jnp.moveaxis(rhs, axes, (-2, -1))
            window = rhs.shape[:-2]
            blocks = jnp.moveaxis(rhs.reshape(*window, pack, ins, packs, pack, outs), -5, -3)
            matrix = blocks.reshape(*window, ins, packs, pack * pack, outs)
            diagonal = lax.slice_in_dim(matrix, 0, None, pack + 1, axis=matrix.ndim - 2)
            return jnp.moveaxis(diagonal.reshape(*window, ins, packs * pack * outs), (-2, -1), axes)

        shape = resized(p.rhs_shape, {p.rhs_spec.second: pack * ins})
        member = Member(max(1, p.member.groups // pack), pack * ins, pack * outs)
        packed = dataclasses.replace(p, rhs_shape=shape, groups=packs, member=member)
        return Transformed(packed, {"rhs": ArrayView(to, back)})

    def __str__(self) -> str:
        return f"packed groups ({self.groups})"
