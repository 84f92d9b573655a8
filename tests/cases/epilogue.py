"""A kernel's epilogue, reached by the custom call itself: what no public function passes yet."""

import dataclasses

import jax
import numpy as np

from jaxconv import ffi
from jaxconv.offsets import offset_tables
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import constraint_of


def with_bias(platform, problem, implementation, lhs, rhs, bias):
    """A conv with a bias, or None, of which each output channel of all groups has a number in the type of the sums."""
    asked = dataclasses.replace(constraint_of(implementation), rewriting=())  # those change what a channel is
    plan = choose(platform, "conv", problem, asked, ffi.device(platform)).plan
    assert plan is not None
    results = [jax.ShapeDtypeStruct(problem.out_shape, problem.out_dtype)]
    workspace = plan.workspace_bytes(problem)
    if workspace is not None:
        results.append(jax.ShapeDtypeStruct((workspace,), np.uint8))
    operands = (lhs, rhs, *offset_tables(problem)) + (() if bias is None else (bias,))
    return jax.ffi.ffi_call("jaxconv_conv", results)(*operands, **ffi._attributes(problem), **plan.attributes())[0]


def added(problem, sums, bias):
    """The sums of a problem's groups, with their channels' bias, by numpy."""
    bias = bias.reshape(problem.groups, problem.out_channels)
    images = sums.shape[problem.out_spec.first]
    by_image = np.repeat(bias, images // problem.groups, 0) if problem.out_batch_grouped else bias.reshape(1, -1)
    spatial = tuple(range(2, sums.ndim))
    axes = (problem.out_spec.first, problem.out_spec.second, *problem.out_spec.spatial)
    return sums + np.transpose(np.expand_dims(by_image, spatial), np.argsort(axes))
