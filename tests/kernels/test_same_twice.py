"""The same call gives the same bits each time."""

import jax
import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.convolutions import WITH_OUTPUT_TILES, convolutions
from cases.exact import alone, cases_of
from cases.for_wgmma import WINDOWS
from cases.plans import PARTIAL
from cases.reference import assert_same, pullback
from cases.tiles import PASSES, TILES, WITH_SUMS, constraint, dtypes_of, kernels_of, splits_of

pytestmark = pytest.mark.gpu
LAYERS = {
    "dense": channels_last_convolution((4, 17, 16, 24), (3, 3, 24, 40)),
    "transposed": channels_last_convolution((4, 9, 8, 24), (4, 4, 24, 20), lhs_dilation=(2, 2), padding=((2, 2),) * 2),
    "depthwise": channels_last_convolution((4, 16, 15, 36), (5, 5, 1, 36), feature_group_count=36),
    "line": channels_last_convolution((4, 1000, 6), (3, 6, 9), rhs_dilation=(8,)),
    "side_by_side": channels_last_convolution((4, 16, 8, 24), (2, 2, 24, 40), window_strides=(2, 2), padding="VALID"),
}

WHERE_TAKEN = {
    f"{name}-{dtype}": (family, tile, dtype) for name, (family, tile) in WITH_SUMS.items() if family in PARTIAL
    for dtype in ("float32", "bfloat16") if dtype in dict(kernels_of(family, tile))
}  # fmt: skip
EVERY_TYPE = {
    f"{name}-{dtype}": (family, tile, dtype) for name, (family, tile) in TILES.items()
    for dtype in ("float32", "bfloat16") if dtype in dtypes_of(family, tile)
}  # fmt: skip


@pytest.mark.parametrize("split", [1, 3, 8])
@pytest.mark.parametrize("family, tile, dtype", EVERY_TYPE.values(), ids=EVERY_TYPE)
def test_the_same_twice(family, tile, dtype, split):
    """Gaussian sums, which any other order would change."""
    rng = np.random.default_rng(0)
    operands = {name: [rng.standard_normal(a.shape).astype(dtype) for a in layer.operands(dtype)]
                for name, layer in LAYERS.items()}  # fmt: skip
    ours = constraint(family, tile, split=split)
    program = jax.jit(lambda operands: {name: pullback(LAYERS[name].ours(ours))(*o) for name, o in operands.items()})
    first = program(operands)
    assert all(np.all(np.isfinite(np.asarray(a, np.float32))) for a in jax.tree.leaves(first))
    for _ in range(4):
        assert_same(program(operands), first)


@pytest.mark.parametrize("family, tile, dtype", WHERE_TAKEN.values(), ids=WHERE_TAKEN)
def test_the_same_twice_where_supported(family, tile, dtype):
    rng = np.random.default_rng(0)
    names = WITH_OUTPUT_TILES.get(family, WINDOWS)
    operands = {name: [rng.standard_normal(a.shape).astype(dtype) for a in convolutions()[name].operands()]
                for name in names}  # fmt: skip
    cases = [
        case
        for which in PASSES
        for case in cases_of(family, tile, names, (which,), (None, *splits_of(family, tile, which)), dtype=dtype)
    ]
    assert cases
    program = jax.jit(alone(cases, dtype))
    first = program(operands)
    assert all(np.all(np.isfinite(np.asarray(a, np.float32))) for a in first)
    for _ in range(4):
        assert_same(program(operands), first)
