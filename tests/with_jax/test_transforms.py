"""Every JAX transformation of our convolutions against the same one of lax's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.jet import jet

import jaxconv
from cases.derivatives import (
    grad_of_grad,
    gradients,
    jvp_of_grad,
    loss,
    remat,
    stack,
    tangents,
    third_order,
)
from cases.parts import diagonal, every_other, name, repeated
from cases.reference import assert_same, cotangent, integers, lax_channels_last, pullback, run, run_on_host
from cases.small import BATCH_GROUPS, BY_ENTRIES_IN_TURNS, BY_ENTRY, CASES, ENTRIES, GENERAL, named

pytestmark = pytest.mark.usefixtures("full_precision")  # derivatives of sin are no small integers


# A derivative of sin mixes all orders of magnitude; a wrong term is far outside of this.
RTOL = 2e-5


def value_and_grad(conv):
    loss = lambda x, w: jnp.vdot(conv(x, w), cotangent(conv, x, w))
    return jax.value_and_grad(loss, argnums=(0, 1))


def hessian(conv):
    return jax.hessian(loss(conv), argnums=(0, 1))


def jacrev(conv):
    return jax.jacrev(conv, argnums=(0, 1))


def cond(conv):
    def branches(x, w, which):
        return lax.cond(which, loss(conv), lambda x, w: jnp.sum(conv(-x, w) ** 2), x, w)

    return lambda x, w: [jax.grad(branches, argnums=(0, 1))(x, w, which) for which in (True, False)]


def jvp(conv):
    return lambda *arrays: jax.jvp(conv, arrays, tangents(arrays))


def jacfwd(conv):
    return jax.jacfwd(conv, argnums=(0, 1))


def linearize(conv):
    def value_and_tangent(*arrays):
        y, tangent_map = jax.linearize(conv, *arrays)
        return y, tangent_map(*tangents(arrays))

    return value_and_tangent


def linear_transpose(conv):
    def both(x, w):
        g = cotangent(conv, x, w)
        return jax.linear_transpose(lambda x: conv(x, w), x)(g), jax.linear_transpose(lambda w: conv(x, w), w)(g)

    return both


def grad_of_jvp(conv):
    return gradients(lambda *arrays: jax.jvp(loss(conv), arrays, tangents(arrays))[1])


EXACT = [value_and_grad, jacrev]
ROUNDED = [grad_of_grad, third_order, jvp_of_grad, hessian, remat, cond]
EXACT_FORWARD_MODE = [jvp, jacfwd, linearize, linear_transpose]
ROUNDED_FORWARD_MODE = [grad_of_jvp]


def check(transform, case, entry, implementation, rtol):
    x, w = case.operands()
    actual = run(transform(getattr(case, entry)(implementation)), x, w)
    assert_same(actual, run_on_host(transform(case.lax()), x, w), rtol)


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


def taylor(conv):
    return lambda x, w: jet(conv, (x, w), polynomials(x, w), factorial_scaled=False)


def taylor_of_grad(conv):
    return lambda x, w: jet(gradients(loss(conv)), (x, w), polynomials(x, w))


def taylor_in_filter(conv):
    return lambda x, w: jet(lambda w: conv(x, w), (w,), polynomials(x, w)[1:], factorial_scaled=False)


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
    transform = lambda conv: lambda x, w: [mapped(conv, *axes)(x, w) for axes in MAPPED[half::2]]
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
    transform = lambda conv: lambda x, w: {name: nested(conv, maps, x, w) for name, maps in NESTS.items()}
    check(transform, case, entry, implementation, rtol=0)


@pytest.mark.parametrize("case, entry", [*BY_ENTRIES_IN_TURNS, (BATCH_GROUPS, "general")], ids=str)
def test_per_example_gradients(case, entry, implementation):
    def transform(conv):
        of_filter = jax.vmap(jax.grad(loss(conv), argnums=1), in_axes=(0, None))
        return lambda x, w: of_filter(stack(x, 0), w)

    check(transform, case, entry, implementation, RTOL)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_no_elements(axes, implementation):
    def transform(conv):
        empty = lambda a, axis: a if axis is None else jnp.zeros((0, *a.shape))
        return lambda *arrays: jax.vmap(conv, in_axes=axes)(*map(empty, arrays, axes))

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

    transform = lambda conv: jax.value_and_grad(functools.partial(network, conv), argnums=(0, 1))
    actual = run(transform(getattr(case, entry)(implementation)), x, layers)
    assert_same(actual, run_on_host(transform(case.lax()), x, layers), RTOL)


def test_while_loop_and_scan_with_carried_filter(implementation):
    """Power iteration: the operands of both passes change in a loop."""
    case = named("dense")

    def transform(conv):
        def step(_, of):
            x, w = of
            y, vjp = jax.vjp(lambda x: conv(x, w), x)
            (x,) = vjp(y)
            return x / jnp.max(jnp.abs(x)), w

        return lambda x, w: lax.fori_loop(0, 3, step, (x, w))[0]

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
    transform = lambda conv: jax.grad(lambda x, w: jnp.sum(conv(x, lax.stop_gradient(w)) ** 2))
    assert_same(run(transform(ours), x, w), run_on_host(transform(theirs), x, w))
