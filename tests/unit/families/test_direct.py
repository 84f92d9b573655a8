"""Plans of direct: boxes hold what areas read, and sets of columns what they are summed of."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases.plans import CUDA, as_it_is, device, is_refused, plan_of
from cases.problems import each_channel, passes_of
from cases.random_problems import problems_of_pieces
from jaxconv.families import TYPICAL_DEVICE
from jaxconv.families.direct_shape import Shape
from jaxconv.offsets import offset_tables
from jaxconv.plan import choose
from jaxconv.product import Product


def check_box(kind, problem, shape):
    """Each tap of a residue class, seen from each position of an area, is in the box; of runs, its row is."""
    if shape.run:
        check_runs(problem, shape)
    dims = list(zip(problem.window_strides, problem.lhs_dilation, strict=True))
    _, down, right = [1] * (3 - len(dims)) + [stride // math.gcd(stride, dilation) for stride, dilation in dims]
    positions = np.array([(0, down * r, right * c) for r in range(shape.area[0]) for c in range(shape.area[1])])
    tables = offset_tables(problem)
    for first, count, *_ in tables.classes:
        if count:
            seen = tables.taps[first : first + count, None, 2:] + positions
            there = 2 if shape.run else 3
            assert np.all(np.ptp(seen, axis=(0, 1))[:there] < shape.box[:there])
        assert count <= shape.window.taps


def check_runs(problem, shape):
    """A box's rows have all elements that are read: whole multiplications of their pieces."""
    step, (taps,) = problem.window_strides[-1] * problem.in_channels, problem.kernel[-1:]
    pieces = shape.tile.run if shape.walking else shape.entry_pieces
    assert (taps * problem.in_channels + problem.in_channels % 2) <= shape.entry_pieces * 8 <= pieces * 8
    assert 6 + step % 2 * 2 + (shape.area[1] - 1) * step + pieces * 8 <= shape.box[2] * 8 <= 256
    assert shape.area[1] % 16 == 0 and shape.run == taps


def first_corner(problem):
    """With which the boxes of the first class begin, of which a reduce has areas."""
    (first, count, *_), *_ = offset_tables(problem).classes
    shifts = offset_tables(problem).taps[first : first + count, 2:]
    return tuple(shifts.min(axis=0)) if count else (0, 0, 0)


def check_pieces(kind, problem, shape):
    """A set's output channels depend on no pieces of source channels but those of its entries."""
    if shape.run:
        return
    ins, outs, groups = problem.in_channels, problem.out_channels, shape.block_groups or 1
    assert shape.entry_pieces == shape.src_pieces or shape.entry_pieces.bit_count() == 1
    if groups == problem.groups == 1:
        assert shape.entry_pieces * shape.chunks * 8 >= ins
        return
    assert groups * ins == shape.src_pieces * 8
    assert groups * shape.channel_blocks >= problem.groups
    for col in range(0, groups * outs, shape.tile.columns):
        of_groups = {c // outs for c in range(col, min(col + shape.tile.columns, groups * outs))}
        pieces = {(group * ins + channel) // 8 for group in of_groups for channel in range(ins)}
        first = 0 if shape.entry_pieces == shape.src_pieces else min(pieces) // shape.entry_pieces * shape.entry_pieces
        assert pieces <= set(range(first, first + shape.entry_pieces))
        assert first + shape.entry_pieces <= shape.src_pieces


@settings(max_examples=100, deadline=None, database=None)
@given(
    problems_of_pieces(), st.sampled_from([None, None, (1, 8), (3, 16), (2, 32)]),
    st.sampled_from([48 * 2**10, 99 * 2**10, TYPICAL_DEVICE.shared_bytes]),
)  # fmt: skip
def test_what_direct_takes_fits(problem, area, shared_bytes):
    small = device(shared_bytes=shared_bytes)
    for kind, problem in passes_of(problem).values():
        for tile in (row.tile for row in CUDA["direct"].TILES):
            choice = choose("cuda", kind, problem, as_it_is("direct", tile, area=area), small)
            plan = plan_of(choice, "direct")
            if plan is None:
                continue
            assert not is_refused(plan, problem, small)
            assert area in (None, plan.settings.area)
            shape = Shape(Product(kind, problem), tile, plan.settings.area)
            check_box(kind, problem, shape)
            check_pieces(kind, problem, shape)
            assert shape.shared_bytes <= shared_bytes
            assert plan.settings.area[1] % 8 == 0 and (shape.run or shape.taps_across or shape.box[2] % 8 == 0)
            assert max(*shape.box, shape.rows, plan.settings.area[1]) <= 256
            assert shape.rows // shape.walk * plan.settings.area[1] <= shape.positions
            if shape.taps_across:
                assert math.prod(shape.box) <= tile.warps * tile.positions * 16
                assert shape.window.taps * problem.out_channels <= tile.sets * tile.columns
            told = plan.attributes(problem)["shape"]
            taps, corner = shape.window.taps, first_corner(problem)
            assert tuple(told) == (shape.rows, plan.settings.area[1], *shape.box, taps, shape.walk, shape.run, *corner)


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_mambas_lines_are_directs(which):
    """As tiles of a single row, in each of which `depthwise` would begin anew."""
    kind, of_pass = passes_of(each_channel((8, 4096, 4096), (4,), padding=[(3, 0)]))[which]
    assert choose("cuda", kind, of_pass).plan.family == "direct"
