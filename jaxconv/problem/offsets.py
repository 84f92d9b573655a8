"""Offset tables of a ConvProblem: pure numpy, int32, exact.

The method is the implicit GEMM with precomputed offsets of MegEngine and cuDNN: a table, made once for a problem, has
whatever would need a division in a kernel's main loop. It has a row for each filter tap, not for each (tap, channel).
Rows are sorted by the residue classes of a lhs dilation, so that no kernel multiplies the zeros of a dilated input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxconv.compiled import planning
from jaxconv.problem.conv_problem import SPATIAL, ConvProblem, Shape, Spec, row_major_strides

INT32_MAX = np.iinfo(np.int32).max
NO_TAP = -1  # no tap's offset in the filter, so that the numbers of a table are never all equal


def in_three(values: Sequence[int]) -> tuple[int, ...]:
    """The values of three dimensions: leading ones for the dimensions that a problem does not have."""
    return (1,) * (SPATIAL - len(values)) + tuple(values)


class OffsetTables(NamedTuple):
    """Rows of `Tap` and `ResidueClass` of src_common/conv_problem.h.

    taps: int32[taps + 1, 5]: element offset in the source, element offset in the filter, displacement (d, h, w). The
      last row is no tap.
    classes: int32[classes, 8]: first tap, taps, phase (d, h, w), positions (d, h, w).
    """

    taps: np.ndarray
    classes: np.ndarray


class Line(NamedTuple):
    """One spatial dimension of a problem, split into residue classes.

    Output positions `phase + q * period` see the same taps at the same displacements. Positions of at most one phase
    see a tap, because any two positions that see it are a multiple of the period apart.
    """

    counts: np.ndarray  # [phases] output positions of each phase
    phases: np.ndarray  # [kernel] the phase that sees a tap, or -1
    shifts: np.ndarray  # [kernel] the tap's displacement, in source elements


@lru_cache(maxsize=4096)
def _line(
    out_size: int,
    kernel: int,
    stride: int,
    pad_low: int,
    lhs_dilation: int,
    rhs_dilation: int,
    period: int,
    reverse: bool,
) -> Line:
    phases = np.arange(min(period, max(out_size, 1)))  # further ones have no positions
    counts = np.maximum(0, -(-(out_size - phases) // period))
    index = np.arange(kernel)[::-1] if reverse else np.arange(kernel)
    tap = index * rhs_dilation - pad_low
    # The phase that sees a tap solves phase * stride + tap = 0, modulo the lhs dilation.
    common = math.gcd(stride, lhs_dilation)
    inverse = pow(stride // common, -1, period)
    phase = -tap // common % period * inverse % period
    phase = np.where((tap % common == 0) & (phase < out_size), phase, -1)
    return Line(counts, phase, (np.maximum(phase, 0) * stride + tap) // lhs_dilation)


UNIT = _line(out_size=1, kernel=1, stride=1, pad_low=0, lhs_dilation=1, rhs_dilation=1, period=1, reverse=False)


def fits_int32(problem: ConvProblem) -> bool:
    """Whether 32 bits hold every offset in the tables of a problem and of its data gradient, and 30 every coordinate.

    This is an upper bound. It is cheaper than the tables.
    """
    p = problem
    dims = list(zip(p.kernel, p.window_strides, p.pad_low, p.lhs_dilation, p.rhs_dilation, strict=True))
    farthest = (
        _offset(p.lhs_shape, p.lhs_spec, [s + k * r + abs(low) for k, s, low, _, r in dims]),
        _offset(p.out_shape, p.out_spec, [d + k * r + abs((k - 1) * r - low) for k, _, low, d, r in dims]),
        _offset(p.rhs_shape, p.rhs_spec, p.kernel),
    )
    coordinates = (
        abs(low) + k * r + max(outs * s, ins * d)
        for (k, s, low, d, r), ins, outs in zip(dims, p.in_spatial, p.out_spatial, strict=True)
    )
    farthest_at = max((0, *coordinates, *p.in_spatial, *p.out_spatial))
    return max(farthest) <= INT32_MAX and farthest_at < planning.COORDINATE_LIMIT


def _offset(shape: Shape, spec: Spec, coord: Sequence[int]) -> int:
    strides = row_major_strides(shape)
    return sum(at * strides[axis] for at, axis in zip(coord, spec.spatial, strict=True))


@lru_cache(maxsize=4096)
def offset_tables(problem: ConvProblem) -> OffsetTables:
    """The tables of a problem that fits 32 bits. Only an outermost batch may be symbolic."""
    dims = zip(
        problem.out_spatial, problem.kernel, problem.window_strides, problem.pad_low, problem.lhs_dilation,
        problem.rhs_dilation, problem.periods, strict=True,
    )  # fmt: skip
    lines = [UNIT] * (SPATIAL - len(problem.kernel)) + [_line(*d, problem.reverse) for d in dims]
    kernel = tuple(len(line.shifts) for line in lines)
    periods = tuple(len(line.counts) for line in lines)

    # Either all classes have positions, or none has. Taps that no position sees are one more class, at the end.
    live = math.prod(periods) if all(line.counts.all() for line in lines) else 0
    phase = _grid(np.where(line.phases < 0, live, line.phases) for line in lines)
    row = np.minimum(_sum(phase, row_major_strides(periods)), live).ravel()
    tap_count = np.bincount(row, minlength=live + 1)
    first_tap = np.cumsum(tap_count) - tap_count
    classes = np.zeros((live + 1, planning.CLASS_COLUMNS), np.int64)
    classes[:, 0], classes[:, 1] = first_tap, tap_count
    if live:
        of_phases = classes[:-1].reshape(*periods, planning.CLASS_COLUMNS)
        of_phases[..., 2], of_phases[..., 3], of_phases[..., 4] = _grid(map(np.arange, periods))
        of_phases[..., 5], of_phases[..., 6], of_phases[..., 7] = _grid(line.counts for line in lines)

    shift = _grid(line.shifts for line in lines)
    taps = np.empty((*kernel, planning.TAP_COLUMNS), np.int64)
    taps[..., 0] = _sum(shift, _strides(problem.lhs_shape, problem.lhs_spec))
    taps[..., 1] = _sum(_grid(map(np.arange, kernel)), _strides(problem.rhs_shape, problem.rhs_spec))
    taps[..., 2], taps[..., 3], taps[..., 4] = shift
    taps = taps.reshape(-1, planning.TAP_COLUMNS)[np.argsort(row, kind="stable")]
    taps[first_tap[-1] :] *= np.array([0, 1, 0, 0, 0])
    taps = np.append(taps, [[NO_TAP] * planning.TAP_COLUMNS], axis=0)
    return OffsetTables(_int32(taps), _int32(classes if tap_count[-1] else classes[:-1]))


def _grid(axes: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The entries of three axes, shaped for broadcasting."""
    d, h, w = axes
    return d[:, None, None], h[:, None], w


def _sum(grid: tuple[np.ndarray, ...], strides: Sequence[int]) -> np.ndarray:
    """For each combination of entries, the sum of entry times stride."""
    d, h, w = (entries * stride for entries, stride in zip(grid, strides, strict=True))
    return d + h + w


def _strides(shape: Shape, spec: Spec) -> list[int]:
    strides = row_major_strides(shape)
    return [0] * (SPATIAL - len(spec.spatial)) + [strides[axis] for axis in spec.spatial]


def _int32(table: np.ndarray) -> np.ndarray:
    table = table.astype(np.int32)
    table.setflags(write=False)
    return table
