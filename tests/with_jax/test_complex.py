"""Complex convolutions: real ones of all parts, native and no less exact than lax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.convolution import channels_last_convolution
from cases.meshes import TWO_AXES, place
from cases.reference import assert_same, custom_calls, pullback, run, run_on_host
from jaxconv.complex_numbers import as_real
from jaxconv.explain import lines
from jaxconv.problem import ConvProblem

X, W = (2, 9, 8, 4), (3, 3, 4, 6)
CASES = {
    "dense": channels_last_convolution(X, W),
    "strided": channels_last_convolution(X, W, window_strides=(2, 2)),
    "dilated": channels_last_convolution(X, W, rhs_dilation=(2, 2), lhs_dilation=(3, 3), padding=((2, 2), (2, 2))),
    "grouped": channels_last_convolution(X, (3, 3, 2, 6), feature_group_count=2),
    "depthwise": channels_last_convolution(X, (3, 3, 1, 8), feature_group_count=4),
    "batch_groups": channels_last_convolution((4, 9, 8, 4), W, batch_group_count=2),
    "line": channels_last_convolution((2, 20, 4), (5, 4, 6)),
    "volume": channels_last_convolution((1, 4, 5, 6, 4), (2, 3, 3, 4, 6)),
}


def ours(case, implementation, **more):
    return case.bound(jaxconv.conv_general_dilated, implementation=implementation, **more)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exact(case, dtype, implementation, x64):
    """All passes, each by one call of ours."""
    operands = case.operands(dtype)
    program = pullback(ours(case, implementation))
    assert_same(run(program, *operands), run_on_host(pullback(case.lax()), *operands))
    text = jax.jit(program).lower(*operands).as_text()
    assert custom_calls(text) == {"conv": 2, "wgrad": 1} and "stablehlo.convolution" not in text


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap_and_second_derivatives(mapped, implementation):
    case = CASES["grouped"]
    x, w, _ = case.operands("complex64")
    x, w = (np.stack([a, 2 * a, -a]) if axis == 0 else a for a, axis in zip((x, w), mapped, strict=True))

    def twice(conv):
        loss = lambda x, w: jnp.sum(jnp.abs(jax.vmap(conv, mapped)(x, w)) ** 2)
        return lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (w.sum() * x, w))

    actual = run(twice(ours(case, implementation, precision="highest")), x, w)
    assert_same(actual, run_on_host(twice(case.lax()), x, w), 1e-5)


def test_sharded():
    case = channels_last_convolution((4, 8, 8, 4), W)
    operands = case.operands("complex64")
    placed = place(TWO_AXES(), operands, (P("a", "b"), P(), P("a", "b")))
    assert_same(run_on_host(pullback(ours(case, "cpu")), *placed), run_on_host(pullback(case.lax()), *operands))


def test_install(implementation):
    """Also the gradients that lax writes as convolutions."""
    operands = CASES["strided"].operands("complex64")
    conv = pullback(CASES["strided"].lax())
    expected = run_on_host(conv, *operands)
    jaxconv.install(implementation)
    try:
        assert_same(run(conv, *operands), expected)
        assert custom_calls(jax.jit(conv).lower(*operands).as_text()) == {"conv": 2, "wgrad": 1}
    finally:
        jaxconv.uninstall()


@pytest.mark.parametrize("imaginary", [1.0, 1e-4], ids=["of_one_size", "nearly_real"])
def test_errors_beside_lax(imaginary, implementation, x64):
    """In the root mean square, at most lax's: it adds both parts before it multiplies, and so loses one that is far
    smaller."""
    rng = np.random.default_rng(0)
    case = channels_last_convolution((2, 9, 8, 32), (3, 3, 32, 32))
    draw = lambda *shape: rng.standard_normal(shape) + 1j * imaginary * rng.standard_normal(shape)
    operands = [draw(*shape).astype("complex64") for shape in (case.lhs, case.rhs, case.lhs)]
    exact = run_on_host(pullback(case.lax()), *(a.astype("complex128") for a in operands))
    theirs = run(pullback(case.bound(lax.conv_general_dilated, precision="highest")), *operands)
    actual = run(pullback(ours(case, implementation, precision="highest")), *operands)

    def error(x, e, part):
        return np.sqrt(np.mean((part(np.asarray(x, np.complex128)) - part(np.asarray(e))) ** 2))

    for a, their, e in zip(actual, theirs, exact, strict=True):
        assert error(a, e, np.real) <= error(their, e, np.real)
        assert error(a, e, np.imag) <= (1 if imaginary == 1 else 1e-2) * error(their, e, np.imag)


def test_explain_has_the_real_convolutions_kernel():
    x, w, _ = CASES["dense"].operands("complex64")
    (line,) = lines(jaxconv.conv2d, x, w)
    assert line.startswith("fprop complex64[2,9,8,4]") and (": gemm" in line or "us)" in line)


@pytest.mark.parametrize(
    ("kind", "lhs", "rhs", "out"),
    [("conv", (4, 9, 8, 4), (3, 3, 2, 12), (4, 9, 8, 12)), ("wgrad", (2, 9, 8, 8), (3, 3, 4, 12), (2, 9, 8, 12))],
)
def test_the_real_problem(kind, lhs, rhs, out):
    """Twice the images, or input channels, and twice the output channels."""
    x, w, _ = CASES["grouped"].operands("complex64")
    jaxpr = jax.make_jaxpr(CASES["grouped"].lax())(x, w).jaxpr
    (equation,) = jaxpr.eqns
    problem = ConvProblem.from_lax(*(v.aval for v in (*equation.invars, *equation.outvars)), equation.params)
    real = as_real(kind, problem)
    assert (real.lhs_shape, real.rhs_shape, real.out_shape) == (lhs, rhs, out)
    assert (real.groups, real.in_channels, real.out_channels, real.lhs_dtype) == (2, rhs[2], 6, np.float32)
    assert real.member == (2, rhs[2], 6)
