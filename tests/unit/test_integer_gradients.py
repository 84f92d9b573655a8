"""Weight gradients of int8 on a GPU: planned as one, and as the convolution that lax writes."""

import dataclasses

import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.int8 import passes
from jaxconv import ffi
from jaxconv.lowering import decide, seen_by_kernels
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import ANY
from jaxconv.problem.of_lax import exchanged

DENSE = channels_last_convolution((32, 14, 14, 256), (3, 3, 256, 256))
DEPTHWISE = channels_last_convolution((2, 6, 5, 19), (3, 3, 1, 19), feature_group_count=19)


@pytest.fixture(autouse=True)
def as_with_kernels(monkeypatch):
    monkeypatch.setattr(ffi, "why_no_kernels", lambda platform: None)


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
