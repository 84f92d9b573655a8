"""mma under every rewriting, bit-equal to lax on the host for small integers."""

import pytest

from cases.convolutions import convolutions, problem
from cases.exact import REWRITINGS, check
from jaxconv.planner.plan import Constraint
from jaxconv.transforms import why_not

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rewriting", REWRITINGS, ids=lambda rewriting: " and ".join(map(str, rewriting)))
def test_exact_when_rewritten(rewriting, dtype):
    """Those convolutions that it applies to."""
    names = [name for name in convolutions() if why_not(rewriting, problem(name, dtype)) is None]
    assert names
    check(Constraint("cuda", "mma", rewriting=rewriting), dtype, names)
