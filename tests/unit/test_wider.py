"""float8 on a GPU, whose kernels have none: which types its numbers are converted to, and that nothing else is."""

import itertools
import re

import jax
import jax.numpy as jnp
import pytest

import jaxconv
from cases.convolution import channels_last_convolution
from cases.float8 import PAIRS, RESULTS, passes
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem import ROLES
from jaxconv.problem.product import OPERANDS, RESULT
from jaxconv.problem.wider import FLOAT8, without_float8

DENSE = channels_last_convolution((8, 14, 14, 64), (3, 3, 64, 128))
EACH = pytest.mark.parametrize("lhs, rhs, out", [(*pair, out) for pair, out in itertools.product(PAIRS, RESULTS)])
HALVES = ("bf16", "f16")


@pytest.fixture
def on_cuda(without_tuning, monkeypatch):
    """Kernels are planned and lowered, but not run."""
    monkeypatch.setattr(ffi, "why_no_kernels", lambda platform: None)


@EACH
def test_types(lhs, rhs, out):
    """Operands have one type, which holds theirs exactly, and no sum is rounded before it becomes float8."""
    for kind, problem in passes(DENSE, lhs, rhs, out).values():
        wider = without_float8(kind, problem)
        (operand,) = {wider.dtype(role) for role in OPERANDS[kind]}
        result, before = wider.dtype(RESULT[kind]), problem.dtype(RESULT[kind])
        assert FLOAT8.isdisjoint(map(wider.dtype, ROLES))
        assert result == (jnp.float32 if before in FLOAT8 else before)
        assert all(jnp.finfo(operand).nmant >= jnp.finfo(problem.dtype(role)).nmant for role in OPERANDS[kind])
        assert (operand == "float32") == (problem.dtype(OPERANDS[kind][0 if kind == "conv" else 1]) == "float32")
        assert unsupported_reason(wider, kind) is None
        assert choose("cuda", kind, wider).plan is not None


def calls(text):
    """The types of the operands and of the result of each call of our kernels."""
    lines = re.findall(r"custom_call @jaxconv_\w+\(.*", text)
    return [re.findall(r"tensor<(?:\d+x)*(\w+)>", line.rpartition(" : ")[2]) for line in lines]


@EACH
def test_lowered(lhs, rhs, out, on_cuda):
    """By our kernels, without a warning, forward and in gradients."""

    def every(x, w, g):
        y, pullback = jax.vjp(lambda x, w: jaxconv.conv2d(x, w, out_dtype=out, implementation="cuda"), x, w)
        return y, pullback(g)

    x, w, g = (jnp.zeros(shape, dtype) for shape, dtype in
               ((DENSE.lhs, lhs), (DENSE.rhs, rhs), ((8, 14, 14, 128), out)))  # fmt: skip
    text = jax.jit(every).trace(x, w, g).lower(lowering_platforms=("cuda",)).as_text()
    forward, *gradients = calls(text)
    assert forward[0] in HALVES and forward[0] == forward[1]
    assert len(gradients) == 2 and all(types[0] == types[1] == "f32" for types in gradients)
