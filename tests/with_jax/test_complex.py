"""Complex convolutions: real ones of all parts, native and no less exact than lax's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxconv
from cases import problems
from cases.convolution import channels_last_convolution
from cases.meshes import TWO_AXES, place
from cases.parts import in_turns
from cases.reference import assert_same, custom_calls, pullback, run, run_on_host
from jaxconv.complex_numbers import as_real
from jaxconv.explain import lines
from jaxconv.lowering import decide
from jaxconv.problem.product import RESULT

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


@pytest.mark.parametrize("name", ["dense", "grouped"])
def test_wider_result(name, implementation, x64):
    """All passes, of two types then."""
    x, w, g = CASES[name].operands("complex64")
    conv = pullback(ours(CASES[name], implementation, preferred_element_type="complex128"))
    actual = run(conv, x, w, g.astype("complex128"))
    y, dx, dw = run_on_host(pullback(CASES[name].lax()), x, w, g)
    assert_same(actual, (y.astype("complex128"), dx, dw))


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


def test_install(implementation, uninstalled):
    """Also the gradients that lax writes as convolutions."""
    operands = CASES["strided"].operands("complex64")
    conv = pullback(CASES["strided"].lax())
    expected = run_on_host(conv, *operands)
    jaxconv.install(implementation)
    assert_same(run(conv, *operands), expected)
    assert custom_calls(jax.jit(conv).lower(*operands).as_text()) == {"conv": 2, "wgrad": 1}


# With sums of a few to some hundred products.
LAYERS = {
    "dense": channels_last_convolution((2, 12, 12, 64), (3, 3, 64, 64)),
    "pointwise": channels_last_convolution((2, 16, 16, 8), (1, 1, 8, 32)),
    "strided": channels_last_convolution((2, 17, 17, 32), (3, 3, 32, 32), window_strides=(2, 2)),
    "groups_of_16": channels_last_convolution((2, 16, 16, 32), (3, 3, 16, 32), feature_group_count=2),
    "groups_of_4": channels_last_convolution((2, 16, 16, 32), (3, 3, 4, 32), feature_group_count=8),
    "batch_groups": channels_last_convolution((4, 16, 16, 8), (3, 3, 8, 16), batch_group_count=2),
    "depthwise": channels_last_convolution((2, 16, 16, 5), (3, 3, 1, 5), feature_group_count=5),
    "depthwise_of_two_results": channels_last_convolution((2, 16, 16, 16), (3, 3, 1, 32), feature_group_count=16),
    "depthwise_volume": channels_last_convolution((1, 6, 8, 8, 8), (3, 3, 3, 1, 8), feature_group_count=8),
    "one_output": channels_last_convolution((2, 16, 16, 32), (3, 3, 32, 1)),
    "one_to_one": channels_last_convolution((2, 32, 32, 1), (7, 7, 1, 1)),
}
SIZES_OF_PARTS = {"of_one_size": 1.0, "nearly_real": 1e-4}  # the imaginary part's
IMAGINARY = pytest.mark.parametrize("imaginary", SIZES_OF_PARTS.values(), ids=SIZES_OF_PARTS)


def gaussian(case, imaginary):
    """x, w and a cotangent, and what is exact of all passes."""
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(a.shape) + 1j * imaginary * rng.standard_normal(a.shape) for a in case.operands()]
    operands = [a.astype("complex64") for a in operands]
    with jax.enable_x64(True):
        return operands, run_on_host(pullback(case.lax()), *(a.astype("complex128") for a in operands))


def errors(actual, exact, part):
    """The root mean square and the largest, of the real or the imaginary parts."""
    error = part(np.asarray(actual, np.complex128)) - part(np.asarray(exact))
    return np.array([np.sqrt(np.mean(error**2)), np.max(np.abs(error))])


@IMAGINARY
def test_errors_beside_lax(imaginary, implementation):
    """In the root mean square, at most lax's: it adds both parts before it multiplies, and so loses one that is far
    smaller."""
    case = channels_last_convolution((2, 9, 8, 32), (3, 3, 32, 32))
    operands, exact = gaussian(case, imaginary)
    theirs = run(pullback(case.bound(lax.conv_general_dilated, precision="highest")), *operands)
    actual = run(pullback(ours(case, implementation, precision="highest")), *operands)
    for a, their, e in zip(actual, theirs, exact, strict=True):
        assert errors(a, e, np.real)[0] <= errors(their, e, np.real)[0]
        assert errors(a, e, np.imag)[0] <= (1 if imaginary == 1 else 1e-2) * errors(their, e, np.imag)[0]


@pytest.mark.parametrize(
    "case, imaginary", in_turns({name: (case,) for name, case in LAYERS.items()}, SIZES_OF_PARTS.values())
)
def test_errors_on_a_host(case, imaginary):
    """At most lax's, of both parts, in every pass. JAX is without float64, which the sums are of."""
    operands, exact = gaussian(case, imaginary)
    theirs, actual = (run_on_host(pullback(conv), *operands) for conv in (case.lax(), ours(case, "cpu")))
    for which, a, their, e in zip(("fprop", "dgrad", "wgrad"), actual, theirs, exact, strict=True):
        for part in (np.real, np.imag):
            assert (errors(a, e, part) <= errors(their, e, part)).all(), (which, part.__name__)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant, reason="nothing wider than float64")
@IMAGINARY
@pytest.mark.parametrize(
    ("width", "channels", "outputs", "groups"),
    [(1, 16, 16, 1), (3, 8, 16, 1), (9, 16, 16, 16), (33, 1, 1, 1), (33, 1, 8, 1), (3, 64, 1, 1), (5, 12, 12, 3)],
)
def test_errors_of_complex128_on_a_host(width, channels, outputs, groups, imaginary, x64):
    """In the root mean square, at most lax's."""
    case = channels_last_convolution(
        (4, 400, channels), (width, channels // groups, outputs), padding="VALID", feature_group_count=groups
    )
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(a.shape) + 1j * imaginary * rng.standard_normal(a.shape) for a in case.operands()[:2])
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.clongdouble), width, axis=1)
    windows = windows.reshape(*windows.shape[:2], groups, -1, width)
    exact = np.einsum("nqgcs,scgk->nqgk", windows, w.reshape(*w.shape[:2], groups, -1)).reshape(4, -1, outputs)
    theirs, actual = (run_on_host(conv, x, w) for conv in (case.lax(), ours(case, "cpu")))
    for part in (np.real, np.imag):
        ours_rms, their_rms = (np.sqrt(np.mean((part(np.asarray(y)) - part(exact)) ** 2)) for y in (actual, theirs))
        assert 0 < ours_rms <= their_rms


def test_explain_has_the_real_convolutions_kernel():
    x, w, _ = CASES["dense"].operands("complex64")
    (line,) = lines(jaxconv.conv2d, x, w)
    assert line.startswith("fprop complex64[2,9,8,4]") and (": gemm" in line or "us)" in line)


def problem_of(case):
    return problems.problem_of(case.lax(), case.lhs, case.rhs, "complex64")


@pytest.mark.parametrize(
    ("kind", "lhs", "rhs", "out"),
    [("conv", (4, 9, 8, 4), (3, 3, 2, 12), (4, 9, 8, 12)), ("wgrad", (2, 9, 8, 8), (3, 3, 4, 12), (2, 9, 8, 12))],
)
def test_the_real_problem(kind, lhs, rhs, out):
    """Twice the images, or input channels, and twice the output channels."""
    real = as_real(kind, problem_of(CASES["grouped"]))
    assert (real.lhs_shape, real.rhs_shape, real.out_shape) == (lhs, rhs, out)
    assert (real.groups, real.in_channels, real.out_channels, real.lhs_dtype) == (2, rhs[2], 6, np.float32)
    assert real.member == (2, rhs[2], 6)


@pytest.mark.parametrize(
    ("case", "kind", "doubled", "sums"),
    [
        (LAYERS["dense"], "conv", "n", "float32"),
        (LAYERS["dense"], "wgrad", "c", "float64"),
        (LAYERS["groups_of_4"], "conv", "c", "float64"),
        (LAYERS["groups_of_4"], "wgrad", "c", "float64"),
        (LAYERS["depthwise"], "conv", "n", "float64"),
        (LAYERS["depthwise"], "wgrad", "n", "float64"),
        (LAYERS["one_output"], "conv", "c", "float64"),
        (channels_last_convolution((1, 4, 4, 600), (3, 3, 600, 2)), "conv", "c", "float64"),
        (channels_last_convolution((2, 24, 24, 2), (3, 3, 2, 2)), "wgrad", "c", "float32"),
    ],
)
def test_sums_on_a_host(case, kind, doubled, sums):
    """Of float32 where they are dense, and neither short nor, in a convolution, very long."""
    problem = problem_of(case)
    real = as_real(kind, problem, "cpu")
    assert real.dtype(RESULT[kind]) == sums
    sizes = {"n": (2 * problem.batch, problem.in_channels), "c": (problem.batch, 2 * problem.in_channels)}
    assert (real.batch, real.in_channels) == sizes[doubled]
    assert as_real(kind, problem).dtype(RESULT[kind]) == np.float32  # a GPU's


def test_sums_of_sizes_that_no_kernel_takes():
    """They are not asked for: lax answers."""
    conv = functools.partial(lax.conv, window_strides=(1, 1, 1, 1), padding="SAME")
    problem = problems.problem_of(conv, (2, 64, 3, 3, 3, 3), (4, 64, 2, 2, 2, 2), "complex64")
    choice = decide("conv", "cpu", problem, None)
    assert choice.plan is None and choice.unsupported_reason().startswith("4 spatial dimensions")
