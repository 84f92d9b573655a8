"""What a call costs besides its kernel: both sides compute the same, and every cost is a row."""

import json
from functools import partial

import jax
import numpy as np
import pytest

import jaxconv
from convbench import resnet50
from convbench.calls import eager_calls
from convbench.command import main
from jaxconv.traced import trace


@pytest.mark.parametrize("name", eager_calls())
def test_both_sides_are_the_same(name):
    call = eager_calls()[name]
    jax.tree.map(np.testing.assert_array_equal, call.ours(*call.operands), call.lax(*call.operands))


def test_the_step_has_all_passes_of_each_layer():
    """But no gradient of the images."""
    conv = lambda x, w, stride: jaxconv.conv2d(x, w, window_strides=stride)
    operands = jax.eval_shape(resnet50.parameters), resnet50.IMAGES, resnet50.LABELS
    assert len(trace(partial(resnet50.train_step, conv), *operands).equations) == 3 * 53 - 1


@pytest.mark.full
def test_rows(tmp_path, capsys):
    out = tmp_path / "calls.json"
    assert main(["calls", "--rounds", "1", "--processes", "1", "--commit", "abc", "--out", str(out)]) == 0
    rows, printed = json.loads(out.read_text())["rows"], capsys.readouterr().out
    assert len(rows) == len(eager_calls()) + 3
    for row in rows:
        assert row["what"] in printed and min(row["s"], row["lax_s"], row["ratio"]) > 0 and row["commit"] == "abc"
