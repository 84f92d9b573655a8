"""The least time a GPU could take for a convolution: its arithmetic or its memory traffic, whichever is longer."""

import math
from dataclasses import dataclass

import numpy as np

from convbench.cases import Case, dilate


@dataclass(frozen=True)
class Peaks:
    """What a GPU was measured to reach. What it is made for, by its data sheet, is in the planner's models.json."""

    bandwidth: float  # bytes/s of a copy: less than the memory's
    rates: dict[tuple[str, str], float]  # FLOP/s of matrix products, by dtype and precision

    def rate(self, dtype: str, precision: str) -> float | None:
        """FLOP/s, if known."""
        return self.rates.get((dtype, precision))


# By the names of the planner's models.
PEAKS = {
    "NVIDIA H200": Peaks(
        bandwidth=4280e9,
        rates={(dtype, precision): 740e12 for dtype in ("bfloat16", "float16") for precision in ("default", "highest")}
        | {("float32", "default"): 400e12, ("float32", "highest"): 51e12},
    ),
    "NVIDIA H100 80GB HBM3": Peaks(
        bandwidth=3030e9,
        rates={(dtype, precision): 790e12 for dtype in ("bfloat16", "float16") for precision in ("default", "highest")}
        | {("float32", "default"): 408e12, ("float32", "highest"): 51e12},
    ),
}


def elements_read(size: int, kernel: int, stride: int, pads: tuple[int, int], hole: int, spread: int) -> np.ndarray:
    """What taps read of one input dimension: for each pair of an output position and a tap that reads an element, not
    padding nor a hole, the element's place in the dilated input.

    Args:
      size, kernel: elements of the input and of the filter.
      stride, pads, hole, spread: window stride, (low, high) padding, lhs and rhs dilation.
    """
    positions = (dilate(size, hole) + sum(pads) - dilate(kernel, spread)) // stride + 1
    read = np.arange(positions)[:, None] * stride + np.arange(kernel) * spread - pads[0]
    return read[(read >= 0) & (read < dilate(size, hole)) & (read % hole == 0)]


def _elements_read(case: Case) -> list[np.ndarray]:
    """`elements_read` of each dimension."""
    dimensions = zip(case.lhs[1:-1], case.rhs, case.window_strides, case.padding, case.lhs_dilation, case.rhs_dilation)
    return [elements_read(*dimension) for dimension in dimensions]


def flops(case: Case) -> int:
    """Multiplications and additions that no zero makes void: the same number in every pass."""
    taps = math.prod(read.size for read in _elements_read(case))
    in_channels_of_group, out_channels = case.rhs[-2:]
    return 2 * case.lhs[0] * in_channels_of_group * out_channels * taps


def bytes_touched(case: Case, which: str, itemsize: int, of_result: int | None = None) -> int:
    """Bytes of both operands and the result, each once: of what is read, what some tap needs.

    itemsize: of the operands. of_result: the result's, if it is another.
    """
    batch, *spatial, channels = case.lhs
    if which != "dgrad":
        spatial = [np.unique(read).size for read in _elements_read(case)]
    lhs, rhs, out = batch * math.prod(spatial) * channels, math.prod(case.rhs), math.prod(case.out)
    result = {"fprop": out, "dgrad": lhs, "wgrad": rhs}[which]
    return itemsize * (lhs + rhs + out) + ((of_result or itemsize) - itemsize) * result


def floor_us(
    case: Case,
    which: str,
    dtype: str,
    precision: str,
    itemsize: int,
    peaks: Peaks | None,
    of_result: int | None = None,
) -> float | None:
    """Microseconds, or None where the peaks are not known."""
    rate = None if peaks is None else peaks.rate(dtype, precision)
    if peaks is None or rate is None:
        return None
    return 1e6 * max(flops(case) / rate, bytes_touched(case, which, itemsize, of_result) / peaks.bandwidth)
