"""What the tests compare with: lax on the host, where sums of small integers are exact, and the shared comparisons."""

import re
from collections import Counter

import jax
import numpy as np
from jax import lax

from cases.repaired_lax import repair

repair()
HOST = jax.devices("cpu")[0]
FLOATS = ["float32", "float64", "bfloat16", "float16"]

# Hundreds of small programs: their compilation is what the tests spend their time on.
QUICK_HOST_COMPILE = {"xla_backend_optimization_level": 0}
OPTIMIZED = {"xla_backend_optimization_level": 1}  # for sums so large that running them takes longer than compiling
# Where XLA's algebraic simplifier swaps the operands of lax's convolution, a failed check can end the process.
WITHOUT_SIMPLIFIER = {"xla_disable_hlo_passes": "algsimp"}
if jax.__version_info__ < (0, 11):
    QUICK_HOST_COMPILE["xla_cpu_use_fusion_emitters"] = False


def integers(shape, dtype="float32", seed=0, bound=2):
    """Random integers of magnitude at most `bound`: sums of a few of their products are exact in every dtype."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([seed, *shape])
    low = 0 if dtype.kind in "ub" else -bound
    values = rng.integers(low, bound + 1, shape)
    if dtype.kind == "c":
        values = values + 1j * rng.integers(low, bound + 1, shape)
    return values.astype(dtype)


def channels_last(rank):
    spatial = "DHW"[3 - rank :]
    return (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")


def lax_channels_last(x, w, *, window_strides=1, padding="SAME", lhs_dilation=1, rhs_dilation=1, **others):
    """conv1d, conv2d and conv3d as lax has them."""
    rank = x.ndim - 2
    per_dimension = lambda value: (value,) * rank if isinstance(value, int) else value
    padding = ((padding, padding),) * rank if isinstance(padding, int) else padding
    return lax.conv_general_dilated(
        x,
        w,
        per_dimension(window_strides),
        padding,
        per_dimension(lhs_dilation),
        per_dimension(rhs_dilation),
        channels_last(rank),
        **others,
    )


def jitted(function, **host_options):
    """For the default platform; the compiler's options are for the host."""
    options = QUICK_HOST_COMPILE | host_options if jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=options)


def run(function, *args, **host_options):
    """`function(*args)` compiled for the default platform; the compiler's options are for the host."""
    return jitted(function, **host_options)(*args)


def compiled(function, *args):
    """The program for arguments like these, on the default platform."""
    return jitted(function).lower(*args).compile()


def run_on_host(function, *args, **options):
    """`function(*args)` on the host: lax on a GPU rounds even small integers (tf32, Winograd, FFT)."""
    with jax.default_device(HOST):
        return jax.jit(function, compiler_options=QUICK_HOST_COMPILE | options)(*args)


def pullback(conv):
    """`(x, w, g) -> (y, x's gradient, w's gradient)`."""

    def forward_and_transposes(x, w, g):
        y, vjp = jax.vjp(conv, x, w)
        return y, *vjp(g)

    return forward_and_transposes


def value_and_gradients(apply):
    """`(*arguments) -> (y, gradients)` of a loss that weighs each output differently."""

    def step(*arguments):
        y, vjp = jax.vjp(apply, *arguments)
        return y, vjp(jax.numpy.asarray(integers(y.shape, y.dtype)))

    return step


def cotangent(conv, x, w, seed=2):
    y = jax.eval_shape(conv, x, w)
    return integers(y.shape, y.dtype, seed)


def assert_same(actual, expected, rtol=0.0):
    """Equal trees: the same dtypes, shapes and bits, or within `rtol` of the largest magnitude of each array."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), e in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected)):
        where = jax.tree_util.keystr(path)
        assert (a.dtype, a.shape) == (e.dtype, e.shape), where
        a, e = np.asarray(a), np.asarray(e)
        if a.dtype.name.startswith("float8"):  # numpy takes no two NaNs of these for the same
            a, e = a.astype("float32"), e.astype("float32")
        if rtol == 0:
            np.testing.assert_array_equal(a, e, err_msg=where)
        else:
            scale = np.max(np.abs(e), initial=0)
            assert np.isfinite(scale), where
            np.testing.assert_allclose(a, e, rtol=0, atol=rtol * scale, err_msg=where)


def opcodes(hlo):
    """How often each HLO instruction is in the text of a compiled module."""
    return Counter(re.findall(r"= (?:\([^)]*\)|\S+) ([a-z][a-z0-9-]*)\(", hlo))


def custom_calls(hlo):
    """How often each of our targets is called in the text of a module, StableHLO or HLO."""
    return Counter(
        re.findall(
            r"jaxconv_(conv|wgrad)\b",
            "\n".join(line for line in hlo.splitlines() if "custom-call(" in line or "custom_call @" in line),
        )
    )


def exception_of(function, *args, **kwargs):
    """The exception that the call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error
