"""The examples that train: with few steps, or narrow networks."""

import re

import jax
import numpy as np
import pytest
from flax import nnx
from skimage.measure import label

from cases.files import EXAMPLES, module_at
from cases.parts import repeated
from cases.reference import integers

NAMES = ("float32", "bfloat16", "int8", "e4m3", "e5m2", "e4m3 x e5m2")  # of types in examples/int8_layer.py


def example(name):
    return module_at(EXAMPLES / f"{name}.py")


@pytest.mark.parametrize(
    "name, steps", [repeated("digits", 40), repeated("segment_coins", 20), repeated("forecast_sunspots", 20)]
)
def test_command(name, steps, tmp_path, capsys):
    """It trains with a progress bar, draws, and says how good it is."""
    figure = tmp_path / "figures" / "figure.png"
    example(name).main(["--small", "--out", str(figure)])
    assert figure.stat().st_size > 10_000
    printed = capsys.readouterr()
    assert f"{steps}/{steps}" in printed.err
    assert f"figure: {figure}" in printed.out


@pytest.mark.full
def test_quantised_digits(monkeypatch, tmp_path, capsys, uninstalled):
    """A network that has learnt little is quantised as well: the accuracies are close."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    quantised = example("digits_quantised")
    monkeypatch.setattr(quantised, "MOST_LOST", 0.05)
    figure = tmp_path / "figure.png"
    quantised.main(["--small", "--out", str(figure)])
    assert figure.stat().st_size > 10_000
    printed = capsys.readouterr()
    assert "40/40" in printed.err
    for dtype in ("float32", "int8", "float8_e4m3fn"):
        assert re.search(rf"{dtype} .*4 of 4", printed.out)


@pytest.mark.full
def test_layer_of_8_bits(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    figure = tmp_path / "figures" / "figure.png"
    example("int8_layer").main(["--small", "--out", str(figure)])
    assert figure.stat().st_size > 10_000
    printed = capsys.readouterr()
    assert "40/40" in printed.err
    error = {name: float(re.search(rf"^{re.escape(name)} +([\d.]+)%", printed.out, re.MULTILINE)[1]) for name in NAMES}
    assert error["float32"] == 0 < error["bfloat16"] < error["int8"] < error["e4m3"] < error["e5m2"] < 10
    kilobytes = [int(size) for size in re.findall(r"(\d+) KiB", printed.out)]
    assert [kilobytes[0] / size for size in kilobytes] == [1, 2, 4, 4, 4, 4]


def test_labels_of_coins():
    """All 24 coins of the photograph, each in one piece; the rest is the dark background."""
    photograph, is_coin = example("segment_coins").read_coins()
    assert photograph.shape == is_coin.shape == (300, 384, 1)
    assert (np.bincount(label(is_coin).ravel())[1:] > 1000).sum() == 24
    assert photograph[is_coin].mean() > 2 * photograph[~is_coin].mean()


@pytest.mark.full
def test_coins_must_be_found(monkeypatch, tmp_path):
    """A network that is not trained ends the command with an error."""
    coins = example("segment_coins")
    monkeypatch.setattr(coins, "train", lambda network, x, *_: (network.init(jax.random.key(0), x[None]), [1.0]))
    with pytest.raises(SystemExit, match="overlap .* is below 85%"):
        coins.main(["--out", str(tmp_path / "coins.png")])


def test_forecasts_are_of_the_years_before():
    """What comes later changes no forecast."""
    sunspots = example("forecast_sunspots")
    network = sunspots.Forecast(4, nnx.Rngs(0))
    past = integers((40, 1))
    changed = past.copy()
    changed[25:] += 1
    before, after = network(past), network(changed)
    np.testing.assert_array_equal(before[:25], after[:25])
    assert np.all(before[25:] != after[25:])
