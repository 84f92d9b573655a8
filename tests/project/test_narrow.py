"""The benchmark of int8 and float8: its sides compute the same, and a failure is a row."""

import jax
import numpy as np
import pytest

from convbench.cases import Case
from convbench.command import main
from convbench.narrow import KINDS, measure, ours, table, theirs

CASE = Case("tiny", "small", (2, 6, 6, 16), (3, 3, 16, 32), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
EACH = pytest.mark.parametrize("kind", KINDS, ids=str)


def run(side, operands):
    return np.asarray(jax.jit(side.function)(*operands)).astype("float32")


@EACH
def test_sides_are_the_same(kind):
    rng = np.random.default_rng(0)
    given, prepared = (ours(CASE, kind, is_prepared, None) for is_prepared in (False, True))
    x, w, *numbers = (rng.integers(-8, 9, of.shape).astype(of.dtype) for of in given.operands)
    expected = run(given, (x, w, *numbers))
    np.testing.assert_array_equal(run(prepared, (x, np.swapaxes(w, -1, -2), *numbers)), expected)
    assert np.ptp(expected) > 0
    if (of_lax := theirs(CASE, kind)) is not None:  # it rounds sums to bfloat16 first
        np.testing.assert_allclose(run(of_lax, (x, w, *numbers)), expected, rtol=0.07, atol=0.07)
    assert (of_lax is None) == (kind.dtype == "int8")


@EACH
def test_a_failure_is_a_row(kind):
    row = measure(CASE, kind, 0.0)
    assert "cuda" in row["error"] and row["us"] is None and (kind.dtype == "int8" or row["lax_us"] > 0)
    assert "small" in table([row])


def test_without_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no GPU"):
        main(["narrow", "--out", str(tmp_path / "rows.json")])
