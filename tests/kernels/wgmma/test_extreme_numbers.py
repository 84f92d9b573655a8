"""Where float32 by products of bfloat16 differs from float32: near the largest number, and near the smallest ones.

F32_F32_F32 is free of it, which CUDA cores compute.
"""

import functools

import jax
import numpy as np
import pytest
from jax.lax import DotAlgorithmPreset

import jaxconv
from cases.convolution import channels_last_convolution
from cases.matrices import IMAGE, K_AXES, SIDE, operands_of, units
from cases.reference import run_on_host
from cases.tiles import PASSES

pytestmark = pytest.mark.gpu
each_pass = pytest.mark.parametrize("which", PASSES)
MATRICES = channels_last_convolution((*IMAGE, SIDE), (1, 1, SIDE, SIDE))
LARGEST = float(np.finfo("float32").max)
NEAR = LARGEST * (1 - 2.0**-7)  # what is larger may become infinite
LEAST_WHOLE = 2.0**-110  # bfloat16 holds no bits below 2^-133, which smaller numbers have
LEAST = 2.0**-134  # smaller numbers count as zeros


@functools.cache
def programs(which):
    """By tensor cores, and by CUDA cores."""
    ours = functools.partial(MATRICES.bound, jaxconv.conv_general_dilated)
    convs = (
        ours(implementation="wgmma", precision="highest"),
        ours(implementation="cuda", precision=DotAlgorithmPreset.F32_F32_F32),
    )
    return [jax.jit(PASSES[which](conv)) for conv in convs]


def results(which, *matrices):
    """By tensor cores, by CUDA cores, and in float64."""
    operands = operands_of(which, *matrices)
    with jax.enable_x64(True):
        wide = (a.astype("float64") for a in operands)
        exact = np.asarray(run_on_host(PASSES[which](MATRICES.lax()), *wide))
    return *(np.asarray(program(*operands)) for program in programs(which)), exact


def in_turn(one, other):
    """As either operand of a pass."""
    return (one, other), (other, one)


def signed(rng, numbers):
    return (numbers * rng.choice([-1, 1], numbers.shape)).astype("float32")


def are_close(actual, exact):
    return np.abs(actual - exact) <= 2.0**-22 * np.abs(exact)


@each_pass
def test_parts_of_sums_near_the_largest_number_are_infinite(which):
    """Of two products, by ones. They are 16 places apart along K: in a step, but in two instructions.

    The parts behind the first ones are added before. Those of the second number are positive, as its first part is
    beyond it: with the first number they are too much, until the second number's first part is added.
    """
    below = np.nextafter(np.float32(NEAR), np.float32(0))
    of_k = np.zeros((SIDE, SIDE), np.float32)
    of_k[0] = np.where(np.arange(SIDE) % 2, below, LARGEST)
    of_k[16] = -(2.0**120) * (1 + 3 * 2.0**-9)
    ones = np.ones_like(of_k)
    for operand, axis in enumerate(K_AXES[which]):
        matrices = in_turn(of_k.T if axis == 1 else of_k, ones)[operand]
        by_tensor_cores, by_cuda_cores, exact = results(which, *matrices)
        is_near = exact > NEAR
        assert np.any(is_near) and not np.all(is_near) and np.all(exact < LARGEST)
        assert np.all(np.isposinf(by_tensor_cores[is_near]))
        assert np.all(are_close(by_tensor_cores, exact)[~is_near])
        assert np.all(are_close(by_cuda_cores, exact))


@each_pass
def test_products_are_finite_up_to_those_near_the_largest_number(which):
    """And these are right, if they are finite."""
    rng = np.random.default_rng(0)
    factor = np.float32(1.7 * 2.0**63)
    numbers = signed(rng, rng.uniform(0.95, 1 - 2.0**-20, (SIDE, SIDE)) * (LARGEST / factor))
    for matrices in in_turn(numbers, units(SIDE) * factor):
        by_tensor_cores, by_cuda_cores, exact = results(which, *matrices)
        is_near = np.abs(exact) > NEAR
        assert np.any(is_near) and not np.all(is_near)
        may_be = is_near & (by_tensor_cores == np.copysign(np.inf, exact))
        assert np.all(are_close(by_tensor_cores, exact) | may_be)
        assert np.all(are_close(by_cuda_cores, exact))


@each_pass
def test_small_numbers_lose_the_bits_that_bfloat16_cannot_hold(which):
    """They are rounded to nearest, to multiples of 2^-133. So the smallest ones become zeros."""
    rng, factor = np.random.default_rng(0), 2.0**100
    numbers = signed(rng, rng.uniform(1, 2, (SIDE, SIDE)) * 2.0 ** rng.integers(-138, -105, (SIDE, SIDE)))
    for matrices in in_turn(numbers, units(SIDE) * np.float32(factor)):
        by_tensor_cores, by_cuda_cores, exact = results(which, *matrices)
        is_small, is_zero = (np.abs(exact) < least * factor for least in (LEAST_WHOLE, LEAST))
        errors = np.abs(by_tensor_cores - exact)
        assert np.all(errors[is_small] <= LEAST * factor) and np.any(errors[is_small])
        assert not np.any(np.fmod(by_tensor_cores[is_small], 2 * LEAST * factor))
        assert np.any(is_zero) and not np.any(by_tensor_cores[is_zero])
        assert np.all(are_close(by_tensor_cores, exact)[~is_small])
        np.testing.assert_array_equal(by_cuda_cores, exact)


@each_pass
@pytest.mark.parametrize("number, product", [(0.75 * LEAST, np.nan), (2 * LEAST, np.inf)], ids=["zero", "not_zero"])
def test_numbers_that_count_as_zeros_times_infinity_are_nan(which, number, product):
    """Among ones, whose products with the infinity are infinite."""
    small, infinite = np.ones((2, SIDE, SIDE), np.float32)
    small[0, 0], infinite[0, 0] = number, np.inf
    for matrices in in_turn(small, infinite):
        by_tensor_cores, by_cuda_cores, exact = results(which, *matrices)
        np.testing.assert_array_equal(by_cuda_cores, exact)
        expected = exact.copy()
        expected.flat[0] = product
        np.testing.assert_array_equal(by_tensor_cores, expected)
