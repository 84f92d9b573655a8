"""Random convolutions, each by plans drawn from all that take it: bit-equal to lax on the host for small integers."""

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cases.random_plans import VARIANTS, convolutions, plans_of
from cases.reference import assert_same, custom_calls
from jaxconv.problem.product import EpilogueKind

pytestmark = pytest.mark.gpu


def check(plans, operands, expected):
    lowered = jax.jit(lambda operands: [plan.results(operands) for plan in plans]).lower(operands)
    text = lowered.as_text()
    assert custom_calls(text).total() == len(plans) > 0
    # Kernels compute the epilogue.
    assert ('operands = ""' in text) == (plans[0].variant.epilogue_kind is EpilogueKind.NONE)
    for plan, actual in zip(plans, lowered.compile()(operands), strict=True):
        try:
            assert_same(actual, expected[plan.which])
        except AssertionError as error:
            error.add_note(str(plan))
            raise


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@settings(
    max_examples=20, database=None, print_blob=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(convolution=convolutions(), drawn=st.randoms(use_true_random=False))
def test_random_plans(variant, convolution, drawn):
    operands = variant.operands(convolution)
    check(list(plans_of(variant, convolution, drawn, most=2)), operands, variant.expected(convolution, operands))
