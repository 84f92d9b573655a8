"""Weight gradients of int8 on a GPU: planned as one, and as the convolution that lax writes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import jaxconv
from cases.convolution import channels_last_convolution
from cases.int8 import CASES, gradients, operands, passes
from cases.reference import assert_same
from jaxconv import ffi, primitives
from jaxconv.lowering import decide, integer_readings, seen_by_kernels
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import ANY
from jaxconv.problem.of_lax import exchanged
from jaxconv.traced import KINDS

DENSE = channels_last_convolution((32, 14, 14, 256), (3, 3, 256, 256))
DEPTHWISE = channels_last_convolution((2, 6, 5, 19), (3, 3, 1, 19), feature_group_count=19)


pytestmark = pytest.mark.usefixtures("cuda_kernels")


def costs(problem, constraint=ANY):
    return [choose("cuda", *of, constraint, ffi.device("cuda")).cost
            for of in (("wgrad", problem), ("conv", exchanged(problem)))]  # fmt: skip


@pytest.mark.parametrize("convolution", [DENSE, DEPTHWISE], ids=["dense", "depthwise"])
def test_the_cheaper_reading_is_taken(convolution):
    kind, problem = passes(convolution)["wgrad"]
    of_wgrad, of_conv = costs(problem)
    seen = seen_by_kernels(kind, "cuda", problem)
    assert seen == (("conv", exchanged(problem)) if of_conv < of_wgrad else ("wgrad", problem))
    choice = decide(kind, "cuda", problem, None)
    assert (choice.plan.kind, choice.cost) == (seen.kind, min(of_wgrad, of_conv))


# Without groups, both batches of a vmap are of its members.
ONE_READING_IN_VMAP = {"dense", "strided", "dilated", "lhs_dilated", "stem", "line", "volume"}


@pytest.mark.parametrize("axes", [None, (0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("name", CASES)
def test_both_readings_are_the_same_sums(name, axes):
    """Also of what vmap makes of a gradient. The host computes any reading; that its first is exact, test_int8 says."""
    x, _, g = operands(CASES[name])
    _, of_w = gradients(CASES[name], functools.partial(jaxconv.conv_general_dilated, implementation="cpu"))
    if axes is not None:
        of_w = jax.vmap(of_w, axes)
        x, g = (a if axis is None else np.stack([a, np.roll(a, 1)]) for a, axis in zip((x, g), axes, strict=True))
    problem, sharding, lhs, cotangent = gradient_within(of_w, x, g)
    sums = [BIND[kind](lhs, cotangent, reading, "cpu", sharding) for kind, reading in integer_readings(problem)]
    assert len(sums) == (1 if axes == (0, 0) and name in ONE_READING_IN_VMAP else 2)
    assert_same(sums, [sums[0]] * len(sums))


BIND = {"conv": primitives.conv, "wgrad": primitives.wgrad}


def gradient_within(function, *arrays):
    """A function's weight gradient: its problem, the sharding of its result, and its operands."""
    jaxpr = jax.make_jaxpr(function)(*arrays).jaxpr
    values = dict(zip(jaxpr.invars, arrays, strict=True))
    for equation in jaxpr.eqns:
        given = [values[v] for v in equation.invars]
        if KINDS.get(equation.primitive) == "wgrad":
            return equation.params["problem"], equation.params["sharding"], *given
        values[equation.outvars[0]] = equation.primitive.bind(*given, **equation.params)
    raise AssertionError(f"no weight gradient in {jaxpr}")


def test_tensor_cores_sum_dense_ones():
    kind, problem = passes(DENSE)["wgrad"]
    assert decide(kind, "cuda", problem, None).plan.family in ("wgmma", "mma")
    of_wgrad, of_conv = costs(problem)
    assert of_conv < of_wgrad / 5


def test_a_named_family_has_both():
    kind, problem = passes(DENSE)["wgrad"]
    assert decide(kind, "cuda", problem, "simt").plan.family == "simt"
    assert decide(kind, "cuda", problem, "mma").plan.kind == "conv"


def test_the_host_and_floats_have_one():
    kind, problem = passes(DENSE)["wgrad"]
    assert seen_by_kernels(kind, "cpu", problem) == (kind, problem)
    floats = np.dtype("float32")
    of_floats = dataclasses.replace(problem, lhs_dtype=floats, rhs_dtype=floats, out_dtype=floats)
    assert seen_by_kernels(kind, "cuda", of_floats) == (kind, of_floats)
