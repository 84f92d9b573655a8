"""Which rows of a sharded dimension the windows of each device read, and which devices have them.

Only integers: what moves the rows is in `block`.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import NamedTuple

from jaxconv.problem.product import ceil_div


class Piece(NamedTuple):
    """Rows [start, stop) that some devices need of the block `hop` places after their own.

    pairs: (source, destination) of each such device. A hop of zero is a device's own block.
    """

    hop: int
    start: int
    stop: int
    pairs: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Halo:
    """One spatial dimension of a convolution, split over devices.

    Device m has the rows [m * in_block, (m + 1) * in_block) of the input, and computes the output rows
    [m * out_block, (m + 1) * out_block). The last blocks may reach over the end of either array.

    All devices run one program, so all compute the same convolution, of `in_count` input and `out_count` output rows
    with the low padding `local_pad_low`. Rows beyond the image are zeros, or in a periodic dimension, which the devices
    divide, those of its other end.
    """

    in_size: int
    out_size: int
    kernel: int
    stride: int
    pad_low: int
    lhs_dilation: int
    rhs_dilation: int
    devices: int = 1
    periodic: bool = False

    @property
    def in_block(self) -> int:
        return ceil_div(self.in_size, self.devices)

    @property
    def out_block(self) -> int:
        return ceil_div(self.out_size, self.devices)

    @cached_property
    def out_starts(self) -> tuple[int, ...]:
        """The first output row that each device computes: the nearest before its block at which, in all devices, taps
        meet input rows and the holes of the lhs dilation in the same order."""
        period = self.lhs_dilation // math.gcd(self.stride, self.lhs_dilation)
        return tuple(m * self.out_block // period * period for m in range(self.devices))

    @cached_property
    def out_offsets(self) -> tuple[int, ...]:
        """The offset of each device's block among the output rows that it computes."""
        return tuple(m * self.out_block - start for m, start in enumerate(self.out_starts))

    @cached_property
    def out_count(self) -> int:
        return self.out_block + max(self.out_offsets)

    @cached_property
    def in_count(self) -> int:
        return max(1, self._end_row(self.out_count - 1) - self._first_row(0))

    @property
    def local_pad_low(self) -> int:
        return self.pad_low + self._first_row(0) * self.lhs_dilation

    @cached_property
    def in_offsets(self) -> tuple[int, ...]:
        """The first of the input rows of each device, counted from the start of its block."""
        return tuple(self._first_row(start) - m * self.in_block for m, start in enumerate(self.out_starts))

    @cached_property
    def span(self) -> range:
        """The input rows of all devices, counted from the start of a device's block."""
        return range(min(self.in_offsets), max(self.in_offsets) + self.in_count)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """What the devices exchange, in the order of the rows."""
        hops = range(self.span.start // self.in_block, ceil_div(self.span.stop, self.in_block))
        if self.periodic:
            return tuple(self._periodic_piece(hop) for hop in hops)
        return tuple(piece for hop in hops if (piece := self._piece(hop)) is not None)

    @cached_property
    def rows_apart(self) -> tuple[int, int] | None:
        """How many rows before and after its block each device receives, if the windows of all devices lie alike, and
        only the next devices have such rows. Else None."""
        hops = {piece.hop: piece for piece in self.pieces}
        spanned = max(0, -self.span.start), max(0, self.span.stop - self.in_block)
        are_alike = self.lhs_dilation == 1 and self.in_size % self.devices == 0 and self.out_count == self.out_block
        if not are_alike or len(set(self.in_offsets)) != 1 or not hops.keys() <= {-1, 0, 1}:
            return None
        before, after = (hops[hop].stop - hops[hop].start if hop in hops else 0 for hop in (-1, 1))
        are_whole = before in (0, spanned[0]) and after in (0, spanned[1])  # rows that none receives are zeros for all
        return (before, after) if are_whole and before + after > 0 else None

    def needed(self, device: int) -> range:
        """The input rows that the output rows of a device's block read."""
        start = device * self.out_block
        stop = min(start + self.out_block, self.out_size)
        if start >= stop:
            return range(0)
        return range(max(self._first_row(start), 0), min(self._end_row(stop - 1), self.in_size))

    def _piece(self, hop: int) -> Piece | None:
        block = {}
        for device in range(max(-hop, 0), self.devices - max(hop, 0)):
            start, needed = (device + hop) * self.in_block, self.needed(device)
            rows = range(max(needed.start - start, 0), min(needed.stop - start, self.in_block))
            if rows:
                block[device] = rows
        if not block:
            return None
        pairs = tuple((device + hop, device) for device in block)
        return Piece(hop, min(rows.start for rows in block.values()), max(rows.stop for rows in block.values()), pairs)

    def _periodic_piece(self, hop: int) -> Piece:
        before = hop * self.in_block
        pairs = tuple(((device + hop) % self.devices, device) for device in range(self.devices))
        return Piece(hop, max(self.span.start - before, 0), min(self.span.stop - before, self.in_block), pairs)

    def _first_row(self, output: int) -> int:
        """The first input row, perhaps beyond the image, that an output row reads."""
        return ceil_div(output * self.stride - self.pad_low, self.lhs_dilation)

    def _end_row(self, output: int) -> int:
        """The row after the last one that an output row reads."""
        return (output * self.stride + (self.kernel - 1) * self.rhs_dilation - self.pad_low) // self.lhs_dilation + 1
