"""The ConvNeXt example, on networks small enough for a host."""

import functools
import json

import jax
import numpy as np
import optax
import pytest

import jaxconv
from cases.files import EXAMPLES, module_at
from cases.reference import assert_same, run


@pytest.fixture(scope="module")
def convnext():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        module = module_at(EXAMPLES / "convnext.py")
    module.SMALL = module.Size(depths=(1, 1), widths=(4, 8), image=16, classes=10)
    return module


def test_parameters_of_convnext_b(convnext):
    """The paper's number of them, in float32, for both networks the same tree."""
    images = jax.ShapeDtypeStruct((2, 224, 224, 3), "float32")
    networks = convnext.networks(convnext.BASE, "bfloat16")
    ours, theirs = [jax.eval_shape(network.init, jax.random.key(0), images) for network in networks.values()]
    assert ours == theirs
    assert {leaf.dtype.name for leaf in jax.tree.leaves(ours)} == {"float32"}
    assert sum(leaf.size for leaf in jax.tree.leaves(ours)) == 88_591_464


@pytest.mark.full
def test_both_learn_the_same(convnext):
    batch = convnext.random_batch(convnext.SMALL, 4)
    networks = convnext.networks(convnext.SMALL, "float32")
    optimizer = optax.adamw(1e-2)

    def initial_params_and_losses(network):
        params = run(network.init, jax.random.key(0), batch.images)
        step = jax.jit(functools.partial(convnext.train, network, optimizer))
        state, losses = convnext.initial_state(params, optimizer), []
        for _ in range(5):
            state, loss = step(state, batch)
            losses.append(float(loss))
        return params, losses

    params, losses = initial_params_and_losses(networks["jaxconv"])
    lax_params, lax_losses = initial_params_and_losses(networks["lax"])
    assert_same(params, lax_params)
    np.testing.assert_allclose(losses, lax_losses, rtol=1e-2)
    assert losses[-1] < losses[0] / 2


@pytest.mark.full
def test_command(convnext, tmp_path, capsys):
    out, figure = tmp_path / "times.json", tmp_path / "figures" / "figure.png"
    convnext.main(["--small", "--batch", "4", "--iterations", "1", "--out", str(out), "--figure", str(figure)])
    written = json.loads(out.read_text())
    assert [(row["pass"], row["implementation"]) for row in written["rows"]] == [
        (which, name) for which in ("inference", "training") for name in ("jaxconv", "lax")
    ]
    assert all(row["compile_s"] > 0 and row["call_ms"] > 0 for row in written["rows"])
    assert written["network"]["dtype"] == "bfloat16"
    assert figure.stat().st_size > 10_000
    printed = capsys.readouterr()
    assert "14/14" in printed.err
    assert "difference from lax" in printed.out and "training, a call" in printed.out


@pytest.mark.full
def test_command_fails_where_outputs_differ(convnext, monkeypatch, tmp_path):
    right = jaxconv.conv_general_dilated
    without_a_tap = lambda x, w, *arguments, **named: right(x, w.at[1, 1].set(0), *arguments, **named)
    monkeypatch.setattr(jaxconv, "conv_general_dilated", without_a_tap)
    monkeypatch.setitem(convnext.PASSES, "training", convnext.PASSES["inference"])  # quicker to compile
    with pytest.raises(SystemExit, match="difference is above"):
        convnext.main(["--small", "--batch", "4", "--iterations", "1", "--figure", str(tmp_path / "figure.png")])
