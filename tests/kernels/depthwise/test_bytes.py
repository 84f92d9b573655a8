"""int8 by depthwise: two channels are copied as an element of 16 bits, and tensor cores multiply bytes."""

import functools

import jax
import numpy as np
import pytest

import jaxconv
from cases.convolution import BY_TWO, DOUBLED
from cases.convolution import depthwise_convolution as each
from cases.epilogue import ended, operands_of, plan_with, with_epilogue
from cases.int8_epilogue import case_of, check_largest_sums
from cases.reference import assert_same
from cases.tiles import constraint, skip_without_hopper
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
TILES = [tile for tile in FAMILIES["cuda"]["depthwise"].tiles if tile.of_bytes]


CASES = {
    "line": each((3, 61, 48), (4,)),
    "line_of_31": each((2, 200, 64), (31,)),
    "line_of_70": each((2, 90, 16), (70,)),
    "3x3": each((2, 19, 33, 32), (3, 3)),
    "3x3_of_many_channels": each((2, 9, 8, 336), (3, 3)),
    "3x3_of_small_images": each((21, 5, 6, 64), (3, 3)),
    "2x3_above": each((4, 12, 30, 16), (2, 3), padding=((1, 0), (1, 1))),
    "5x5": each((3, 14, 14, 96), (5, 5)),
    "7x7": each((2, 20, 40, 32), (7, 7)),
    "7x7_of_tall_images": each((1, 130, 11, 16), (7, 7)),
    "7x7_outside": each((2, 6, 7, 16), (7, 7), padding=((5, 4), (6, 5))),
    "9x30": each((1, 20, 40, 16), (9, 30)),
    "strided_3x3": each((2, 21, 35, 64), (3, 3), **BY_TWO),
    "strided_7x7": each((2, 21, 35, 32), (7, 7), **BY_TWO),
    "strided_rows": each((2, 21, 35, 32), (3, 3), window_strides=(2, 1)),
    "dilated": each((2, 20, 30, 32), (3, 3), rhs_dilation=(2, 3)),
    "doubled_3x3": each((2, 9, 12, 64), (3, 3), **DOUBLED, padding=((1, 2), (1, 2))),
    "volume": each((2, 4, 7, 9, 32), (3, 3, 3)),
    "volume_of_large_windows": each((1, 6, 12, 20, 16), (5, 6, 4)),
}  # fmt: skip


@functools.cache
def case(name):
    problem, x, w, sums = case_of(CASES[name], len(name))
    return problem, x, w, np.asarray(sums)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("names", [("scale", "bias", "out_scale"), ("scale",)], ids="_".join)
def test_every_tile(tile, names):
    skip_without_hopper("depthwise", tile)
    calls, expected = [], []
    for name in CASES:
        problem, x, w, sums = case(name)
        asked = constraint("depthwise", tile)
        if plan_with("cuda", problem, asked) is None:
            continue
        operands = operands_of(problem, "float32", names)
        operands["scale"] = operands["scale"] / np.float32(512)
        calls.append((problem, asked, x, w, operands))
        expected.append(ended(problem, sums, operands, "relu"))
    assert calls
    arrays = [(x, w, operands) for *_, x, w, operands in calls]

    def program(arrays):
        return [with_epilogue("cuda", problem, asked, *of, "relu")
                for (problem, asked, *_), of in zip(calls, arrays, strict=True)]  # fmt: skip

    assert_same(jax.jit(program)(arrays), expected)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_sums(tile):
    """All bits of some: a bias of each channel takes away most of the sum of one position."""
    skip_without_hopper("depthwise", tile)
    rng, calls, known = np.random.default_rng(0), [], []
    for name in CASES:
        problem, x, w, sums = case(name)
        if plan_with("cuda", problem, constraint("depthwise", tile)) is None:
            continue
        of_channels = sums.reshape(-1, sums.shape[-1])
        position = rng.integers(len(of_channels), size=(8, sums.shape[-1]))
        rest = rng.integers(-128, 128, position.shape)
        biases = (rest - np.take_along_axis(of_channels, position, 0)).astype("float32")
        calls.append((problem, x, w, list(biases)))
        known.append([ended(problem, sums, {"bias": bias}) for bias in biases])
        results = np.stack(known[-1]).reshape(8, *of_channels.shape)
        assert np.array_equal(np.take_along_axis(results, position[:, None], 1)[:, 0], rest)
    assert calls

    def program(arrays):
        return [[with_epilogue("cuda", problem, constraint("depthwise", tile), x, w, {"bias": bias}) for bias in biases]
                for (problem, *_), (x, w, biases) in zip(calls, arrays, strict=True)]  # fmt: skip

    assert_same(jax.jit(program)([arrays for _, *arrays in calls]), known)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_output_tiles(tile):
    """Other output tiles of the same problems: columns, rows and images end within them."""
    skip_without_hopper("depthwise", tile)
    supported = 0
    for name in ("3x3", "7x7", "strided_3x3", "doubled_3x3", "line_of_31", "volume"):
        problem, x, w, sums = case(name)
        for output_tile in ((4, 8), (7, 16), (100, 32)):
            asked = constraint("depthwise", tile, output_tile=output_tile)
            if plan_with("cuda", problem, asked) is None:
                continue
            supported += 1
            operands = {"scale": np.full((), 2.0**-9, "float32"), "bias": np.full((), 3, "float32")}
            y = with_epilogue("cuda", problem, asked, x, w, operands)
            assert_same(y, ended(problem, sums, operands))
    assert supported


@pytest.mark.parametrize("name", CASES)
def test_as_planned(name):
    problem, x, w, sums = case(name)
    operands = {"scale": np.full((), 2.0**-10, "float32")}
    assert_same(with_epilogue("cuda", problem, "depthwise", x, w, operands), ended(problem, sums, operands))


def test_largest_sums():
    check_largest_sums(CASES["9x30"], "depthwise", TILES, 2.0**-16)


def test_public_function():
    x, w = np.ones((2, 16, 16, 32), np.int8), np.ones((3, 3, 1, 32), np.int8)
    conv = jax.jit(lambda x, w: jaxconv.conv2d(x, w, padding="VALID", feature_group_count=32, scale=np.float32(2),
                                               out_dtype="int8", implementation="depthwise"))  # fmt: skip
    program = conv.lower(x, w).compile()
    assert "jaxconv_conv" in program.as_text()
    assert_same(program(x, w), np.full((2, 14, 14, 32), 18, np.int8))
