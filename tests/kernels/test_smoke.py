"""What compute-sanitizer can go through: tiny, alone in their programs, and on every path of a kernel."""

import jax
import pytest

from cases.convolution import Convolution, channels_last_convolution
from cases.convolutions import TINY, convolutions
from cases.exact import alone, cases_of, in_dtype, pulled_back, results_of
from cases.reference import assert_same, run_on_host
from cases.tiles import EVERY_KERNEL, PASSES, constraint, dtype_of, every_tile, every_tile_for_int8

pytestmark = pytest.mark.gpu
SMOKE = {
    "lhs_dilated_groups": (channels_last_convolution(
        (1, 4, 3, 8), (3, 2, 4, 8), lhs_dilation=(2, 3), padding=((1, 2), (0, 1)), feature_group_count=2), 1),
    "odd_channels": (channels_last_convolution((2, 9, 8, 7), (2, 3, 7, 5)), 2),
    "side_by_side": (channels_last_convolution(
        (1, 4, 4, 8), (2, 2, 8, 16), window_strides=(2, 2), padding="VALID"), 1),
}  # fmt: skip
TINY_SPLITS = {"direct": (8,), "depthwise": (8,), "gather": (1,), "wgmma": (1, 2, 3, 8)}


@pytest.mark.parametrize("of_conv", PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("convolution, split", SMOKE.values(), ids=SMOKE)
@every_tile
def test_smoke(family, tile, convolution, split, of_conv):
    chunk, dtype = tile.rows if family == "im2col" else None, dtype_of(family, tile)
    n_tiles_per_cta = 2 if family == "mma" else None
    ours = convolution.ours(constraint(family, tile, split=split, chunk=chunk, n_tiles_per_cta=n_tiles_per_cta))
    operands = convolution.operands()
    actual = jax.jit(of_conv(ours))(*(a.astype(dtype) for a in operands))
    assert_same(actual, run_on_host(of_conv(convolution.lax()), *operands).astype(dtype))


@pytest.mark.parametrize("convolution, split", SMOKE.values(), ids=SMOKE)
@every_tile_for_int8
def test_smoke_of_int8(family, tile, convolution, split):
    x, w, _ = (a.astype("int8") for a in convolution.operands())
    actual = jax.jit(convolution.ours(constraint(family, tile, split=split, n_tiles_per_cta=2), "int32"))(x, w)
    assert_same(actual, run_on_host(convolution.lax(), *(a.astype("float32") for a in (x, w))).astype("int32"))


@pytest.mark.parametrize("family, tile, dtype, which", EVERY_KERNEL.values(), ids=EVERY_KERNEL)
def test_smoke_where_supported(family, tile, dtype, which):
    cases = cases_of(family, tile, TINY[family], (which,), splits=TINY_SPLITS[family], dtype=dtype)
    assert cases
    operands = {name: convolutions()[name].operands() for name in TINY[family]}
    operands, expected = in_dtype(dtype, operands, run_on_host(pulled_back(Convolution.lax), operands))
    for case in cases:
        assert_same(jax.jit(alone([case], dtype))(operands), results_of([case], expected))
