"""Weight gradients that also add up the output's gradient, for a bias: which plans do, and where the sums are."""

import dataclasses

import pytest

from cases.bias import CASES, TRANSFORMED, WithBias
from jaxconv.fused import bias_gradient
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint
from jaxconv.transforms import (
    MultipliersAsDepth,
    PackedColumns,
    PackedOutputs,
    PaddedGroups,
    SwappedOperands,
    apply,
    keeps_output_sums,
)

EVERY_CASE = [(family, name) for family, cases in CASES.items() for name in cases]


def plan_of(problem, family, **asked):
    return choose("cuda", "wgrad", problem, Constraint("cuda", family, transform=(), **asked))


@pytest.mark.parametrize("family, name", EVERY_CASE)
def test_the_workspace_begins_with_the_sums(family, name):
    """In rows of each slice, and of each of its parts that warps have."""
    problem = CASES[family][name].problem("bfloat16")
    summing = plan_of(problem, family, gradient_sums=1).plan
    as_well = dataclasses.replace(summing.constraint, gradient_sums=None)
    without = choose("cuda", "wgrad", problem, as_well).plan
    rows, split = summing.gradient_sum_rows(problem), summing.settings["split"]
    assert rows % split == 0 and rows >= split and without.gradient_sum_rows(problem) == 0
    if family == "depthwise":
        assert rows == split
    if family == "direct":
        assert rows <= 8 * split
    channels = problem.groups * problem.out_channels
    assert summing.workspace_bytes(problem) - without.workspace_bytes(problem) == rows * channels * 4
    assert choose("cuda", "wgrad", problem, summing.constraint).plan == summing


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_transform_may_add_zeros_to_the_output(cuda_kernels, name):
    plan = bias_gradient.planned("cuda", TRANSFORMED[name].problem("bfloat16"), "cuda")
    assert plan is not None and plan.transform and plan.settings["gradient_sums"] == 1


@pytest.mark.parametrize("steps, keeps", [
    ((), True), ((PackedColumns(1),), True), ((SwappedOperands(),), False), ((PackedOutputs(2),), False),
])  # fmt: skip
def test_transforms_that_keep_the_sums_of_the_output(steps, keeps):
    problem = WithBias((2, 8, 8, 30), (3, 3, 30, 50)).problem("bfloat16")
    assert keeps_output_sums(steps, problem) == keeps


def test_outputs_of_a_channel_that_become_planes():
    """The groups that are added before must not hide that there are fewer channels then."""
    problem = WithBias((2, 8, 8, 4), (3, 3, 1, 8)).problem("bfloat16")
    steps = (PaddedGroups(), MultipliersAsDepth())
    assert apply(steps, problem).problem.groups == 8
    assert keeps_output_sums(steps[:1], problem) and not keeps_output_sums(steps, problem)


@pytest.mark.parametrize("family", CASES)
def test_an_empty_filter_has_no_kernel_that_sums(family):
    problem = WithBias((2, 8, 8, 0), (3, 3, 0, 16), {"feature_group_count": 1}).problem("bfloat16")
    assert plan_of(problem, family, gradient_sums=1).plan is None


@pytest.mark.parametrize("family, case, why", [
    ("depthwise", WithBias((2, 20, 20, 64), (3, 9, 1, 64)), "the window takes the last pixel"),
    ("depthwise", WithBias((2, 64, 64, 64), (31, 31, 1, 64)), "tile that does not sum a gradient"),
    ("depthwise", WithBias((2, 64, 64, 64), (3, 3, 1, 64), {"window_strides": 2}), "tile that does not sum a gradient"),
    ("depthwise", WithBias((2, 9, 9, 64), (3, 3, 1, 64), {"padding": ((9, 9), (1, 1))}), "is inside for all outputs"),
    ("simt", WithBias((2, 9, 9, 64), (3, 3, 64, 64)), "no setting gradient_sums"),
])  # fmt: skip
def test_sums_that_no_kernel_has(family, case, why):
    choice = plan_of(case.problem("bfloat16"), family, gradient_sums=1)
    assert choice.plan is None and why in choice.unsupported_reason()


def test_pairs_of_rows_sum_where_a_pixel_is_free():
    """Of images of eight columns, none is."""
    pairs = "7x16 by 4 by TMA in pairs"
    problems = [WithBias((64, size, size, 64), (7, 7, 1, 64)).problem("bfloat16") for size in (7, 8)]
    choices = [plan_of(problem, "depthwise", tile=pairs, gradient_sums=1) for problem in problems]
    assert choices[0].plan is not None
    assert "without free pixels" in choices[1].unsupported_reason()
