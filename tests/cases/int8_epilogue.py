"""Convolutions of int8 with an epilogue: operands of all numbers of a byte, and the largest sums."""

import numpy as np

from cases.epilogue import ended, plan_with, with_epilogue
from cases.problems import problem_of
from cases.reference import assert_same, run_on_host
from cases.tiles import constraint


def case_of(convolution, seed, result="int8"):
    """The problem, operands of all numbers of int8, and the sums."""
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "int8", result)
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-128, 128, shape, np.int8) for shape in (convolution.lhs, convolution.rhs))
    return problem, x, w, sums_of(convolution, x, w)


def sums_of(convolution, x, w):
    return run_on_host(convolution.lax(), x.astype("int32"), w.astype("int32"))


def check_largest_sums(convolution, family, tiles, scale):
    """By each tile that takes the convolution. There must be one."""
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "int8", "int8")
    x, w = (np.full(shape, -128, np.int8) for shape in (convolution.lhs, convolution.rhs))
    operands = {"scale": np.full((), scale, "float32")}
    expected = ended(problem, sums_of(convolution, x, w), operands)
    asked = [constraint(family, tile) for tile in tiles]
    supported = [of for of in asked if plan_with("cuda", problem, of)]
    assert supported
    for of in supported:
        assert_same(with_epilogue("cuda", problem, of, x, w, operands), expected)
