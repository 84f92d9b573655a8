"""Checkpoints by orbax: flax's layer saved and ours restored, and the other way round."""

import flax.linen as linen
import jax
import numpy as np
import orbax.checkpoint
import pytest
from flax import nnx

import jaxconv.nn
from cases.layers import APIS
from cases.reference import assert_same, integers

pytestmark = pytest.mark.usefixtures("on_the_host")  # where lax and our kernels have float32's accuracy

X = integers((2, 6, 5, 3))
LAYERS = {
    "conv": ("Conv", dict(kernel_size=(3, 2), padding="REFLECT")),
    "conv_in_bfloat16": ("Conv", dict(kernel_size=(3, 3), param_dtype="bfloat16", use_bias=False)),
    "conv_transpose": ("ConvTranspose", dict(kernel_size=(3, 2), strides=(2, 2), transpose_kernel=True)),
}


def through_orbax(tree, like, folder):
    """What is restored into another tree of arrays, whose paths, shapes and dtypes must be the same."""
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, tree)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, like)


def both_ways(api):
    flaxs, ours = APIS[api]
    return {"into_ours": (flaxs, ours), "into_flaxs": (ours, flaxs)}


@pytest.mark.parametrize("direction", ["into_ours", "into_flaxs"])
@pytest.mark.parametrize("name, options", LAYERS.values(), ids=LAYERS)
def test_linen(name, options, direction, tmp_path):
    """Both inside a module, so that the whole path of a parameter counts."""

    class Network(linen.Module):
        layers: object

        @linen.compact
        def __call__(self, x):
            return getattr(self.layers, name)(4, **options, bias_init=linen.initializers.normal())(x)

    saved, restored = map(Network, both_ways("linen")[direction])
    parameters = saved.init(jax.random.key(0), X)
    like = restored.init(jax.random.key(1), X)
    loaded = through_orbax(parameters, like, tmp_path / "checkpoint")
    assert_same(loaded, parameters)
    assert_same(restored.apply(loaded, X), saved.apply(parameters, X), 1e-2 if "param_dtype" in options else 1e-6)


@pytest.mark.parametrize("direction", ["into_ours", "into_flaxs"])
@pytest.mark.parametrize("name, options", LAYERS.values(), ids=LAYERS)
def test_nnx(name, options, direction, tmp_path):
    """The whole state: its paths, and the types of its variables."""

    class Network(nnx.Module):
        def __init__(self, layers, rngs):
            self.layer = getattr(layers, name)(3, 4, **options, bias_init=nnx.initializers.normal(), rngs=rngs)

        def __call__(self, x):
            return self.layer(x)

    saved, restored = (Network(layers, nnx.Rngs(seed)) for seed, layers in enumerate(both_ways("nnx")[direction]))
    like = nnx.state(restored)
    state = nnx.state(saved)
    assert jax.tree.structure(state) == jax.tree.structure(like)
    nnx.update(restored, through_orbax(state, like, tmp_path / "checkpoint"))
    assert_same(nnx.state(restored), state)
    assert_same(restored(X), saved(X), 1e-2 if "param_dtype" in options else 1e-6)


@pytest.mark.parametrize("api", APIS)
def test_initial_parameters(api):
    """Those that flax's layer has from the same key."""

    def initial(layers):
        if api == "linen":
            layer = layers.Conv(4, (3, 3), bias_init=linen.initializers.normal())
            return layer.init(jax.random.key(0), X)["params"]
        layer = layers.Conv(3, 4, (3, 3), bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
        return nnx.to_pure_dict(nnx.state(layer))

    flaxs, ours = map(initial, APIS[api])
    assert_same(ours, flaxs)


DEPTHWISE = dict(kernel_size=(3, 3), feature_group_count=3, use_bias=False)


class TwoOfLinen(linen.Module):
    """Of flax's layers, named as SeparableConv names its own."""

    @linen.compact
    def __call__(self, x):
        return linen.Conv(4, (1, 1), name="pointwise")(linen.Conv(6, name="depthwise", **DEPTHWISE)(x))


class TwoOfNnx(nnx.Module):
    def __init__(self, rngs):
        self.depthwise = nnx.Conv(3, 6, **DEPTHWISE, rngs=rngs)
        self.pointwise = nnx.Conv(6, 4, (1, 1), rngs=rngs)

    def __call__(self, x):
        return self.pointwise(self.depthwise(x))


@pytest.mark.parametrize("is_into_ours", [True, False])
def test_separable_conv_of_linen(is_into_ours, tmp_path):
    both = TwoOfLinen(), jaxconv.nn.linen.SeparableConv(4, (3, 3), channel_multiplier=2)
    saved, restored = both if is_into_ours else both[::-1]
    parameters = saved.init(jax.random.key(0), X)
    loaded = through_orbax(parameters, restored.init(jax.random.key(1), X), tmp_path / "checkpoint")
    assert_same_and_not_small(restored.apply(loaded, X), saved.apply(parameters, X))


@pytest.mark.parametrize("is_into_ours", [True, False])
def test_separable_conv_of_nnx(is_into_ours, tmp_path):
    ours = jaxconv.nn.nnx.SeparableConv(3, 4, (3, 3), channel_multiplier=2, rngs=nnx.Rngs(1))
    both = TwoOfNnx(nnx.Rngs(0)), ours
    saved, restored = both if is_into_ours else both[::-1]
    nnx.update(restored, through_orbax(nnx.state(saved), nnx.state(restored), tmp_path / "checkpoint"))
    assert_same_and_not_small(restored(X), saved(X))


def assert_same_and_not_small(actual, expected):
    assert np.abs(expected).max() > 0.1
    assert_same(actual, expected, 1e-5)
