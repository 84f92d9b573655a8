"""NCHW32 by every CUDA tile that takes it: bit-equal to NHWC by lax."""

import jax
import numpy as np
import pytest

from cases.blocks import (
    CASES,
    EVERY,
    FILTERS,
    LAYOUT,
    TILES,
    WITHOUT_RESIDUAL,
    calls_of,
    filter_of,
    in_blocks,
    program,
    to_blocks,
)
from cases.reference import assert_same, custom_calls, opcodes

pytestmark = pytest.mark.gpu
EACH = pytest.mark.parametrize("family, tile", TILES.values(), ids=TILES)
FEWEST = 5  # of the cases: TMA's windows of volumes reach 16 planes, and halo tiles are for several taps


def check(family, tile, prepare, names, **more):
    """All in one program, which has nothing but our calls, and may make a table of equal numbers."""
    calls = list(calls_of(family, tile, prepare, names, **more))
    assert len({name.partition(" ")[0] for name, *_ in calls}) >= FEWEST, calls
    function, arrays, expected = program(calls)
    compiled = jax.jit(function).lower(arrays).compile()
    hlo = compiled.as_text()
    assert custom_calls(hlo) == {"conv": len(calls)}
    assert not {"transpose", "copy", "convert", "dot", "reshape"} & set(opcodes(hlo))
    for (name, *_), one, other in zip(calls, compiled(arrays), expected, strict=True):
        assert_same({name: one}, {name: other})


@EACH
def test_every_tile(family, tile):
    check(family, tile, filter_of(family), EVERY, activation="relu")


@EACH
def test_without_a_residual(family, tile):
    """Other stores than with one."""
    check(family, tile, filter_of(family), WITHOUT_RESIDUAL)


@pytest.mark.parametrize("prepare", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("name", CASES)
def test_as_planned(name, prepare):
    case = CASES[name]
    x, w, operands = case.arrays()
    conv = case.conv(layout=LAYOUT, out_dtype="int8", implementation="cuda", activation="silu")
    y = jax.jit(lambda x, w, operands: conv(x, w, **operands))(to_blocks(x), prepare(w), in_blocks(operands))
    expected = to_blocks(case.expected(x, w, operands, activation="silu"))
    difference = np.abs(np.asarray(y, "int32") - np.asarray(expected, "int32"))
    assert difference.max() <= 1 and np.mean(difference) < 0.01  # silu is not rounded as XLA rounds it


def test_same_twice():
    """Also behind other contents of the same memory."""
    case = CASES["many_positions"]
    x, w, operands = case.arrays()
    conv = case.conv(layout=LAYOUT, out_dtype="int8", implementation="cuda")
    program = jax.jit(lambda x, w, operands: conv(x, w, **operands))
    given = to_blocks(x), FILTERS["prepared_for_it"](w), in_blocks(operands)
    first = np.asarray(program(*given))
    for fill in (0, 77):
        jax.block_until_ready(jax.numpy.full(first.shape, fill, "int8"))
        assert_same(program(*given), first)
