"""Convolutions that end with a bias: small integers, whose sums are exact."""

import dataclasses
import functools

import jax
import numpy as np

from cases.convolutions import problem
from cases.exact import exact
from cases.problems import passes_of
from cases.reference import assert_same
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import constraint_of

SUMS = {"float64": "float64", "int8_to_int32": "int32"}  # else float32
# Where no tap reaches a result, or nothing is summed up.
NOTHING_SUMMED = ("nothing_seen", "no_channels", "many_classes", "doubled_without_overlap")


def with_bias(platform, problem, implementation, lhs, rhs, bias):
    """A conv with a bias, or None: a number for each output channel of all groups, in the type of the sums."""
    asked = dataclasses.replace(constraint_of(implementation), transform=())  # those change what a channel is
    plan = choose(platform, "conv", problem, asked, ffi.device(platform)).plan
    return ffi.convolution(plan, problem)(lhs, rhs, bias)


def added(problem, sums, bias):
    """The sums of a problem's groups, with their channels' bias, by numpy."""
    bias = bias.reshape(problem.groups, problem.out_channels)
    images = sums.shape[problem.out_spec.first]
    by_image = np.repeat(bias, images // problem.groups, 0) if problem.out_batch_grouped else bias.reshape(1, -1)
    spatial = tuple(range(2, sums.ndim))
    axes = (problem.out_spec.first, problem.out_spec.second, *problem.out_spec.spatial)
    return sums + np.transpose(np.expand_dims(by_image, spatial), np.argsort(axes))


@functools.cache
def plan_of(platform, name, which, asked, dtype):
    """A pass of a convolution, and its plan or None."""
    kind, of_pass = passes_of(problem(name, dtype, asked))[which]
    return of_pass, choose(platform, kind, of_pass, asked, ffi.device(platform)).plan


def taken(platform, cases, dtype, start=0, most=40):
    """Of (name, "fprop" or "dgrad", constraint)s those that have plans: those without sums, and some of the others."""
    has_plan = [case for case in cases if plan_of(platform, *case, dtype)[1] is not None]
    special = [case for case in has_plan if case[0] in NOTHING_SUMMED]
    others = [case for case in has_plan if case[0] not in NOTHING_SUMMED]
    step = max(1, len(others) // most)
    return special + others[start % step :: step]


def bias_of(problem):
    """Integers that differ from each channel of the result to the next."""
    return (np.arange(problem.groups * problem.out_channels) * 7 % 31 - 15).astype("float32")


def check_bias(platform, cases, dtype):
    """Cases in one program: bit-equal to lax's results plus the bias."""
    operands, expected = exact()
    calls, arrays, results = [], [], []
    for name, which, asked in cases:
        of_pass, plan = plan_of(platform, name, which, asked, dtype)
        assert plan.transform == ()
        x, w, g = operands[name]
        y, dx, _ = expected[name]
        lhs, result = {"fprop": (x, y), "dgrad": (g, dx)}[which]
        bias = bias_of(of_pass)
        calls.append((plan, of_pass))
        sums = SUMS.get(dtype, "float32")
        arrays.append([lhs.astype(of_pass.lhs_dtype), w.astype(of_pass.rhs_dtype), bias.astype(sums)])
        results.append(added(of_pass, np.asarray(result), bias).astype(of_pass.out_dtype))
    with jax.enable_x64(dtype == "float64"):
        program = jax.jit(lambda arrays: [ffi.convolution(*c)(*of) for c, of in zip(calls, arrays, strict=True)])
        assert_same(program(arrays), results)
