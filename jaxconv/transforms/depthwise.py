"""Steps for groups of one input channel: whole vectors of groups, one result a channel, no strides.

Images and lines become volumes, [batch, D, H, W, C] with D = 1 or D = H = 1, and the new planes are along D.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax.numpy as jnp
from jax import Array

from jaxconv.compiled import planning
from jaxconv.problem import ROLES, SPATIAL, ConvProblem, Shape, Spec
from jaxconv.problem.product import ceil_div, operand_dtype, vector_elements
from jaxconv.transforms.array_views import (
    ALL_AS_THEY_ARE,
    ArrayView,
    Moves,
    Transformed,
    chained,
    merged,
    padded,
    reshaped,
    resized,
    split,
)

DEPTH, ROWS, COLUMNS = range(SPATIAL)  # of a volume


def unsupported_channels(problem: ConvProblem) -> str | None:
    if problem.groups == 1 or problem.in_channels != 1 or problem.lhs_batch_grouped or problem.out_batch_grouped:
        return "there are no groups of one channel"
    return None if 1 <= len(problem.kernel) <= SPATIAL else f"there are {len(problem.kernel)} spatial dimensions"


def _unsupported_depth(planes: int) -> str | None:
    """No tile takes so deep a window, and a table of all its taps may not fit into memory."""
    return f"a window of {planes} planes" if planes > planning.MOST_WINDOW_PARTS else None


@dataclasses.dataclass(frozen=True)
class VolumesAsImages:
    """Where windows have one plane, or one row and one column: planes become images, or each plane a row of an image.

    lhs [batch, D, H, W, C] becomes [batch * D, H, W, C] or [batch, D, H * W, C], and out likewise. Nothing moves in
    memory.
    """

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := unsupported_channels(problem):
            return reason
        if len(problem.kernel) != SPATIAL:
            return f"there are {len(problem.kernel)} spatial dimensions"
        dim = self._dim(problem)
        if dim is None:
            return "windows have several planes, and several rows or columns, or move by several"
        if any(spec.spatial[dim] != self._into(spec, dim) + 1 for spec in (problem.lhs_spec, problem.out_spec)):
            return "planes are not next to images, or columns not next to rows"
        is_known = dim == COLUMNS or isinstance(problem.batch, int)
        return None if is_known else "the batch is symbolic"  # a cost needs a size

    def apply(self, problem: ConvProblem) -> Transformed:
        p, dim = problem, self._dim(problem)
        assert dim is not None, "the problem is unsupported"
        names = ("window_strides", "pad_low", "lhs_dilation", "rhs_dilation")
        changes, views = {name: _without(getattr(p, name), dim) for name in names}, {}
        for role in ROLES:
            spec, shape = p.spec(role), p.shape(role)
            gone, into = spec.spatial[dim], self._into(spec, dim)
            new = shape if role == "rhs" else resized(shape, {into: shape[into] * shape[gone]})
            first, second, *spatial = (axis - (axis > gone) for axis in spec.axes)
            changes[f"{role}_spec"] = Spec(first, second, _without(tuple(spatial), dim))
            changes[f"{role}_shape"] = _without(new, gone)
            views[role] = reshaped(shape, changes[f"{role}_shape"])
        return Transformed(dataclasses.replace(p, **changes), views)

    def _dim(self, p: ConvProblem) -> int | None:
        """The dimension that is joined to another one: planes to images, or columns to rows; None if there is none."""
        steps = zip(p.kernel, p.window_strides, p.lhs_dilation, p.pad_low, strict=True)
        sizes = zip(p.in_spatial, p.out_spatial, strict=True)
        each = [(*step, i - o) == (1, 1, 1, 0, 0) for step, (i, o) in zip(steps, sizes, strict=True)]
        return DEPTH if each[DEPTH] else COLUMNS if each[ROWS] and each[COLUMNS] else None

    def _into(self, spec: Spec, dim: int) -> int:
        """The axis that takes in the dimension's."""
        return spec.first if dim == DEPTH else spec.spatial[ROWS]

    def __str__(self) -> str:
        return "volumes as images"


def _without(sizes: Shape, at: int) -> Shape:
    return (*sizes[:at], *sizes[at + 1 :])


@dataclasses.dataclass(frozen=True)
class PaddedGroups:
    """Groups of zeros fill up the groups to whole 16-byte vectors."""

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := unsupported_channels(problem):
            return reason
        is_whole = problem.groups % vector_elements(operand_dtype(problem)) == 0
        return "groups are whole 16-byte vectors already" if is_whole else None

    def apply(self, problem: ConvProblem) -> Transformed:
        p, vector = problem, vector_elements(operand_dtype(problem))
        groups = ceil_div(p.groups, vector) * vector
        axes = {"lhs": p.lhs_spec.second, "rhs": p.rhs_spec.first, "out": p.out_spec.second}
        of_member = groups if p.member.groups == p.groups else 1  # zeros belong to the only one, else to none
        changes, views = {"groups": groups, "member": p.member._replace(groups=of_member)}, {}
        for role, axis in axes.items():
            shape = p.shape(role)
            size = shape[axis] // p.groups * groups
            changes[f"{role}_shape"] = resized(shape, {axis: size})
            views[role] = padded(shape, {axis: (0, size)})
        return Transformed(dataclasses.replace(p, **changes), views)

    def __str__(self) -> str:
        return "padded groups"


@dataclasses.dataclass(frozen=True)
class MultipliersAsDepth:
    """A channel with `n` results becomes a channel with one result, in a volume with `n` times the planes.

    out [batch, D, H, W, C * n] becomes [batch, D * n, H, W, C], and the filter [D, H, W, 1, C * n] becomes
    [D * n, H, W, 1, C], with the n planes of each D in reverse order. The lhs is dilated by n along D.
    """

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := unsupported_channels(problem):
            return reason
        if problem.out_channels < 2:
            return "each channel has one result"
        if len(problem.kernel) == SPATIAL and (problem.window_strides[DEPTH], problem.rhs_dilation[DEPTH]) != (1, 1):
            return "planes are strided, or dilated"
        if any(spec.second != len(spec.axes) - 1 for spec in (problem.lhs_spec, problem.out_spec)):
            return "channels are not last"
        return _unsupported_depth(_as_volume(problem)[0].kernel[DEPTH] * problem.out_channels)

    def apply(self, problem: ConvProblem) -> Transformed:
        n = problem.out_channels
        volume, views = _as_volume(problem)
        dilation = n * volume.lhs_dilation[DEPTH]
        p = dataclasses.replace(
            volume,
            rhs_shape=_deepened(volume.rhs_shape, volume.rhs_spec, volume.rhs_spec.first, n),
            out_shape=_deepened(volume.out_shape, volume.out_spec, volume.out_spec.second, n),
            pad_low=(volume.pad_low[DEPTH] * n + n - 1, *volume.pad_low[ROWS:]),
            lhs_dilation=(dilation if volume.in_spatial[DEPTH] > 1 else 1, *volume.lhs_dilation[ROWS:]),
        )
        changes = {
            "rhs": _to_depth(volume.rhs_spec, volume.rhs_spec.first, n, reverse=True),
            "out": _to_depth(volume.out_spec, volume.out_spec.second, n),
        }
        return Transformed(p, chained(views, changes))

    def __str__(self) -> str:
        return "multipliers as depth"


@dataclasses.dataclass(frozen=True)
class StridesAsDepth:
    """Strided rows become planes: row `q * stride + r` becomes row `q` of plane `r`. The window then has no stride.

    lhs [batch, D, H, W, C] becomes [batch, D * stride, ceil(H / stride), W, C], and the window likewise. Zeros in
    front of the window bring its first row to plane 0. If the image has one plane, its rows stay as they lie. For a
    dilated lhs, the data gradient is transformed so.

    columns: do the same with strided columns.
    """

    columns: bool = True

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        if reason := unsupported_channels(problem):
            return reason
        p = _as_volume(problem)[0]
        if max(p.lhs_dilation) > 1:
            p = p.dgrad()
        if max(p.lhs_dilation) > 1:
            return "strides of a dilated input"
        dims = self._dims(p)
        if not dims or (self.columns and COLUMNS not in dims):
            return "columns are not strided" if self.columns else "rows are not strided"
        if max(p.rhs_dilation[dim] for dim in (DEPTH, *dims)) > 1:
            return "a dilated window"
        return _unsupported_depth(p.kernel[DEPTH] * math.prod(p.window_strides[dim] for dim in dims))

    def apply(self, problem: ConvProblem) -> Transformed:
        if max(problem.lhs_dilation) > 1:
            return self.apply(problem.dgrad()).of_dgrad()
        p, views = _as_volume(problem)
        for dim in self._dims(p):
            p, changes = _without_stride(p, dim)
            views = chained(views, changes)
        return Transformed(p, views)

    def _dims(self, problem: ConvProblem) -> list[int]:
        dims = (ROWS, COLUMNS) if self.columns else (ROWS,)
        return [dim for dim in dims if problem.window_strides[dim] > 1]

    def __str__(self) -> str:
        return f"strides as depth{'' if self.columns else ' (rows)'}"


def _without_stride(p: ConvProblem, dim: int) -> tuple[ConvProblem, dict[str, ArrayView]]:
    """StridesAsDepth of one dimension of an undilated volume."""
    by = p.window_strides[dim]
    pad = ceil_div(p.pad_low[dim], by)
    front = by * pad - p.pad_low[dim]
    kernel = ceil_div(front + p.kernel[dim], by) * by
    if p.reverse:
        front = kernel - p.kernel[dim] - front
    lhs_axis, rhs_axis = p.lhs_spec.spatial[dim], p.rhs_spec.spatial[dim]
    size = ceil_div(p.in_spatial[dim], by) * by
    lhs, rhs = {lhs_axis: (0, size)}, {rhs_axis: (front, kernel)}
    lhs_shape, rhs_shape = resized(p.lhs_shape, {lhs_axis: size}), resized(p.rhs_shape, {rhs_axis: kernel})
    lhs_spec, to_planes = p.lhs_spec, _to_depth(p.lhs_spec, lhs_axis, by)
    deep_shape = _deepened(lhs_shape, lhs_spec, lhs_axis, by)
    # The one plane's axis takes what is left of the rows, and the rows' axis the planes: so nothing moves.
    if p.in_spatial[DEPTH] == 1 and lhs_axis == lhs_spec.spatial[DEPTH] + 1:
        depth, *others = lhs_spec.spatial
        others[dim - 1] = depth
        lhs_spec = Spec(lhs_spec.first, lhs_spec.second, (lhs_axis, *others))
        deep_shape = resized(lhs_shape, {depth: size // by, lhs_axis: by})
        to_planes = reshaped(lhs_shape, deep_shape)
    changes = {
        "lhs": padded(p.lhs_shape, lhs).then(to_planes),
        "rhs": padded(p.rhs_shape, rhs).then(_to_depth(p.rhs_spec, rhs_axis, by)),
    }
    strides, pads = list(p.window_strides), list(p.pad_low)
    strides[DEPTH], pads[DEPTH] = by * strides[DEPTH], by * pads[DEPTH]
    strides[dim], pads[dim] = 1, pad
    unstrided = dataclasses.replace(
        p,
        lhs_shape=deep_shape,
        lhs_spec=lhs_spec,
        rhs_shape=_deepened(rhs_shape, p.rhs_spec, rhs_axis, by),
        window_strides=tuple(strides),
        pad_low=tuple(pads),
    )
    return unstrided, changes


def _as_volume(problem: ConvProblem) -> tuple[ConvProblem, dict[str, ArrayView]]:
    """With leading unit dimensions: behind the first axis of activations, in front of a filter's axes."""
    units = SPATIAL - len(problem.kernel)
    if units == 0:
        return problem, ALL_AS_THEY_ARE
    changes, views = {}, {}
    for role in ROLES:
        spec, shape = problem.spec(role), problem.shape(role)
        at = 0 if role == "rhs" else spec.first + 1
        first, second, *spatial = (axis + units * (axis >= at) for axis in spec.axes)
        added = tuple(range(at, at + units))
        changes[f"{role}_spec"] = Spec(first, second, (*added, *spatial))
        changes[f"{role}_shape"] = (*shape[:at], *(1,) * units, *shape[at:])
        both_ways = partial(jnp.expand_dims, axis=added), partial(jnp.squeeze, axis=added)
        views[role] = ArrayView(*both_ways, moves=Moves.NONE)
    for name, value in (("window_strides", 1), ("pad_low", 0), ("lhs_dilation", 1), ("rhs_dilation", 1)):
        changes[name] = (*(value,) * units, *getattr(problem, name))
    return dataclasses.replace(problem, **changes), views


def _deepened(shape: Shape, spec: Spec, axis: int, factor: int) -> Shape:
    """The shape after `_to_depth`."""
    depth = spec.spatial[DEPTH]
    return resized(shape, {depth: shape[depth] * factor, axis: shape[axis] // factor})


def _to_depth(spec: Spec, axis: int, factor: int, reverse: bool = False) -> ArrayView:
    """Moves the minor part of an axis, of `factor` elements, to the minor part of depth; reverse: in reverse order."""
    depth = spec.spatial[DEPTH]
    ordered = partial(jnp.flip, axis=depth + 1) if reverse else lambda x: x

    def to(x: Array) -> Array:
        return merged(ordered(jnp.moveaxis(split(x, axis, factor), axis + 1, depth + 1)), depth)

    def back(x: Array) -> Array:
        return merged(jnp.moveaxis(ordered(split(x, depth, factor)), depth + 1, axis + 1), axis)

    return ArrayView(to, back)
