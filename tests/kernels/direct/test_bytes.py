"""int8 by direct: all numbers of a byte, in every order of the filter, with results in every type."""

import jax
import numpy as np
import pytest

import jaxconv
from cases.convolution import BY_TWO, DOUBLED, channels_last_convolution
from cases.epilogue import cases_of, check, ended, operands_of, plan_with, with_epilogue
from cases.int8_epilogue import case_of, check_largest_sums
from cases.reference import assert_same
from cases.tiles import constraint
from jaxconv.activations import LeakyRelu
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.transforms import KMajorFilter

pytestmark = pytest.mark.gpu
TILES = [tile for tile in FAMILIES["cuda"]["direct"].tiles if tile.of_bytes]
EACH_TILE = pytest.mark.parametrize("tile", TILES, ids=str)


def in_groups(lhs, kernel, groups, outs, **more):
    return channels_last_convolution(lhs, (*kernel, lhs[-1] // groups, outs), feature_group_count=groups, **more)


CASES = {
    "groups_of_4": in_groups((3, 19, 70, 64), (3, 3), 16, 64),
    "groups_of_4_in_blocks": in_groups((2, 9, 11, 208), (3, 3), 52, 208),
    "groups_of_8": in_groups((2, 28, 28, 96), (3, 3), 12, 96),
    "groups_of_16": in_groups((5, 14, 14, 80), (3, 3), 5, 80),
    "groups_of_24": in_groups((2, 9, 33, 96), (3, 3), 4, 96),
    "groups_of_32": in_groups((3, 14, 14, 128), (3, 3), 4, 128),
    "groups_of_48": in_groups((2, 28, 28, 144), (3, 3), 3, 144),
    "groups_of_64": in_groups((2, 7, 9, 128), (3, 3), 2, 128),
    "groups_of_4_to_6": in_groups((2, 9, 11, 64), (3, 3), 16, 96),
    "groups_of_4_to_2": in_groups((2, 9, 11, 64), (3, 3), 16, 32),
    "groups_of_16_to_24": in_groups((2, 9, 11, 64), (3, 3), 4, 96),
    "dense_16_to_24": in_groups((2, 20, 31, 16), (3, 3), 1, 24),
    "dense_48": in_groups((2, 15, 17, 48), (3, 3), 1, 48),
    "dense_of_k_blocks": in_groups((2, 9, 8, 176), (3, 3), 1, 72),
    "strided_groups": in_groups((3, 57, 29, 64), (3, 3), 16, 64, **BY_TWO),
    "strided_groups_of_32": in_groups((2, 28, 28, 64), (3, 3), 2, 64, **BY_TWO),
    "dilated_groups": in_groups((2, 33, 20, 64), (3, 3), 4, 64, rhs_dilation=(2, 2), padding=((2, 2), (2, 2))),
    "doubled_groups": in_groups((2, 9, 12, 64), (3, 3), 4, 64, **DOUBLED, padding=((1, 2), (1, 2))),
    "line": in_groups((3, 300, 32), (9,), 4, 32),
    "volume": in_groups((1, 4, 7, 9, 32), (3, 3, 3), 2, 32),
    "outside": in_groups((2, 6, 7, 32), (3, 3), 2, 32, padding=((5, 4), (6, 5))),
}  # fmt: skip


def check_ended(names, asked_of, operands_names, result="int8"):
    """Of what is supported, results with an epilogue. It is exact: scales are powers of two."""
    calls, arrays, expected = [], [], []
    for name in names:
        problem, x, w, sums = case_of(CASES[name], len(name), result)
        for asked in asked_of(name):
            if plan_with("cuda", problem, asked) is None:
                continue
            operands = operands_of(problem, "float32", operands_names)
            if "scale" in operands:
                operands["scale"] = operands["scale"] / np.float32(512)
            calls.append((problem, asked))
            arrays.append((x, w, operands))
            expected.append(ended(problem, sums, operands, "relu"))

    def program(arrays):
        return [with_epilogue("cuda", *call, *of, "relu") for call, of in zip(calls, arrays, strict=True)]

    assert_same(jax.jit(program)(arrays), expected)
    return len(calls)


@EACH_TILE
@pytest.mark.parametrize("result", ["int8", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("names", [("scale",), ("scale", "bias", "residual", "residual_scale")], ids="_".join)
def test_every_tile(tile, result, names):
    out_scale = ("out_scale",) if result == "int8" else ()
    assert check_ended(CASES, lambda name: [constraint("direct", tile)], (*names, *out_scale), result) > 3


@EACH_TILE
def test_output_tiles(tile):
    """Other output tiles of the same problems: columns, rows and images end within them."""
    names = ("groups_of_4", "groups_of_16", "groups_of_48", "strided_groups", "dense_48")
    asked = [constraint("direct", tile, output_tile=output_tile) for output_tile in ((1, 8), (4, 8), (7, 16), (19, 32))]
    assert check_ended(names, lambda name: asked, ("scale", "bias", "out_scale")) > 1


@EACH_TILE
def test_sums(tile):
    """In int32, of filters in both orders."""
    for transform in ((), (KMajorFilter(),)):
        asked, supported = constraint("direct", tile, transform), 0
        for name in CASES:
            problem, x, w, sums = case_of(CASES[name], len(name), "int32")
            if choose("cuda", "conv", problem, asked).plan is not None:
                supported += 1
                assert_same(jax.jit(CASES[name].ours(asked, "int32"))(x, w), sums)
        assert supported > 2


@pytest.mark.parametrize("name", CASES)
def test_as_planned(name):
    assert check_ended([name], lambda name: ["cuda"], ("scale", "bias", "out_scale"))


TO_INT8 = [tile for tile in FAMILIES["cuda"]["direct"].tiles if tile.packed]


@pytest.mark.parametrize("activation", ["relu", LeakyRelu(0.25)], ids=str)
@pytest.mark.parametrize("names", [("scale", "bias"), ("scale", "bias", "residual", "residual_scale")], ids="_".join)
@pytest.mark.parametrize("tile", TO_INT8, ids=str)
def test_sums_of_bfloat16_to_int8(tile, names, activation):
    cases = cases_of("direct", tile, "bfloat16_to_int8")
    assert len(cases) > 5
    check("cuda", cases, "bfloat16_to_int8", (*names, "out_scale"), activation)


def test_largest_sums():
    check_largest_sums(CASES["dense_of_k_blocks"], "direct", TILES, 2.0**-18)


def test_public_function():
    x, w = np.ones((2, 16, 16, 64), np.int8), np.ones((3, 3, 4, 64), np.int8)
    conv = jax.jit(lambda x, w: jaxconv.conv2d(x, w, padding="VALID", feature_group_count=16, scale=np.float32(2),
                                               out_dtype="int8", implementation="cuda"))  # fmt: skip
    program = conv.lower(x, w).compile()
    assert "direct" in program.as_text()
    assert_same(program(x, w), np.full((2, 14, 14, 64), 72, np.int8))
