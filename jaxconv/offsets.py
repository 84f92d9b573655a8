"""Offset tables of a ConvProblem: pure numpy, int32, exact.

The method is MegEngine's and cuDNN's "precomputed offsets" implicit GEMM: whatever would need a division in a kernel's
main loop is tabulated once a problem. Tables are per filter tap, not per (tap, channel), and split into the residue
classes of a lhs dilation, so that no kernel multiplies the zeros of a dilated input.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxconv.problem import ConvProblem, Shape, row_major_strides

SPATIAL = 3  # problems of fewer spatial dimensions get leading unit dimensions
INT32_MAX = np.iinfo(np.int32).max


class OffsetTables(NamedTuple):
    """Rows of `Tap` and `ResidueClass` of src_common/conv_problem.h.

    taps: int32[taps, 5]: element offset in the source, element offset in the filter, displacement (d, h, w).
    classes: int32[classes, 8]: first tap, taps, phase (d, h, w), positions (d, h, w).
    """

    taps: np.ndarray
    classes: np.ndarray


class Line(NamedTuple):
    """One spatial dimension of a problem, split into residue classes.

    Output positions `phase + q * period` see the same taps at the same displacements. A tap is seen by the positions
    of at most one phase: strides and dilations are fixed, so two such positions differ by a multiple of the period.
    """

    counts: np.ndarray  # [phases] output positions of each phase
    phases: np.ndarray  # [kernel] the phase that sees a tap, or -1
    shifts: np.ndarray  # [kernel] the tap's displacement, in source elements


def _line(out_size, kernel, stride, pad_low, lhs_dilation, rhs_dilation, period, reverse) -> Line:
    phase = np.arange(min(period, max(out_size, 1)))  # phases behind the output have no positions
    place = np.arange(kernel)[::-1] if reverse else np.arange(kernel)
    shift, hole = np.divmod(phase[:, None] * stride + place * rhs_dilation - pad_low, lhs_dilation)
    counts = np.maximum(0, -(-(out_size - phase) // period))
    sees = (hole == 0) & (counts > 0)[:, None]
    first = sees.argmax(axis=0)
    return Line(counts, np.where(sees.any(axis=0), first, -1), shift[first, np.arange(kernel)])


UNIT = _line(out_size=1, kernel=1, stride=1, pad_low=0, lhs_dilation=1, rhs_dilation=1, period=1, reverse=False)


def fits_int32(problem: ConvProblem) -> bool:
    """Whether every offset of the problem's tables fits 32 bits, and every pixel's coordinates; a bound, cheaper than
    the tables.
    """
    farthest = [
        s + k * r + abs(p)
        for k, s, p, r in zip(
            problem.kernel, problem.window_strides, problem.pad_low, problem.rhs_dilation, strict=True
        )
    ]
    lhs, rhs = row_major_strides(problem.lhs_shape), row_major_strides(problem.rhs_shape)
    src = sum(far * lhs[axis] for far, axis in zip(farthest, problem.lhs_spec.spatial, strict=True))
    filter_ = sum(k * rhs[axis] for k, axis in zip(problem.kernel, problem.rhs_spec.spatial, strict=True))
    return max(src, filter_, *problem.in_spatial, *problem.out_spatial) <= INT32_MAX


@lru_cache(maxsize=4096)
def offset_tables(problem: ConvProblem) -> OffsetTables:
    """The tables of a problem whose shapes, but for an outermost batch, are known, and that fits 32 bits."""
    dims = zip(
        problem.out_spatial, problem.kernel, problem.window_strides, problem.pad_low, problem.lhs_dilation,
        problem.rhs_dilation, problem.periods, strict=True,
    )  # fmt: skip
    lines = [UNIT] * (SPATIAL - len(problem.kernel)) + [_line(*d, problem.reverse) for d in dims]

    counts = _grid([line.counts for line in lines])  # [phases of the problem, 3]
    tap = _grid([np.arange(len(line.phases)) for line in lines])  # [taps, 3]
    shift = _grid([line.shifts for line in lines])
    phase = _grid([line.phases for line in lines])

    # Classes without positions have no row but one at the end, which keeps the taps that no position sees.
    periods = [len(line.counts) for line in lines]
    live = np.flatnonzero((counts > 0).all(axis=1))
    row_of_phase = np.full(len(counts), len(live))
    row_of_phase[live] = np.arange(len(live))
    unseen = (phase < 0).any(axis=1)
    row = np.where(unseen, len(live), row_of_phase[np.ravel_multi_index(np.maximum(phase, 0).T, periods)])

    order = np.argsort(row, kind="stable")
    tap_count = np.bincount(row, minlength=len(live) + 1)
    first_tap = np.cumsum(tap_count) - tap_count
    position = np.stack(np.unravel_index(live, periods), axis=1)
    classes = np.zeros((len(live) + 1, 8), np.int64)
    classes[:, 0], classes[:, 1] = first_tap, tap_count
    classes[:-1, 2:5], classes[:-1, 5:] = position, counts[live]

    taps = np.column_stack([
        shift @ _strides(problem.lhs_shape, problem.lhs_spec.spatial),
        tap @ _strides(problem.rhs_shape, problem.rhs_spec.spatial),
        shift,
    ])  # fmt: skip
    taps[row == len(live)] *= np.array([0, 1, 0, 0, 0])
    return OffsetTables(_int32(taps[order]), _int32(classes if tap_count[-1] else classes[:-1]))


def _grid(axes: list[np.ndarray]) -> np.ndarray:
    """All combinations of three axes' entries, row-major: [n, 3]."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, SPATIAL)


def _strides(shape: Shape, axes: tuple[int, ...]) -> np.ndarray:
    strides = row_major_strides(shape)
    return np.array([0] * (SPATIAL - len(axes)) + [strides[a] for a in axes], np.int64)


def _int32(table: np.ndarray) -> np.ndarray:
    table = table.astype(np.int32)
    table.setflags(write=False)
    return table
