"""The matrix product that a pass of a convolution is: its sizes."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property

import numpy as np
from jax import lax

from jaxconv.problem import ConvProblem, Dim, Shape

TYPICAL_BATCH = 32  # stands for a batch that is symbolic while planning

# The roles of a kind's arrays.
OPERANDS = {"conv": ("lhs", "rhs"), "wgrad": ("lhs", "out")}
RESULT = {"conv": "out", "wgrad": "rhs"}


@dataclasses.dataclass(frozen=True)
class Product:
    """The matrix product of a pass of a problem, of each of `groups`; `steps` are a result's reduction's length.

    kind: "conv" (fprop, dgrad) or "wgrad".
    """

    kind: str
    problem: ConvProblem

    def __hash__(self) -> int:
        return hash(self.problem)

    @cached_property
    def has_known_batch(self) -> bool:
        return isinstance(self.problem.batch, int)

    @cached_property
    def images(self) -> int:
        """Of a batch group."""
        return self.problem.batch if self.has_known_batch else TYPICAL_BATCH

    @cached_property
    def positions(self) -> int:
        """Of the output, in all images of a batch group."""
        return self.images * math.prod(self.problem.out_spatial)

    @cached_property
    def image_elements(self) -> int:
        """Of lhs or out, from an image's first element to behind its last, at most."""
        p = self.problem
        arrays = (p.lhs_shape, p.lhs_spec), (p.out_shape, p.out_spec)
        return max((math.prod(shape[axis:]) for shape, spec in arrays for axis in spec.spatial), default=0)

    @cached_property
    def activation_bytes(self) -> int:
        """Of the pixels of lhs that windows see, and of out, each once."""
        p = self.problem
        seen = map(_seen, p.in_spatial, p.kernel, p.window_strides, p.lhs_dilation, p.rhs_dilation)
        lhs = math.prod(seen) * p.in_channels * p.lhs_dtype.itemsize
        out = math.prod(p.out_spatial) * p.out_channels * p.out_dtype.itemsize
        return self.images * self.groups * (lhs + out)

    @cached_property
    def channel_taps(self) -> int:
        return math.prod(self.problem.kernel) * self.problem.in_channels

    @cached_property
    def rows(self) -> int:
        return self.positions if self.kind == "conv" else self.channel_taps

    @cached_property
    def cols(self) -> int:
        return self.problem.out_channels

    @cached_property
    def classes(self) -> int:
        """Residue classes of a lhs dilation: a position sees the taps of its own, on average their share of all."""
        dims = zip(self.problem.periods, self.problem.out_spatial, strict=True)
        return math.prod(min(period, max(size, 1)) for period, size in dims)

    @cached_property
    def steps(self) -> int:
        return -(-(self.channel_taps if self.kind == "conv" else self.positions) // self.classes)

    @cached_property
    def groups(self) -> int:
        return self.problem.groups

    @cached_property
    def multiply_adds(self) -> int:
        """Those of all groups; at least one, so that costs have ratios."""
        return max(1, self.rows * self.cols * self.steps * self.groups)

    @cached_property
    def seen_multiply_adds(self) -> float:
        """Of the taps that positions see, on average: what no kernel multiplies less than."""
        return self.positions * self.channel_taps / self.classes * self.cols * self.groups

    @cached_property
    def operand_dtypes(self) -> tuple[np.dtype, np.dtype]:
        other = self.problem.rhs_dtype if self.kind == "conv" else self.problem.out_dtype
        return self.problem.lhs_dtype, other

    def has_pixels_of(self, lhs: int, out: int) -> bool:
        """Whether the channels of lhs and of out, of all groups, are the last axis, and multiples of as many."""
        channels = self._last_channels
        return channels is not None and channels[0] % lhs == channels[1] % out == 0

    @cached_property
    def _last_channels(self) -> tuple[int, int] | None:
        """Those of lhs and out, if they are the last axis of both."""
        p = self.problem
        are_last = p.lhs_spec.second == len(p.lhs_shape) - 1 and p.out_spec.second == len(p.out_shape) - 1
        return (p.lhs_shape[-1], p.out_shape[-1]) if are_last else None

    def has_runs_of(self, elements: int) -> bool:
        """Whether both operands' channels are contiguous in runs of as many, which begin at their multiples."""
        return any(run % elements == 0 for run in self._runs)

    @cached_property
    def _runs(self) -> tuple[int, ...]:
        """What both operands' contiguous channels are multiples of: by either axis of a filter."""
        p = self.problem
        if not _is_last(p.lhs_spec.second, p.lhs_shape):
            return ()
        if self.kind == "wgrad":
            others = ((p.out_spec.second, p.out_shape, p.out_channels),)
        else:
            others = (p.rhs_spec.first, p.rhs_shape, p.out_channels), (p.rhs_spec.second, p.rhs_shape, p.in_channels)
        contiguous = (channels for axis, shape, channels in others if _is_last(axis, shape))
        return tuple(math.gcd(p.in_channels, channels) for channels in contiguous)

    @cached_property
    def is_exact(self) -> bool:
        """Whether float32 is to be multiplied as such, not as tf32."""
        precision = self.problem.precision
        return lax.Precision.HIGHEST in (precision if isinstance(precision, tuple) else (precision,))

    @cached_property
    def sum_dtype(self) -> np.dtype:
        """The type that sums are kept in."""
        dtypes = (self.problem.lhs_dtype, self.problem.rhs_dtype, self.problem.out_dtype)
        if dtypes[1].kind == "i":
            return np.dtype("int32")
        return np.dtype("float64" if np.dtype("float64") in dtypes else "float32")

    @cached_property
    def sums_bytes(self) -> Dim:
        """Of the whole result, in that type: symbolic if the batch is."""
        shape = self.problem.out_shape if self.kind == "conv" else self.problem.rhs_shape
        return math.prod(shape) * self.sum_dtype.itemsize

    @cached_property
    def planned_sums_bytes(self) -> int:
        """The same as a number, whatever the batch will be."""
        return self.rows * self.cols * self.groups * self.sum_dtype.itemsize

    @cached_property
    def column_bytes(self) -> int:
        """Of a row of the column matrix: a position's (tap, channel)s, of all groups."""
        return self.groups * self.channel_taps * self.problem.lhs_dtype.itemsize


def _seen(size: int, kernel: int, stride: int, lhs_dilation: int, rhs_dilation: int) -> int:
    """Pixels of a dimension that windows see, which leave some out if they are further apart than wide."""
    if stride == 1 or lhs_dilation > 1:
        return size
    return ceil_div(size * min(kernel, stride // math.gcd(stride, rhs_dilation)), stride)


def vector_of(dtype: np.dtype) -> int:
    """Elements of a 16-byte vector."""
    return 16 // dtype.itemsize


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _is_last(axis: int, shape: Shape) -> bool:
    """Whether neighbours along an axis are neighbours in memory."""
    return all(isinstance(d, int) and d == 1 for d in shape[axis + 1 :])
