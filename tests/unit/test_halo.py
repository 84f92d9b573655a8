"""Which rows the devices exchange, by brute force: each window must find its rows, and no other row may travel."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxconv.sharding.halo import Halo


@st.composite
def halos(draw):
    small = st.integers(1, 4)
    in_size, kernel, stride, lhs_dilation, rhs_dilation = draw(st.integers(1, 40)), *(draw(small) for _ in range(4))
    low, high = draw(st.integers(-9, 9)), draw(st.integers(-9, 9))
    reach = (in_size - 1) * lhs_dilation + 1 + low + high - (kernel - 1) * rhs_dilation - 1
    out_size = max(1, reach // stride + 1)
    return Halo(in_size, out_size, kernel, stride, low, lhs_dilation, rhs_dilation, draw(st.integers(1, 8)))


@st.composite
def periodic_halos(draw):
    """As many strides as lhs dilations around the ring, and whole blocks."""
    devices, blocks, kernel, rhs_dilation = (draw(st.integers(1, 5)) for _ in range(4))
    stride, lhs_dilation, low = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(-9, 9))
    sizes = devices * blocks * stride, devices * blocks * lhs_dilation
    return Halo(*sizes, kernel, stride, low, lhs_dilation, rhs_dilation, devices, periodic=True)


def rows_read(halo, output):
    """{tap: input row}, by definition; rows beyond the image are left out, or those of its other end."""
    dilated = {tap: output * halo.stride + tap * halo.rhs_dilation - halo.pad_low for tap in range(halo.kernel)}
    rows = {tap: row // halo.lhs_dilation for tap, row in dilated.items() if row % halo.lhs_dilation == 0}
    if halo.periodic:
        return {tap: row % halo.in_size for tap, row in rows.items()}
    return {tap: row for tap, row in rows.items() if 0 <= row < halo.in_size}


def rows_received(halo, device):
    """The rows that a device has after the exchange, in its program's order; -1 for zeros."""
    rows = np.full(len(halo.span), -1)
    for piece in halo.pieces:
        source = (device + piece.hop) % halo.devices if halo.periodic else device + piece.hop
        if (source, device) in piece.pairs or piece.hop == 0:
            first = source * halo.in_block
            at = piece.hop * halo.in_block + piece.start - halo.span.start
            rows[at : at + piece.stop - piece.start] = range(first + piece.start, first + piece.stop)
    start = halo.in_offsets[device] - halo.span.start
    return rows[start : start + halo.in_count]


def own_outputs(halo, device):
    start = device * halo.out_block
    return range(start, min(start + halo.out_block, halo.out_size))


@settings(max_examples=1000)
@given(halos() | periodic_halos())
def test_each_window_finds_its_rows(halo):
    """The convolution of one device, of what it received, reads through each tap the row that the whole one reads."""
    for device in range(halo.devices):
        received = rows_received(halo, device)
        assert len(received) == halo.in_count
        for output in own_outputs(halo, device):
            at = output - halo.out_starts[device]
            assert 0 <= at < halo.out_count
            read = {}
            for tap in range(halo.kernel):
                dilated = at * halo.stride + tap * halo.rhs_dilation - halo.local_pad_low
                row, hole = divmod(dilated, halo.lhs_dilation)
                if hole == 0 and 0 <= row < halo.in_count and 0 <= received[row] < halo.in_size:
                    read[tap] = received[row]
            assert read == rows_read(halo, output)


@settings(max_examples=1000)
@given(halos())
def test_only_rows_that_windows_span_travel(halo):
    """A device receives from those that have rows which it needs; the first and the last row of a piece have a need."""
    for piece in halo.pieces:
        needed = {}
        for _, device in piece.pairs:
            rows = [row for output in own_outputs(halo, device) for row in rows_read(halo, output).values()]
            spanned = halo.needed(device)
            assert all(row in spanned for row in rows)
            first = (device + piece.hop) * halo.in_block
            block = range(max(first, spanned.start), min(first + halo.in_block, spanned.stop))
            assert block
            needed[device] = range(block.start - first, block.stop - first)
        assert piece.start == min(rows.start for rows in needed.values())
        assert piece.stop == max(rows.stop for rows in needed.values())


def test_a_window_of_three_rows():
    halo = Halo(64, 64, 3, 1, 1, 1, 1, devices=8)
    before, own, after = halo.pieces
    assert (before.hop, before.start, before.stop) == (-1, 7, 8)
    assert (own.hop, own.start, own.stop) == (0, 0, 8)
    assert (after.hop, after.start, after.stop) == (1, 0, 1)
    assert before.pairs == tuple((m, m + 1) for m in range(7))
    assert (halo.in_count, halo.out_count, halo.local_pad_low) == (10, 8, 0)


def test_windows_longer_than_a_block_take_several_hops():
    halo = Halo(16, 16, 9, 1, 4, 1, 1, devices=8)
    assert [(piece.hop, piece.stop - piece.start) for piece in halo.pieces] == [(h, 2) for h in range(-2, 3)]


def test_windows_side_by_side_exchange_nothing():
    halo = Halo(64, 16, 4, 4, 0, 1, 1, devices=8)
    assert [piece.hop for piece in halo.pieces] == [0]
