"""flax's own layers with our function injected, against the plain layers: outputs and parameter gradients."""

import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from cases.convolution import ours
from cases.reference import assert_same, custom_calls, integers, run, run_on_host, value_and_gradients

LAYERS = {
    "dense": ((2, 6, 5, 3), dict(features=4, kernel_size=(3, 3))),
    "strided": ((2, 7, 6, 3), dict(features=4, kernel_size=(3, 2), strides=2, padding="VALID")),
    "dilated": ((2, 6, 5, 3), dict(features=4, kernel_size=(3, 3), kernel_dilation=2, padding=((2, 1), (0, 3)))),
    "grouped": ((2, 6, 5, 4), dict(features=6, kernel_size=(3, 3), feature_group_count=2)),
    "depthwise": ((2, 6, 5, 4), dict(features=4, kernel_size=(3, 3), feature_group_count=4, use_bias=False)),
    "causal": ((2, 9, 3), dict(features=4, kernel_size=(3,), padding="CAUSAL")),
    "circular": ((2, 6, 5, 3), dict(features=4, kernel_size=(3, 3), padding="CIRCULAR")),
    "volume": ((2, 4, 3, 4, 2), dict(features=3, kernel_size=(2, 3, 2))),
    "input_dilated": ((2, 3, 4, 3), dict(features=4, kernel_size=(3, 3), input_dilation=2, padding=((1, 2), (2, 1)))),
}


def parameters_of(module, *inputs):
    """Small integers in the shapes of the module's parameters: every sum is exact, and biases are not zero."""
    return jax.tree.map(lambda p: integers(p.shape), jax.eval_shape(module.init, jax.random.key(0), *inputs))


@pytest.mark.parametrize("shape, layer", LAYERS.values(), ids=LAYERS)
def test_linen_conv(shape, layer, implementation):
    x = integers(shape)
    plain = linen.Conv(**layer)
    injected = linen.Conv(**layer, conv_general_dilated_cls=lambda: ours(implementation))
    parameters = parameters_of(plain, x)
    assert_same(
        run(value_and_gradients(injected.apply), parameters, x),
        run_on_host(value_and_gradients(plain.apply), parameters, x),
    )


@pytest.mark.parametrize("shape, layer", LAYERS.values(), ids=LAYERS)
def test_nnx_conv(shape, layer, implementation):
    x = integers(shape)
    layer = {"in_features": shape[-1], "out_features": layer["features"], **layer}
    del layer["features"]

    def split(**injected):
        graph, state = nnx.split(nnx.eval_shape(lambda: nnx.Conv(**layer, **injected, rngs=nnx.Rngs(0))))
        leaves, tree = jax.tree.flatten(state)
        apply = lambda leaves, x: nnx.merge(graph, jax.tree.unflatten(tree, leaves))(x)
        return value_and_gradients(apply), [integers(leaf.shape) for leaf in leaves]

    assert_same(run(*split(conv_general_dilated=ours(implementation)), x), run_on_host(*split(), x))


def test_linen_ensemble(implementation):
    """`nn.vmap` over members with their own parameters: one grouped convolution, not a loop."""
    x = integers((2, 6, 5, 3))

    def ensemble(**injected):
        members = linen.vmap(
            linen.Conv, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=4
        )
        return members(features=5, kernel_size=(3, 3), **injected)

    plain, injected = ensemble(), ensemble(conv_general_dilated_cls=lambda: ours(implementation))
    parameters = parameters_of(plain, x)
    assert_same(
        run(value_and_gradients(injected.apply), parameters, x),
        run_on_host(value_and_gradients(plain.apply), parameters, x),
    )
    hlo = jax.jit(injected.apply).lower(parameters, x).compile().as_text()
    assert custom_calls(hlo) == {"conv": 1}
    assert " while(" not in hlo


def test_linen_remat_and_scan(implementation):
    """Layers under `nn.scan` and `nn.remat`."""
    x = integers((2, 6, 5, 3))

    def network(**injected):
        class Layer(linen.Module):
            @linen.compact
            def __call__(self, x, _):
                return jnp.tanh(linen.Conv(3, (3, 3), **injected)(x)), None

        layers = linen.scan(
            linen.remat(Layer, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        return layers()

    plain, injected = network(), network(conv_general_dilated_cls=lambda: ours(implementation))
    parameters = parameters_of(plain, x, None)
    apply = lambda module: value_and_gradients(lambda parameters, x: module.apply(parameters, x, None)[0])
    with jax.default_matmul_precision("highest"):  # tanh leaves no small integers
        assert_same(run(apply(injected), parameters, x), run_on_host(apply(plain), parameters, x), 2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision(dtype, implementation):
    """Parameters in float32, the layer in a half precision: the gradients' dtypes are the parameters'."""
    x = integers((2, 6, 5, 3))
    plain = linen.Conv(4, (3, 3), dtype=dtype)
    injected = linen.Conv(4, (3, 3), dtype=dtype, conv_general_dilated_cls=lambda: ours(implementation))
    parameters = parameters_of(plain, x)
    assert_same(
        run(value_and_gradients(injected.apply), parameters, x),
        run_on_host(value_and_gradients(plain.apply), parameters, x),
    )
