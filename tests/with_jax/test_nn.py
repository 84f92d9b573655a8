"""`jaxconv.nn` against flax's own layer, then the residual and the activation: outputs and all gradients."""

import functools

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxconv.nn
from cases.layers import APIS, flaxs, ours
from cases.parts import every_other, in_turns
from cases.reference import assert_same, integers, run, run_on_host, value_and_gradients
from jaxconv.explain import lines

MASK = np.tri(3 * 3 * 3, 4, dtype="float32").reshape(3, 3, 3, 4)

CONV = {
    "dense": ((2, 6, 5, 3), dict(kernel_size=(3, 3))),
    "strided": ((2, 7, 6, 3), dict(kernel_size=(3, 2), strides=2, padding="VALID")),
    "dilated": ((2, 6, 5, 3), dict(kernel_size=(3, 3), kernel_dilation=2, padding=((2, 1), (0, 3)))),
    "input_dilated": ((2, 3, 4, 3), dict(kernel_size=(3, 3), input_dilation=2, padding=[1, (2, 1)])),
    "grouped": ((2, 6, 5, 4), dict(kernel_size=(3, 3), feature_group_count=2, padding=1)),
    "depthwise": ((2, 6, 5, 4), dict(kernel_size=(3, 3), strides=None, feature_group_count=4)),
    "without_bias": ((2, 6, 5, 3), dict(kernel_size=(3, 3), use_bias=False)),
    "masked": ((2, 6, 5, 3), dict(kernel_size=(3, 3), mask=MASK)),
    "row": ((2, 9, 3), dict(kernel_size=3)),
    "causal": ((2, 9, 3), dict(kernel_size=(3,), padding="CAUSAL", kernel_dilation=2)),
    "causal_strided": ((2, 8, 3), dict(kernel_size=(3,), padding="CAUSAL", strides=3)),
    "circular": ((2, 6, 5, 3), dict(kernel_size=(3, 4), padding="CIRCULAR")),
    "circular_strided": ((2, 7, 5, 3), dict(kernel_size=(3, 2), strides=2, kernel_dilation=2, padding="CIRCULAR")),
    "circular_often": ((2, 2, 3), dict(kernel_size=(9,), padding="CIRCULAR")),
    "reflect": ((2, 6, 5, 3), dict(kernel_size=(3, 4), padding="REFLECT")),
    "reflect_dilated": ((2, 9, 3), dict(kernel_size=(4,), kernel_dilation=2, padding="REFLECT")),
    "volume": ((2, 4, 3, 4, 2), dict(kernel_size=(2, 3, 2), padding="CIRCULAR")),
    "one_image": ((6, 5, 3), dict(kernel_size=(3, 3))),
    "two_batches": ((2, 3, 6, 5, 3), dict(kernel_size=(3, 3), strides=(2, 1), padding="REFLECT")),
    "three_batches_of_rows": ((2, 1, 3, 7, 3), dict(kernel_size=(3,))),
}

CONV_TRANSPOSE = {
    "dense": ((2, 6, 5, 3), dict(kernel_size=(3, 3))),
    "strided": ((2, 4, 5, 3), dict(kernel_size=(3, 2), strides=(2, 2), padding="VALID")),
    "dilated": ((2, 4, 5, 3), dict(kernel_size=(3, 2), strides=(2, 3), kernel_dilation=(2, 1))),
    "pairs": ((2, 4, 5, 3), dict(kernel_size=(3, 2), strides=(2, 2), padding=[(1, 2), 1])),
    "kernel_transposed": ((2, 4, 5, 3), dict(kernel_size=(3, 2), strides=(2, 2), transpose_kernel=True)),
    "without_bias": ((2, 4, 5, 3), dict(kernel_size=(2, 2), strides=(2, 2), use_bias=False)),
    "masked": ((2, 6, 5, 3), dict(kernel_size=(3, 3), mask=MASK)),
    "row": ((2, 9, 3), dict(kernel_size=3, strides=3)),
    "volume": ((2, 3, 2, 3, 2), dict(kernel_size=(2, 3, 2), strides=(2, 2, 1))),
    "one_image": ((4, 5, 3), dict(kernel_size=(3, 2), strides=(2, 2), padding="CIRCULAR")),
    "two_batches": ((2, 3, 4, 5, 3), dict(kernel_size=(3, 2), strides=(2, 2))),
}

PERIODIC = {
    f"{size}_{window}_{stride}_{dilation}_{'transposed' if transposed else 'plain'}": (
        (1, size, 2),
        dict(kernel_size=(window,), strides=(stride,), kernel_dilation=dilation, transpose_kernel=transposed),
    )
    for size, window, stride, dilation in [
        (5, 3, 1, 1), (5, 4, 1, 1), (4, 3, 2, 1), (4, 4, 2, 1), (4, 1, 1, 1), (3, 2, 3, 1), (3, 1, 4, 1), (4, 3, 2, 2),
        (4, 2, 3, 3), (2, 7, 1, 1), (2, 9, 2, 1), (1, 5, 1, 2), (3, 8, 1, 1), (2, 3, 2, 5),
    ]
    for transposed in (False, True)
}  # fmt: skip


def compare(api, name, shape, options, implementation, activation="relu", dtype="float32", rtol=0.0):
    """The layer with a residual and an activation, against flax's layer and both after it."""
    x = integers(shape, dtype)
    plain = flaxs(api, name, shape[-1], 4, **options)
    layer = ours(api, name, shape[-1], 4, **options, activation=activation, implementation=implementation)
    function = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, None: lambda z: z}[activation]
    output = jax.eval_shape(plain.apply, plain.parameters, x)
    residual = integers(output.shape, output.dtype, seed=1)

    def expected(parameters, x, residual):
        return function(plain.apply(parameters, x) + residual)

    actual = lambda parameters, x, residual: layer.apply(parameters, x, residual=residual)
    assert_same(layer.parameters, plain.parameters)
    assert_same(
        run(value_and_gradients(actual), layer.parameters, x, residual),
        run_on_host(value_and_gradients(expected), plain.parameters, x, residual),
        rtol,
    )


@pytest.mark.parametrize("shape, options, api", in_turns(CONV, APIS))
def test_conv(shape, options, api, implementation):
    compare(api, "Conv", shape, options, implementation)


@pytest.mark.parametrize("shape, options, api", in_turns(CONV_TRANSPOSE, APIS))
def test_conv_transpose(shape, options, api, implementation):
    compare(api, "ConvTranspose", shape, options, implementation)


@pytest.mark.parametrize("shape, options", every_other(PERIODIC.values()))
def test_periodic_conv_transpose(shape, options, implementation):
    """Where the first output lies, also if the window is longer than the image."""
    compare("linen", "ConvTranspose", shape, options | {"padding": "CIRCULAR"}, implementation)


SEPARABLE = {
    "plain": ((2, 6, 5, 3), dict(kernel_size=(3, 3)), 1),
    "multiplied": ((2, 6, 5, 3), dict(kernel_size=(3, 2), strides=2, padding="CIRCULAR"), 2),
    "row": ((2, 9, 3), dict(kernel_size=3, padding="CAUSAL", kernel_dilation=2), 2),
    "input_dilated_volume": ((3, 4, 3, 2), dict(kernel_size=(2, 2, 3), input_dilation=2, padding=1), 1),
}


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("shape, options, multiplier", SEPARABLE.values(), ids=SEPARABLE)
def test_separable_conv(shape, options, multiplier, api, use_bias, implementation):
    """flax's two layers, with the parameters of ours."""
    channels, between, ones = shape[-1], shape[-1] * multiplier, (1,) * np.size(options["kernel_size"])
    depthwise = flaxs(api, "Conv", channels, between, **options, feature_group_count=channels, use_bias=False)
    pointwise = flaxs(api, "Conv", between, 4, kernel_size=ones, use_bias=use_bias)
    layer = ours(
        api, "SeparableConv", channels, 4, **options, channel_multiplier=multiplier, use_bias=use_bias,
        activation="relu", implementation=implementation,
    )  # fmt: skip

    def expected(parameters, x, residual):
        between = depthwise.apply(parameters["depthwise"], x)
        return jax.nn.relu(pointwise.apply(parameters["pointwise"], between) + residual)

    parameters = {"depthwise": depthwise.parameters, "pointwise": pointwise.parameters}
    assert_same(layer.parameters, parameters)
    x = integers(shape)
    sums = functools.partial(expected, residual=0.0)
    residual = integers(jax.eval_shape(sums, parameters, x).shape, seed=1)
    actual = lambda parameters, x, residual: layer.apply(parameters, x, residual=residual)
    assert_same(
        run(value_and_gradients(actual), parameters, x, residual),
        run_on_host(value_and_gradients(expected), parameters, x, residual),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name, window", [("Conv", (3, 3)), ("ConvTranspose", (3, 2))])
@pytest.mark.parametrize("api", APIS)
def test_dtype(api, name, window, dtype, implementation, x64):
    """Parameters in float32, the layer in another dtype."""
    compare(api, name, (2, 6, 5, 3), dict(kernel_size=window, dtype=dtype), implementation)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("api", APIS)
def test_strict_promotion(api, name, implementation):
    """The epilogue's dtypes are no implicit promotion of the caller's."""
    options = dict(kernel_size=(3, 3), dtype="bfloat16", activation="relu", implementation=implementation)
    layer, x = ours(api, name, 3, 4, **options), integers((2, 6, 5, 3), "bfloat16")
    step = value_and_gradients(layer.apply)
    with jax.numpy_dtype_promotion("strict"):
        actual = run(step, layer.parameters, x)
    assert_same(actual, run(step, layer.parameters, x))


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("api", APIS)
def test_float8(api, name, implementation):
    """JAX promotes none. The result is rounded once, where flax adds the bias to a rounded one."""
    x = integers((2, 6, 5, 3))
    wide = flaxs(api, name, 3, 4, kernel_size=(3, 3))
    layer = ours(api, name, 3, 4, kernel_size=(3, 3), dtype="float8_e4m3fn", implementation=implementation)
    expected = run_on_host(wide.apply, wide.parameters, x).astype("float8_e4m3fn")
    assert_same(run(layer.apply, layer.parameters, x.astype("float8_e4m3fn")), expected)


@pytest.mark.parametrize("api, name", [("nnx", "Conv"), ("linen", "ConvTranspose"), ("nnx", "ConvTranspose")])
def test_preferred_element_type(api, name, implementation):
    """A layer in bfloat16 with a result in float32."""
    options = dict(kernel_size=(3, 3), dtype="bfloat16", preferred_element_type=jnp.float32)
    compare(api, name, (2, 6, 5, 3), options, implementation)


@pytest.mark.parametrize("api", APIS)
def test_parameters_in_bfloat16(api, implementation):
    options = dict(kernel_size=(3, 3), param_dtype=jnp.bfloat16)
    compare(api, "Conv", (2, 6, 5, 3), options, implementation, dtype="bfloat16")


@pytest.mark.parametrize("activation, rtol", [(None, 0.0), ("gelu", 1e-5)])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_activation(name, activation, rtol, implementation):
    with jax.default_matmul_precision("highest"):
        compare("linen", name, (2, 6, 5, 3), dict(kernel_size=(3, 3)), implementation, activation, rtol=rtol)


@pytest.mark.parametrize("api", APIS)
def test_own_promotion(api, implementation):
    """`promote_dtype` sees inputs, kernel and bias, as in flax."""

    def halved(*arrays, dtype):
        inputs, kernel, bias = arrays if api == "linen" else arrays[0]
        return inputs, kernel / 2, bias / 4

    compare(api, "Conv", (2, 6, 5, 3), dict(kernel_size=(3, 3), promote_dtype=halved), implementation)


def test_without_an_epilogue(implementation):
    """A plain convolution, which has forward mode too."""
    x = integers((2, 6, 5, 3))
    options = dict(kernel_size=(3, 3), use_bias=False)
    plain, layer = flaxs("linen", "Conv", 3, 4, **options), ours("linen", "Conv", 3, 4, **options)
    tangents = lambda layer: lambda x: jax.jvp(lambda x: layer.apply(layer.parameters, x), (x,), (x,))
    assert_same(run(tangents(layer), x), run_on_host(tangents(plain), x))


@pytest.mark.parametrize("name, options", [("Conv", {}), ("ConvTranspose", dict(strides=(2, 2)))])
def test_the_epilogue_is_in_the_kernel(name, options, on_the_host):
    """Of the host, which has all of it."""
    layer = ours("linen", name, 3, 4, kernel_size=(3, 3), padding="CIRCULAR", activation="silu", **options)
    x = integers((2, 6, 5, 3))
    residual = jax.eval_shape(layer.apply, layer.parameters, x)
    (line,) = lines(lambda p, x, r: layer.apply(p, x, residual=r), layer.parameters, x, residual)
    assert line.startswith("fprop with its epilogue ")


def test_linen_transforms(implementation):
    """An ensemble by `linen.vmap`, of layers under `linen.remat`."""
    x = integers((2, 6, 5, 3))

    def ensemble(layer):
        members = linen.vmap(
            linen.remat(layer), variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=3
        )
        return members(4, (3, 3))

    plain, members = ensemble(linen.Conv), ensemble(functools.partial(jaxconv.nn.linen.Conv, activation="relu"))
    parameters = jax.tree.map(lambda p: integers(p.shape), jax.eval_shape(plain.init, jax.random.key(0), x))
    expected = lambda parameters, x: jax.nn.relu(plain.apply(parameters, x))
    assert_same(
        run(value_and_gradients(members.apply), parameters, x),
        run_on_host(value_and_gradients(expected), parameters, x),
    )


def test_nnx_training_step(implementation):
    """`nnx.jit` and `nnx.grad` of a layer that is its own argument."""
    x = integers((2, 6, 5, 3))
    layer = jaxconv.nn.nnx.Conv(3, 4, (3, 3), activation="relu", implementation=implementation, rngs=nnx.Rngs(0))
    plain = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))
    step = nnx.jit(nnx.grad(lambda layer, x: jnp.sum(layer(x) ** 2)))
    expected = nnx.jit(nnx.grad(lambda layer, x: jnp.sum(jax.nn.relu(layer(x)) ** 2)))
    with jax.default_matmul_precision("highest"):
        actual, expected = step(layer, x), expected(plain, x)
    assert_same(nnx.to_pure_dict(actual), nnx.to_pure_dict(expected), 1e-5)


def test_out_sharding(implementation):
    """Under an explicit mesh, as in flax."""
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer = jaxconv.nn.nnx.Conv(3, 4, (3, 3), activation="relu", implementation=implementation, rngs=nnx.Rngs(0))
    with jax.set_mesh(mesh):
        x = jax.device_put(integers((8, 6, 5, 3)), jax.P("batch"))
        y = nnx.jit(lambda layer, x: layer(x, out_sharding=jax.P("batch")))(layer, x)
    assert y.sharding.spec == jax.P("batch", None, None, None)
