"""The benchmark of int8 and float8: its sides compute the same, and a failure is a row."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxconv
from convbench.cases import Case
from convbench.command import main
from convbench.narrow import KINDS, measure, ours, table, theirs

CASE = Case("tiny", "small", (2, 6, 6, 32), (3, 3, 32, 64), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
LAYOUTS = {"NHWC": (), "NCHW32": ("NCHW32",)}  # of `prepare_filter`
EACH = pytest.mark.parametrize("kind", KINDS, ids=str)


def run(side, operands):
    return np.asarray(jax.jit(side.function)(*operands)).astype("float32")


@EACH
def test_sides_are_the_same(kind):
    rng = np.random.default_rng(0)
    given, prepared = (ours(CASE, kind, is_prepared, None) for is_prepared in (False, True))
    x, w, *numbers = (rng.integers(-8, 9, of.shape).astype(of.dtype) for of in given.operands)
    expected = run(given, (x, w, *numbers))
    (w_prepared,) = jax.tree.leaves(jaxconv.prepare_filter(w, *LAYOUTS[kind.layout]))
    np.testing.assert_array_equal(run(prepared, (x, w_prepared, *numbers)), expected)
    assert w_prepared.shape == prepared.operands[1].shape and w_prepared.dtype == prepared.operands[1].dtype
    assert np.ptp(expected) > 0
    if (of_lax := theirs(CASE, kind)) is not None:  # it rounds sums to bfloat16 first
        np.testing.assert_allclose(run(of_lax, (x, w, *numbers)), expected, rtol=0.07, atol=0.07)
    assert (of_lax is None) == (kind.dtype == "int8")


@EACH
def test_a_failure_is_a_row(kind):
    row = measure(CASE, kind, 0.0)
    assert "cuda" in row["error"] and row["us"] is None and (kind.dtype == "int8" or row["lax_us"] > 0)
    assert "small" in table([row])


def test_blocks_are_of_what_they_can_have():
    (in_blocks,) = (kind for kind in KINDS if kind.layout != "NHWC")
    line = dataclasses.replace(CASE, lhs=(2, 6, 32), rhs=(3, 32, 64))
    others = [dataclasses.replace(CASE, rhs=(3, 3, 32, 48)), dataclasses.replace(CASE, feature_group_count=32), line]
    assert in_blocks.is_for(CASE) and not any(map(in_blocks.is_for, others))
    assert all(kind.is_for(other) for kind in KINDS for other in others if kind != in_blocks)


def test_without_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no GPU"):
        main(["narrow", "--out", str(tmp_path / "rows.json")])
