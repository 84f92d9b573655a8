"""Convolutions with an epilogue, against lax's convolution followed by the same expression."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import export, lax

import jaxconv
from cases.derivatives import grad_of_grad, gradients, jvp_of_grad, loss, remat, stack, third_order
from cases.fused import ACTIVATIONS, CASES, EVERY, EXACT, SMOOTH, Fused, channels_last_fused, cotangent, pullback
from cases.parts import diagonal, parts, repeated
from cases.programs import CALLS_ALONE, exported
from cases.random_problems import laid_out
from cases.reference import WITHOUT_SIMPLIFIER, assert_same, custom_calls, integers, opcodes, run, run_on_host
from jaxconv.explain import lines
from jaxconv.planner.plan import Constraint

RTOL = 2e-5


pytestmark = pytest.mark.usefixtures("full_precision")


def check(transform, case, implementation, arrays, rtol=0.0):
    """A transform of ours and of theirs, `transform(function)(*arrays)`."""
    actual = run(transform(case.ours(implementation)), *arrays)
    assert_same(actual, run_on_host(transform(case.theirs()), *arrays, **WITHOUT_SIMPLIFIER), rtol)


# Values and gradients.


@pytest.mark.parametrize("name, activation", diagonal(CASES, EXACT))
def test_value_and_gradients(name, activation, implementation):
    case = CASES[name].with_activation(activation)
    arrays = case.arrays()
    g = cotangent(case, arrays)
    check(lambda f: lambda *arrays: pullback(f)(arrays, g), case, implementation, arrays)


@pytest.mark.parametrize("activation", SMOOTH)
def test_smooth_activations(activation, implementation):
    case = CASES["grouped"].with_activation(activation)
    arrays = case.arrays()
    g = cotangent(case, arrays)
    check(lambda f: lambda *arrays: pullback(f)(arrays, g), case, implementation, arrays, RTOL)


@pytest.mark.parametrize("name", ["grouped", "batch_groups", "channels_first"])
def test_without_an_epilogue(name, implementation):
    """The plain convolution, and its gradients."""
    case = dataclasses.replace(CASES[name], operands=(), activation="none")
    arrays = case.arrays()
    g = cotangent(case, arrays)
    check(lambda f: lambda *arrays: pullback(f)(arrays, g), case, implementation, arrays)


@pytest.mark.parametrize("scaled", [False, True])
def test_only_a_scaled_residual_is_kept_for_derivatives(scaled):
    x, w, residual = integers((2, 6, 6, 4)), integers((3, 3, 4, 8)), 7.25 * np.ones((2, 6, 6, 8), np.float32)
    scales = {"residual_scale": np.float32(2)} if scaled else {}
    conv = lambda residual: jaxconv.conv2d(x, w, residual=residual, activation="relu", **scales)
    _, backward = jax.vjp(conv, residual)
    kept = [leaf for leaf in jax.tree.leaves(backward) if np.shape(leaf) == residual.shape]
    assert any(np.array_equal(leaf, residual) for leaf in kept) == scaled


@pytest.mark.parametrize("case", [CASES["dense"], CASES["strided"], CASES["scalars"]], ids=str)
def test_by_lax(case):
    """implementation="xla" has the same values, and no call of ours."""
    arrays = case.arrays()
    g = cotangent(case, arrays)
    transform = lambda f: lambda *arrays: pullback(f)(arrays, g)
    check(transform, case, "xla", arrays)
    text = jax.jit(transform(case.ours("xla"))).lower(*arrays).as_text()
    assert not custom_calls(text) and text.count("stablehlo.convolution") == 3


def test_without_jit(implementation):
    case = CASES["dense"]
    arrays = case.arrays()
    g = cotangent(case, arrays)
    assert_same(pullback(case.ours(implementation))(arrays, g), run_on_host(pullback(case.theirs()), arrays, g))
    with jax.disable_jit():
        assert_same(case.ours(implementation)(*arrays), run_on_host(case.theirs(), *arrays))


SIZES = st.sampled_from([1, 2, 3, 2, 3, 5, 1, 2, 3, 0])
SMALL = st.sampled_from([1, 2, 1, 3, 1])
PADDINGS = st.tuples(*[st.sampled_from([0, 1, 2, -1, 3, 7])] * 2)


@st.composite
def problems(draw):
    rank = draw(st.sampled_from([2, 1, 3]))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups, batch_groups = draw(st.sampled_from([(1, 1), (1, 1), (3, 1), (1, 2)]))
    layout = lax.ConvDimensionNumbers(*(tuple(draw(st.permutations(range(rank + 2)))) for _ in range(3)))
    ins, outs, images = draw(SIZES), draw(SIZES) * groups * batch_groups, draw(SIZES) * batch_groups
    params = dict(
        window_strides=each(SMALL), padding=each(PADDINGS), lhs_dilation=each(SMALL), rhs_dilation=each(SMALL),
        dimension_numbers=layout, feature_group_count=groups, batch_group_count=batch_groups,
    )  # fmt: skip
    lhs = laid_out(layout.lhs_spec, images, ins * groups, each(st.sampled_from([4, 3, 5, 2, 7][: 7 - rank])))
    rhs = laid_out(layout.rhs_spec, outs, ins, each(st.sampled_from([1, 2, 3])))
    operands = tuple(name for name in EVERY[:3] if draw(st.booleans()))
    scalars = tuple(name for name in operands if draw(st.booleans()))
    if "residual" in operands and draw(st.booleans()):
        operands = (*operands, "residual_scale")
    return Fused(lhs, rhs, params, operands, scalars, draw(st.sampled_from(EXACT)))


def is_accepted(case):
    try:
        case.arrays()
    except (TypeError, ValueError):  # nothing is left of the image
        return False
    return True


@parts(3)
@settings(
    max_examples=3, database=None, print_blob=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
@given(drawn=st.lists(problems(), min_size=12, max_size=12))
def test_random_problems(drawn, part, implementation):
    """Bit-equal, with all gradients; those of an example share a compilation."""
    cases = [case for case in drawn if is_accepted(case)]
    arrays = [case.arrays() for case in cases]
    gs = [cotangent(case, a) for case, a in zip(cases, arrays, strict=True)]
    every = lambda functions: lambda arrays: [
        pullback(f)(a, g) for f, a, g in zip(functions, arrays, gs, strict=True)
    ]  # fmt: skip
    actual = run(every([case.ours(implementation) for case in cases]), arrays)
    expected = run_on_host(every([case.theirs() for case in cases]), arrays, **WITHOUT_SIMPLIFIER)
    for case, a, e in zip(cases, actual, expected, strict=True):
        try:
            assert_same(a, e)
        except AssertionError as error:
            error.add_note(repr(case))
            raise


def test_front_doors(implementation):
    """conv1d, conv2d and conv3d take the same arguments, and have custom_vjp derivatives."""
    for case in (CASES["activation_alone"], CASES["dense"], CASES["volume"]):
        x, w, *operands = case.arrays()
        conv = getattr(jaxconv, f"conv{x.ndim - 2}d")
        y = conv(x, w, **dict(zip(case.operands, operands)), activation="relu", implementation=implementation)
        np.testing.assert_array_equal(y, case.ours(implementation)(x, w, *operands))
        with pytest.raises(TypeError, match="custom_vjp"):
            jax.jvp(lambda x: conv(x, w, bias=1.0, implementation=implementation), (x,), (x,))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_circular_padding(stride, implementation):
    """Of a dimension that the stride divides, and of one that it does not."""
    case = channels_last_fused((2, 6, 7, 3), (3, 3, 3, 4), ("bias",), window_strides=(stride,) * 2)
    x, w, bias = case.arrays()
    params = dict(window_strides=stride, padding="CIRCULAR", implementation=implementation)
    fused = lambda implementation: lambda x, w, bias: jaxconv.conv2d(
        x, w, bias=bias, activation="relu", **params | dict(implementation=implementation)
    )  # fmt: skip
    plain = lambda x, w, bias: jax.nn.relu(jaxconv.conv2d(x, w, **params) + bias)
    g = integers(jax.eval_shape(plain, x, w, bias).shape)
    expected = run(pullback(plain), (x, w, bias), g)
    for named in (implementation, "xla"):
        assert_same(run(pullback(fused(named)), (x, w, bias), g), expected)


# Dtypes.


def expected_in(case, arrays, out_dtype):
    """In float32, rounded once."""
    wide = [np.asarray(a).astype("float32") for a in arrays]
    return np.asarray(run_on_host(case.theirs(), *wide)).astype(out_dtype)


WIDE = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("dtype, out_dtype, residual, activation", diagonal(
    list(itertools.product(WIDE, WIDE)), [None, "float32", "int8", "float8_e5m2"], ["relu", "leaky"]
))  # fmt: skip
def test_dtypes(dtype, out_dtype, residual, activation, implementation):
    case = CASES["dense"].with_activation(activation)
    arrays = case.arrays(dtype, residual)
    actual = run(case.ours(implementation, out_dtype=out_dtype), *arrays)
    assert actual.dtype == out_dtype
    np.testing.assert_array_equal(actual, expected_in(case, arrays, out_dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_once(dtype, implementation):
    """256 + 1 is no bfloat16, 2048 + 1 no float16; 256 + 1 - 256 is one."""
    large = 256 if dtype == "bfloat16" else 2048
    x, w = np.array([[[large, 1]]], dtype), np.ones((1, 2, 1), dtype)
    bias, residual = np.full(1, -large, "float32"), np.zeros((1, 1, 1), dtype)
    y = run(functools.partial(jaxconv.conv1d, implementation=implementation), x, w)
    assert float(y[0, 0, 0]) == large
    fused = lambda x, w, bias, residual: jaxconv.conv1d(
        x, w, bias=bias, residual=residual, implementation=implementation
    )  # fmt: skip
    assert float(run(fused, x, w, bias, residual)[0, 0, 0]) == 1


@pytest.mark.parametrize("activation, dtype, out_dtype", diagonal(
    list(ACTIVATIONS), [("float64", None), ("float32", "float64"), ("float64", "float32")]
))  # fmt: skip
def test_float64(activation, dtype, out_dtype, implementation, x64):
    case = CASES["grouped"].with_activation(activation)
    arrays = case.arrays(dtype)
    wide = [np.asarray(a).astype("float64") for a in arrays]
    expected = np.asarray(run_on_host(case.theirs(), *wide)).astype(out_dtype or dtype)
    actual = run(case.ours(implementation, out_dtype=out_dtype), *arrays)
    assert_same(actual, expected, 0 if activation in EXACT else 1e-14 if actual.dtype == "float64" else 1e-7)


@pytest.mark.parametrize("out_dtype", [None, "bfloat16", "int8"])
def test_int8_operands(out_dtype, implementation):
    """Sums are exact, also beyond int8."""
    case = CASES["dense"]
    arrays = case.arrays("int8", bound=40)
    actual = run(case.ours(implementation, out_dtype=out_dtype), *arrays)
    wide = expected_in(case, arrays, "float32")
    expected = np.clip(np.round(wide), -128, 127) if out_dtype == "int8" else wide
    assert_same(actual, expected.astype(out_dtype or "float32"))


@pytest.mark.parametrize("out_dtype, largest", [("int8", 127), ("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("scaled", [False, True])
def test_quantised_results(dtype, out_dtype, largest, scaled, implementation):
    case = CASES["dense"].with_activation("leaky")
    x, w, *operands = case.arrays(dtype)
    out_scale = np.array([1, 0.5, 64, 4096], "float32") if scaled else None
    actual = run(case.ours(implementation, out_dtype=out_dtype, out_scale=out_scale), x, w, *operands)
    wide = expected_in(case, (x, w, *operands), "float32") * (out_scale if scaled else 1)
    low = -128 if out_dtype == "int8" else -largest
    rounded = np.clip(np.round(wide) if out_dtype == "int8" else wide, low, largest).astype(out_dtype)
    assert_same(actual, rounded)
    assert np.any(np.abs(wide) > largest) == (scaled and out_dtype != "float8_e5m2")


def test_nans_and_infinities(implementation):
    x = np.ones((1, 3, 1), "float32")
    x[0, :, 0] = np.nan, np.inf, -np.inf
    conv = functools.partial(jaxconv.conv1d, x, np.ones((1, 1, 1), "float32"), implementation=implementation)
    for activation, expected in {"relu": [np.nan, np.inf, 0], "relu6": [np.nan, 6, 0], "leaky_relu": x.ravel()}.items():
        np.testing.assert_array_equal(conv(activation=activation).ravel(), np.asarray(expected, "float32"))
    np.testing.assert_array_equal(conv(out_dtype="int8").ravel(), np.array([0, 127, -128], "int8"))
    y = np.asarray(conv(out_dtype="float8_e4m3fn"), "float32").ravel()
    np.testing.assert_array_equal(y, np.array([np.nan, 448, -448], "float32"))


# Derivatives.


NAMES = ["dense", "grouped", "scalars", "strided"]
HIGHER_ORDERS = [grad_of_grad, jvp_of_grad, third_order, remat]


@pytest.mark.parametrize("name, activation, transform", [
    *diagonal(NAMES, ["silu"], HIGHER_ORDERS), *diagonal(NAMES, ["none", "relu", "leaky"], HIGHER_ORDERS)
])  # fmt: skip
def test_higher_orders(name, activation, transform, implementation):
    case = CASES[name].with_activation(activation)
    check(transform, case, implementation, case.arrays(), 1e-4 if transform is third_order else RTOL)


def test_second_order_of_float8_and_int8_operands(implementation):
    """Whatever is no real number has no derivative, and breaks none."""
    case = CASES["dense"].with_activation("silu")
    arrays = case.arrays("int8", "float32")
    ours = lambda scale, bias: case.ours(implementation)(*arrays[:2], scale, bias, *arrays[4:])
    theirs = lambda scale, bias: case.theirs()(*(a.astype("float32") for a in arrays[:2]), scale, bias, *arrays[4:])
    assert_same(run(grad_of_grad(ours), *arrays[2:4]), run_on_host(grad_of_grad(theirs), *arrays[2:4]), RTOL)
    quantised = lambda *arrays: case.ours(implementation, out_dtype="float8_e5m2")(*arrays).astype("float32")
    for second in run(grad_of_grad(quantised), *case.arrays()):
        assert np.all(np.isfinite(np.asarray(second)))


# vmap.


def mapped(case, axes):
    """Value and gradients inside of the vmap, and gradients of it."""
    g = cotangent(case, case.arrays())

    def transform(function):
        def both(*arrays):
            inside = jax.vmap(lambda *arrays: pullback(function)(arrays, g), axes)(*arrays)
            outside = jax.vjp(jax.vmap(function, axes), *arrays)[1](jnp.stack([g, 1 - g, 2 * g]))
            return inside, outside

        return both

    return transform


NOTHING = (None,) * 6
# x, w, scale, bias, residual, residual_scale: every choice of some, but of three or four it is one of five.
CHOICES = [axes for axes in itertools.product([None, 0], repeat=6) if axes != NOTHING]
PARTS = {"few": [a for a in CHOICES if sum(x == 0 for x in a) in (1, 2, 5, 6)], "some": CHOICES[::5]}


MAPPED = ["dense", "grouped", "scalars", "batch_groups"]


# An eighth of the choices for each case in the quick run, another one for each.
@pytest.mark.parametrize("name, part", [
    *diagonal(MAPPED, range(4)), *itertools.starmap(repeated, itertools.product(MAPPED, range(4, 8)))
])  # fmt: skip
def test_vmap_of_some_operands(name, part, implementation):
    case = CASES[name]
    chosen = sorted(set(PARTS["few"] + PARTS["some"]), key=str)[part::8]
    stacked = [[stack(a, axis) for a, axis in zip(case.arrays(), axes, strict=True)] for axes in chosen]
    every = lambda function: lambda stacked: [
        mapped(case, axes)(function)(*arrays) for axes, arrays in zip(chosen, stacked, strict=True)
    ]  # fmt: skip
    actual = run(every(case.ours(implementation)), stacked)
    expected = run_on_host(every(case.theirs()), stacked, **WITHOUT_SIMPLIFIER)
    for axes, a, e in zip(chosen, actual, expected, strict=True):
        try:
            assert_same(a, e)
        except AssertionError as error:
            error.add_note(str(axes))
            raise


@pytest.mark.parametrize(
    "axes", [(1, 2, None, 0, 3, None), (3, None, None, None, 1, None), (None, 4, 1, 0, None, None)]
)
def test_vmap_over_other_axes(axes, implementation):
    case = CASES["grouped"]
    arrays = [stack(a, axis) for a, axis in zip(case.arrays(), axes, strict=True)]
    check(mapped(case, axes), case, implementation, arrays)


NESTS = {
    "x_then_w": [(0, None, None, None, 0, None), (None, 0, 0, 0, None, None)],
    "w_then_x": [(None, 0, 0, None, None, None), (0, None, None, None, None, None)],
    "both_then_both": [(0, 0, None, 0, 0, None), (0, 0, 0, 0, None, None)],
    "both_then_bias": [(0, 0, 0, 0, 0, 0), (None, None, None, 0, None, None)],
    "bias_then_x": [(None, None, None, 0, None, None), (0, None, None, None, None, None)],
}


@pytest.mark.parametrize(
    "nest, name, activation", diagonal(NESTS, ["dense", "grouped", "channels_outermost"], ["relu", "relu6"])
)
def test_nested_vmaps(nest, name, activation, implementation):
    case, maps = CASES[name].with_activation(activation), NESTS[nest]
    arrays, g = case.arrays(), cotangent(case, case.arrays())

    def transform(function):
        nested = lambda *arrays: pullback(function)(arrays, g)
        for axes in maps:
            nested = jax.vmap(nested, axes)
        return nested

    for axes in maps:
        arrays = [stack(a, axis, 2) for a, axis in zip(arrays, axes, strict=True)]
    check(transform, case, implementation, arrays)


def test_per_example_gradients(implementation):
    case = CASES["dense"].with_activation("silu")
    x, *others = case.arrays()
    transform = lambda function: jax.vmap(gradients(loss(function)), (0, *(None,) * len(others)))
    check(transform, case, implementation, [stack(x, 0), *others], RTOL)


@pytest.mark.parametrize("axes", [(0, None, None, None, None, None), (None, 0, None, 0, None, None)], ids=str)
def test_vmap_of_no_elements(axes, implementation):
    case = CASES["dense"]
    arrays = [a if axis is None else jnp.zeros((0, *a.shape)) for a, axis in zip(case.arrays(), axes, strict=True)]
    check(lambda function: jax.vmap(function, axes), case, implementation, arrays)


def test_hessian_of_a_vmap(implementation):
    """Forward over reverse over a folded axis."""
    case = channels_last_fused((1, 4, 2), (2, 2, 2), ("scale", "bias"), activation="silu")
    x, w, scale, bias = case.arrays()
    second = lambda function: jax.hessian(
        lambda w, scale: jnp.sum(jnp.sin(jax.vmap(function, (0, 0, None, 0))(stack(x, 0), w, scale, stack(bias, 0)))),
        argnums=(0, 1),
    )  # fmt: skip
    check(second, case, implementation, (stack(w, 0), scale), RTOL)


# Programs.


IN_ONE_CALL = [("dense", dtype, activation) for dtype in ("float32", "bfloat16") for activation in ACTIVATIONS]
IN_ONE_CALL += [(name, "float16", "relu") for name in ("grouped", "depthwise", "channels_first", "out_of_reach")]


@pytest.mark.parametrize("name, dtype, activation", [*IN_ONE_CALL, ("scalars", "float32", "relu")])
def test_one_call_has_all_of_it(name, dtype, activation, implementation):
    """No other operation passes over the output. As the problem is: a transform changes small arrays by XLA."""
    case = CASES[name].with_activation(activation)
    as_it_is = Constraint(platform=implementation, transform=())
    hlo = jax.jit(case.ours(as_it_is)).lower(*case.arrays(dtype)).compile().as_text()
    assert custom_calls(hlo) == {"conv": 1}
    assert set(opcodes(hlo)) <= CALLS_ALONE


@pytest.mark.parametrize("more, residual", [
    (dict(out_dtype="int8"), None), (dict(out_dtype="float16"), None), (dict(), "float16"), (dict(), "float32"),
    (dict(out_dtype="float8_e5m2", out_scale=2.0), None),
])  # fmt: skip
def test_what_no_kernel_of_a_gpu_ends_with(more, residual, implementation):
    """One call for the sums, and XLA. A host's ends with all of it."""
    case = CASES["dense"]
    hlo = jax.jit(case.ours(implementation, **more)).lower(*case.arrays("bfloat16", residual)).compile().as_text()
    assert custom_calls(hlo) == {"conv": 1}
    assert (set(opcodes(hlo)) <= CALLS_ALONE) == (implementation == "cpu")


@pytest.mark.parametrize("dtype, residual", [
    ("bfloat16", "int8"), ("bfloat16", "float8_e5m2"), ("float16", "float8_e4m3fn"), ("float32", "bfloat16"),
])  # fmt: skip
def test_a_residual_whose_numbers_the_result_has(dtype, residual, implementation):
    """A GPU's kernel adds it, as the result's dtype; a host's as it is."""
    case = CASES["dense"]
    arrays = case.arrays(dtype, residual)
    program = jax.jit(case.ours(Constraint(platform=implementation, transform=())))
    found = opcodes(program.lower(*arrays).compile().as_text())
    assert "add" not in found and ("convert" in found) == (implementation == "cuda")
    np.testing.assert_array_equal(program(*arrays), expected_in(case, arrays, dtype))


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_training_step(activation, implementation):
    """One call for each pass: nothing is computed again."""
    case = CASES["dense"].with_activation(activation)
    hlo = jax.jit(gradients(loss(case.ours(implementation)))).lower(*case.arrays()).compile().as_text()
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}


@pytest.mark.parametrize("axes", [
    (0, None, None, None, None, None), (0, None, None, None, 0, None), (None, 0, 0, 0, None, None),
    (0, 0, 0, 0, 0, None), (0, 0, None, None, None, None),
])  # fmt: skip
def test_vmap_stays_fused(axes, implementation):
    case = CASES["grouped"]
    arrays = [stack(a, axis) for a, axis in zip(case.arrays(), axes, strict=True)]
    text = jax.jit(jax.vmap(case.ours(implementation), axes)).lower(*arrays).as_text()
    assert custom_calls(text) == {"conv": 1}
    assert "stablehlo.maximum" not in text


def test_explain(implementation):
    case = CASES["dense"]
    (line,) = lines(case.ours(implementation), *case.arrays("bfloat16"))
    assert line.startswith("fprop with its epilogue bfloat16[2,5,4,3] * bfloat16[3,2,3,4] -> bfloat16[2,5,4,4]")
    (line,) = lines(case.ours(implementation, out_dtype="int8"), *case.arrays("bfloat16"))
    what, result = {
        "cpu": ("fprop with its epilogue", "int8"), "cuda": ("fprop, then its epilogue by XLA,", "float32"),
    }[implementation]  # fmt: skip
    assert line.startswith(f"{what} bfloat16[2,5,4,3] * bfloat16[3,2,3,4] -> {result}[2,5,4,4]")
    first, *others = lines(gradients(loss(case.ours(implementation))), *case.arrays())
    assert first.startswith("fprop with its epilogue") and {line.split()[0] for line in others} == {"dgrad", "wgrad"}


@pytest.mark.parametrize("name, activation", diagonal(["dense", "grouped", "channels_first"], ["relu", "silu"]))
def test_export_with_any_batch(name, activation, implementation):
    case = CASES[name].with_activation(activation)
    (batch,) = export.symbolic_shape("b")
    arrays = case.arrays()
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    types[0], types[4] = (jax.ShapeDtypeStruct((batch, *types[i].shape[1:]), types[i].dtype) for i in (0, 4))
    program = exported(case.ours(implementation), *types)
    program = export.deserialize(program.serialize(vjp_order=1))
    assert custom_calls(program.mlir_module()) == {"conv": 1}
    for images in (1, 3):
        x, w, scale, bias, residual, residual_scale = arrays
        few = [np.concatenate([a] * 2)[:images] for a in (x, residual)]
        arguments = few[0], w, scale, bias, few[1], residual_scale
        g = integers(few[1].shape, "float32", 9)
        y, gradients = run_on_host(pullback(case.theirs()), arguments, g)
        assert_same(program.call(*arguments), y, RTOL)
        assert_same(tuple(program.vjp().call(*arguments, g)), gradients, RTOL)
