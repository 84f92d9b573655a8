"""`precision` as an algorithm: which kernels multiply float32 so, and what lax is asked where it answers."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.problems import layer
from jaxconv import fallback
from jaxconv.lowering import decide, seen_by_kernels
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.plan import Constraint, Lax
from jaxconv.planner.xla import choose_or_lax
from jaxconv.problem.algorithms import OF_PRESET, Float32
from jaxconv.traced import trace

Preset = lax.DotAlgorithmPreset
X, W = (4, 28, 28, 128), (3, 3, 128, 128)
ALGORITHMS = {
    Preset.BF16_BF16_F32: Float32.BF16,
    Preset.TF32_TF32_F32: Float32.TF32,
    Preset.BF16_BF16_F32_X3: Float32.BF16X6,
    Preset.TF32_TF32_F32_X3: Float32.BF16X6,
    Preset.BF16_BF16_F32_X6: Float32.BF16X6,
    Preset.BF16_BF16_F32_X9: Float32.FLOAT32,
    Preset.F32_F32_F32: Float32.FLOAT32,
}
OTHERS = [preset for preset in Preset if preset not in (Preset.DEFAULT, *ALGORITHMS)]
each_algorithm = pytest.mark.parametrize("preset", ALGORITHMS, ids=lambda preset: preset.name)


@pytest.fixture
def typical_gpu(cuda_kernels, monkeypatch):
    monkeypatch.setattr("jaxconv.ffi.device", lambda platform: TYPICAL_DEVICE)


def of_layer(precision, dtype="float32"):
    return layer(X, W, dtype, precision=precision)


def plan(kind, problem):
    return choose("cuda", kind, problem, device=TYPICAL_DEVICE).plan


def test_the_algorithms():
    assert OF_PRESET == ALGORITHMS


@each_algorithm
@pytest.mark.parametrize("kind", ["conv", "wgrad"])
def test_kernels_of_an_algorithm(preset, kind, typical_gpu):
    """Those of tf32, of parts, or of float32 itself; and those of bfloat16 where operands are rounded to it."""
    for problem in (of_layer(preset), of_layer(preset).dgrad()) if kind == "conv" else (of_layer(preset),):
        plan = decide(kind, "cuda", problem, "cuda").plan
        match ALGORITHMS[preset]:
            case Float32.FLOAT32:
                assert plan.family == "simt"
            case Float32.BF16X6:
                assert plan.family == "wgmma" and "bf16x6" in plan.tile
            case Float32.TF32:
                assert plan.family == "wgmma" and "bf16x6" not in plan.tile and (plan.transform or problem.reverse)
            case Float32.BF16:
                assert plan.family == "wgmma" and "bf16x6" not in plan.tile and not plan.transform


def test_highest_is_bf16x6_or_float32():
    highest, default = of_layer(lax.Precision.HIGHEST), of_layer(None)
    assert "bf16x6" in plan("conv", highest).tile and "bf16x6" not in plan("conv", default).tile
    few = layer((2, 9, 9, 3), (3, 3, 3, 5), precision="highest")
    assert plan("conv", few).family == "simt"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types_are_multiplied_as_they_are(dtype, x64):
    for precision in (None, *ALGORITHMS, lax.Precision.HIGHEST):
        assert plan("conv", of_layer(precision, dtype)) == plan("conv", of_layer(None, dtype))


@each_algorithm
def test_lax_is_no_candidate_for_an_algorithm(preset):
    """It would compute as at DEFAULT."""
    for problem in (of_layer(preset), of_layer(preset).dgrad()):
        assert not isinstance(choose_or_lax("cuda", "conv", problem, TYPICAL_DEVICE).plan, Lax)


@each_algorithm
def test_lax_in_our_place_computes_at_highest(preset):
    x, w = jnp.ones(X), jnp.ones(W)
    (equation,) = (
        e for e in jax.make_jaxpr(fallback.lax_conv(of_layer(preset)))(x, w).eqns
        if e.primitive is lax.conv_general_dilated_p
    )  # fmt: skip
    assert equation.params["precision"] == (lax.Precision.HIGHEST,) * 2


def precisions_of_lax(function, *operands):
    """Of the convolutions of a function, also within others."""
    text = str(jax.make_jaxpr(function)(*operands))
    return set(re.findall(r"precision=([^\n]*)", text))


@each_algorithm
@pytest.mark.filterwarnings("ignore::jaxconv.FallbackWarning")
def test_lax_as_asked_and_where_no_kernel_is_computes_at_highest(preset):
    """Also if the algorithm is a name, or the context's."""
    flat, four = (jnp.ones((1, 2, *[3] * rank)) for rank in (2, 4))
    conv = lambda x, **asked: jaxconv.conv_general_dilated(x, x, (1,) * (x.ndim - 2), "SAME", **asked)
    for precision in (preset, preset.name):
        asked = functools.partial(conv, precision=precision)
        named = functools.partial(asked, implementation="xla")
        for found in (precisions_of_lax(named, flat), precisions_of_lax(asked, four)):
            assert found == {"(Precision.HIGHEST, Precision.HIGHEST)"}, found
    with jax.default_matmul_precision(preset.name):
        assert precisions_of_lax(functools.partial(conv, implementation="xla"), flat) == {
            "(Precision.HIGHEST, Precision.HIGHEST)"
        }


@each_algorithm
def test_a_host_computes_in_float32(preset):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((2, 9, 9, 8), (3, 3, 8, 8)))

    def passes(precision):
        y, pullback = jax.vjp(lambda x, w: jaxconv.conv2d(x, w, precision=precision), x, w)
        return y, *pullback(y)

    for actual, expected in zip(passes(preset), passes(None), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("preset", OTHERS, ids=lambda preset: preset.name)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_other_algorithms_are_refused(preset, dtype):
    x, w = jnp.ones((2, 9, 9, 8), dtype), jnp.ones((3, 3, 8, 8), dtype)
    with pytest.raises(
        ValueError, match=f"precision .* float32 is multiplied by .*BF16_BF16_F32_X6.* not by .*{preset}"
    ):
        jaxconv.conv2d(x, w, precision=preset)
    halves = (jnp.ones(a.shape, "bfloat16") for a in (x, w))
    assert jaxconv.conv2d(*halves, precision=preset).dtype == "bfloat16"


def test_the_algorithm_of_a_context():
    """As lax reads it."""
    with jax.default_matmul_precision("BF16_BF16_F32_X6"):
        (equation,) = trace(jaxconv.conv2d, jnp.ones((1, 5, 5, 8)), jnp.ones((3, 3, 8, 8))).equations
    assert equation.params["problem"].precision is Preset.BF16_BF16_F32_X6


def test_bfloat16_is_not_slower_than_float32(typical_gpu):
    """Groups of one channel are multiplied as they are: kernels for them are of both types, and casts are more work."""
    rounds = lambda x, w, **params: decide(
        "conv", "cuda", layer(x, w, precision=Preset.BF16_BF16_F32, **params), "cuda"
    )
    depthwise = rounds((8, 56, 56, 144), (3, 3, 1, 144), feature_group_count=144)
    assert depthwise.plan.family == "depthwise"
    seen = seen_by_kernels("conv", "cuda", of_layer(Preset.BF16_BF16_F32)).problem
    assert seen.lhs_dtype == seen.rhs_dtype == "bfloat16" and seen.out_dtype == "float32"


def test_results_of_float64_are_of_float32_operands(typical_gpu, x64):
    """They are not rounded to bfloat16: no kernel has float64 results of it."""
    problem = layer(X, W, "float32", "float64", precision=Preset.BF16_BF16_F32)
    for kind in ("conv", "wgrad"):
        assert decide(kind, "cuda", problem, "cuda").plan.family == "simt"


@pytest.mark.parametrize("preset", [Preset.F32_F32_F32, Preset.BF16_BF16_F32_X9], ids=lambda preset: preset.name)
def test_float32_itself_is_for_no_tensor_core(preset):
    for family in ("mma", "wgmma"):
        choice = choose("cuda", "conv", of_layer(preset), Constraint(family=family))
        assert choice.plan is None and "float32 is to be multiplied as it is" in choice.unsupported_reason()


@pytest.mark.parametrize("preset", OTHERS, ids=lambda preset: preset.name)
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_gradients_of_narrow_types_by_an_algorithm_that_float32_lacks(preset, dtype):
    """Their gradients are computed in float32, which the algorithm was not asked for."""
    x, w = np.ones((2, 5, 5, 8), dtype), np.ones((3, 3, 8, 8), dtype)
    wide = x if dtype != "int8" else np.ones(1, "float32")
    arguments = dict(out_dtype="float32", implementation="cpu", precision=preset)

    def loss(scale, x):
        return jaxconv.conv2d(x if dtype != "int8" else np.ones((2, 5, 5, 8), dtype), w, scale=scale, **arguments).sum()

    of_scale, of_x = jax.grad(loss, argnums=(0, 1))(np.ones(8, "float32"), wide)
    arguments["precision"] = None
    expected_scale, expected_x = jax.grad(loss, argnums=(0, 1))(np.ones(8, "float32"), wide)
    np.testing.assert_array_equal(of_scale, expected_scale)
    np.testing.assert_array_equal(of_x.astype("float32"), expected_x.astype("float32"))


@pytest.mark.parametrize("preset", OTHERS, ids=lambda preset: preset.name)
def test_gradients_of_float8_on_a_gpu(preset, typical_gpu):
    float8 = jnp.dtype("float8_e4m3fn")
    problem = layer(X, W, float8, "float32", precision=preset)
    for kind, p in (("conv", problem), ("conv", problem.dgrad()), ("wgrad", problem)):
        assert decide(kind, "cuda", p, "cuda").plan is not None


@pytest.mark.parametrize("preset", Preset, ids=lambda preset: preset.name)
def test_float8_as_it_is(preset, typical_gpu):
    """By the algorithms that are for it, and by those of float32 that ask for no more than the default."""
    problem = layer((64, 28, 28, 256), (3, 3, 256, 256), jnp.dtype("float8_e4m3fn"), "bfloat16", precision=preset)
    is_native = seen_by_kernels("conv", "cuda", problem).problem.lhs_dtype == problem.lhs_dtype
    of_float8 = preset.name.startswith("ANY_F8") or preset.name in ("DEFAULT", "BF16_BF16_F32", "TF32_TF32_F32")
    assert is_native == of_float8


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_algorithms_that_float32_lacks_are_refused(implementation):
    """Also where lax answers, which would compute at another precision. The message names what asked for it."""
    x, w = np.ones((1, 5, 5, 4), "float32"), np.ones((3, 3, 4, 4), "float32")
    with pytest.raises(ValueError, match=r"^precision must be one .*F64_F64_F64"):
        jaxconv.conv2d(x, w, precision="F64_F64_F64", implementation=implementation)
    of_context = pytest.raises(ValueError, match=r"^jax\.default_matmul_precision must be one .*F64_F64_F64")
    with of_context, jax.default_matmul_precision("F64_F64_F64"):
        jaxconv.conv2d(x, w, implementation=implementation)
