"""What is measured: a network's inference or training, or a report, as a function and its arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct

from convbench.clients.networks import NETWORKS, SMALL_WIDTH
from convbench.clients.reports import REPORTS

RATE, MOMENTUM = 0.01, 0.9


class Measured(NamedTuple):
    """The name of a network or of a report, and what is measured of it.

    which: one of PASSES. small: a size for a host.
    """

    name: str
    which: str
    dtype: str
    small: bool = False


class Runnable(NamedTuple):
    """A function of arrays. Of its result, a pair, the first is compared with that of the other side."""

    function: Callable[..., tuple[Any, Any]]
    operands: tuple[Any, ...]


def runnable(measured: Measured) -> Runnable:
    """With random arrays, the same at each call."""
    return PASSES[measured.which](measured)


def inference(measured: Measured) -> Runnable:
    """The first example's result is compared."""
    model, variables, x = model_of(measured)

    def infer(variables: Any, x: Array) -> tuple[Array, Array]:
        y = model.apply(variables, x, train=False)
        return y[0], y

    return Runnable(infer, (_arrays(variables), _arrays(x)))


def training(measured: Measured) -> Runnable:
    """The gradients are compared: the momentum is zero before."""
    model, variables, x = model_of(measured)
    y = jax.eval_shape(partial(model.apply, train=False), variables, x)
    is_image = NETWORKS[measured.name].images
    target = y if is_image else ShapeDtypeStruct(y.shape[:-1], jnp.int32)
    momenta = jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), variables["params"])
    step = step_of(model, square_error if is_image else cross_entropy)
    return Runnable(step, ((_arrays(variables), momenta), _arrays(x), _arrays(target, y.shape[-1])))


def step_of(model: Any, loss_of: Callable[[Array, Array], Array]) -> Callable[..., tuple[Any, Any]]:
    """A step of gradient descent with momentum, from variables and momenta, inputs and targets."""

    def step(state: Any, x: Array, target: Array) -> tuple[Any, Any]:
        variables, momenta = state

        def loss(params: Any) -> tuple[Array, Any]:
            y, updated = model.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])
            return loss_of(y.astype(jnp.float32), target), updated

        (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        momenta = jax.tree.map(lambda m, g: MOMENTUM * m + g, momenta, gradients)
        params = jax.tree.map(lambda p, m: p - RATE * m, variables["params"], momenta)
        return momenta, (value, params, updated)

    return step


def reported(measured: Measured) -> Runnable:
    report = REPORTS[measured.name]
    return Runnable(lambda *operands: (report.function(*operands), ()), _arrays(report.operands))


REPORT = "report"
PASSES = {"inference": inference, "training": training, REPORT: reported}


def cross_entropy(logits: Array, labels: Array) -> Array:
    """By one-hot labels, which XLA fuses: the gradient of an index is a scatter."""
    return -(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(axis=-1).mean()


def square_error(images: Array, targets: Array) -> Array:
    return jnp.square(images - targets).mean()


def model_of(measured: Measured) -> tuple[Any, Any, ShapeDtypeStruct]:
    """A network, and the types of its variables and of its input."""
    network = NETWORKS[measured.name]
    model = network.module(width=SMALL_WIDTH if measured.small else network.width, dtype=measured.dtype)
    x = ShapeDtypeStruct(network.small_inputs if measured.small else network.inputs, jnp.dtype(measured.dtype))
    return model, jax.eval_shape(partial(model.init, train=False), jax.random.key(0), x), x


def _arrays(types: Any, classes: int = 1) -> Any:
    """Arrays of a tree of types: parameters as networks begin with, labels of classes, else random numbers.

    By numpy: a network has hundreds of shapes, and JAX would compile a program for each.
    """
    rng = np.random.default_rng(0)

    def array(path: tuple[Any, ...], of: ShapeDtypeStruct) -> Array:
        name = path[-1].key if path and isinstance(path[-1], jax.tree_util.DictKey) else ""
        if name in ("bias", "mean"):
            return jnp.zeros(of.shape, of.dtype)
        if name == "var" or name.startswith("scale"):
            return jnp.ones(of.shape, of.dtype)
        if jnp.issubdtype(of.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, classes, of.shape), of.dtype)
        values = rng.standard_normal(of.shape, np.float32)
        if name == "kernel":
            values *= np.sqrt(2 / np.prod(of.shape[:-1]))
        return jnp.asarray(values, of.dtype)

    return jax.tree_util.tree_map_with_path(array, types)
