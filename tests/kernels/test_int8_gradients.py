"""Weight gradients of int8, exact, by whichever reading of them a GPU's kernels take."""

import functools

import jax
import pytest

import jaxconv
from cases.int8 import CASES, DENSE, exact, gradients
from cases.reference import assert_same, custom_calls, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("implementation", ["cuda", "simt"])
@pytest.mark.parametrize("name", CASES | DENSE)
def test_weight_gradients(name, implementation):
    case = (CASES | DENSE)[name]
    (x, _, g), expected = exact(case)
    _, of_w = gradients(case, functools.partial(jaxconv.conv_general_dilated, implementation=implementation))
    assert_same(run(of_w, x, g), expected["wgrad"])


@pytest.mark.parametrize("name", DENSE)
def test_tensor_cores_sum_dense_ones(name):
    """As the convolution that lax writes."""
    case = DENSE[name]
    (x, _, g), expected = exact(case)
    _, of_w = gradients(case, functools.partial(jaxconv.conv_general_dilated, implementation="wgmma"))
    assert custom_calls(jax.jit(of_w).lower(x, g).as_text()) == {"conv": 1}
    assert_same(run(of_w, x, g), expected["wgrad"])
