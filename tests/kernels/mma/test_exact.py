"""mma under every transform, bit-equal to lax on the host for small integers."""

import pytest

from cases.convolutions import convolutions, problem
from cases.exact import TRANSFORMS, check
from jaxconv.planner.plan import Constraint
from jaxconv.transforms import unsupported_reason

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8_to_int32"])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: " and ".join(map(str, transform)))
def test_exact_when_transformed(transform, dtype):
    """Those convolutions that it applies to."""
    names = [name for name in convolutions() if unsupported_reason(transform, problem(name, dtype)) is None]
    assert names
    check(Constraint("cuda", "mma", transform=transform), dtype, names)
