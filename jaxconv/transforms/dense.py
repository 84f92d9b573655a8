"""Transforms of dense and grouped problems into such as tensor cores take faster."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax.numpy as jnp
from jax import Array, lax

from jaxconv.problem import ConvProblem, Member, Shape, Spec
from jaxconv.problem.factors import fold, unfold
from jaxconv.problem.product import ceil_div, vector_of
from jaxconv.transforms.array_views import AS_IT_IS, Form, Rewritten, joined, placed, reshaped, resized, split


@dataclasses.dataclass(frozen=True)
class ChannelsLast:
    """Activations as [batch, *spatial, channel], filters as [*spatial, in, out], where channels are not last."""

    def why_not(self, problem: ConvProblem) -> str | None:
        return None if _orders(problem) else "channels are last as they lie"

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        changes, forms = {}, {}
        for role, order in _orders(problem).items():
            spec, shape = getattr(problem, f"{role}_spec"), getattr(problem, f"{role}_shape")
            changes[f"{role}_spec"] = Spec.of([order.index(axis) for axis in spec.axes])
            changes[f"{role}_shape"] = tuple(shape[axis] for axis in order)
            inverse = tuple(map(order.index, range(len(order))))
            forms[role] = Form(partial(jnp.transpose, axes=order), partial(jnp.transpose, axes=inverse))
        return Rewritten(dataclasses.replace(problem, **changes), forms)

    def __str__(self) -> str:
        return "channels last"


def _orders(problem: ConvProblem) -> dict[str, Shape]:
    """The new order of axes of each array that needs one."""
    orders = {}
    for role in ("lhs", "out"):
        spec = getattr(problem, f"{role}_spec")
        if spec.second != len(spec.axes) - 1:
            orders[role] = (spec.first, *spec.spatial, spec.second)
    spec = problem.rhs_spec
    if len(spec.axes) - 1 not in (spec.first, spec.second):
        orders["rhs"] = (*spec.spatial, spec.second, spec.first)
    return orders


@dataclasses.dataclass(frozen=True)
class PackedColumns:
    """Channels in whole pieces, by zeros, and `columns` neighbours along the last spatial dimension as one.

    lhs [..., W, C] becomes [..., ceil(W / columns), columns * C']; so do a filter's columns, behind as many zeros as
    bring its first one to a pack's beginning. Then it moves by one pack where it moved by `columns`.

    whole: else channels stay as many as they are.
    """

    columns: int
    whole: bool = True

    def why_not(self, problem: ConvProblem) -> str | None:
        if problem.groups > 1:
            return "there are groups"
        if not problem.kernel:
            return "there are no columns"
        if self.columns == 1:
            is_same = self.channels(problem) == (problem.in_channels, problem.out_channels)
            return "there are whole pieces of channels" if is_same else None
        if self.columns != problem.window_strides[-1]:
            return f"the window's stride along columns is {problem.window_strides[-1]}"
        if (problem.lhs_dilation[-1], problem.rhs_dilation[-1]) != (1, 1):
            return "columns are dilated"
        return None

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        p, by = problem, self.columns
        ins, outs = self.channels(p)
        pad_low = ceil_div(p.pad_low[-1], by)
        front = by * pad_low - p.pad_low[-1]
        width, kernel = ceil_div(p.in_spatial[-1], by), ceil_div(front + p.kernel[-1], by)
        lhs_channel, lhs_column, out_channel = p.lhs_spec.second, p.lhs_spec.spatial[-1], p.out_spec.second
        rhs_out, rhs_in, rhs_column = p.rhs_spec.first, p.rhs_spec.second, p.rhs_spec.spatial[-1]
        lhs = placed(p.lhs_shape, {lhs_column: (0, by * width), lhs_channel: (0, ins)})
        rhs = placed(p.rhs_shape, {rhs_column: (front, by * kernel), rhs_in: (0, ins), rhs_out: (0, outs)})
        out = placed(p.out_shape, {out_channel: (0, outs)})
        packed = dataclasses.replace(
            p,
            lhs_shape=resized(p.lhs_shape, {lhs_column: width, lhs_channel: by * ins}),
            rhs_shape=resized(p.rhs_shape, {rhs_column: kernel, rhs_in: by * ins, rhs_out: outs}),
            out_shape=resized(p.out_shape, {out_channel: outs}),
            window_strides=(*p.window_strides[:-1], p.window_strides[-1] // by),
            pad_low=(*p.pad_low[:-1], pad_low),
        )
        forms = {"lhs": lhs.then(_packed(p, "lhs", by)), "rhs": rhs.then(_packed(p, "rhs", by)), "out": out}
        return Rewritten(packed, forms)

    def channels(self, problem: ConvProblem) -> tuple[int, int]:
        """Input and output channels with those of zeros."""
        if not self.whole:
            return problem.in_channels, problem.out_channels
        piece = vector_of(problem.rhs_dtype)
        least = piece // math.gcd(self.columns, piece)
        return ceil_div(problem.in_channels, least) * least, ceil_div(problem.out_channels, piece) * piece

    def __str__(self) -> str:
        if self.columns == 1:
            return "padded channels"
        return f"packed columns ({self.columns})" if self.whole else f"packed columns ({self.columns}) alone"


def _packed(problem: ConvProblem, role: str, by: int) -> Form:
    """[..., W, C] -> [..., W / by, by * C] of a role's array, whatever its axes' order."""
    if by == 1:
        return AS_IT_IS
    spec = getattr(problem, f"{role}_spec")
    axis = spec.spatial[-1]

    def to(x: Array) -> Array:
        return fold(split(x, axis, by), axis + 1, problem, role, "c")

    def back(x: Array) -> Array:
        x, mapped = unfold(x, by, problem, role, "c")
        return joined(jnp.moveaxis(x, mapped, axis + 1), axis)

    return Form(to, back, is_view=spec.second == axis + 1)


@dataclasses.dataclass(frozen=True)
class PatchRowsAsImages:
    """Each row of windows that lie side by side as an image, which is as high as they are: none moves down it.

    lhs [batch, H, ...] becomes [batch * H / kernel, kernel, ...], and out [batch, H / kernel, ...] becomes
    [batch * H / kernel, 1, ...]: nothing moves in memory.
    """

    def why_not(self, problem: ConvProblem) -> str | None:
        if not problem.kernel or problem.kernel[0] == 1 or not are_side_by_side(problem, 0):
            return "rows of windows do not lie side by side"
        if any(spec.spatial[0] != spec.first + 1 for spec in (problem.lhs_spec, problem.out_spec)):
            return "rows are not next to images"
        if problem.lhs_batch_grouped or problem.out_batch_grouped:
            return "there are groups of images"
        return None if isinstance(problem.batch, int) else "there is any number of images"  # costs are of known ones

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        shapes, forms = {}, {}
        for role, high in (("lhs", problem.kernel[0]), ("out", 1)):
            spec, shape = getattr(problem, f"{role}_spec"), getattr(problem, f"{role}_shape")
            images, rows = shape[spec.first], shape[spec.spatial[0]]
            new = resized(shape, {spec.first: images * rows // high, spec.spatial[0]: high})
            shapes[f"{role}_shape"] = new
            forms[role] = reshaped(shape, new)
        strides = (1, *problem.window_strides[1:])
        return Rewritten(dataclasses.replace(problem, window_strides=strides, **shapes), forms)

    def __str__(self) -> str:
        return "rows of patches as images"


def are_side_by_side(problem: ConvProblem, dim: int) -> bool:
    """Whether windows cover the input along a spatial dimension, each element once."""
    size, kernel = problem.in_spatial[dim], problem.kernel[dim]
    covered = problem.out_spatial[dim] * kernel == size and problem.pad_low[dim] == 0
    dilations = problem.lhs_dilation[dim], problem.rhs_dilation[dim]
    return covered and kernel == problem.window_strides[dim] and dilations == (1, 1)


@dataclasses.dataclass(frozen=True)
class PackedGroups:
    """`groups` groups as one: the filter [*spatial, in, groups * out] becomes [*spatial, groups * in, groups * out],
    which is zeros but for the blocks [in, out] on its diagonal. Activations stay as they are.
    """

    groups: int

    def why_not(self, problem: ConvProblem) -> str | None:
        if problem.groups == 1 or problem.lhs_batch_grouped or problem.out_batch_grouped:
            return "there are no groups of features"
        if self.groups < 2 or problem.groups % self.groups:
            return f"there are {problem.groups} groups"
        return None

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        p, many, ins = problem, self.groups, problem.in_channels
        axes = (p.rhs_spec.second, p.rhs_spec.first)
        packs, outs = p.groups // many, p.out_channels

        # In a matrix of `many` lines every (many + 1)-th element is on the diagonal.
        def to(rhs: Array) -> Array:
            rhs = jnp.moveaxis(rhs, axes, (-2, -1))
            window = rhs.shape[:-2]
            diagonal = rhs.reshape(*window, ins, packs, many, outs)
            edges = [(0, 0, 0)] * (rhs.ndim + 2)
            edges[-2] = (0, 0, many)
            matrix = lax.pad(diagonal, rhs.dtype.type(0), edges)
            blocks = jnp.moveaxis(matrix.reshape(*window, ins, packs, many, many, outs), -3, -5)
            return jnp.moveaxis(blocks.reshape(*window, many * ins, packs * many * outs), (-2, -1), axes)

        def back(rhs: Array) -> Array:
            rhs = jnp.moveaxis(rhs, axes, (-2, -1))
            window = rhs.shape[:-2]
            blocks = jnp.moveaxis(rhs.reshape(*window, many, ins, packs, many, outs), -5, -3)
            matrix = blocks.reshape(*window, ins, packs, many * many, outs)
            diagonal = lax.slice_in_dim(matrix, 0, None, many + 1, axis=matrix.ndim - 2)
            return jnp.moveaxis(diagonal.reshape(*window, ins, packs * many * outs), (-2, -1), axes)

        shape = resized(p.rhs_shape, {p.rhs_spec.second: many * ins})
        member = Member(max(1, p.member.groups // many), many * ins, many * outs)
        packed = dataclasses.replace(p, rhs_shape=shape, groups=packs, member=member)
        return Rewritten(packed, {"rhs": Form(to, back)})

    def __str__(self) -> str:
        return f"packed groups ({self.groups})"
