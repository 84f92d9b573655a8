"""Derivatives as transforms of functions: `transform(function)(*arrays)`."""

import jax
import jax.numpy as jnp

from cases.reference import integers


def stack(x, axis, size=3):
    """`size` different arrays of small integers like x, stacked along an axis; x itself if that is None."""
    return x if axis is None else jnp.stack([(i + 1) * x - i for i in range(size)], axis)


def loss(function):
    """A number. Of functions linear in each array, higher derivatives are not zero."""
    return lambda *arrays: jnp.sum(jnp.sin(0.1 * function(*arrays)))


def gradients(function):
    """Those of a function to numbers, for each array."""
    return lambda *arrays: jax.grad(function, argnums=tuple(range(len(arrays))))(*arrays)


def directional(function, seed=10):
    """The derivative along a fixed direction of the gradient: a number that can be differentiated again."""

    def derivative(*arrays):
        of_each = gradients(function)(*arrays)
        return sum(jnp.vdot(g, integers(g.shape, g.dtype, seed + i)) for i, g in enumerate(of_each))

    return derivative


def tangents(arrays):
    return tuple(integers(a.shape, a.dtype, 3 + i) for i, a in enumerate(arrays))


def grad_of_grad(function):
    return gradients(directional(loss(function)))


def third_order(function):
    return gradients(directional(directional(loss(function)), 20))


def jvp_of_grad(function):
    return lambda *arrays: jax.jvp(gradients(loss(function)), arrays, tangents(arrays))


def remat(function):
    return gradients(lambda *arrays: jax.checkpoint(loss(function))(*arrays) ** 2)
