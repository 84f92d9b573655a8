"""The layers that are measured, in lax's own argument names; channels last."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent.parent / "cases.json"
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
Ints = tuple[int, ...]


def dilate(size: int, dilation: int) -> int:
    """Extent of `size` elements with `dilation - 1` holes between neighbours."""
    return (size - 1) * dilation + 1


@dataclass(frozen=True)
class Case:
    """A convolution `lax.conv_general_dilated(lhs, rhs, **arguments)`; lhs and rhs are shapes."""

    name: str
    suite: str
    lhs: Ints
    rhs: Ints
    window_strides: Ints
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: Ints
    rhs_dilation: Ints
    feature_group_count: int

    @property
    def rank(self) -> int:
        return len(self.lhs) - 2

    @property
    def out(self) -> Ints:
        """Shape of the result."""
        dimensions = zip(
            self.lhs[1:-1], self.rhs, self.window_strides, self.padding, self.lhs_dilation, self.rhs_dilation
        )
        spatial = (
            (dilate(size, hole) + sum(pads) - dilate(kernel, spread)) // stride + 1
            for size, kernel, stride, pads, hole, spread in dimensions
        )
        return (self.lhs[0], *spatial, self.rhs[-1])

    @property
    def arguments(self) -> dict:
        """What `conv_general_dilated` takes besides the arrays and the precision."""
        return dict(
            window_strides=self.window_strides,
            padding=self.padding,
            lhs_dilation=self.lhs_dilation,
            rhs_dilation=self.rhs_dilation,
            dimension_numbers=LAYOUTS[self.rank],
            feature_group_count=self.feature_group_count,
        )


def load(path: Path = CASES) -> list[Case]:
    """The cases of a JSON list."""
    return [Case(**{key: _tuples(value) for key, value in case.items()}) for case in json.loads(path.read_text())]


def _tuples(value) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
