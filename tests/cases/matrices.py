"""Convolutions that are products of two matrices: with a unit matrix each result is one product."""

import jax
import numpy as np

from cases.convolution import channels_last_convolution
from cases.reference import run_on_host
from cases.tiles import PASSES

SIDE = 128  # of matrices: channels, and positions
IMAGE = (1, 16, 8)  # narrow: the positions of a tile of 8 x 8 are neighbours along K, too
# The axis of K in each of a pass's two operands.
K_AXES = {"fprop": (1, 0), "dgrad": (1, 1), "wgrad": (0, 0)}


def operands_of(which, one, other, taps=1):
    """x, w and g. Of images a matrix is positions by channels. Of a filter it is the window's middle, among zeros."""
    image = lambda matrix: matrix.reshape(*IMAGE, SIDE)
    w = np.zeros((taps, taps, SIDE if which == "wgrad" else len(other), SIDE), np.float32)
    if which == "wgrad":
        return image(one), w, image(other)
    w[taps // 2, taps // 2] = other
    return image(one), w, image(one)


def units(rows, groups=1):
    """The unit matrix of each group, side by side, and again below."""
    of_group = SIDE // groups
    return np.tile(np.eye(of_group, dtype=np.float32), (rows // of_group, groups))


def numbers_to_round(rows):
    """A quarter of them half-way between two numbers of tf32, the others nearer to the one above or below."""
    rng = np.random.default_rng(0)
    bits = rng.standard_normal((rows, SIDE)).astype("float32").view(np.uint32)
    return np.where(rng.random(bits.shape) < 0.25, bits & 0xFFFFE000 | 0x1000, bits).astype(np.uint32).view(np.float32)


def check_rounding_to_tf32(asked, which, operand, groups=1):
    """An operand's numbers times units are the nearest ones of tf32, of which there may be two."""
    of_group = SIDE // groups
    rows = SIDE, SIDE if which == "wgrad" else of_group
    matrices = [units(r, groups) for r in rows]
    matrices[operand] = numbers_to_round(rows[operand])
    operands = operands_of(which, *matrices, taps=3)
    convolution = channels_last_convolution((*IMAGE, SIDE), (3, 3, of_group, SIDE), feature_group_count=groups)
    rounded = np.asarray(jax.jit(PASSES[which](convolution.ours(asked)))(*operands))
    exact = np.asarray(run_on_host(PASSES[which](convolution.lax()), *operands))
    check_nearest_tf32(rounded, exact)


def check_nearest_tf32(rounded, exact):
    """By the bits that tf32 does not have, and by half a unit of the last bit that it has."""
    assert not np.any(rounded.view(np.uint32) & 0x1FFF)
    assert np.all(np.abs(rounded - exact) <= 2.0**12 * np.spacing(np.abs(exact)))
