"""`install`: lax's own functions on our kernels, and what their derivatives become."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.interpreters import mlir

import jaxconv
from cases.installed import ALL_PASSES, calls_of_installed
from cases.programs import exported
from cases.reference import (
    assert_same,
    channels_last,
    compiled,
    cotangent,
    custom_calls,
    exception_of,
    integers,
    opcodes,
    pullback,
    run,
    run_on_host,
)
from cases.small import BATCH_GROUPS, CASES, Case, named
from jaxconv import ffi, lowering
from jaxconv.explain import lines
from jaxconv.planner.choose import Choice
from jaxconv.planner.plan import Lax

pytestmark = pytest.mark.usefixtures("uninstalled", "warned_anew")


def has_cuda_kernels(monkeypatch):
    """As with the CUDA module, on a machine without a GPU."""
    for why in ("missing_module_reason", "unavailable_reason"):
        ours = getattr(ffi, why)
        monkeypatch.setattr(ffi, why, lambda platform, ours=ours: None if platform == "cuda" else ours(platform))


def text_of(function, *args):
    return compiled(function, *args).as_text()


MORE_CASES = [
    Case("pointwise", (2, 5, 4, 6), (1, 1, 6, 4)),
    Case("grouped_pointwise", (2, 5, 4, 6), (1, 1, 3, 4), {"feature_group_count": 2, "window_strides": (2, 2)}),
    Case("patches", (2, 8, 8, 3), (4, 4, 3, 5), {"window_strides": (4, 4), "padding": "VALID"}),
    Case("small_image", (2, 2, 2, 3), (3, 3, 3, 5)),
    Case("large_window", (2, 20, 20, 3), (3, 3, 3, 5), {"rhs_dilation": (6, 6), "padding": "VALID"}),
]


@pytest.mark.parametrize("case", [*CASES, *MORE_CASES], ids=str)
def test_each_pass_is_what_it_is_with_us(case, implementation):
    """The same passes of the same problems as by our own functions, the same program, and the same bits as lax."""
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    expected = run_on_host(pullback(case.lax()), x, w, g)
    problems = lambda conv: sorted(line.split(":")[0] for line in lines(pullback(conv), x, w, g))
    own = case.general(implementation)
    own_problems, own_opcodes = problems(own), opcodes(text_of(pullback(own), x, w, g))
    jaxconv.install(implementation)
    assert problems(case.lax()) == own_problems
    program = compiled(pullback(case.lax()), x, w, g)
    hlo = program.as_text()
    assert custom_calls(hlo) == ALL_PASSES
    assert opcodes(hlo) == own_opcodes
    assert_same(program(x, w, g), expected)


# How programs lay out images, filters and results; the last are read as other passes, and must only be right.
LAYOUTS = [("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NCHW"), ("NCHW", "IOHW", "NHWC"), ("CHWN", "IHWO", "HWNC")]


@pytest.mark.parametrize("params", [{}, {"feature_group_count": 3}, {"batch_group_count": 3}], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_any_layout(layout, params, implementation):
    groups = params.get("feature_group_count", 1)
    sizes = {"N": 3, "C": 6, "H": 5, "W": 4, "I": 6 // groups, "O": 9}
    x = integers([sizes[d] for d in layout[0]])
    w = integers([{**sizes, "H": 3, "W": 2}[d] for d in layout[1]])
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(1, 2), padding="SAME", dimension_numbers=layout, **params
    )
    g = cotangent(conv, x, w)
    expected = run_on_host(pullback(conv), x, w, g)
    jaxconv.install(implementation)
    program = compiled(pullback(conv), x, w, g)
    assert sum(custom_calls(program.as_text()).values()) == 3
    assert_same(program(x, w, g), expected)


@pytest.mark.usefixtures("on_the_host")  # lax has no uint8 on a GPU
@pytest.mark.parametrize("is_named", [False, True])
def test_what_no_kernel_takes_stays_with_lax(is_named):
    """With a warning, also under a name."""
    x, w = (a.astype("uint8") for a in named("dense").operands()[:2])
    conv = named("dense").lax()
    expected = run_on_host(conv, x, w)
    jaxconv.install("cpu" if is_named else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", jaxconv.FallbackWarning)
        assert_same(run(conv, x, w), expected, 1e-6)
        assert_same(run(lambda x, w: -conv(x, w), x, w), -expected, 1e-6)
    (warning,) = caught
    assert "uint8" in str(warning.message) and "Without jaxconv.install, lax answers" in str(warning.message)
    with pytest.raises(jaxconv.FallbackWarning, match="uint8"):  # by a filter
        run(lambda x, w: conv(x, w) + 1, x, w)


@pytest.mark.usefixtures("on_the_host")  # a GPU's compiled text has calls of cuDNN
@pytest.mark.parametrize("case", [named("strided"), named("grouped"), BATCH_GROUPS], ids=str)
def test_where_the_plan_is_lax(case, monkeypatch):
    """As where it is faster on a GPU: our fallback does not come back to us."""
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    expected = run_on_host(pullback(case.lax()), x, w, g)
    monkeypatch.setattr(lowering, "decide", lambda *_: Choice(Lax(), 0.0, lambda: ()))
    jaxconv.install()
    program = compiled(pullback(case.lax()), x, w, g)
    hlo = program.as_text()
    assert opcodes(hlo)["convolution"] == 3 and not custom_calls(hlo)
    assert_same(program(x, w, g), expected)


def test_on_a_gpu_that_is_not_here(monkeypatch):
    has_cuda_kernels(monkeypatch)
    case = named("grouped")
    x, w = case.operands()
    jaxconv.install("cuda")
    traced = jax.jit(pullback(case.lax())).trace(x, w, cotangent(case.lax(), x, w))
    assert custom_calls(traced.lower(lowering_platforms=("cuda",)).as_text()) == ALL_PASSES
    with pytest.warns(jaxconv.FallbackWarning):
        assert not custom_calls(traced.lower(lowering_platforms=("cpu",)).as_text())


@pytest.mark.parametrize("name, platform, message", [
    ("cuda", "cpu", r"install\('cuda'\) is not for cpu, but install\(\) is"),
    ("wgmma", "cpu", r"install\('wgmma'\) is not for cpu, but install\(\) is"),
    ("cpu", "cuda", r"install\('cpu'\) is not for cuda, but install\(\) is"),
    (None, "tpu", "jaxconv has no kernels for the platform tpu"),
    ("cpu", "rocm", "jaxconv has no kernels for the platform rocm"),
])  # fmt: skip
def test_a_platform_that_is_left_to_lax(name, platform, message, monkeypatch):
    """One warning for all its convolutions; none for those of jaxconv's functions that are to be lax's."""
    has_cuda_kernels(monkeypatch)
    case = named("dense")
    x, w = case.operands()
    lower = lambda function: jax.jit(function).trace(x, w).lower(lowering_platforms=(platform,)).as_text()
    by_lax = lower(case.lax())
    jaxconv.install(name)
    lower(case.general("xla"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", jaxconv.FallbackWarning)
        assert lower(case.lax()) == by_lax
        lower(lambda x, w: -case.lax()(x, w))
    (warning,) = caught
    assert re.search(message, str(warning.message)) and warning.filename == __file__


def test_two_platforms_of_one_program():
    """Of those that are left to lax, each has its warning."""
    case = named("dense")
    traced = jax.jit(case.lax()).trace(*case.operands())
    jaxconv.install("cpu")
    with pytest.warns(jaxconv.FallbackWarning) as caught:
        text = traced.lower(lowering_platforms=("cpu", "cuda", "tpu")).as_text()
    assert custom_calls(text) == {"conv": 1}
    assert sorted(re.findall("cuda|tpu", str([str(warning.message) for warning in caught]))) == ["cuda", "tpu"]


@pytest.mark.parametrize("name", ["cuda", "wgmma"])
def test_kernels_that_are_not_installed(name, monkeypatch):
    """The warning comes at once, with what to do, and once. As an error it changes nothing."""
    monkeypatch.setitem(ffi._LOADED, "cuda", "no cuda kernels: pip install them")
    rules = dict(mlir._lowerings)
    with pytest.raises(jaxconv.FallbackWarning):
        jaxconv.install(name)
    assert mlir._lowerings == rules
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", jaxconv.FallbackWarning)
        jaxconv.install(name)
        jaxconv.install(name)
        jaxconv.install("depthwise")  # the host has it
    (warning,) = caught
    assert "no cuda kernels: pip install them" in str(warning.message) and warning.filename == __file__


def test_xla_is_still_lax():
    """Asked for by name, in every pass."""
    case = named("dense")
    x, w = case.operands()
    jaxconv.install()
    conv = case.general("xla")
    stablehlo = jax.jit(pullback(conv)).lower(x, w, cotangent(conv, x, w)).as_text()
    assert stablehlo.count("stablehlo.convolution") == 3 and not custom_calls(stablehlo)
    assert "lax, as asked" in lines(conv, x, w)[0]


def test_the_rules_come_back():
    of = [*(mlir._platform_specific_lowerings[platform] for platform in ("cpu", "cuda", "rocm")), mlir._lowerings]
    rules = lambda: [rules[lax.conv_general_dilated_p] for rules in of]
    before = rules()
    jaxconv.uninstall()
    jaxconv.install()
    jaxconv.install()
    jaxconv.install("cpu")
    assert not any(a is b for a, b in zip(rules(), before))
    jaxconv.uninstall()
    assert all(a is b for a, b in zip(rules(), before))
    jaxconv.uninstall()


@pytest.mark.filterwarnings("ignore:.*(no cuda kernels|is not for):jaxconv.FallbackWarning")
def test_another_implementation_replaces_the_first(implementation):
    case = named("dense")
    x, w = case.operands()
    family = {"cpu": "gemm", "cuda": "simt"}[implementation]
    other = {"cpu": "cuda", "cuda": "cpu"}[implementation]
    for name, is_ours in ((other, False), (family, True), (None, None), (implementation, True)):
        jaxconv.install(name)
        if is_ours is not None:
            assert bool(custom_calls(text_of(case.lax(), x, w))) == is_ours


@pytest.mark.parametrize("name", ["tpu", "xla", ""])
def test_unknown_implementation(name):
    with pytest.raises(ValueError, match=rf"None, 'cpu'.*got '{name}'"):
        jaxconv.install(name)


def test_compiled_functions_are_compiled_again(implementation):
    """But not what was compiled ahead of time."""
    case = named("dense")
    x, w = case.operands()
    function = jax.jit(case.lax())
    function(x, w)
    ahead = function.lower(x, w).compile()
    jaxconv.install(implementation)
    assert custom_calls(function.lower(x, w).compile().as_text()) == {"conv": 1}
    assert not custom_calls(ahead.as_text())
    jaxconv.install(implementation)
    assert function._cache_size() == 0
    function(x, w)
    jaxconv.install(implementation)
    assert function._cache_size() == 1  # it was installed already
    jaxconv.uninstall()
    assert not custom_calls(function.lower(x, w).compile().as_text())


def test_eager_calls(implementation):
    x, w = named("dense").operands()
    expected = run_on_host(named("dense").lax(), x, w)
    jaxconv.install(implementation)
    assert_same(named("dense").lax()(x, w), expected)


def mapped(conv, axes):
    return jax.vmap(pullback(conv), in_axes=(*axes, None))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("case", [named("dense"), named("strided"), named("grouped"), BATCH_GROUPS], ids=str)
def test_vmap(case, axes, implementation):
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    x, w = (a if axis is None else np.stack([a, a + 1, a]) for a, axis in zip((x, w), axes))
    assert sum(calls_of_installed(mapped(case.lax(), axes), (x, w, g), implementation).values()) == 3


def hessian_product(conv):
    loss = lambda x, w: jnp.sum(conv(x, w) ** 2)
    return lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (x, w))


def second_reverse(conv):
    loss = lambda x, w: jnp.sum(conv(x, w) ** 2)
    squares = lambda x, w: sum(jnp.sum(d) for d in jax.grad(loss, (0, 1))(x, w))
    return jax.grad(squares, (0, 1))


def remat(conv):
    return jax.value_and_grad(jax.checkpoint(lambda x, w: jnp.sum(conv(x, w) ** 2)), (0, 1))


def scan(conv):
    def loss(x, w):
        return lax.scan(lambda total, x: (total + jnp.sum(conv(x[None], w)), None), 0.0, x)[0]

    return jax.value_and_grad(loss, (0, 1))


@pytest.mark.parametrize("transform", [hessian_product, second_reverse, remat, scan])
@pytest.mark.parametrize("case", [named("dense"), named("strided"), named("depthwise")], ids=str)
def test_transforms(case, transform, implementation):
    assert calls_of_installed(transform(case.lax()), case.operands(), implementation)


@pytest.mark.parametrize("operand, result", [
    ("bfloat16", None), ("float16", None), ("bfloat16", "float32"), ("float64", None), ("float32", "float64"),
])  # fmt: skip
def test_dtypes(operand, result, implementation, x64):
    case = named("strided")
    conv = functools.partial(case.lax(), preferred_element_type=result)
    x, w = case.operands(operand)
    g = cotangent(conv, x, w)
    expected = run_on_host(pullback(conv), x, w, g)
    jaxconv.install(implementation)
    program = compiled(pullback(conv), x, w, g)
    assert custom_calls(program.as_text()) == ALL_PASSES
    assert_same(program(x, w, g), expected)


@pytest.mark.parametrize("layout", [channels_last(2), ("CHWN", "IHWO", "HWNC")], ids=str)
def test_integers(layout, implementation):
    """Of a layout that is a weight gradient's, too."""
    x, w = integers((4, 4, 4, 4), "int8"), integers((4, 3, 3, 4), "int8")
    w = w if layout[1] == "IHWO" else w.transpose(1, 2, 0, 3)
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=layout,
        preferred_element_type="int32",
    )  # fmt: skip
    expected = run_on_host(conv, x, w)
    jaxconv.install(implementation)
    program = compiled(conv, x, w)
    assert custom_calls(program.as_text()) == {"wgrad" if layout[1] == "IHWO" else "conv": 1}
    assert_same(program(x, w), expected)


def test_export_with_a_symbolic_batch(implementation):
    case = named("strided")
    step = lambda x, w: jax.value_and_grad(lambda x, w: (case.lax()(x, w) ** 2).sum(), argnums=(0, 1))(x, w)
    x, w = case.operands()
    expected = run_on_host(step, x, w)
    jaxconv.install(implementation)
    (batch,) = export.symbolic_shape("b")
    shapes = jax.ShapeDtypeStruct((batch, *case.lhs[1:]), np.float32), jax.ShapeDtypeStruct(case.rhs, np.float32)
    program = exported(step, *shapes)
    assert custom_calls(program.mlir_module()) == ALL_PASSES
    assert_same(program.call(x, w), expected)


BAD = {
    "no_stride": dict(window_strides=(0, 1), padding="VALID"),
    "negative_stride": dict(window_strides=(-1, 1), padding="VALID"),
    "no_dilation": dict(window_strides=(1, 1), padding="VALID", rhs_dilation=(0, 1)),
    "few_lhs_dilations": dict(window_strides=(1, 1), padding=((0, 0),) * 2, lhs_dilation=(1,)),
    "many_rhs_dilations": dict(window_strides=(1, 1), padding=((0, 0),) * 2, rhs_dilation=(1, 1, 1)),
    "few_paddings": dict(window_strides=(1, 1), padding=((0, 0),)),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("params", BAD.values(), ids=BAD)
def test_bad_input_is_refused_by_lax(params, implementation):
    x, w = integers((1, 2, 5, 5)), integers((2, 2, 3, 3))
    call = functools.partial(lax.conv_general_dilated, x, w, **params)
    expected = exception_of(call)
    jaxconv.install(implementation)
    actual = exception_of(call)
    assert type(actual) is type(expected)
    assert str(actual).split("at loc(")[0] == str(expected).split("at loc(")[0]


@pytest.mark.parametrize("x, w", [((0, 2, 5, 5), (3, 2, 3, 3)), ((1, 2), (3, 2)), ((2, 2, 2, 2), (0, 2, 1, 1))])
def test_without_elements_or_dimensions(x, w, implementation):
    x, w = integers(x), integers(w)
    rank = x.ndim - 2
    conv = functools.partial(lax.conv_general_dilated, window_strides=(1,) * rank, padding=((1, 1),) * rank)
    expected = run_on_host(conv, x, w)
    jaxconv.install(implementation)
    assert_same(run(conv, x, w), expected)


def test_explain(implementation):
    """It names our kernels for lax's functions, only while they answer them."""
    x, w = named("dense").operands()
    passes = lambda: [line.split()[0] for line in lines(pullback(named("dense").lax()), x, w, x[..., :1].repeat(4, -1))]
    assert passes() == ["convolution"] * 3
    jaxconv.install(implementation)
    assert sorted(passes()) == ["dgrad", "fprop", "wgrad"]
