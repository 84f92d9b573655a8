"""Results with channels in blocks, as the planner sees them: which families store them, and their shape in memory."""

import dataclasses

import jax
import pytest

from cases.blocks import CASES, LAYOUT, to_blocks
from jaxconv import prepare_filter
from jaxconv.fused.call import Call
from jaxconv.fused.lowering import planned
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint
from jaxconv.problem.product import EpilogueKind
from jaxconv.traced import trace

pytestmark = pytest.mark.usefixtures("cuda_kernels")


def problem_in_blocks(name):
    """As kernels of a GPU see a case."""
    case = CASES[name]
    x, w, _ = case.arrays(())
    conv = case.conv(layout=LAYOUT, out_dtype="int8", bias=1.0, implementation="cuda")
    (equation,) = trace(conv, to_blocks(x), prepare_filter(w, LAYOUT)).equations
    call, avals = Call(**equation.params), [v.aval for v in equation.invars]
    problem, plan = planned("cuda", call, avals)
    assert plan is not None
    assert problem.stored_shape("out") == equation.outvars[0].aval.shape
    return problem


def test_shape_in_memory():
    problem = problem_in_blocks("strided")
    assert problem.out_shape == (2, 1, 6, 5, 160) and problem.out_spatial == (1, 6, 5)
    assert problem.stored_shape("out") == (2, 5, 6, 5, 32)
    assert problem.stored_shape("lhs") == problem.lhs_shape == (2, 2, 11, 13, 32)
    assert problem.kernel == (2, 3, 3) and problem.in_channels == 32 and problem.out_channels == 160


@pytest.mark.parametrize("family, reason", [
    ("simt", None), ("mma", None), ("wgmma", None), ("im2col", "results with channels in blocks"),
    ("direct", "results with channels in blocks"), ("depthwise", ""),
])  # fmt: skip
def test_families(family, reason):
    problem = problem_in_blocks("dense")
    choice = choose("cuda", "conv", problem, Constraint(family=family, transform=()), epilogue_kind=EpilogueKind.PLAIN)
    assert (choice.plan is not None) == (reason is None)
    if reason is not None:
        assert reason in choice.unsupported_reason()


@pytest.mark.parametrize("family", ["mma", "wgmma", "direct"])
def test_of_floats(family):
    """Kernels on tensor cores store blocks of int8 alone."""
    dtypes = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), jax.numpy.dtype("bfloat16"))
    problem = dataclasses.replace(problem_in_blocks("dense"), **dtypes)
    choice = choose("cuda", "conv", problem, Constraint(family=family, transform=()), epilogue_kind=EpilogueKind.PLAIN)
    assert choice.plan is None and "results with channels in blocks" in choice.unsupported_reason()


def test_many_planes_are_beyond_tma():
    """Descriptors of volumes reach 16 planes."""
    problem = problem_in_blocks("most_planes")
    choice = choose("cuda", "conv", problem, Constraint(family="wgmma"), epilogue_kind=EpilogueKind.PLAIN)
    assert choice.plan is None and "pixels" in choice.unsupported_reason()
