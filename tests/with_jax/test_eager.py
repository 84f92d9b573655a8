"""Calls outside of jit: one program for each signature, and nothing more in a jaxpr."""

import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxconv
from cases.reference import integers, lax_channels_last
from jaxconv import api

X, W = (2, 6, 5, 4), (3, 2, 4, 6)
CALLS = {
    "conv2d": lambda x, w, **more: jaxconv.conv2d(x, w, window_strides=[2, 1], **more),
    "circular": lambda x, w, **more: jaxconv.conv2d(x, w, padding="CIRCULAR", **more),
    "fused": lambda x, w, **more: jaxconv.conv2d(x, w, bias=1.0, activation="relu", **more),
    "general": lambda x, w, **more: jaxconv.conv_general_dilated(
        x, w, [1, 1], [[1, 1], [0, 2]], dimension_numbers=["NHWC", "HWIO", "NHWC"], **more
    ),
    "transpose": lambda x, w, **more: jaxconv.conv_transpose(x, w, (2, 2), "SAME", **more),
    "transpose_kernel": lambda x, w, **more: jaxconv.conv_transpose(
        x, jnp.swapaxes(w, 2, 3), (2, 2), "SAME", transpose_kernel=True, **more
    ),
}


@pytest.mark.parametrize("implementation", [None, "cpu", "xla"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_second_call_reads_nothing(call, implementation, monkeypatch):
    x, w = integers(X), integers(W, seed=1)
    first = call(x, w, implementation=implementation)
    for name in ("read", "_answer_of_lax"):
        monkeypatch.setattr(api, name, None)
    np.testing.assert_array_equal(first, call(x, w, implementation=implementation))
    np.testing.assert_array_equal(call(np.asarray(x), w, implementation=implementation), first)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("are_constants", [False, True])
def test_a_jaxpr_has_no_call_around_a_convolution(call, are_constants):
    x, w = integers(X), integers(W, seed=1)
    traced = jax.make_jaxpr(lambda *arrays: call(*(arrays or (x, w))))(*(() if are_constants else (x, w)))
    assert not {"convolution", "call"} & {equation.params.get("name") for equation in traced.jaxpr.eqns}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_jit(call):
    x, w = integers(X), integers(W, seed=1)
    with jax.disable_jit():
        y = call(x, w)
    np.testing.assert_array_equal(y, call(x, w))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_nan_is_found(call):
    x, w = jnp.full(X, jnp.nan), integers(W, seed=1)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        call(x, w)


def test_each_context_has_its_program(monkeypatch):
    """What jit knows of: precision and dtypes that JAX's options choose."""
    x, w = integers(X), integers(W, seed=1)
    assert jaxconv.conv2d(np.asarray(x, "float64"), np.asarray(w, "float64")).dtype == "float32"
    with jax.enable_x64(True):
        assert jaxconv.conv2d(np.asarray(x, "float64"), np.asarray(w, "float64")).dtype == "float64"
    precisions = []
    monkeypatch.setattr(api, "unsupported_reason", lambda problem: precisions.append(problem.precision))
    for precision in ("default", "highest", "default"):
        with jax.default_matmul_precision(precision):
            jaxconv.conv2d(x[:1], w)
    assert len(set(precisions)) == len(precisions) == 2


@pytest.mark.usefixtures("warned_anew")
def test_a_warning_that_becomes_an_error():
    """Also of a call that has its program."""
    x = jnp.ones((1, 3, 3, 3), "int16")
    with pytest.warns(jaxconv.FallbackWarning, match="int16"):
        jaxconv.conv2d(x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jaxconv.FallbackWarning)
        for _ in range(2):
            with pytest.raises(jaxconv.FallbackWarning, match="int16"):
                jaxconv.conv2d(x, x)


def test_threads():
    """Each calls other signatures at the same time."""
    x = integers((2, 9, 9, 4))
    windows = [integers((size, size, 4, 3), seed=size) for size in range(1, 6)] * 4
    results = [None] * len(windows)

    def work(i):
        results[i] = jaxconv.conv2d(x, windows[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(windows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for w, y in zip(windows, results, strict=True):
        np.testing.assert_array_equal(y, lax_channels_last(x, w))
