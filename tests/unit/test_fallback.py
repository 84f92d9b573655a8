"""Where no native kernel answers, lax does: with one warning a reason, with lax's values, and never under a name."""

import functools
import json
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.reference import assert_same, cotangent, custom_calls, integers, pullback, run, run_on_host
from cases.small import BATCH_GROUPS, ENTRIES, named
from jaxconv import fallback, ffi

# Each convolution twice in a fresh process, as the warnings come once a process.
WARNINGS = """
import json, warnings
import jax, jax.numpy as jnp, jaxconv
jax.config.update("jax_platforms", "cpu")

def conv(dtype, rank=2, **params):
    x, w = jnp.ones((1, 2, *[3] * rank), dtype), jnp.ones((2, 2, *[2] * rank), dtype)
    jax.block_until_ready(jaxconv.conv_general_dilated(x, w, (1,) * rank, "SAME", **params))

calls = {
    "native": lambda: conv("float32"),
    "int16": lambda: conv("int16"),
    "int16 again": lambda: conv("int16", batch_group_count=1),
    "four dimensions": lambda: conv("float32", 4),
    "four dimensions again": lambda: jax.jit(lambda: conv("float32", 4, precision="highest"))(),
    "five dimensions named xla": lambda: conv("float32", 5, implementation="xla"),
    "uint8": lambda: conv("uint8"),
    "int16 a third time": lambda: conv("int16"),
}
report = {}
for name, call in calls.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    report[name] = [str(w.message) for w in caught if issubclass(w.category, jaxconv.FallbackWarning)]
print(json.dumps(report))
"""


def test_one_warning_a_reason(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", WARNINGS], check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    report = json.loads(process.stdout.splitlines()[-1])
    expected = {"int16": 1, "four dimensions": 1, "uint8": 1}
    assert {name: len(messages) for name, messages in report.items() if messages} == expected
    assert "int16" in report["int16"][0]
    assert "4" in report["four dimensions"][0]
    assert "uint8" in report["uint8"][0]


@pytest.mark.parametrize(
    "message, is_error",
    [("", True), ("jaxconv: lax", True), ("JAXCONV", True), ("lax", False), ("another", False)],
)
def test_filters_that_make_errors_of_other_messages(message, is_error):
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("error", message=message, category=UserWarning)
        assert fallback.warnings_are_errors() == is_error


CALLS = {
    "conv2d": lambda x, w: jaxconv.conv2d(x, w),
    "conv_general_dilated": lambda x, w: jaxconv.conv_general_dilated(x, w, (1, 1), "SAME"),
    "grad": lambda x, w: jax.grad(lambda x: jnp.sum(jaxconv.conv2d(x, w).real))(x),
    "vmap": lambda x, w: jax.vmap(jaxconv.conv2d, (0, None))(x[None], w),
    "jit": lambda x, w: jax.jit(jaxconv.conv2d)(x, w),
    "lower": lambda x, w: jax.jit(jaxconv.conv2d).lower(x, w),
}


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("dtype", ["float8_e4m3b11fnuz", "float32"], ids=["while_tracing", "while_lowering"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_warning_names_the_callers_line(call, dtype, monkeypatch):
    """Not a line of this package or of JAX, though many of their frames are in between where a program is lowered."""
    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: "no kernels here")
    jax.clear_caches()  # eager calls keep their programs
    x = jnp.ones((3, 3, 3, 3), dtype)
    with pytest.warns(jaxconv.FallbackWarning) as caught:
        call(x, x)
    assert {(w.filename, w.lineno) for w in caught} == {(__file__, call.__code__.co_firstlineno)}


def test_the_warning_is_a_user_warning():
    assert issubclass(jaxconv.FallbackWarning, UserWarning)


FALLBACKS = {
    "four_dimensions": ((1, 2, 3, 2, 3, 2), (3, 2, 2, 2, 2, 1), "float32", {}),
    "four_dimensions_of_groups": ((1, 4, 3, 2, 3, 2), (6, 2, 2, 2, 2, 1), "float32", {"feature_group_count": 2}),
    "uint8": ((2, 3, 5, 4), (6, 3, 3, 2), "uint8", {}),
    "int8_of_four_dimensions": ((1, 2, 3, 2, 3, 2), (3, 2, 2, 2, 2, 1), "int8", {}),
    "int16": ((2, 3, 5, 4), (6, 3, 3, 2), "int16", {}),
    "bool": ((2, 3, 5, 4), (6, 3, 3, 2), "bool", {}),
}


@pytest.mark.filterwarnings("ignore::jaxconv.FallbackWarning")
@pytest.mark.parametrize("lhs, rhs, dtype, params", FALLBACKS.values(), ids=FALLBACKS)
def test_lax_answers(lhs, rhs, dtype, params):
    """Values, and gradients where there are any, of what no kernel takes; on the host, where lax takes it."""
    x, w = integers(lhs, dtype), integers(rhs, dtype, 1)
    rank = len(lhs) - 2
    ours, theirs = (
        functools.partial(f, window_strides=(1,) * rank, padding=((1, 0),) * rank, **params)
        for f in (jaxconv.conv_general_dilated, lax.conv_general_dilated)
    )
    assert_same(run_on_host(ours, x, w), run_on_host(theirs, x, w))
    if jnp.issubdtype(dtype, jnp.inexact):
        g = cotangent(theirs, x, w)
        assert_same(run_on_host(pullback(ours), x, w, g), run_on_host(pullback(theirs), x, w, g))


@pytest.mark.parametrize("entry", ENTRIES)
def test_xla_by_name(entry):
    """implementation="xla" is lax's convolution in every pass, and says so without a warning."""
    case = named("lhs_dilated")
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    conv = getattr(case, entry)("xla")
    for function, convolutions in [(lambda x, w, g: conv(x, w), 1), (pullback(conv), 3)]:
        text = jax.jit(function).lower(x, w, g).as_text()
        assert text.count("stablehlo.convolution") == convolutions
        assert not custom_calls(text)
    assert_same(run(pullback(conv), x, w, g), run_on_host(pullback(case.lax()), x, w, g))


def test_xla_by_name_for_other_entries():
    x, w = integers((2, 4, 3, 2)), integers((3, 3, 2, 5))
    transposed = functools.partial(jaxconv.conv_transpose, strides=(2, 2), padding="SAME", implementation="xla")
    text = jax.jit(transposed).lower(x, w).as_text()
    assert "stablehlo.convolution" in text and not custom_calls(text)
    text = jax.jit(BATCH_GROUPS.general("xla")).lower(*BATCH_GROUPS.operands()).as_text()
    assert "stablehlo.convolution" in text and not custom_calls(text)


def test_xla_by_name_keeps_the_precision():
    case = named("dense")
    operands = case.operands()
    text = jax.jit(functools.partial(case.front_door("xla"), precision="highest")).lower(*operands).as_text()
    assert "HIGHEST" in text
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in jax.jit(case.front_door("xla")).lower(*operands).as_text()


@pytest.mark.filterwarnings("ignore::jaxconv.FallbackWarning")
def test_platform_without_kernels():
    """A program for a platform that has no kernels holds lax's convolution."""
    case = named("grouped")
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    for entry in ENTRIES:
        conv = getattr(case, entry)(None)
        text = jax.jit(pullback(conv)).trace(x, w, g).lower(lowering_platforms=("tpu",)).as_text()
        assert text.count("stablehlo.convolution") == 3
        assert not custom_calls(text)


def test_default_is_native(implementation):
    """None takes the native kernels where there are any."""
    for case in (named("dense"), named("depthwise"), named("causal")):
        x, w = case.operands()
        for entry in ENTRIES:
            text = jax.jit(pullback(getattr(case, entry)(None))).lower(x, w, np.float32(case.lax()(x, w))).as_text()
            assert custom_calls(text) == {"conv": 2, "wgrad": 1}
            assert "stablehlo.convolution" not in text


def test_a_filter_makes_every_fallback_an_error():
    """Also the second of a reason, and one that was warned of before."""
    x, w = jnp.ones((1, 4, 4, 2), "uint8"), jnp.ones((3, 3, 2, 2), "uint8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jaxconv.conv2d(x, w)
        warnings.simplefilter("error", jaxconv.FallbackWarning)
        for _ in range(2):
            with pytest.raises(jaxconv.FallbackWarning):
                jaxconv.conv2d(x, w)
