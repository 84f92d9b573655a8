"""Layers of flax's two APIs, ours and flax's own, as functions of their parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen
import flax.nnx
import jax

import jaxconv.nn
from cases.reference import integers

APIS = {"linen": (flax.linen, jaxconv.nn.linen), "nnx": (flax.nnx, jaxconv.nn.nnx)}


class Layer(NamedTuple):
    """apply: `(parameters, inputs, **of the call) -> outputs`. parameters: a tree of small integers."""

    apply: Callable[..., jax.Array]
    parameters: Any


def flaxs(api: str, name: str, channels: int, features: int, **options) -> Layer:
    return _of(api, getattr(APIS[api][0], name), channels, features, options)


def ours(api: str, name: str, channels: int, features: int, **options) -> Layer:
    return _of(api, getattr(APIS[api][1], name), channels, features, options)


def _of(api: str, layer: type, channels: int, features: int, options: dict) -> Layer:
    return (_of_linen if api == "linen" else _of_nnx)(layer, channels, features, options)


def _of_linen(layer, channels, features, options):
    module = layer(features, **options)
    window = options["kernel_size"]
    sizes = (9,) * (1 if isinstance(window, int) else len(window))
    avals = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct((1, *sizes, channels), "float32"))
    apply = lambda parameters, x, **of_call: module.apply({"params": parameters}, x, **of_call)
    return Layer(apply, _integers(avals["params"]))


def _of_nnx(layer, channels, features, options):
    nnx = flax.nnx
    graph, state = nnx.split(nnx.eval_shape(lambda: layer(channels, features, **options, rngs=nnx.Rngs(0))))

    def apply(parameters, x, **of_call):
        values = jax.tree.map(lambda variable: variable, state)
        nnx.replace_by_pure_dict(values, parameters)
        return nnx.merge(graph, values)(x, **of_call)

    return Layer(apply, _integers(nnx.to_pure_dict(state)))


def _integers(avals):
    return jax.tree.map(lambda aval: integers(aval.shape, aval.dtype), avals)
