"""Every JAX transformation of our convolutions against the same one of lax's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.jet import jet

import jaxconv
from cases.parts import diagonal, every_other, name, repeated
from cases.reference import assert_same, cotangent, integers, lax_channels_last, pullback, run, run_on_host
from cases.small import BATCH_GROUPS, BY_ENTRIES_IN_TURNS, BY_ENTRY, CASES, ENTRIES, GENERAL, named

pytestmark = pytest.mark.usefixtures("full_precision")  # derivatives of sin are no small integers


# A derivative of sin mixes all orders of magnitude; a wrong term is far outside of this.
RTOL = 2e-5


def loss(conv):
    return lambda x, w: jnp.sum(jnp.sin(0.25 * conv(x, w)))


def directional(function, seed):
    """The derivative along a fixed direction of the gradient: a scalar that can be differentiated again."""

    def derivative(*args):
        gradients = jax.grad(function, argnums=(0, 1))(*args)
        return sum(jnp.vdot(g, integers(g.shape, g.dtype, seed + i)) for i, g in enumerate(gradients))

    return derivative


def grad(conv, x, w):
    return jax.value_and_grad(lambda x, w: jnp.vdot(conv(x, w), cotangent(conv, x, w)), argnums=(0, 1))(x, w)


def grad_of_grad(conv, x, w):
    return jax.grad(directional(loss(conv), 10), argnums=(0, 1))(x, w)


def third_order(conv, x, w):
    return jax.grad(directional(directional(loss(conv), 10), 20), argnums=(0, 1))(x, w)


def jvp_of_grad(conv, x, w):
    tangents = integers(x.shape, x.dtype, 3), integers(w.shape, w.dtype, 4)
    return jax.jvp(jax.grad(loss(conv), argnums=(0, 1)), (x, w), tangents)


def hessian(conv, x, w):
    return jax.hessian(loss(conv), argnums=(0, 1))(x, w)


def jacrev(conv, x, w):
    return jax.jacrev(conv, argnums=(0, 1))(x, w)


def remat(conv, x, w):
    return jax.grad(lambda x, w: jnp.sum(jax.checkpoint(loss(conv))(x, w)) ** 2, argnums=(0, 1))(x, w)


def cond(conv, x, w):
    def branches(x, w, which):
        return lax.cond(which, loss(conv), lambda x, w: jnp.sum(conv(-x, w) ** 2), x, w)

    return [jax.grad(branches, argnums=(0, 1))(x, w, which) for which in (True, False)]


def jvp(conv, x, w):
    tangents = integers(x.shape, x.dtype, 3), integers(w.shape, w.dtype, 4)
    return jax.jvp(conv, (x, w), tangents)


def jacfwd(conv, x, w):
    return jax.jacfwd(conv, argnums=(0, 1))(x, w)


def linearize(conv, x, w):
    y, tangent_map = jax.linearize(conv, x, w)
    return y, tangent_map(integers(x.shape, x.dtype, 3), integers(w.shape, w.dtype, 4))


def linear_transpose(conv, x, w):
    g = cotangent(conv, x, w)
    return jax.linear_transpose(lambda x: conv(x, w), x)(g), jax.linear_transpose(lambda w: conv(x, w), w)(g)


def grad_of_jvp(conv, x, w):
    tangents = integers(x.shape, x.dtype, 3), integers(w.shape, w.dtype, 4)
    return jax.grad(lambda x, w: jax.jvp(loss(conv), (x, w), tangents)[1], argnums=(0, 1))(x, w)


EXACT = [grad, jacrev]
ROUNDED = [grad_of_grad, third_order, jvp_of_grad, hessian, remat, cond]
EXACT_FORWARD_MODE = [jvp, jacfwd, linearize, linear_transpose]
ROUNDED_FORWARD_MODE = [grad_of_jvp]


def check(transform, case, entry, implementation, rtol):
    x, w = case.operands()
    actual = run(functools.partial(transform, getattr(case, entry)(implementation)), x, w)
    assert_same(actual, run_on_host(functools.partial(transform, case.lax()), x, w), rtol)


@pytest.mark.parametrize("case, entry, transform", diagonal(BY_ENTRY, EXACT + ROUNDED), ids=name)
def test_reverse_mode(case, entry, transform, implementation):
    check(transform, case, entry, implementation, 0 if transform in EXACT else RTOL)


@pytest.mark.parametrize("case, transform", diagonal(GENERAL, EXACT_FORWARD_MODE + ROUNDED_FORWARD_MODE), ids=name)
def test_forward_mode(case, transform, implementation):
    check(transform, case, "general", implementation, 0 if transform in EXACT_FORWARD_MODE else RTOL)


def test_front_doors_are_custom_vjp_functions(implementation):
    case = named("dense")
    x, w = case.operands()
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(case.front_door(implementation), (x, w), (x, w))


def polynomials(x, w, order=3):
    """Taylor coefficients of both operands, none of them zero."""
    return tuple([integers(a.shape, a.dtype, seed + k) for k in range(order)] for seed, a in ((30, x), (40, w)))


def taylor(conv, x, w):
    return jet(conv, (x, w), polynomials(x, w), factorial_scaled=False)


def taylor_of_grad(conv, x, w):
    return jet(jax.grad(loss(conv), argnums=(0, 1)), (x, w), polynomials(x, w))


def taylor_in_filter(conv, x, w):
    return jet(lambda w: conv(x, w), (w,), polynomials(x, w)[1:], factorial_scaled=False)


TAYLOR_MODES = [("general", taylor), ("general", taylor_in_filter), ("general", taylor_of_grad),
                ("front_door", taylor_of_grad)]  # fmt: skip


@pytest.mark.parametrize(
    "case, entry, transform", diagonal(["dense", "strided_lhs_dilated", "grouped", "volume"], TAYLOR_MODES), ids=name
)
def test_taylor_mode(case, entry, transform, implementation):
    """jet to the third order; in JAX it fails for every custom_vjp function, so for front doors it is of gradients."""
    check(transform, named(case), entry, implementation, RTOL if transform is taylor_of_grad else 0)


# (x's mapped axis, w's mapped axis, the result's mapped axis)
MAPPED = [(0, None, 0), (2, None, -1), (-1, None, 1), (None, 0, 0), (None, -1, 2), (None, 1, -1), (0, 0, 0), (1, -1, 2)]


def mapped(conv, x_axis, w_axis, out_axis):
    """Value, pullback under vmap, and gradient of the vmap, of a stack of convolutions."""

    def transform(x, w):
        both = (x_axis, w_axis)
        g = cotangent(conv, x, w)
        xs = stack(x, x_axis)
        ws = stack(w, w_axis)
        inside = jax.vmap(pullback(conv), in_axes=(*both, None), out_axes=out_axis)(xs, ws, g)
        total = lambda xs, ws: jnp.sum(
            jax.vmap(conv, in_axes=both, out_axes=0)(xs, ws) * np.arange(1, 4, dtype=x.dtype).reshape(3, *[1] * g.ndim)
        )
        return inside, jax.grad(total, argnums=(0, 1))(xs, ws)

    return transform


def stack(x, axis, size=3):
    """`size` different arrays of small integers like x, stacked along an axis; x itself if that is None."""
    return x if axis is None else jnp.stack([(i + 1) * x - i for i in range(size)], axis)


# Each case by one of the entries and over half of the axes, in turns.
HALVES = [
    (case, entry, half) if (entry, half) == (ENTRIES[n % 2], n // 2 % 2) else repeated(case, entry, half)
    for n, case in enumerate(CASES) for entry in ENTRIES for half in (0, 1)
]  # fmt: skip


@pytest.mark.parametrize(
    "case, entry, half", [*HALVES, (BATCH_GROUPS, "general", 0), repeated(BATCH_GROUPS, "general", 1)], ids=str
)
def test_vmap_over_every_axis(case, entry, half, implementation):
    """One operand or both mapped, at any axis, with gradients inside and outside of the vmap."""
    transform = lambda conv, x, w: [mapped(conv, *axes)(x, w) for axes in MAPPED[half::2]]
    check(transform, case, entry, implementation, rtol=0)


NESTS = {
    "x_then_w": [((0, None), 0), ((None, 0), 0)],
    "w_then_x": [((None, 1), 1), ((1, None), 0)],
    "both_then_x": [((0, 0), 0), ((-1, None), -1)],
    "x_then_both": [((1, None), 0), ((0, 2), 1)],
    "both_then_both": [((0, -1), 0), ((1, 0), 2)],
    "w_then_both": [((None, 0), 2), ((0, 0), 0)],
}


def nested(conv, maps, x, w):
    """The pullback under several vmaps, the first of `maps` innermost."""
    function = pullback(conv)
    g = cotangent(conv, x, w)
    for in_axes, out_axis in maps:
        function = jax.vmap(function, in_axes=(*in_axes, None), out_axes=out_axis)
        x, w = (stack(array, axis, 2) for array, axis in zip((x, w), in_axes, strict=True))
    return function(x, w, g)


@pytest.mark.parametrize("case, entry", every_other([(BATCH_GROUPS, "general"), *BY_ENTRIES_IN_TURNS]), ids=str)
def test_nested_vmaps(case, entry, implementation):
    transform = lambda conv, x, w: {name: nested(conv, maps, x, w) for name, maps in NESTS.items()}
    check(transform, case, entry, implementation, rtol=0)


@pytest.mark.parametrize("case, entry", [*BY_ENTRIES_IN_TURNS, (BATCH_GROUPS, "general")], ids=str)
def test_per_example_gradients(case, entry, implementation):
    def transform(conv, x, w):
        examples = stack(x, 0)
        return jax.vmap(jax.grad(loss(conv), argnums=1), in_axes=(0, None))(examples, w)

    check(transform, case, entry, implementation, RTOL)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_no_elements(axes, implementation):
    def transform(conv, x, w):
        empty = [a if axis is None else jnp.zeros((0, *a.shape)) for a, axis in zip((x, w), axes, strict=True)]
        return jax.vmap(conv, in_axes=axes)(*empty)

    check(transform, named("dense"), "general", implementation, rtol=0)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("rematerialized", [False, True])
def test_scan_over_layers(entry, rematerialized, implementation):
    """A stack of layers with gradients, inside of a scan."""
    case = named("dense")
    x = integers((2, 5, 4, 3))
    layers = integers((4, 3, 2, 3, 3), bound=1)

    def network(conv, x, layers):
        layer = lambda x, w: (jnp.tanh(conv(x, w)), jnp.sum(x))
        if rematerialized:
            layer = jax.checkpoint(layer)
        y, sums = lax.scan(layer, x, layers)
        return jnp.sum(y**2) + jnp.sum(sums)

    transform = lambda conv, x, layers: jax.value_and_grad(functools.partial(network, conv), argnums=(0, 1))(x, layers)
    actual = run(functools.partial(transform, getattr(case, entry)(implementation)), x, layers)
    assert_same(actual, run_on_host(functools.partial(transform, case.lax()), x, layers), RTOL)


def test_while_loop_and_scan_with_carried_filter(implementation):
    """Power iteration: the operands of both passes change in a loop."""
    case = named("dense")

    def transform(conv, x, w):
        def step(_, x):
            y, vjp = jax.vjp(lambda x: conv(x, w), x)
            (x,) = vjp(y)
            return x / jnp.max(jnp.abs(x))

        return lax.fori_loop(0, 3, step, x)

    check(transform, case, "general", implementation, RTOL)


@pytest.mark.parametrize("entry", ENTRIES)
def test_without_jit(entry, implementation):
    """Eager calls, and eager gradients, give what compiled ones give."""
    case = named("grouped")
    x, w = case.operands()
    conv, lax_conv = getattr(case, entry)(implementation), case.lax()
    g = cotangent(lax_conv, x, w)
    assert_same(pullback(conv)(x, w, g), run_on_host(pullback(lax_conv), x, w, g))
    with jax.disable_jit():
        assert_same(conv(x, w), run_on_host(lax_conv, x, w))


def test_conv_transpose_gradient(implementation):
    x, w = integers((2, 4, 3, 2)), integers((3, 3, 2, 5))
    ours = lambda x, w: jaxconv.conv_transpose(x, w, (2, 3), "SAME", implementation=implementation)
    theirs = lambda x, w: lax.conv_transpose(x, w, (2, 3), "SAME")
    g = cotangent(theirs, x, w)
    assert_same(run(pullback(ours), x, w, g), run_on_host(pullback(theirs), x, w, g))


def test_int_arguments_differentiate(implementation):
    """Arguments that are ints, and a filter seen under stop_gradient."""
    x, w = integers((2, 7, 6, 2)), integers((3, 3, 2, 4))
    params = {"window_strides": 2, "rhs_dilation": 2, "padding": "VALID"}
    ours = functools.partial(jaxconv.conv2d, **params, implementation=implementation)
    theirs = functools.partial(lax_channels_last, **params)
    transform = lambda conv, x, w: jax.grad(lambda x: jnp.sum(conv(x, lax.stop_gradient(w)) ** 2))(x)
    assert_same(run(functools.partial(transform, ours), x, w), run_on_host(functools.partial(transform, theirs), x, w))
