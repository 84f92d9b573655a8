"""Rewritings of a problem of each channel on its own: as one of whole pieces, of one result each, of no strides."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax.numpy as jnp
from jax import Array

from jaxconv.problem import ConvProblem, Shape, Spec
from jaxconv.problem.product import ceil_div, vector_of
from jaxconv.transforms.array_views import (
    AS_IT_IS,
    ROLES,
    Form,
    Rewritten,
    joined,
    placed,
    reshaped,
    resized,
    split,
    swapped,
)

DEPTH, ROWS, COLUMNS = range(3)  # of a volume


def _why_not_channels(problem: ConvProblem) -> str | None:
    if problem.groups == 1 or problem.in_channels != 1 or problem.lhs_batch_grouped or problem.out_batch_grouped:
        return "there are no groups of one channel"
    return None if 1 <= len(problem.kernel) <= 3 else f"there are {len(problem.kernel)} spatial dimensions"


@dataclasses.dataclass(frozen=True)
class PaddedGroups:
    """Groups of one channel in whole pieces, by groups of zeros."""

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := _why_not_channels(problem):
            return reason
        return None if problem.groups % vector_of(problem.rhs_dtype) else "there are whole pieces of groups"

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        p, piece = problem, vector_of(problem.rhs_dtype)
        groups = ceil_div(p.groups, piece) * piece
        axes = {"lhs": p.lhs_spec.second, "rhs": p.rhs_spec.first, "out": p.out_spec.second}
        changes, forms = {"groups": groups, "member": p.member._replace(groups=1)}, {}
        for role, axis in axes.items():
            shape = getattr(p, f"{role}_shape")
            size = shape[axis] // p.groups * groups
            changes[f"{role}_shape"] = resized(shape, {axis: size})
            forms[role] = placed(shape, {axis: (0, size)})
        return Rewritten(dataclasses.replace(p, **changes), forms)

    def __str__(self) -> str:
        return "padded groups"


@dataclasses.dataclass(frozen=True)
class MultipliersAsDepth:
    """Channels that each have many results as channels of one result, of volumes that are as many times as deep.

    out [batch, D, H, W, C * many] becomes [batch, D * many, H, W, C], and the filter [D, H, W, 1, C * many] becomes
    [D * many, H, W, 1, C], with the `many` of a plane in reverse order. Between the planes of lhs there are as many
    holes. Images and lines are volumes of one plane.
    """

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := _why_not_channels(problem):
            return reason
        if problem.out_channels < 2:
            return "each channel has one result"
        if len(problem.kernel) == 3 and (problem.window_strides[DEPTH], problem.rhs_dilation[DEPTH]) != (1, 1):
            return "planes are strided, or dilated"
        specs = problem.lhs_spec, problem.out_spec
        return None if all(s.second == len(s.axes) - 1 for s in specs) else "channels are not last"

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        many = problem.out_channels
        volume, views = _as_volume(problem)
        holes = many * volume.lhs_dilation[DEPTH]
        p = dataclasses.replace(
            volume,
            rhs_shape=_deepened(volume.rhs_shape, volume.rhs_spec, volume.rhs_spec.first, many),
            out_shape=_deepened(volume.out_shape, volume.out_spec, volume.out_spec.second, many),
            pad_low=(volume.pad_low[DEPTH] * many + many - 1, *volume.pad_low[ROWS:]),
            lhs_dilation=(holes if volume.in_spatial[DEPTH] > 1 else 1, *volume.lhs_dilation[ROWS:]),
        )
        forms = {
            "rhs": _to_depth(volume.rhs_spec, volume.rhs_spec.first, many, is_turned=True),
            "out": _to_depth(volume.out_spec, volume.out_spec.second, many),
        }
        return Rewritten(p, views | {role: views[role].then(form) for role, form in forms.items()})

    def __str__(self) -> str:
        return "multipliers as depth"


@dataclasses.dataclass(frozen=True)
class StridesAsDepth:
    """Rows, and columns, that a window moves by more than one of at a time: the first of each such step as a plane, the
    next as another, and so on, as deep as the step. So are the window's, which then moves by one.

    lhs [batch, D, H, W, C] becomes [batch, D * step, ceil(H / step), W, C], and the window likewise, behind as many
    zeros as bring its first row to a step's beginning. An image's rows lie so already. Of a dilated input this is done
    to its data gradient.

    columns: of them, too.
    """

    columns: bool = True

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := _why_not_channels(problem):
            return reason
        p = _as_volume(problem)[0]
        if max(p.lhs_dilation) > 1:
            p = p.dgrad()
        if max(p.lhs_dilation) > 1:
            return "strides of a dilated input"
        dims = self._dims(p)
        if not dims or (self.columns and COLUMNS not in dims):
            return "columns are not strided" if self.columns else "rows are not strided"
        return "a dilated window" if max(p.rhs_dilation[dim] for dim in (DEPTH, *dims)) > 1 else None

    def rewrite(self, problem: ConvProblem) -> Rewritten:
        if max(problem.lhs_dilation) > 1:
            forward, forms, _ = self.rewrite(problem.dgrad())
            return Rewritten(forward.dgrad(), swapped(forms))
        p, forms = _as_volume(problem)
        for dim in self._dims(p):
            p, changed = _without_stride(p, dim)
            forms = forms | {role: forms[role].then(form) for role, form in changed.items()}
        return Rewritten(p, forms)

    def _dims(self, problem: ConvProblem) -> list[int]:
        dims = (ROWS, COLUMNS) if self.columns else (ROWS,)
        return [dim for dim in dims if problem.window_strides[dim] > 1]

    def __str__(self) -> str:
        return f"strides as depth{'' if self.columns else ' (rows)'}"


def _without_stride(p: ConvProblem, dim: int) -> tuple[ConvProblem, dict[str, Form]]:
    """A volume's rows or columns, which nothing is dilated of, by their remainders."""
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
    if p.in_spatial[DEPTH] == 1 and lhs_axis == lhs_spec.spatial[DEPTH] + 1:  # in each other's place nothing moves
        depth, *others = lhs_spec.spatial
        others[dim - 1] = depth
        lhs_spec = Spec(lhs_spec.first, lhs_spec.second, (lhs_axis, *others))
        deep_shape = resized(lhs_shape, {depth: size // by, lhs_axis: by})
        to_planes = reshaped(lhs_shape, deep_shape)
    changed = {
        "lhs": placed(p.lhs_shape, lhs).then(to_planes),
        "rhs": placed(p.rhs_shape, rhs).then(_to_depth(p.rhs_spec, rhs_axis, by)),
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
    return unstrided, changed


def _as_volume(problem: ConvProblem) -> tuple[ConvProblem, dict[str, Form]]:
    """With leading unit dimensions: behind the first axis of activations, and in front of a filter's."""
    units = 3 - len(problem.kernel)
    changes, forms = {}, {}
    for role in ROLES:
        spec, shape = getattr(problem, f"{role}_spec"), getattr(problem, f"{role}_shape")
        at = 0 if role == "rhs" else spec.first + 1
        first, second, *spatial = (axis + units * (axis >= at) for axis in spec.axes)
        added = tuple(range(at, at + units))
        changes[f"{role}_spec"] = Spec(first, second, (*added, *spatial))
        changes[f"{role}_shape"] = (*shape[:at], *(1,) * units, *shape[at:])
        views = partial(jnp.expand_dims, axis=added), partial(jnp.squeeze, axis=added)
        forms[role] = Form(*views, is_view=True) if units else AS_IT_IS
    for name, value in (("window_strides", 1), ("pad_low", 0), ("lhs_dilation", 1), ("rhs_dilation", 1)):
        changes[name] = (*(value,) * units, *getattr(problem, name))
    return dataclasses.replace(problem, **changes), forms


def _deepened(shape: Shape, spec: Spec, axis: int, many: int) -> Shape:
    """Of an array after `_to_depth`."""
    depth = spec.spatial[DEPTH]
    return resized(shape, {depth: shape[depth] * many, axis: shape[axis] // many})


def _to_depth(spec: Spec, axis: int, many: int, is_turned: bool = False) -> Form:
    """An axis' last factor, of `many`, as the last factor of a volume's depth; there in reverse order."""
    depth = spec.spatial[DEPTH]
    turned = partial(jnp.flip, axis=depth + 1) if is_turned else lambda x: x

    def to(x: Array) -> Array:
        planes = turned(jnp.moveaxis(split(x, axis, many), axis + 1, depth + 1))
        return joined(planes, depth)

    def back(x: Array) -> Array:
        return joined(jnp.moveaxis(turned(split(x, depth, many)), depth + 1, axis + 1), axis)

    return Form(to, back)
