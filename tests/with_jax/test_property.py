"""Random convolutions: forward and both transposes bit-equal to lax on small integers, or the same refusal.

One example is a list of problems that share a compilation: compiling them one by one would take the time of the suite.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import lax

import jaxconv
from cases.parts import parts
from cases.random_problems import laid_out
from cases.reference import WITHOUT_SIMPLIFIER, assert_same, channels_last, integers, pullback, run, run_on_host

PROBLEMS_IN_AN_EXAMPLE = 20


@dataclass(frozen=True)
class Problem:
    lhs: tuple
    rhs: tuple
    dtype: str
    params: dict
    front_door: bool

    def conv(self, implementation):
        if self.front_door:
            conv = getattr(jaxconv, f"conv{len(self.lhs) - 2}d")
            params = {name: value for name, value in self.params.items() if name != "dimension_numbers"}
        else:
            conv, params = jaxconv.conv_general_dilated, self.params
        return functools.partial(conv, **params, implementation=implementation)

    def lax(self):
        return functools.partial(lax.conv_general_dilated, **self.params)

    def traced(self, conv):
        """The result's type, or that of the exception."""
        operands = (jax.ShapeDtypeStruct(shape, self.dtype) for shape in (self.lhs, self.rhs))
        try:
            y = jax.eval_shape(conv, *operands)
            return y.shape, y.dtype
        except Exception as error:
            return type(error)

    def operands(self):
        """x, w and a cotangent, so small that sums are exact: products of halves' reach 256."""
        bound = {"bfloat16": 1, "float16": 1, "int8": 127}.get(self.dtype, 3)
        x, w = integers(self.lhs, self.dtype, 0, bound), integers(self.rhs, self.dtype, 1, bound)
        y = jax.eval_shape(self.lax(), x, w)
        return (x, w, integers(y.shape, y.dtype, 2, bound)) if jnp.issubdtype(y.dtype, jnp.inexact) else (x, w)


def results(conv, operands):
    """Forward, and both transposes where the dtype has any."""
    return pullback(conv)(*operands) if len(operands) == 3 else conv(*operands)


# Mostly what is valid and not empty, and now and then what is empty or refused.
SIZES = st.sampled_from([1, 2, 3, 2, 3, 5, 1, 2, 3, 2, 3, 4, 0])
PIXELS = {
    1: st.sampled_from([7, 6, 5, 4, 3, 2, 1, 12, 9, 8, 0]),
    2: st.sampled_from([5, 4, 3, 2, 1, 7, 6, 5, 4, 3, 0]),
    3: st.sampled_from([3, 4, 2, 1, 5, 3, 4, 2, 3, 4, 3, 4, 0]),
}
TAPS = st.sampled_from([1, 2, 3, 4, 2, 3])
STRIDES = st.sampled_from([1, 2, 3, 1, 4])
DILATIONS = st.sampled_from([1, 2, 1, 3, 1, 4])
PADDINGS = st.sampled_from([0, 1, 2, 3, -1, 4, 0, -2, 1, 5, 2, -3])
NEITHER, FEATURES, BATCH = [(1, 1)], [(2, 1), (3, 1)], [(1, 2), (1, 3)]
MISMATCH = st.sampled_from([0] * 60 + [1])


@st.composite
def problems(draw, dtypes):
    rank = draw(st.sampled_from([2, 1, 3]))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    front_door = draw(st.booleans())
    groups, batch_groups = draw(st.sampled_from(2 * NEITHER + FEATURES + BATCH * (not front_door)))
    out_channels = draw(SIZES) * groups * batch_groups + draw(MISMATCH)
    in_channels = draw(SIZES) * groups
    if front_door:
        layout = lax.conv_dimension_numbers((0,) * (rank + 2), (0,) * (rank + 2), channels_last(rank))
    else:
        layout = lax.ConvDimensionNumbers(*(tuple(draw(st.permutations(range(rank + 2)))) for _ in range(3)))
    dtype, preferred = draw(st.sampled_from(dtypes))
    lhs_dilation = each(DILATIONS)
    paddings = st.tuples(*[st.tuples(PADDINGS, PADDINGS)] * rank)
    if lhs_dilation == (1,) * rank or draw(MISMATCH):
        paddings |= st.sampled_from(["SAME", "VALID", "SAME_LOWER"])
    params = dict(
        window_strides=each(STRIDES), padding=draw(paddings), lhs_dilation=lhs_dilation, rhs_dilation=each(DILATIONS),
        dimension_numbers=layout, feature_group_count=groups, preferred_element_type=preferred,
    )  # fmt: skip
    if not front_door:
        params["batch_group_count"] = batch_groups
    lhs = laid_out(layout.lhs_spec, draw(SIZES) * batch_groups, in_channels, each(PIXELS[rank]))
    rhs = laid_out(layout.rhs_spec, out_channels, in_channels // groups + draw(MISMATCH), each(TAPS))
    return Problem(lhs, rhs, dtype, params, front_door)


def compare(drawn, implementation):
    accepted = []
    for problem in drawn:
        expected = problem.traced(problem.lax())
        assert problem.traced(problem.conv(implementation)) == expected
        if isinstance(expected, tuple):
            accepted.append(problem)
    operands = [p.operands() for p in accepted]
    all_results = lambda convs: lambda operands: [results(c, o) for c, o in zip(convs, operands, strict=True)]
    actual = run(all_results([p.conv(implementation) for p in accepted]), operands, **WITHOUT_SIMPLIFIER)
    assert_same(actual, run_on_host(all_results([p.lax() for p in accepted]), operands, **WITHOUT_SIMPLIFIER))


def check(drawn, implementation):
    """Compares all at once and, if that fails, one by one: to say which."""
    try:
        compare(drawn, implementation)
    except Exception:
        for problem in drawn:
            try:
                compare([problem], implementation)
            except Exception as error:
                error.add_note(str(problem))
                raise
        raise


def random_problems(*dtypes, examples):
    """Runs a test on lists of random problems of these (operands' dtype, preferred_element_type)."""
    drawn = st.lists(problems(dtypes), min_size=PROBLEMS_IN_AN_EXAMPLE, max_size=PROBLEMS_IN_AN_EXAMPLE)
    settled = settings(
        max_examples=examples, database=None, print_blob=True, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )  # fmt: skip
    return lambda test: settled(given(drawn=drawn)(test))


# 3,140 problems, in parts that run in parallel. Each part begins with the same simplest ones (cases/parts.py). Naming
# the implementation makes a fallback an error.


@parts(18)
@random_problems(("float32", None), examples=3)
def test_float32(drawn, part, implementation):
    check(drawn, implementation)


@parts(8)
@random_problems(("float64", None), ("float32", "float64"), examples=3)
def test_float64(drawn, part, implementation):
    with jax.enable_x64(True):
        check(drawn, implementation)


@parts(11)
@random_problems(("bfloat16", None), ("bfloat16", "float32"), ("float16", None), ("float16", "float32"), examples=3)
def test_halves(drawn, part, implementation):
    check(drawn, implementation)


@pytest.mark.full  # tests/with_jax/test_complex.py is quick
@parts(6)
@random_problems(("complex64", None), ("complex128", None), examples=2)
def test_complex_numbers(drawn, part, implementation):
    with jax.enable_x64(True):
        check(drawn, implementation)


@parts(6)
@random_problems(("int8", "int32"), examples=3)
def test_int8_to_int32(drawn, part, implementation):
    check(drawn, implementation)


@parts(6)
@random_problems(("float32", None), ("bfloat16", None), examples=2)
def test_lax_with_install(drawn, part, implementation):
    accepted = [problem for problem in drawn if isinstance(problem.traced(problem.lax()), tuple)]
    operands = [problem.operands() for problem in accepted]
    every = lambda operands: [results(p.lax(), o) for p, o in zip(accepted, operands, strict=True)]
    expected = run_on_host(every, operands, **WITHOUT_SIMPLIFIER)
    jaxconv.install(implementation)
    try:
        actual = run(every, operands, **WITHOUT_SIMPLIFIER)
    finally:
        jaxconv.uninstall()
    assert_same(actual, expected)


OTHER_DTYPES = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"]


@pytest.mark.filterwarnings("ignore::jaxconv.FallbackWarning")
@parts(8)
@random_problems(*((dtype, None) for dtype in OTHER_DTYPES), ("uint8", "int32"), ("float16", "float64"), examples=2)
def test_other_dtypes(drawn, part):
    """What no kernel takes, and lax answers: on the host, for on a GPU it refuses most of these too."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        check(drawn, None)
