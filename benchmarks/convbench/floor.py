"""The least time a GPU could take for a convolution: its arithmetic or its memory traffic, whichever is longer."""

import math
from dataclasses import dataclass

import numpy as np

from convbench.cases import Case, dilate


@dataclass(frozen=True)
class Peaks:
    """What a GPU was measured to reach."""

    bandwidth: float  # bytes/s of a copy
    rates: dict[tuple[str, str], float]  # FLOP/s of matrix products, by dtype and precision

    def rate(self, dtype: str, precision: str) -> float | None:
        """FLOP/s, if known."""
        return self.rates.get((dtype, precision))


PEAKS = {
    "NVIDIA H200": Peaks(
        bandwidth=4280e9,
        rates={(dtype, precision): 740e12 for dtype in ("bfloat16", "float16") for precision in ("default", "highest")}
        | {("float32", "default"): 400e12, ("float32", "highest"): 51e12},
    )
}


def taps_inside(size: int, kernel: int, stride: int, pads: tuple[int, int], hole: int, spread: int) -> int:
    """Pairs of an output position and a tap that read an element of one input dimension, not padding nor a hole.

    Args:
      size, kernel: elements of the input and of the filter.
      stride, pads, hole, spread: window stride, (low, high) padding, lhs and rhs dilation.
    """
    positions = (dilate(size, hole) + sum(pads) - dilate(kernel, spread)) // stride + 1
    read = np.arange(positions)[:, None] * stride + np.arange(kernel) * spread - pads[0]
    return np.count_nonzero((read >= 0) & (read < dilate(size, hole)) & (read % hole == 0))


def flops(case: Case) -> int:
    """Multiplications and additions that no zero makes void: the same number in every pass."""
    dimensions = zip(
        case.lhs[1:-1], case.rhs, case.window_strides, case.padding, case.lhs_dilation, case.rhs_dilation
    )
    taps = math.prod(taps_inside(*dimension) for dimension in dimensions)
    in_channels_of_group, out_channels = case.rhs[-2:]
    return 2 * case.lhs[0] * in_channels_of_group * out_channels * taps


def elements_read(size: int, kernel: int, stride: int, pads: tuple[int, int], hole: int, spread: int) -> int:
    """Elements of one input dimension that some tap reads; arguments as in `taps_inside`."""
    positions = (dilate(size, hole) + sum(pads) - dilate(kernel, spread)) // stride + 1
    read = np.unique(np.arange(positions)[:, None] * stride + np.arange(kernel) * spread - pads[0])
    return np.count_nonzero((read >= 0) & (read < dilate(size, hole)) & (read % hole == 0))


def bytes_touched(case: Case, which: str, itemsize: int) -> int:
    """Bytes that a pass must touch of both operands and the result, each once: of what it reads, what some tap needs."""
    batch, *spatial, channels = case.lhs
    if which != "dgrad":
        dimensions = zip(spatial, case.rhs, case.window_strides, case.padding, case.lhs_dilation, case.rhs_dilation)
        spatial = [elements_read(*dimension) for dimension in dimensions]
    lhs = batch * math.prod(spatial) * channels
    return itemsize * (lhs + math.prod(case.rhs) + math.prod(case.out))


def floor_us(case: Case, which: str, dtype: str, precision: str, itemsize: int, peaks: Peaks | None) -> float | None:
    """Microseconds, or None where the peaks are not known."""
    rate = peaks and peaks.rate(dtype, precision)
    if rate is None:
        return None
    return 1e6 * max(flops(case) / rate, bytes_touched(case, which, itemsize) / peaks.bandwidth)
