"""NCHW32 by every CUDA tile that takes it: bit-equal to NHWC by lax."""

import jax
import numpy as np
import pytest

from cases.blocks import CASES, EVERY, FILTERS, LAYOUT, in_blocks, to_blocks
from cases.reference import assert_same, custom_calls, opcodes
from cases.tiles import EVERY_TILE, constraint, dtypes_of
from jaxconv.explain import lines

pytestmark = pytest.mark.gpu
TILES = {name: (family, tile) for name, (family, tile) in EVERY_TILE.items()
         if family not in ("im2col", "direct") and "int8_to_int32" in dtypes_of(family, tile)}  # fmt: skip
EACH = pytest.mark.parametrize("family, tile", TILES.values(), ids=TILES)
FEWEST = 5  # of the cases: TMA's windows of volumes reach 16 planes, and halo tiles are for several taps


def splits_of(family, tile):
    return (1, 2, 8) if family == "wgmma" and tile.cluster_split else (1, 3)


def convolutions(family, tile, prepare, names, **more):
    """`{name: (conv, operands, result)}` of those that the tile takes, each in all its splits."""
    found = {}
    for name, case in CASES.items():
        for split in splits_of(family, tile):
            asked = constraint(family, tile, split=split)
            conv = case.conv(layout=LAYOUT, out_dtype="int8", implementation=asked, **more)
            x, w, operands = case.arrays(names)
            given = to_blocks(x), prepare(w), in_blocks(operands)
            call = lambda x, w, operands, conv=conv: conv(x, w, **operands)
            (line,) = lines(call, *given)
            if line.startswith("fprop with its epilogue"):
                found[f"{name} {split}"] = call, given, to_blocks(case.expected(x, w, operands, **more))
    assert len({name.partition(" ")[0] for name in found}) >= FEWEST, found.keys()
    return found


def check(family, tile, prepare, names, **more):
    """All in one program, which has nothing but our calls, and may make a table of equal numbers."""
    found = convolutions(family, tile, prepare, names, **more)
    calls, arrays, expected = zip(*found.values(), strict=True)
    program = jax.jit(lambda arrays: [call(*of) for call, of in zip(calls, arrays, strict=True)])
    compiled = program.lower(arrays).compile()
    hlo = compiled.as_text()
    assert custom_calls(hlo) == {"conv": len(found)}
    assert not {"transpose", "copy", "convert", "dot", "reshape"} & set(opcodes(hlo))
    actual = compiled(arrays)
    for name, one, other in zip(found, actual, expected, strict=True):
        assert_same({name: one}, {name: other})


def filter_of(family):
    return FILTERS["prepared_for_it" if family == "wgmma" else "prepared"]


@EACH
def test_every_tile(family, tile):
    check(family, tile, filter_of(family), EVERY, activation="relu")


@EACH
def test_without_a_residual(family, tile):
    """Other stores than with one."""
    check(family, tile, filter_of(family), ("scale", "bias", "out_scale"))


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
