"""A pass of a convolution as a matrix product."""

from __future__ import annotations

import dataclasses
import enum
from functools import cached_property

import numpy as np

from jaxconv.compiled import planning
from jaxconv.problem.algorithms import Float32, float32_of
from jaxconv.problem.conv_problem import ConvProblem

TYPICAL_BATCH = 32  # stands for a symbolic batch while planning

# The roles of a kind's arrays.
OPERANDS = {"conv": ("lhs", "rhs"), "wgrad": ("lhs", "out")}
RESULT = {"conv": "out", "wgrad": "rhs"}


class EpilogueKind(enum.Enum):
    """Which epilogue a kernel has. Without one it stores sums."""

    NONE = "none"
    PLAIN = "without a residual"
    RESIDUAL = "with a residual"


@dataclasses.dataclass(frozen=True)
class Product:
    """For each of `groups`, the product of an m x k and a k x n matrix that a pass of a problem is.

    kind: "conv" (fprop, dgrad) or "wgrad".
    """

    kind: str
    problem: ConvProblem
    epilogue_kind: EpilogueKind = EpilogueKind.NONE

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
    def groups(self) -> int:
        return self.problem.groups

    @cached_property
    def float32(self) -> Float32:
        """How operands of float32 are multiplied."""
        return float32_of(self.problem.precision)


def operand_dtype(problem: ConvProblem) -> np.dtype:
    """That of both operands of any pass. One of lhs and rhs may be the pass's result, which may be wider."""
    return min(problem.lhs_dtype, problem.rhs_dtype, key=lambda dtype: dtype.itemsize)


def vector_elements(dtype: np.dtype) -> int:
    """Elements of a 16-byte vector."""
    return planning.VECTOR_BYTES // dtype.itemsize


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
