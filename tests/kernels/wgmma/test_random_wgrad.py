"""Random weight gradients by wgmma: of small integers, bit-equal to numpy."""

import math
from typing import NamedTuple

import jax
import numpy as np
import pytest

from cases.convolution import Convolution, channels_last_convolution
from cases.plans import stored_slices
from cases.problems import problem_of
from cases.reference import OPTIMIZED, assert_same, run_on_host
from cases.tiles import PASSES, constraint, dtypes_of, has_pass, transform_of
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint

TILES = [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if has_pass(tile, "wgrad")]
SPLITS = [1, 1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 40, 64]
CHANNELS = [8, 16, 24, 40, 64, 72, 96, 128, 136, 200, 264]
PIXELS = {1: 900, 2: 48, 3: 14}  # of a dimension at most, by their number
FAR = {
    1: ([50, 150], 300),
    2: ([7, 16], 40),
    3: ([4, 7], 12),
}  # dilations and padding: taps that see little of an image
MOST = 10**8  # multiply-adds, of 64 or more for each position: sums of products of 4 at most have fewer than 24 bits
OF_A_PROGRAM = 20  # problems: compiling programs is what these tests would spend their time on


class Drawn(NamedTuple):
    convolution: Convolution
    dtype: str
    asked: Constraint

    def __str__(self):
        return f"{self.dtype} {self.asked.tile}, split {self.asked.split}: {self.convolution}"


def is_compiled(tile, dtype):
    return dtype in dtypes_of("wgmma", tile) and has_pass(tile, "wgrad", dtype)


def any_convolution(rng):
    rank = int(rng.integers(1, 4))
    each = lambda values: tuple(int(rng.choice(values)) for _ in range(rank))
    in_channels, out_channels = (int(rng.choice(CHANNELS)) for _ in range(2))
    lhs = (int(rng.integers(1, 9)), *each(range(1, PIXELS[rank] + 1)), in_channels)
    if rng.random() < 0.05:  # pixels are the rows of a matrix
        return channels_last_convolution(lhs, (*rank * [1], in_channels, out_channels), padding=rank * ((0, 0),))
    groups = int(rng.choice([1, 1, 1, 2, 3]))
    far = rng.random() < 0.25
    return channels_last_convolution(
        (*lhs[:-1], groups * in_channels), (*each([1, 1, 2, 3, 4, 5]), in_channels, groups * out_channels),
        window_strides=each([1, 1, 1, 2, 3, 4, 8]), lhs_dilation=each([1, 1, 1, 1, 2, 3, 4]),
        rhs_dilation=each(FAR[rank][0] if far else [1, 1, 2, 3]),
        padding=tuple(zip(*(each(range(-4, FAR[rank][1] if far else 7)) for _ in range(2)), strict=True)),
        feature_group_count=groups,
    )  # fmt: skip


def multiply_adds(convolution):
    """None without results."""
    params, positions = convolution.params, convolution.lhs[0]
    dims = zip(convolution.lhs[1:-1], convolution.rhs, params["padding"], *(
        params[name] for name in ("window_strides", "lhs_dilation", "rhs_dilation")), strict=False)  # fmt: skip
    for pixels, taps, padding, stride, spread, apart in dims:
        positions *= max(0, ((pixels - 1) * spread + sum(padding) - (taps - 1) * apart + stride) // stride)
    return positions * math.prod(convolution.rhs)


def draw(rng):
    """Any that the tile takes: others are drawn again. Some tiles take few of them."""
    tile, split = TILES[rng.integers(len(TILES))], int(rng.choice(SPLITS))
    while True:
        convolution = any_convolution(rng)
        dtype = str(rng.choice([of for of in ("bfloat16", "float16", "float32") if is_compiled(tile, of)]))
        transform = transform_of("wgmma", tile, dtype, "wgrad")
        drawn = Drawn(convolution, dtype, constraint("wgmma", tile, transform, split=split))
        if not 0 < multiply_adds(convolution) <= MOST:
            continue
        problem = problem_of(convolution.lax_for(drawn.asked), convolution.lhs, convolution.rhs, dtype)
        if choose("cuda", "wgrad", problem, drawn.asked, ffi.device("cuda")).plan is not None:
            return drawn


def padded(x, dilation, padding):
    """`x` with zeros between its pixels and around them, or, where padding is negative, without its first or last."""
    sizes = [(n - 1) * d + 1 for n, d in zip(x.shape[1:-1], dilation, strict=True)]
    dilated = np.zeros((len(x), *sizes, x.shape[-1]), np.float32)
    dilated[:, *(slice(None, None, d) for d in dilation)] = x
    around = np.pad(dilated, [(0, 0), *((max(low, 0), max(high, 0)) for low, high in padding), (0, 0)])
    ends = (size + min(high, 0) for size, (_, high) in zip(around.shape[1:-1], padding, strict=True))
    return around[:, *(slice(max(-low, 0), end) for (low, _), end in zip(padding, ends, strict=True))]


def by_numpy(convolution, x, g):
    """For each tap the product of the pixels that positions see by it and of the gradients, in exact float32."""
    params, positions = convolution.params, g.shape[1:-1]
    groups, pixels = params.get("feature_group_count", 1), padded(x, params["lhs_dilation"], params["padding"])
    by_group = lambda array: array.reshape(-1, groups, array.shape[-1] // groups).swapaxes(0, 1)
    gradients = by_group(g.astype(np.float32))
    result = np.empty(convolution.rhs, np.float32)
    for tap in np.ndindex(*convolution.rhs[:-2]):
        firsts = (coord * apart for coord, apart in zip(tap, params["rhs_dilation"], strict=True))
        seen = (slice(first, first + (n - 1) * stride + 1, stride)
                for first, n, stride in zip(firsts, positions, params["window_strides"], strict=True))  # fmt: skip
        products = by_group(pixels[:, *seen]).mT @ gradients  # groups, channels of the source, of the gradient
        result[tap] = products.swapaxes(0, 1).reshape(result[tap].shape)
    return result


@pytest.mark.gpu
@pytest.mark.parametrize("seed, programs", [
    *((seed, 5) for seed in range(4)), *(pytest.param(seed, 25, marks=pytest.mark.full) for seed in range(4, 24))
])  # fmt: skip
def test_random_weight_gradients(seed, programs):
    """10,400 of all tests."""
    rng, names = np.random.default_rng(seed), set()
    for _ in range(programs):
        all_drawn = {str(drawn): drawn for drawn in (draw(rng) for _ in range(OF_A_PROGRAM))}
        operands = {name: drawn.convolution.operands(drawn.dtype) for name, drawn in all_drawn.items()}
        ours = {name: PASSES["wgrad"](drawn.convolution.ours(drawn.asked)) for name, drawn in all_drawn.items()}
        actual = jax.jit(lambda operands, ours=ours: {name: ours[name](*of) for name, of in operands.items()})(operands)
        expected = {name: by_numpy(drawn.convolution, operands[name][0], operands[name][2]).astype(drawn.dtype)
                    for name, drawn in all_drawn.items()}  # fmt: skip
        assert_same(actual, expected)
        names |= set(all_drawn)
    assert len(names) == programs * OF_A_PROGRAM


def test_numpy_sums_what_lax_does():
    rng = np.random.default_rng(0)
    convolutions = [draw(rng).convolution for _ in range(40)]
    operands = [convolution.operands() for convolution in convolutions]
    theirs = [PASSES["wgrad"](convolution.lax()) for convolution in convolutions]
    every = lambda operands: [wgrad(*of) for wgrad, of in zip(theirs, operands, strict=True)]
    by_lax = run_on_host(every, operands, **OPTIMIZED)
    assert_same([by_numpy(c, x, g) for c, (x, _, g) in zip(convolutions, operands, strict=True)], by_lax)


def leaves_out_steps(convolution, positions):
    """Whether from more than a quarter of the rows, and from two steps, the first tap or the last one sees nothing."""
    pixels, (taps, *_), params = convolution.lhs[1], convolution.rhs, convolution.params
    (before, after), stride, apart = (params[name][0] for name in ("padding", "window_strides", "rhs_dilation"))
    rows, *row = positions
    unseen = max(before // stride, rows - 1 - max(-1, (pixels - 1 + before - (taps - 1) * apart) // stride))
    return params["lhs_dilation"][0] == 1 and unseen > rows // 4 and unseen * math.prod(row) > 2 * 64


def test_what_is_drawn():
    """All that there is, and of each some."""
    rng = np.random.default_rng(0)
    all_drawn = [draw(rng) for _ in range(600)]
    asked, params = [drawn.asked for drawn in all_drawn], [drawn.convolution.params for drawn in all_drawn]
    assert {of.tile for of in asked} == {tile.name for tile in TILES}
    assert {of.split for of in asked} == set(SPLITS)
    tiles = {tile.name: tile for tile in TILES}
    problems = [
        problem_of(of.convolution.lax_for(of.asked), of.convolution.lhs, of.convolution.rhs, of.dtype)
        for of in all_drawn
    ]
    slices = [(of.split, stored_slices("wgrad", problem, of)) for of, problem in zip(asked, problems, strict=True)]
    assert sum(1 < stored < split for split, stored in slices) > 20  # clusters add some of them
    far = [len(of.out_spatial) for drawn, of in zip(all_drawn, problems, strict=True)
           if leaves_out_steps(drawn.convolution, of.out_spatial)]  # fmt: skip
    assert all(far.count(rank) > 2 for rank in FAR), far
    assert {len(of["padding"]) for of in params} == {1, 2, 3}
    assert sum(math.prod(drawn.convolution.rhs[:-2]) == 1 for drawn in all_drawn) > 20
    assert sum(of.get("feature_group_count", 1) > 1 for of in params) > 20
    for name, usual in (("window_strides", 1), ("lhs_dilation", 1), ("rhs_dilation", 1)):
        assert sum(set(of[name]) != {usual} for of in params) > 20
    assert sum(min(map(min, of["padding"])) < 0 for of in params) > 20
    assert {(drawn.dtype, tiles[drawn.asked.tile].bf16x6) for drawn in all_drawn} == {
        ("bfloat16", 0), ("float16", 0), ("float32", 0), ("float32", 1)
    }  # fmt: skip
