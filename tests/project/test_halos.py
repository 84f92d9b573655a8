"""The benchmark of shards: both sides compute the same with the same rows, and a failure is a row."""

import jax
import numpy as np
import pytest

from convbench.command import main
from convbench.halos import Shard, measure, sides, table

SHARDS = [Shard("image", (2, 6, 5, 8), (3, 3, 8, 16), dtype="float32"),
          Shard("line", (1, 9, 8), (3, 8, 8), dilation=2, dtype="float32"),
          Shard("volume", (1, 4, 3, 5, 8), (3, 3, 3, 8, 8), dtype="float32")]  # fmt: skip


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: shard.name)
def test_sides_are_the_same(shard):
    """No kernel of the host reads rows where they lie, so that ours are those of the other end."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, of.shape).astype(of.dtype) for of in shard.operands)
    count = shard.padding[0][0]
    rows = x[:, -count:], x[:, :count]
    results = {
        name: jax.jit(side.program.function)(x, w, *(rows if len(side.program.operands) == 4 else ()))
        for name, side in sides(shard, None).items()
    }
    np.testing.assert_array_equal(results["us"], results["lax_us"])
    np.testing.assert_array_equal(results["zeros_us"], results["lax_zeros_us"])
    assert (results["us"] != results["zeros_us"]).any()


def test_a_failure_is_a_row():
    row = measure(SHARDS[0], 0.0)
    assert "cuda" in row["error"] and row["us"] is None and row["lax_us"] > 0
    assert "image" in table([row])


def test_without_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no GPU"):
        main(["halos", "--out", str(tmp_path / "rows.json")])
