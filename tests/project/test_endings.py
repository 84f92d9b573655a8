"""The benchmark of epilogues: both sides compute the same, and a failure is a row."""

import jax
import numpy as np
import pytest

from convbench.cases import Case
from convbench.command import main
from convbench.endings import ENDINGS, GRADIENTS, measure, programs, table

CASE = Case("tiny", "small", (2, 6, 6, 8), (3, 3, 8, 16), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_both_sides_are_the_same(ending):
    rng = np.random.default_rng(0)
    ours, theirs = programs(CASE, ending, "float32", None)
    operands = [rng.integers(-3, 4, of.shape).astype(of.dtype) for of in ours.operands]
    results = [jax.tree.leaves(jax.jit(side.function)(*operands)) for side in (ours, theirs)]
    assert len(results[0]) == 1 + ending.endswith(GRADIENTS) * (3 + ("residual" in ending))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failure_is_a_row():
    row = measure(CASE, ENDINGS[-1], "bfloat16", 0.0)
    assert "cuda" in row["error"] and row["us"] is None and row["lax_us"] > 0
    assert "small" in table([row])


def test_without_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no GPU"):
        main(["epilogue", "--out", str(tmp_path / "rows.json")])
