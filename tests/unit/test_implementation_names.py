"""Kernel families and constraints as `implementation`: what they force, in every pass, and how they refuse."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.derivatives import loss
from cases.parts import diagonal
from cases.reference import assert_same, channels_last, cotangent, integers, pullback, run_on_host
from cases.small import BATCH_GROUPS, BY_ENTRIES_IN_TURNS, BY_ENTRY, ENTRIES, Case, named
from jaxconv import ffi
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint

# depthwise is the name of a family of either platform.
CUDA_ONLY = [*(name for name in FAMILIES["cuda"] if name not in FAMILIES["cpu"]), "cuda",
             Constraint(family="simt"), Constraint(platform="cuda"), Constraint("cuda", "depthwise"),
             Constraint("cuda", "im2col", "64x64x8", split=2)]  # fmt: skip


pytestmark = pytest.mark.usefixtures("on_the_host")


def families(function, *args):
    """Those of a program's calls, in order."""
    text = jax.jit(function).lower(*args).as_text()
    assert "stablehlo.convolution" not in text
    return re.findall(r'\bfamily = "(\w+)"', text)


@pytest.mark.parametrize("case, entry", [*BY_ENTRIES_IN_TURNS, (BATCH_GROUPS, "general")], ids=str)
def test_gemm_answers_everything(case, entry):
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    conv = getattr(case, entry)("gemm")
    assert families(pullback(conv), x, w, g) == 3 * ["gemm"]
    assert_same(run_on_host(pullback(conv), x, w, g), run_on_host(pullback(case.lax()), x, w, g))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", ["depthwise", "depthwise_multiplier"])
def test_depthwise_answers_groups_of_one_channel(name, entry):
    case = named(name)
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    conv = getattr(case, entry)("depthwise")
    assert families(pullback(conv), x, w, g) == 3 * ["depthwise"]
    assert_same(run_on_host(pullback(conv), x, w, g), run_on_host(pullback(case.lax()), x, w, g))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(dtype, x64):
    for name, family in [("strided", "gemm"), ("depthwise", "gemm"), ("depthwise", "depthwise")]:
        case = named(name)
        x, w = case.operands(dtype)
        g = cotangent(case.lax(), x, w)
        assert_same(run_on_host(pullback(case.front_door(family)), x, w, g), run_on_host(pullback(case.lax()), x, w, g))


def test_conv_transpose():
    x, w = integers((2, 4, 3, 2)), integers((3, 3, 2, 5))
    ours = functools.partial(jaxconv.conv_transpose, strides=(2, 3), padding="SAME", implementation="gemm")
    theirs = functools.partial(lax.conv_transpose, strides=(2, 3), padding="SAME")
    g = cotangent(theirs, x, w)
    assert families(pullback(ours), x, w, g) == 3 * ["gemm"]
    assert_same(run_on_host(pullback(ours), x, w, g), run_on_host(pullback(theirs), x, w, g))


@pytest.mark.parametrize(
    "case, entry", [pair for pair in BY_ENTRY if not pair[0].name.startswith("depthwise")], ids=str
)
def test_depthwise_refuses_the_rest(case, entry):
    """While lowering, with the reason and the problem."""
    operands = case.operands()
    conv = getattr(case, entry)("depthwise")
    assert jax.eval_shape(conv, *operands).shape == jax.eval_shape(case.lax(), *operands).shape
    with pytest.raises(NotImplementedError, match="depthwise.*channel") as error:
        jax.jit(conv).lower(*operands)
    assert f"float32[{','.join(map(str, case.lhs))}]" in str(error.value)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("implementation", CUDA_ONLY, ids=str)
def test_cuda_families_on_the_host(implementation, entry):
    """Refused while lowering, in the forward pass and in gradients, jitted or not."""
    x, w = named("dense").operands()
    conv = getattr(named("dense"), entry)(implementation)
    name = implementation if isinstance(implementation, str) else "Constraint"
    jax.eval_shape(jax.grad(loss(conv), argnums=(0, 1)), x, w)
    for function in (conv, jax.grad(loss(conv), argnums=1)):
        traced = jax.jit(function).trace(x, w)
        with pytest.raises(NotImplementedError, match=f"implementation=.*{name}.*platform"):
            traced.lower()
        with pytest.raises(NotImplementedError, match=f"implementation=.*{name}.*platform"):
            function(x, w)


@pytest.mark.parametrize("implementation", ["gemm", Constraint("cpu", "depthwise")], ids=str)
def test_host_families_on_a_gpu(implementation):
    x, w = jnp.ones((2, 9, 8, 16)), jnp.ones((3, 3, 1, 16))
    conv = functools.partial(jaxconv.conv2d, feature_group_count=16, implementation=implementation)
    with pytest.raises(NotImplementedError, match="implementation=.*(gemm|Constraint).*platform"):
        jax.jit(conv).trace(x, w).lower(lowering_platforms=("cuda",))


def test_a_name_of_both_platforms():
    """Each platform's own family answers, in every pass."""
    x, w = jnp.ones((2, 9, 8, 16)), jnp.ones((3, 3, 1, 16))
    conv = functools.partial(jaxconv.conv2d, feature_group_count=16, implementation="depthwise")
    traced = jax.jit(jax.grad(loss(conv), argnums=(0, 1))).trace(x, w)
    for platform in (p for p in FAMILIES if ffi.unavailable_reason(p) is None):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        called = re.findall(r'\bfamily = "(\w+)"', text)
        assert set(called) == {"depthwise"}
        assert len(called) == 3


CALLS = {
    "conv_general_dilated": functools.partial(
        jaxconv.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=channels_last(2)
    ),
    "conv_transpose": functools.partial(jaxconv.conv_transpose, strides=(1, 1), padding="SAME"),
    "conv2d": jaxconv.conv2d,
}


@pytest.mark.parametrize("unknown", ["GEMM", "gemm ", "simt128", "wmma", "wgrad", ("gemm",), "64x64x8"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_unknown_names(call, unknown):
    """Refused while tracing, with the names that there are."""
    x, w = integers((2, 5, 4, 3)), integers((3, 2, 3, 4))
    with pytest.raises(ValueError, match="implementation") as error:
        jax.eval_shape(functools.partial(call, implementation=unknown), x, w)
    for name in (None, "xla", *FAMILIES, *FAMILIES["cpu"], *FAMILIES["cuda"], unknown):
        assert repr(name) in str(error.value)


@pytest.mark.parametrize("implementation", ["gemm", "depthwise", "simt", Constraint(family="gemm")], ids=str)
def test_dtypes_that_no_family_takes(implementation):
    """Refused while tracing, as under a platform's name."""
    x, w = jnp.ones((2, 5, 4, 3), "uint8"), jnp.ones((3, 2, 1, 3), "uint8")
    conv = functools.partial(jaxconv.conv2d, feature_group_count=3, implementation=implementation)
    with pytest.raises(NotImplementedError, match="implementation=.*uint8"):
        jax.eval_shape(conv, x, w)


# Through transformations. The default for this case is another family, so a name that gets lost shows.

DEPTHWISE = Case("depthwise", (2, 4, 3, 16), (3, 3, 1, 16), {"feature_group_count": 16})
AS_GEMM = ["gemm", Constraint(family="gemm"), Constraint(platform="cpu", family="gemm")]
TRANSFORMED = {
    "jit": (jax.jit, 1),
    "jit_of_jit": (lambda conv: jax.jit(jax.jit(conv)), 1),
    "grad": (lambda conv: jax.grad(loss(conv), argnums=(0, 1)), 3),
    "grad_of_grad": (lambda conv: jax.grad(lambda x, w: jnp.sum(jax.grad(loss(conv))(x, w) ** 2)), None),
    "vmap": (lambda conv: lambda x, w: jax.vmap(conv, (None, 0))(x, jnp.stack([w, 2 * w])), 1),
    "vmap_of_both": (lambda conv: lambda x, w: jax.vmap(conv)(jnp.stack([x, -x]), jnp.stack([w, 2 * w])), 1),
    "grad_of_vmap": (lambda conv: jax.grad(
        lambda x, w: jnp.sum(jax.vmap(conv, (0, None))(jnp.stack([x, -x]), w) ** 2), argnums=(0, 1)), 3),
    "vmap_of_grad": (lambda conv: lambda x, w: jax.vmap(
        jax.grad(loss(conv), argnums=(0, 1)), (0, None))(jnp.stack([x, -x]), w), 3),
    "remat": (lambda conv: jax.value_and_grad(jax.checkpoint(loss(conv)), argnums=(0, 1)), 4),
    "scan": (lambda conv: lambda x, w: lax.scan(lambda x, _: (conv(x, w), None), x, None, length=2)[0], 1),
}  # fmt: skip


@pytest.mark.parametrize("name, entry, implementation", diagonal(list(TRANSFORMED), ENTRIES, AS_GEMM), ids=str)
def test_names_last_through_transformations(name, entry, implementation):
    transform, calls = TRANSFORMED[name]
    x, w = DEPTHWISE.operands()
    assert set(families(transform(getattr(DEPTHWISE, entry)(None)), x, w)) == {"depthwise"}
    found = families(transform(getattr(DEPTHWISE, entry)(implementation)), x, w)
    assert set(found) == {"gemm"}
    assert calls in (None, len(found))


@pytest.mark.parametrize("entry", ENTRIES)
def test_constraints_give_the_same_results(entry):
    x, w = DEPTHWISE.operands()
    step = lambda conv: jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=(0, 1))
    expected = run_on_host(step(DEPTHWISE.lax()), x, w)
    for implementation in AS_GEMM:
        assert_same(run_on_host(step(getattr(DEPTHWISE, entry)(implementation)), x, w), expected)


def test_implementations_do_not_share_programs():
    """Eager calls are compiled once a problem and implementation."""
    x, w = DEPTHWISE.operands()
    expected = np.asarray(run_on_host(DEPTHWISE.lax(), x, w))
    for implementation in ("gemm", "depthwise", Constraint(family="gemm"), "cpu", None):
        np.testing.assert_array_equal(DEPTHWISE.general(implementation)(x, w), expected)
        with pytest.raises(NotImplementedError):
            DEPTHWISE.general("simt")(x, w)
        with pytest.raises(NotImplementedError):
            DEPTHWISE.general(Constraint(family="gemm", split=2))(x, w)


@pytest.mark.parametrize("settings", [dict(split=2), dict(chunk=64), dict(tile="64x64x8")], ids=str)
def test_host_kernels_have_no_settings(settings):
    x, w = named("dense").operands()
    with pytest.raises(NotImplementedError, match="settings|no such tile") as error:
        jax.jit(named("dense").general(Constraint(platform="cpu", **settings))).lower(x, w)
    assert "float32[2,5,4,3]" in str(error.value)
