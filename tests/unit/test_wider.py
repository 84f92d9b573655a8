"""float8 on a GPU: what kernels take as it is, which types other numbers are converted to, and that nothing else is."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxconv
from cases.convolution import channels_last_convolution, depthwise_convolution
from cases.float8 import FLOAT8, PAIRS, RESULTS, passes
from jaxconv import ffi
from jaxconv.explain import lines
from jaxconv.lowering import float8_on_gpu, seen_by_kernels
from jaxconv.planner.choose import choose, options, widening_seconds
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.plan import Constraint
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem import ROLES
from jaxconv.problem.product import OPERANDS, RESULT, EpilogueKind, Product
from jaxconv.problem.wider import FLOAT8 as DTYPES
from jaxconv.problem.wider import holds, without_float8
from jaxconv.traced import Traced

# Of smaller ones, the planner expects wider types to be faster.
DENSE = channels_last_convolution((32, 28, 28, 128), (3, 3, 128, 128))
EACH = pytest.mark.parametrize("lhs, rhs, out", [(*pair, out) for pair, out in itertools.product(PAIRS, RESULTS)])
NAMES = {"float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2", "bfloat16": "bf16", "float16": "f16", "float32": "f32"}


@EACH
def test_types(lhs, rhs, out):
    """Operands have one type, which holds theirs exactly, and no sum is rounded before it becomes float8."""
    for kind, problem in passes(DENSE, lhs, rhs, out).values():
        wider = without_float8(kind, problem)
        (operand,) = {wider.dtype(role) for role in OPERANDS[kind]}
        result, before = wider.dtype(RESULT[kind]), problem.dtype(RESULT[kind])
        assert DTYPES.isdisjoint(map(wider.dtype, ROLES))
        assert result == (jnp.float32 if before in DTYPES else before)
        assert all(jnp.finfo(operand).nmant >= jnp.finfo(problem.dtype(role)).nmant for role in OPERANDS[kind])
        assert (operand == "float32") == (problem.dtype(OPERANDS[kind][0 if kind == "conv" else 1]) == "float32")
        assert unsupported_reason(wider, kind) is None
        assert choose("cuda", kind, wider).plan is not None


def calls(text):
    """The kind and the types of the two operands of each call of our kernels."""
    lines = re.findall(r"custom_call @jaxconv_(\w+)\((.*)", text)
    types = lambda line: re.findall(r"tensor<(?:\d+x)*(\w+)>", line.rpartition(" : ")[2])
    return [(kind, *types(line)[:2]) for kind, line in lines]


def operands_of(lhs, rhs, result):
    """The types in which a conv of these types is multiplied."""
    if rhs == FLOAT8[0] and lhs in FLOAT8:
        return NAMES[lhs], NAMES[rhs]
    other = lhs if lhs not in FLOAT8 else "float16" if result == "float16" else "bfloat16"
    return NAMES[other], NAMES[other]


@EACH
def test_lowered(lhs, rhs, out, without_tuning, cuda_kernels):
    """By our kernels, without a warning, forward and in gradients."""

    def every(x, w, g):
        y, pullback = jax.vjp(lambda x, w: jaxconv.conv2d(x, w, out_dtype=out, implementation="cuda"), x, w)
        return y, pullback(g)

    x, w, g = (jnp.zeros(shape, dtype) for shape, dtype in
               ((DENSE.lhs, lhs), (DENSE.rhs, rhs), ((32, 28, 28, 128), out)))  # fmt: skip
    text = jax.jit(every).trace(x, w, g).lower(lowering_platforms=("cuda",)).as_text()
    of_wgrad = NAMES["bfloat16" if out in FLOAT8 else out]
    expected = [
        ("conv", *operands_of(lhs, rhs, out)),
        ("wgrad", of_wgrad, of_wgrad),
        ("conv", *operands_of(out, rhs, "float32")),
    ]
    assert calls(text) == expected


@pytest.mark.parametrize("more", [dict(scale=0.5), dict(activation="silu")], ids=str)
def test_a_cotangent_behind_an_epilogue_is_multiplied_in_float32(more, without_tuning, cuda_kernels):
    """Also one of float8. A bias and a mask leave it as it is."""
    arrays = [jnp.zeros(shape, FLOAT8[0]) for shape in (DENSE.lhs, DENSE.rhs, (32, 28, 28, 128))]

    def multiplied(**more):
        conv = functools.partial(jaxconv.conv2d, implementation="cuda", **more)
        backward = jax.jit(lambda x, w, g: jax.vjp(conv, x, w)[1](g))
        return set(calls(backward.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text())[-2:])

    assert multiplied(**more) == {("wgrad", "f32", "f32"), ("conv", "f32", "f32")}
    for as_it_is in (dict(bias=1.0), dict(activation="relu"), dict(activation="relu6")):
        assert multiplied(**as_it_is) == {("wgrad", "bf16", "bf16"), ("conv", "f8E4M3FN", "f8E4M3FN")}


def test_a_precision_above_the_default_is_for_wider_types(without_tuning, cuda_kernels):
    """Tensor cores would cut off what float32 holds."""
    for precision, native in ((None, True), ("default", True), ("highest", False)):
        x, w = (jnp.zeros(shape, FLOAT8[0]) for shape in (DENSE.lhs, DENSE.rhs))
        conv = jax.jit(lambda x, w: jaxconv.conv2d(x, w, out_dtype="float32", precision=precision))
        text = conv.trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
        assert calls(text) == [("conv", *operands_of(FLOAT8[0], FLOAT8[0] if native else FLOAT8[1], "float32"))]


def test_without_kernels_lax_gets_wider_types(without_tuning, monkeypatch):
    monkeypatch.setattr(ffi, "unavailable_reason", lambda platform: "there are none")
    kind, problem = passes(DENSE, FLOAT8[0], FLOAT8[0], "bfloat16")["fprop"]
    assert float8_on_gpu(kind, problem).lhs_dtype == "bfloat16"


@pytest.mark.parametrize("out", FLOAT8)
def test_sums_for_a_float8_result_are_stored_as_float32(out, without_tuning, cuda_kernels):
    kind, problem = passes(DENSE, FLOAT8[0], FLOAT8[0], out)["fprop"]
    seen = float8_on_gpu(kind, problem)
    assert (seen.lhs_dtype, seen.rhs_dtype, seen.out_dtype) == (FLOAT8[0], FLOAT8[0], "float32")


@pytest.mark.parametrize("out, wider", [("bfloat16", "bfloat16"), ("float32", "float32"), (FLOAT8[0], "float32")])
def test_depthwise_sums_of_float32_are_of_float32_operands(out, wider, without_tuning, cuda_kernels):
    """Depthwise kernels of 16 bits have no results of float32, and other families take four times as long."""
    kind, problem = passes(depthwise_convolution((32, 56, 56, 128), (31, 31)), FLOAT8[0], FLOAT8[0], out)["fprop"]
    seen = float8_on_gpu(kind, problem)
    assert {seen.lhs_dtype, seen.rhs_dtype, seen.out_dtype} == {jnp.dtype(wider)}
    assert choose("cuda", kind, seen).plan.family == "depthwise"


def test_dense_sums_of_float32_may_be_of_float32_operands(without_tuning, cuda_kernels):
    """Of channels that are no whole vectors."""
    few = channels_last_convolution((8, 28, 28, 17), (3, 3, 17, 5))
    kind, problem = passes(few, FLOAT8[0], FLOAT8[0], FLOAT8[0])["dgrad"]
    at = lambda precision: float8_on_gpu(kind, dataclasses.replace(problem, precision=precision)).lhs_dtype
    assert at(None) == "float32"
    assert at(jax.lax.DotAlgorithmPreset.BF16_BF16_F32) != "float32"  # which would be rounded to bfloat16


def test_conversions_of_bytes_take_as_long_as_those_of_more(without_tuning, cuda_kernels):
    """XLA converts 0.8 elements in a picosecond. So 64 channels stay float8, though bfloat16 has a faster kernel."""
    layer = channels_last_convolution((128, 56, 56, 64), (3, 3, 64, 64))
    (kind, problem) = passes(layer, FLOAT8[0], FLOAT8[0], "bfloat16")["fprop"]
    wider, ended = without_float8(kind, problem), EpilogueKind.PLAIN
    as_it_is, of_wider = (choose("cuda", kind, p, epilogue_kind=ended).cost for p in (problem, wider))
    assert of_wider < as_it_is < of_wider + widening_seconds(kind, problem, wider, TYPICAL_DEVICE)
    assert widening_seconds(kind, problem, wider, TYPICAL_DEVICE) > 128 * 56 * 56 * 64 / 0.8e12
    assert float8_on_gpu(kind, problem, epilogue_kind=ended) == problem


@pytest.mark.parametrize("out", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel, is_exact", [((31, 33), True), ((41, 25), False)])
def test_depthwise_int8_to_16_bits_is_of_16_bits_while_exact(kernel, is_exact, out, without_tuning, cuda_kernels):
    """Sums of up to 1024 products; another kernel would take ten times as long."""
    kind, problem = passes(depthwise_convolution((32, 56, 56, 128), kernel), "int8", "int8", out)["fprop"]
    seen = seen_by_kernels(kind, "cuda", problem, epilogue_kind=EpilogueKind.PLAIN).problem
    assert {seen.lhs_dtype, seen.rhs_dtype} == {jnp.dtype(out if is_exact else "int8")}
    assert seen.out_dtype == out
    if is_exact:
        assert choose("cuda", kind, seen, epilogue_kind=EpilogueKind.PLAIN).plan.family == "depthwise"


OF_STEM = dict(window_strides=(2, 2), padding=((3, 3), (3, 3)))
STEM = channels_last_convolution((128, 224, 224, 3), (7, 7, 3, 64), **OF_STEM)


@pytest.mark.parametrize("operands", ["int8", "bfloat16"])
def test_a_stem_of_int8_is_multiplied_as_bfloat16(operands, without_tuning, cuda_kernels):
    """And its results are rounded to int8 by the kernel: no wider ones are written."""
    kind, problem = passes(STEM, operands, operands, "int8")["fprop"]
    seen = seen_by_kernels(kind, "cuda", problem, epilogue_kind=EpilogueKind.PLAIN).problem
    assert (seen.lhs_dtype, seen.rhs_dtype, seen.out_dtype) == ("bfloat16", "bfloat16", "int8")
    plan = choose("cuda", kind, seen, epilogue_kind=EpilogueKind.PLAIN).plan
    assert plan.family == "direct" and "packed taps" in plan.tile


def test_explain_says_that_a_stem_of_int8_is_multiplied_as_bfloat16(without_tuning, cuda_kernels, monkeypatch):
    monkeypatch.setattr(Traced, "platform", "cuda")
    conv = functools.partial(jaxconv.conv2d, **OF_STEM, out_dtype="int8")
    (line,) = lines(conv, *(jax.ShapeDtypeStruct(shape, "int8") for shape in (STEM.lhs, STEM.rhs)), scale=0.5)
    assert line.startswith("fprop with its epilogue int8") and " in bfloat16 (" in line, line


@pytest.mark.parametrize("operands", ["bfloat16", "float16", "float32"])
def test_dense_sums_of_floats_become_int8_in_no_kernel(operands, without_tuning, cuda_kernels):
    """XLA ends them: kernels on tensor cores have no such results, and CUDA cores would take far longer."""
    kind, problem = passes(DENSE, operands, operands, "int8")["fprop"]
    seen = seen_by_kernels(kind, "cuda", problem, epilogue_kind=EpilogueKind.PLAIN).problem
    assert choose("cuda", kind, seen, epilogue_kind=EpilogueKind.PLAIN).plan is None


@pytest.mark.parametrize("out", ["int8", "float32", "bfloat16"])
def test_dense_int8_is_of_int8(out, without_tuning, cuda_kernels):
    dense = channels_last_convolution((32, 28, 28, 512), (1, 1, 512, 512))
    kind, problem = passes(dense, "int8", "int8", out)["fprop"]
    assert seen_by_kernels(kind, "cuda", problem, epilogue_kind=EpilogueKind.PLAIN).problem == problem


SMALL = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")


@pytest.mark.parametrize("wide", ["float32", *SMALL])
@pytest.mark.parametrize("narrow", [*SMALL, "float8_e4m3"])
def test_a_dtype_holds_another_one_if_it_has_each_number(wide, narrow):
    """All of 8 or 16 bits, and the infinities."""
    wide, narrow = jnp.dtype(wide), jnp.dtype(narrow)
    numbers = np.arange(2 ** (8 * narrow.itemsize)).astype(f"uint{8 * narrow.itemsize}").view(narrow)
    numbers = numbers.astype("float64")
    numbers = numbers[~np.isnan(numbers)]
    with np.errstate(invalid="ignore", over="ignore"):
        has_each = np.array_equal(numbers.astype(wide).astype("float64"), numbers)
    assert holds(wide, narrow) == has_each


@pytest.mark.parametrize("out", FLOAT8)
def test_float8_results_are_planned_with_an_epilogue_alone(out):
    """On a GPU: the handler refuses other calls."""
    of_passes = passes(DENSE, FLOAT8[0], FLOAT8[0], out)
    for which in ("fprop", "wgrad"):
        kind, problem = of_passes[which]
        choice = choose("cuda", kind, problem)
        assert choice.plan is None
        assert f"results of {problem.dtype(RESULT[kind])} without an epilogue" in choice.unsupported_reason()
        assert choose("cpu", kind, problem).plan is not None
    plan_of = lambda kind: choose("cuda", *of_passes["fprop"], epilogue_kind=kind).plan
    assert plan_of(EpilogueKind.PLAIN) is not None
    with_residual = plan_of(EpilogueKind.RESIDUAL)
    # TMA brings one kind of float8. The last kernel of split-K adds residuals of any.
    assert with_residual is not None and (out == FLOAT8[0] or with_residual.settings["split"] > 1)


@pytest.mark.parametrize("out", ["float32", "float16"])
def test_residuals_that_tma_does_not_bring_are_not_planned(out):
    """Kernels of float8 and int8 store such results from registers: a residual has split-K, or another kernel."""
    for operands in (FLOAT8[0], "int8"):
        kind, problem = passes(DENSE, operands, operands, out)["fprop"]
        product = Product(kind, problem, EpilogueKind.RESIDUAL)
        found = [o for o in options("cuda", product, Constraint(family="wgmma"), TYPICAL_DEVICE)
                 if o.candidate.reason is None]  # fmt: skip
        assert found and all(o.candidate.settings["split"] > 1 or "by slices" in o.candidate.tile for o in found)


def test_explain_says_in_which_type(without_tuning, cuda_kernels, monkeypatch):
    monkeypatch.setattr(Traced, "platform", "cuda")
    for operands, is_wider in ((FLOAT8[0], False), (FLOAT8[1], True)):
        x, w = (jax.ShapeDtypeStruct(shape, operands) for shape in (DENSE.lhs, DENSE.rhs))
        (line,) = lines(DENSE.ours("cuda"), x, w)
        assert line.startswith(f"fprop {operands}") and (" in bfloat16 (" in line) == is_wider, line
