"""Complex convolutions: real ones of twice the channels, native and no less exact than lax's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.reference import assert_same, custom_calls, integers, lax_channels_last, pullback, run, run_on_host
from jaxconv.complex_numbers import as_real
from jaxconv.explain import lines
from jaxconv.problem import ConvProblem

X, W = (2, 9, 8, 4), (3, 3, 4, 6)
CASES = {
    "dense": (X, W, {}),
    "strided": (X, W, dict(window_strides=2)),
    "dilated": (X, W, dict(rhs_dilation=2, lhs_dilation=3, padding=2)),
    "grouped": (X, (3, 3, 2, 6), dict(feature_group_count=2)),
    "depthwise": (X, (3, 3, 1, 8), dict(feature_group_count=4)),
    "batch_groups": ((4, 9, 8, 4), W, dict(batch_group_count=2)),
    "line": ((2, 20, 4), (5, 4, 6), {}),
    "volume": ((1, 4, 5, 6, 4), (2, 3, 3, 4, 6), {}),
}


def operands_of(x_shape, w_shape, params, dtype="complex64"):
    x, w = integers(x_shape, dtype, 0), integers(w_shape, dtype, 1)
    y = jax.eval_shape(functools.partial(lax_channels_last, **params), x, w)
    return x, w, integers(y.shape, dtype, 2)


def ours(implementation, rank, **params):
    def conv(x, w):
        return jaxconv.conv_general_dilated(x, w, implementation=implementation, **arguments)

    spatial = "DHW"[3 - rank :]
    per_dimension = lambda value: (value,) * rank if isinstance(value, int) else value
    padding = params.pop("padding", "SAME")
    arguments = {
        name: per_dimension(params.pop(name, 1)) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    }
    arguments |= dict(padding=((padding,) * 2,) * rank if isinstance(padding, int) else padding, **params)
    arguments["dimension_numbers"] = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    return conv


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("x_shape, w_shape, params", CASES.values(), ids=CASES)
def test_exact(x_shape, w_shape, params, dtype, implementation, x64):
    """All passes, each by one call of ours."""
    operands = operands_of(x_shape, w_shape, params, dtype)
    program = pullback(ours(implementation, len(x_shape) - 2, **params))
    assert_same(
        run(program, *operands), run_on_host(pullback(functools.partial(lax_channels_last, **params)), *operands)
    )
    text = jax.jit(program).lower(*operands).as_text()
    assert custom_calls(text) == {"conv": 2, "wgrad": 1} and "stablehlo.convolution" not in text


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap_and_second_derivatives(mapped, implementation):
    x, w, _ = operands_of(*CASES["grouped"])
    x, w = (np.stack([a, 2 * a, -a]) if axis == 0 else a for a, axis in zip((x, w), mapped, strict=True))

    def twice(conv):
        loss = lambda x, w: jnp.sum(jnp.abs(jax.vmap(conv, mapped)(x, w)) ** 2)
        return lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (w.sum() * x, w))

    theirs = functools.partial(lax_channels_last, feature_group_count=2)
    assert_same(
        run(twice(ours(implementation, 2, feature_group_count=2)), x, w), run_on_host(twice(theirs), x, w), 1e-5
    )


def test_sharded(implementation):
    if len(jax.devices()) < 8:
        pytest.skip("one device")
    mesh = jax.make_mesh((4, 2), ("a", "b"), (AxisType.Auto,) * 2)
    operands = operands_of((4, 8, 8, 4), W, {})
    specs = P("a", "b"), P(), P("a", "b")
    placed = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(operands, specs, strict=True)]
    assert_same(run(pullback(ours(implementation, 2)), *placed), run_on_host(pullback(lax_channels_last), *operands))


def test_install(implementation):
    """Also the gradients that lax writes as convolutions."""
    operands = operands_of(*CASES["strided"])
    conv = pullback(functools.partial(lax_channels_last, window_strides=2))
    expected = run_on_host(conv, *operands)
    jaxconv.install(implementation)
    try:
        assert_same(run(conv, *operands), expected)
        assert custom_calls(jax.jit(conv).lower(*operands).as_text()) == {"conv": 2, "wgrad": 1}
    finally:
        jaxconv.uninstall()


@pytest.mark.parametrize("imaginary", [1.0, 1e-4], ids=["of_one_size", "nearly_real"])
def test_errors_beside_lax(imaginary, implementation, x64):
    """In the root mean square: those of sums of twice as many terms. lax adds both parts before it multiplies, and so
    loses one that is far smaller."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape) + 1j * imaginary * rng.standard_normal(shape)
    operands = [draw(*shape).astype("complex64") for shape in ((2, 9, 8, 32), (3, 3, 32, 32), (2, 9, 8, 32))]
    exact = run_on_host(pullback(lax_channels_last), *(a.astype("complex128") for a in operands))
    theirs = run(pullback(functools.partial(lax_channels_last, precision="highest")), *operands)
    actual = run(pullback(ours(implementation, 2, precision="highest")), *operands)

    def error(x, e, part):
        return np.sqrt(np.mean((part(np.asarray(x, np.complex128)) - part(np.asarray(e))) ** 2))

    for a, their, e in zip(actual, theirs, exact, strict=True):
        assert error(a, e, np.real) <= 2 * error(their, e, np.real)
        assert error(a, e, np.imag) <= (2 if imaginary == 1 else 1e-2) * error(their, e, np.imag)


def test_explain_has_the_real_convolutions_kernel():
    x, w, _ = operands_of(*CASES["dense"])
    (line,) = lines(jaxconv.conv2d, x, w)
    assert line.startswith("fprop complex64[2,9,8,4]") and (": gemm" in line or "us)" in line)


def test_the_real_problem_has_twice_the_channels():
    x, w, _ = operands_of(*CASES["grouped"])
    jaxpr = jax.make_jaxpr(functools.partial(lax_channels_last, feature_group_count=2))(x, w).jaxpr
    (equation,) = jaxpr.eqns
    problem = ConvProblem.from_lax(*(v.aval for v in (*equation.invars, *equation.outvars)), equation.params)
    real = as_real(problem)
    assert (real.lhs_shape, real.rhs_shape, real.out_shape) == ((2, 9, 8, 8), (3, 3, 4, 12), (2, 9, 8, 12))
    assert (real.groups, real.in_channels, real.out_channels, real.lhs_dtype) == (2, 4, 6, np.float32)
