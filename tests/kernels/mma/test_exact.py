"""mma under every transform, bit-equal to lax on the host for small integers."""

import pytest

from cases.exact import TRANSFORMS, cases_of_transform, check_alone

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8_to_int32"])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: " and ".join(map(str, transform)))
def test_exact_when_transformed(transform, dtype):
    """Every convolution that the transform is for."""
    cases = cases_of_transform("mma", transform, dtype)
    assert cases
    check_alone(cases, dtype)
