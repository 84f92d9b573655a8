"""ConvProblem: one frozen, hashable description of a convolution."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from jax.core import ShapedArray

from jaxconv.compiled import planning
from jaxconv.problem.algorithms import text_of

Dim = Any  # an int, or the symbolic batch of an exported program
Shape = tuple[Dim, ...]
ROLES = ("lhs", "rhs", "out")  # of a problem's arrays
BLOCK_CHANNELS = planning.BLOCK_CHANNELS
SPATIAL = planning.SPATIAL  # a problem of fewer spatial dimensions gets leading unit dimensions


class Spec(NamedTuple):
    """Axes of an array, as in `lax.ConvDimensionNumbers`: (batch, channel) or a filter's (out, in), then spatial."""

    first: int
    second: int
    spatial: tuple[int, ...]

    @classmethod
    def of(cls, axes: Iterable[SupportsIndex]) -> Spec:
        first, second, *spatial = map(operator.index, axes)
        return cls(first, second, tuple(spatial))

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.first, self.second, *self.spatial)

    def swapped(self) -> Spec:
        return Spec(self.second, self.first, self.spatial)


class Member(NamedTuple):
    """How many consecutive groups, and channels of a group, belong to one member of a vmap.

    A number of one member must not reach another member's results, not even multiplied by zero: it may be infinite or
    NaN.
    """

    groups: int
    in_channels: int
    out_channels: int

    def swapped(self) -> Member:
        return Member(self.groups, self.out_channels, self.in_channels)


def dilate(size: int, dilation: int) -> int:
    """The extent of `size` elements with `dilation - 1` holes between neighbours."""
    return 0 if size == 0 else (size - 1) * dilation + 1


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """A convolution as `lax.conv_general_dilated` defines it, in the terms that kernels use.

    In each spatial dimension, output position `o` reads input element `i` through tap `k` if
    `i * lhs_dilation == o * window_stride + k' * rhs_dilation - pad_low`. `k'` is `k`, or `kernel - 1 - k` if the
    filter is reversed. The problem has the output's size, so it needs no high padding.

    Groups divide channels. The lhs (lax's `batch_group_count`) and the output may have them on the batch axis instead.
    The filter has them on its out axis, or on its in axis in a data gradient (`reverse`). The batch may hold images of
    several members of a vmap; `member` says which groups and channels belong to one member.

    In a periodic spatial dimension `i` counts modulo the size, and the outputs' strides and the inputs' lhs dilations
    have the same length together: then the data gradient is periodic too. No kernel takes such a problem:
    `jaxconv.sharding.block` makes it one of a larger input.

    A kernel may store its result with the channels in blocks. Where a volume of depth 1 would lie, there are then as
    many planes as blocks, of a block's channels each: `stored_shape`.
    """

    lhs_shape: Shape
    rhs_shape: Shape
    out_shape: Shape
    lhs_spec: Spec  # (batch, channel, spatial)
    rhs_spec: Spec  # (out, in, spatial)
    out_spec: Spec  # (batch, channel, spatial)
    window_strides: tuple[int, ...]
    pad_low: tuple[int, ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    groups: int
    member: Member
    lhs_batch_grouped: bool
    out_batch_grouped: bool
    reverse: bool
    lhs_dtype: np.dtype
    rhs_dtype: np.dtype
    out_dtype: np.dtype
    precision: Any
    periodic: tuple[int, ...] = ()
    out_in_blocks: bool = False

    @classmethod
    def from_lax(cls, lhs: ShapedArray, rhs: ShapedArray, out: ShapedArray, params: dict[str, Any]) -> ConvProblem:
        """The problem of an equation of lax's: avals of operands and result, and the primitive's parameters.

        lax keeps integers as they were given, also numpy's, which files cannot hold."""
        lhs_spec, rhs_spec, out_spec = map(Spec.of, params["dimension_numbers"])
        integers = lambda values: tuple(map(operator.index, values))
        batch_groups, groups = integers((params["batch_group_count"], params["feature_group_count"]))
        groups = max(batch_groups, groups)
        return cls(
            lhs_shape=lhs.shape,
            rhs_shape=rhs.shape,
            out_shape=out.shape,
            lhs_spec=lhs_spec,
            rhs_spec=rhs_spec,
            out_spec=out_spec,
            window_strides=integers(params["window_strides"]),
            pad_low=integers(low for low, _ in params["padding"]),
            lhs_dilation=integers(params["lhs_dilation"]),
            rhs_dilation=integers(params["rhs_dilation"]),
            groups=groups,
            member=Member(groups, rhs.shape[rhs_spec.second], rhs.shape[rhs_spec.first] // groups),
            lhs_batch_grouped=batch_groups > 1,
            out_batch_grouped=False,
            reverse=False,
            lhs_dtype=lhs.dtype,
            rhs_dtype=rhs.dtype,
            out_dtype=out.dtype,
            precision=params["precision"],
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: every cache looks problems up by their hash."""
        return hash(_FIELDS(self))

    def __getstate__(self) -> dict:
        """Without cached values: another process hashes strings differently."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def dgrad(self) -> ConvProblem:
        """The convolution of the output's cotangent to the lhs's: strides and lhs dilation change places.

        As in lax's transpose rule, `pad_low' = dilate(kernel, rhs_dilation) - 1 - pad_low`. The data gradient of the
        data gradient is the problem.
        """
        return self._dgrad

    @cached_property
    def _dgrad(self) -> ConvProblem:
        return dataclasses.replace(
            self,
            lhs_shape=self.out_shape,
            out_shape=self.lhs_shape,
            lhs_spec=self.out_spec,
            rhs_spec=self.rhs_spec.swapped(),
            out_spec=self.lhs_spec,
            window_strides=self.lhs_dilation,
            lhs_dilation=self.window_strides,
            pad_low=tuple(
                (k - 1) * r - p for k, r, p in zip(self.kernel, self.rhs_dilation, self.pad_low, strict=True)
            ),
            member=self.member.swapped(),
            lhs_batch_grouped=self.out_batch_grouped,
            out_batch_grouped=self.lhs_batch_grouped,
            reverse=not self.reverse,
            lhs_dtype=self.out_dtype,
            out_dtype=self.lhs_dtype,
        )

    # Arrays by role.

    def shape(self, role: str) -> Shape:
        return getattr(self, f"{role}_shape")

    def stored_shape(self, role: str) -> Shape:
        """The shape of the array in memory."""
        if not (role == "out" and self.out_in_blocks):
            return self.shape(role)
        sizes = list(self.out_shape)
        sizes[self.out_spec.spatial[0]] = sizes[self.out_spec.second] // BLOCK_CHANNELS
        sizes[self.out_spec.second] = BLOCK_CHANNELS
        return tuple(sizes)

    def spec(self, role: str) -> Spec:
        return getattr(self, f"{role}_spec")

    def dtype(self, role: str) -> np.dtype:
        return getattr(self, f"{role}_dtype")

    # Sizes.

    @cached_property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.rhs_shape[a] for a in self.rhs_spec.spatial)

    @cached_property
    def in_spatial(self) -> tuple[int, ...]:
        return tuple(self.lhs_shape[a] for a in self.lhs_spec.spatial)

    @cached_property
    def out_spatial(self) -> tuple[int, ...]:
        return tuple(self.out_shape[a] for a in self.out_spec.spatial)

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """The distance of neighbouring output positions that see the same taps: those of a residue class."""
        pairs = zip(self.window_strides, self.lhs_dilation, strict=True)
        return tuple(planning.period(stride, dilation) for stride, dilation in pairs)

    @property
    def batch(self) -> Dim:
        """Images in a batch group."""
        images = self.lhs_shape[self.lhs_spec.first]
        return images // self.groups if self.lhs_batch_grouped else images

    @cached_property
    def in_channels(self) -> int:
        """Input channels in a group."""
        channels = self.rhs_shape[self.rhs_spec.second]
        return channels // self.groups if self.reverse else channels

    @cached_property
    def out_channels(self) -> int:
        """Output channels in a group."""
        channels = self.rhs_shape[self.rhs_spec.first]
        return channels if self.reverse else channels // self.groups

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """(low, high) padding that gives exactly this output in lax; the output must not be empty."""
        ins, windows = map(dilate, self.in_spatial, self.lhs_dilation), map(dilate, self.kernel, self.rhs_dilation)
        dims = zip(ins, self.out_spatial, windows, self.window_strides, self.pad_low, strict=True)
        return tuple((low, _high_padding(size + low, out, window, stride)) for size, out, window, stride, low in dims)

    @cached_property
    def is_empty(self) -> bool:
        """Whether the result or the reduction of some pass has no elements. lax cannot express such a problem."""
        return any(isinstance(d, int) and d == 0 for d in self.lhs_shape + self.rhs_shape + self.out_shape)

    def __str__(self) -> str:
        def name(shape: Shape, dtype: np.dtype) -> str:
            return f"{dtype.name}[{','.join(map(str, shape))}]"

        return (
            f"{name(self.lhs_shape, self.lhs_dtype)} * {name(self.rhs_shape, self.rhs_dtype)} -> "
            f"{name(self.out_shape, self.out_dtype)}, window_strides {self.window_strides}, low padding "
            f"{self.pad_low}, lhs_dilation {self.lhs_dilation}, rhs_dilation {self.rhs_dilation}, groups {self.groups}"
            f"{', result in blocks of channels' if self.out_in_blocks else ''}"
            f"{text_of(self.precision) if self.lhs_dtype.name in ('float32', 'complex64') else ''}"
        )


_FIELDS = operator.attrgetter(*(field.name for field in dataclasses.fields(ConvProblem)))


def row_major_strides(shape: Shape) -> tuple[Dim, ...]:
    """Elements between neighbours along each axis."""
    return tuple(accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1]


def _high_padding(padded: Dim, out: Dim, window: int, stride: int) -> Dim:
    """Behind `padded` elements, so that windows have `out` positions. lax takes numbers alone: of a symbolic size, the
    number that gives this output, if there is one.
    """
    exact = (out - 1) * stride + window - padded
    if isinstance(exact, int):
        return exact
    outs = ((high, (padded + high - window) // stride + 1) for high in range(-window, window + stride))
    return next((high for high, size in outs if size == out), exact)
