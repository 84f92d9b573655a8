"""A pass of a convolution as a matrix product: its sizes."""

from __future__ import annotations

import dataclasses
import enum
import math
from functools import cached_property

import numpy as np

from jaxconv.problem.algorithms import Float32, float32_of
from jaxconv.problem.conv_problem import ConvProblem, Shape

TYPICAL_BATCH = 32  # stands for a symbolic batch while planning

# The roles of a kind's arrays.
OPERANDS = {"conv": ("lhs", "rhs"), "wgrad": ("lhs", "out")}
RESULT = {"conv": "out", "wgrad": "rhs"}


class Ending(enum.Enum):
    """What a kernel does with sums before it stores them."""

    SUMS = "nothing"
    EPILOGUE = "an epilogue without residual"
    RESIDUAL = "an epilogue with a residual"


@dataclasses.dataclass(frozen=True)
class Product:
    """For each of `groups`, the product of an m x k and a k x n matrix that a pass of a problem is.

    kind: "conv" (fprop, dgrad) or "wgrad".
    """

    kind: str
    problem: ConvProblem
    ending: Ending = Ending.SUMS

    def __hash__(self) -> int:
        return hash(self.problem)

    @cached_property
    def has_known_batch(self) -> bool:
        return isinstance(self.problem.batch, int)

    @cached_property
    def images(self) -> int:
        """Images in a batch group."""
        return self.problem.batch if self.has_known_batch else TYPICAL_BATCH

    @cached_property
    def positions(self) -> int:
        """Output positions in all images of a batch group."""
        return self.images * math.prod(self.problem.out_spatial)

    @cached_property
    def channel_taps(self) -> int:
        return math.prod(self.problem.kernel) * self.problem.in_channels

    @cached_property
    def m(self) -> int:
        return self.positions if self.kind == "conv" else self.channel_taps

    @cached_property
    def n(self) -> int:
        return self.problem.out_channels

    @cached_property
    def k(self) -> int:
        """On average over the residue classes: a position sees only the taps of its own class."""
        return ceil_div(self.channel_taps if self.kind == "conv" else self.positions, self.classes)

    @cached_property
    def classes(self) -> int:
        """Residue classes of a lhs dilation."""
        dims = zip(self.problem.periods, self.problem.out_spatial, strict=True)
        return math.prod(min(period, max(size, 1)) for period, size in dims)

    @cached_property
    def groups(self) -> int:
        return self.problem.groups

    @cached_property
    def multiply_adds(self) -> int:
        """In all groups; at least one, so that costs have ratios."""
        return max(1, self.m * self.n * self.k * self.groups)

    def has_contiguous_channels(self, elements: int) -> bool:
        """Whether both operands lie in memory as contiguous vectors of `elements` channels of a group."""
        p = self.problem
        if self.kind == "wgrad":
            others = ((p.out_spec.second, p.out_shape, p.out_channels),)
        else:  # a filter may be read along either of its channels
            others = (p.rhs_spec.first, p.rhs_shape, p.out_channels), (p.rhs_spec.second, p.rhs_shape, p.in_channels)
        fits = lambda axis, shape, channels: _is_innermost(axis, shape) and channels % elements == 0
        return fits(p.lhs_spec.second, p.lhs_shape, p.in_channels) and any(fits(*other) for other in others)

    @cached_property
    def float32(self) -> Float32:
        """How operands of float32 are multiplied."""
        return float32_of(self.problem.precision)


def vector_elements(dtype: np.dtype) -> int:
    """Elements of a 16-byte vector."""
    return 16 // dtype.itemsize


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _is_innermost(axis: int, shape: Shape) -> bool:
    """Whether neighbours along an axis are neighbours in memory."""
    return all(isinstance(d, int) and d == 1 for d in shape[axis + 1 :])
