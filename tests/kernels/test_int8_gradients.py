"""Weight gradients of int8, exact, by whichever reading of them a GPU's kernels take."""

import functools

import jax
import pytest

import jaxconv
from cases.convolution import channels_last_convolution
from cases.int8 import CASES, exact, gradients
from cases.reference import assert_same, custom_calls, run

pytestmark = pytest.mark.gpu

DENSE = {
    "channels_of_bytes": channels_last_convolution((16, 14, 14, 64), (3, 3, 64, 128)),
    "strided_bytes": channels_last_convolution((8, 28, 28, 32), (3, 3, 32, 96), window_strides=(2, 2)),
    "matrix": channels_last_convolution((16, 14, 14, 128), (1, 1, 128, 256), padding=((0, 0), (0, 0))),
    "odd_sizes": channels_last_convolution((3, 13, 11, 48), (5, 3, 48, 80)),
}


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
