"""The same call gives the same bits each time."""

import jax
import numpy as np
import pytest

from cases import epilogue
from cases.convolution import channels_last_convolution
from cases.convolutions import OWN, WITH_OUTPUT_TILES, convolutions
from cases.exact import alone, cases_of
from cases.float8 import FLOAT8
from cases.int8 import whole_range
from cases.plans import PARTIAL
from cases.reference import assert_same, pullback
from cases.tiles import (
    ENDED_DTYPES,
    EVERY_TILE,
    PASSES,
    TILES,
    WITH_SUMS,
    constraint,
    dtypes_of,
    kernels_of,
    result_of,
    splits_of,
)
from jaxconv import ffi
from jaxconv.epilogue import Epilogue

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


OF_BYTES = {
    f"{name}-{kernels.partition('_to_')[0]}": (family, tile, kernels)
    for name, (family, tile) in EVERY_TILE.items() for kernels in dtypes_of(family, tile) if kernels in ENDED_DTYPES
}  # fmt: skip


def check(function, operands):
    program = jax.jit(function)
    first = program(operands)
    assert all(np.all(np.isfinite(np.asarray(a, np.float32))) for a in jax.tree.leaves(first))
    for _ in range(4):
        assert_same(program(operands), first)


@pytest.mark.parametrize("split", [1, 3, 8])
@pytest.mark.parametrize("family, tile, dtype", EVERY_TYPE.values(), ids=EVERY_TYPE)
def test_the_same_twice(family, tile, dtype, split):
    """Gaussian sums, which any other order would change."""
    rng = np.random.default_rng(0)
    operands = {name: [rng.standard_normal(a.shape).astype(dtype) for a in layer.operands(dtype)]
                for name, layer in LAYERS.items()}  # fmt: skip
    ours = constraint(family, tile, split=split)
    check(lambda operands: {name: pullback(LAYERS[name].ours(ours))(*o) for name, o in operands.items()}, operands)


@pytest.mark.parametrize("family, tile, dtype", WHERE_TAKEN.values(), ids=WHERE_TAKEN)
def test_the_same_twice_where_supported(family, tile, dtype):
    rng = np.random.default_rng(0)
    names = WITH_OUTPUT_TILES.get(family, OWN[family])
    operands = {name: [rng.standard_normal(a.shape).astype(dtype) for a in convolutions()[name].operands()]
                for name in names}  # fmt: skip
    cases = [
        case
        for which in PASSES
        for case in cases_of(family, tile, names, (which,), (None, *splits_of(family, tile, which)), dtype=dtype)
    ]
    assert cases
    check(alone(cases, dtype), operands)


@pytest.mark.parametrize("family, tile, kernels", OF_BYTES.values(), ids=OF_BYTES)
def test_bytes_are_the_same_twice(family, tile, kernels):
    """Sums of float8, and int8 with an epilogue, with results of two types."""
    source, rng, calls, operands = kernels.partition("_to_")[0], np.random.default_rng(0), [], []
    names, results = ((), ("float32", "bfloat16")) if source in FLOAT8 else (epilogue.EVERY, ("int8", "bfloat16"))
    numbers = whole_range if source == "int8" else lambda shape, _: rng.standard_normal(shape).astype(source)
    for dtype in ENDED_DTYPES[kernels]:
        for name, which, asked in epilogue.cases_of(family, tile, dtype) if result_of(dtype) in results else ():
            of_pass, plan = epilogue.plan_of("cuda", name, which, asked, dtype)
            given = epilogue.operands_of(of_pass, "float32", names)
            if names:
                given["scale"] *= np.float32(2.0**-9)
            calls.append(ffi.convolution(plan, of_pass, Epilogue(names)))
            operands.append([numbers(of_pass.lhs_shape, 0), numbers(of_pass.rhs_shape, 1), *given.values()])
    assert calls
    check(lambda operands: [call(*of) for call, of in zip(calls, operands, strict=True)], operands)
