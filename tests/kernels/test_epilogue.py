"""The epilogue of every CUDA tile, bit-equal to lax's results with the same epilogue for small integers."""

import functools

import jax
import numpy as np
import pytest

from cases.convolutions import OF_PARTIAL, convolutions, problem
from cases.epilogue import EVERY as EPILOGUE
from cases.epilogue import RTOL_OF_SMOOTH, cases_of, check, ended, operands_of, supported, with_epilogue
from cases.exact import exact
from cases.float8 import FLOAT8, largest_of
from cases.problems import passes_of
from cases.tiles import (
    ENDED_DTYPES,
    EVERY_TILE,
    constraint,
    dtypes_of,
    has_pass,
    result_of,
    skip_without_hopper,
    transforms_of,
)  # fmt: skip
from jaxconv import ffi
from jaxconv.activations import Clip, LeakyRelu, activation_of
from jaxconv.epilogue import Epilogue
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint, ConvPlan
from jaxconv.transforms import KMajorFilter, PackedColumns, PackedOutputs, unsupported_reason

pytestmark = pytest.mark.gpu
EVERY = {f"{name}-{dtype}": (family, tile, dtype)
         for name, (family, tile) in EVERY_TILE.items() for dtype in dtypes_of(family, tile)
         if has_pass(tile, "fprop") and dtype not in ENDED_DTYPES}  # fmt: skip
OF_BYTES = {f"{name}-{dtype}": (family, tile, dtype)
            for name, (family, tile) in EVERY_TILE.items() for operands in dtypes_of(family, tile)
            for dtype in ENDED_DTYPES.get(operands, ())}  # fmt: skip
EACH = pytest.mark.parametrize("family, tile, dtype", EVERY.values(), ids=EVERY)
EACH_OF_BYTES = pytest.mark.parametrize("family, tile, dtype", OF_BYTES.values(), ids=OF_BYTES)


@EACH
def test_bias_of_every_tile(family, tile, dtype):
    check("cuda", cases_of(family, tile, dtype), dtype, ("bias",))


@EACH
def test_every_operand_of_every_tile(family, tile, dtype):
    names = ("scale", "bias", "residual", "residual_scale")
    check("cuda", cases_of(family, tile, dtype), dtype, names, "relu")


@EACH_OF_BYTES
def test_every_operand_of_bytes(family, tile, dtype):
    is_byte = np.dtype(result_of(dtype)).itemsize == 1
    names = ("scale", "bias", "residual", "residual_scale", *["out_scale"] * is_byte)
    check("cuda", cases_of(family, tile, dtype), dtype, names, "relu")


@EACH_OF_BYTES
def test_bytes_are_rounded(family, tile, dtype):
    """Also without operands: float8 then ends at its largest number, which is a clip."""
    is_float8 = result_of(dtype) in FLOAT8
    activation = Clip(-largest_of(result_of(dtype)), largest_of(result_of(dtype))) if is_float8 else None
    check("cuda", cases_of(family, tile, dtype)[:8], dtype, (), activation)


@EACH
def test_silu_of_every_tile(family, tile, dtype):
    rtol = {"float32": 1e-5, "float64": 1e-6, "bfloat16": 8e-3, "float16": 2e-3}[result_of(dtype)]
    check("cuda", cases_of(family, tile, dtype), dtype, ("scale", "bias"), "silu", rtol)


@pytest.mark.parametrize("activation", [Clip(-3, 20), LeakyRelu(0.25), "hard_swish"], ids=str)
@pytest.mark.parametrize("family, tile, dtype", (EVERY | OF_BYTES).values(), ids=EVERY | OF_BYTES)
def test_both_bounds_and_what_bends(family, tile, dtype, activation):
    """A clip and a slope are exact. Results of one byte do not end at this clip's bounds by themselves."""
    is_exact = activation != "hard_swish"
    rtol = 0.0 if is_exact else RTOL_OF_SMOOTH[np.dtype(result_of(dtype)).itemsize]
    check("cuda", cases_of(family, tile, dtype)[:3], dtype, ("scale", "bias"), activation, rtol)


OF_EACH_FAMILY = pytest.mark.parametrize("family, name", [
    ("simt", "many_of_all"), ("im2col", "many_of_all"), ("mma", "many_of_all"), ("wgmma", "many_of_all"),
    ("direct", "groups_of_16"), ("depthwise", "depthwise_5x5"), ("gather", "depthwise_5x5"),
])  # fmt: skip


@pytest.mark.parametrize("activation", ["relu6", "leaky_relu", "gelu", "hard_swish", Clip(-3, 20)], ids=str)
@OF_EACH_FAMILY
def test_every_activation(family, name, activation):
    check("cuda", [(name, "fprop", constraint(family))], "bfloat16", ("bias", "residual"), activation, 8e-3)


@OF_EACH_FAMILY
def test_one_number_for_all_channels(family, name):
    names = ("scale", "bias", "residual")
    check("cuda", [(name, "fprop", constraint(family))], "bfloat16", names, "relu", one=("scale", "bias"))


BOTH = ("scale", "bias")


@pytest.mark.parametrize("residual", [(), ("residual",)], ids=["", "residual"])
@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float32", "int8_to_int8", "int8_to_bfloat16", "float8_e4m3fn_to_bfloat16"]
)
@pytest.mark.parametrize("names, one", [
    (("scale",), ()), (("scale",), ("scale",)), (("bias",), ("bias",)),
    (BOTH, ("scale",)), (BOTH, ("bias",)), (BOTH, BOTH),
])  # fmt: skip
def test_numbers_for_each_channel_and_for_all(names, one, dtype, residual):
    """Of tiles whose columns are all channels, and of those at the end: wgmma has code for each of them.

    Of 336 channels, every tile has both.
    """
    names = (*names, *residual)
    if dtype == "int8_to_int8":
        names, one = (*names, "out_scale"), (*one, *["out_scale"] * (one != BOTH))
    every = ("channels_64_to_64", "channels_32_to_96", "channels_64_to_336")
    tiles = [tile for family, tile in EVERY_TILE.values() if family == "wgmma" and has_pass(tile, "fprop")]
    skip_without_hopper("wgmma", tiles[0])
    cases = [(name, "fprop", constraint("wgmma", tile, transform))
             for tile in tiles for transform in transforms_of("wgmma", tile, dtype, "fprop")
             for name in every]  # fmt: skip
    cases = supported("cuda", cases, dtype)
    assert len(cases) >= 10 and any(name == every[-1] for name, *_ in cases)
    check("cuda", cases, dtype, names, "relu", one=one)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["mma", "wgmma", "direct"])
def test_operands_of_packs(family, dtype):
    """Channels of a pack are those of several columns, and may have zeros behind them."""
    to_k_major = (KMajorFilter(),) if (family, dtype) == ("wgmma", "float32") else ()
    transforms = [(PackedColumns(1),), *((PackedOutputs(by), PackedColumns(by)) for by in (2, 3, 8))]
    cases = [(name, "fprop", Constraint("cuda", family, transform=(*transform, *to_k_major)))
             for transform in transforms for name in sorted(set(convolutions()) - set(OF_PARTIAL))
             if unsupported_reason(transform, problem(name, dtype)) is None]  # fmt: skip
    cases = supported("cuda", cases, dtype, most=60)
    assert len({asked.transform for *_, asked in cases}) > 2
    check("cuda", cases, dtype, EPILOGUE, "relu")


@EACH
def test_residual_alone(family, tile, dtype):
    check("cuda", cases_of(family, tile, dtype)[:4], dtype, ("residual",))


@OF_EACH_FAMILY
def test_what_is_not_finite(family, name):
    """NaN stays NaN, in relu as well. Infinities keep their signs until the activation."""
    kind, of_pass = passes_of(problem(name))["fprop"]
    x, w, _ = (a.astype("bfloat16") for a in convolutions()[name].operands())
    number = np.arange(of_pass.groups * of_pass.out_channels) % 4
    bias = np.choose(number, [np.nan, np.inf, -np.inf, 1]).astype("float32")
    plain, fused = (
        jax.jit(functools.partial(with_epilogue, "cuda", of_pass, constraint(family), operands=of, activation=relu))
        for of, relu in (({}, None), ({"bias": bias}, "relu"))
    )
    expected = jax.nn.relu(np.asarray(plain(x, w)).astype("float32") + bias)
    as_float32 = (np.asarray(of).astype("bfloat16").astype("float32") for of in (fused(x, w), expected))
    np.testing.assert_array_equal(*as_float32)


@OF_EACH_FAMILY
def test_no_zero_of_a_slope_is_negative(family, name):
    """The derivative is had from the result, where -0 is a negative number that was rounded."""
    kind, of_pass = passes_of(problem(name))["fprop"]
    x, w, _ = (a.astype("bfloat16") for a in convolutions()[name].operands())
    of = {"scale": np.float32(-2), "bias": np.float32(-0.0)}
    conv = functools.partial(
        with_epilogue, "cuda", of_pass, constraint(family), operands=of, activation=LeakyRelu(0.25)
    )
    result = np.asarray(jax.jit(conv)(np.zeros_like(x), w)).astype("float32")
    assert not np.any(result) and not np.any(np.signbit(result))


@pytest.mark.parametrize("family, name", [
    ("mma", "many_of_all"), ("wgmma", "many_of_all"), ("direct", "groups_of_16"), ("depthwise", "depthwise_5x5"),
    ("gather", "depthwise_5x5"),
])  # fmt: skip
def test_operands_that_are_not_aligned(monkeypatch, family, name):
    """Another kernel takes them, and ends with the epilogue as well."""
    monkeypatch.setattr(ConvPlan, "needs_aligned", False)
    kind, of_pass = passes_of(problem(name))["fprop"]
    plan = choose("cuda", kind, of_pass, Constraint("cuda", family, transform=()), ffi.device("cuda")).plan
    x, w, _ = (a.astype("bfloat16") for a in convolutions()[name].operands())
    operands = operands_of(of_pass, "float32", ("scale", "bias", "residual"))
    convolve = ffi.convolution(plan, of_pass, Epilogue(tuple(operands), activation_of("relu")))
    apart = jax.jit(lambda flat, w, *operands: convolve(flat[1:].reshape(x.shape), w, *operands))
    shifted = np.concatenate([np.zeros(1, x.dtype), x.ravel()])
    expected = ended(of_pass, exact()[1][name][0], operands, "relu")
    np.testing.assert_array_equal(apart(shifted, w, *operands.values()), expected)


@pytest.mark.parametrize("operands, message", [
    (dict(bias=np.zeros(4, "float32")), "the bias has 4 numbers for 200 output channels"),
    (dict(scale=np.zeros(200, "bfloat16")), "the scale must be float32, as the sums are"),
    (dict(residual=np.zeros((3, 23, 21, 200), "float32")), "the residual must be bfloat16, as the result is"),
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(operands, message):
    kind, of_pass = passes_of(problem("many_of_all"))["fprop"]
    x, w, _ = (a.astype("bfloat16") for a in convolutions()["many_of_all"].operands())
    conv = functools.partial(with_epilogue, "cuda", of_pass, constraint("mma"), operands=operands)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
        jax.block_until_ready(jax.jit(conv)(x, w))
