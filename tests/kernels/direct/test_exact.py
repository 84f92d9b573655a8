"""Transforms for direct, bit-equal to lax on the host for small integers."""

import pytest

from cases.convolutions import convolutions, problem
from cases.exact import TRANSFORMS, are_supported, cases_of_transform, check_alone, those_supported
from jaxconv.planner.plan import Constraint
from jaxconv.transforms import PackedColumns, unsupported_reason

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exact_columns_alone(dtype):
    """Data gradients by direct, of packs whose channels are no whole vectors."""
    asked = Constraint("cuda", "direct", transform=(PackedColumns(2, whole=False),))
    names = [name for name in convolutions() if unsupported_reason(asked.transform, problem(name, dtype)) is None]
    cases = [(name, "dgrad", asked) for name in names if are_supported(name, asked, dtype, ("dgrad",))]
    assert "image_stem" in {name for name, *_ in cases}
    check_alone(cases, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_exact_when_transformed_for_direct(dtype):
    """What it takes then."""
    every = [case for transform in TRANSFORMS for case in cases_of_transform("direct", transform, dtype)]
    cases = those_supported(every, dtype)
    assert len({asked.transform for *_, asked in cases}) > len(TRANSFORMS) / 3
    check_alone(cases, dtype)
