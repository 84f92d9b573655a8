"""Forecasts the sunspots of the next year by causal convolutions, with the layers of `jaxconv.nn.nnx`.

The series is statsmodels': the yearly number from 1700 to 2008. The network learns the years until 1950. It is judged
by those after, beside two simple forecasts: no change, and the linear one of the last eleven years. There is so little
to learn from that the linear one is about as good.
"""

import argparse
import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from flax import nnx
from statsmodels.datasets import sunspots
from tqdm import tqdm

import jaxconv
from jaxconv.nn.nnx import Conv

LAST_LEARNED = 1950
CYCLE = 11  # years
LARGEST = 200.0  # about the largest number: the network sees numbers below 1
NOISE = 0.05  # standard deviation, of such numbers


class Forecast(nnx.Module):
    """(years, 1) to the forecast of each year's next one, (years, 1), from that year and those before."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        causal = dict(kernel_size=3, padding="CAUSAL", activation="relu", rngs=rngs)
        self.first = Conv(1, features, **causal)
        self.blocks = nnx.List(Conv(features, features, kernel_dilation=by, **causal) for by in (2, 4))
        self.last = Conv(features, 1, 1, rngs=rngs)

    def __call__(self, x):
        y = self.first(x)
        for block in self.blocks:
            y = block(y, residual=y)
        return x + self.last(y)


def read_sunspots() -> tuple[np.ndarray, np.ndarray]:
    """The years, and the number of each."""
    table = sunspots.load_pandas().data
    return table["YEAR"].to_numpy(int), table["SUNACTIVITY"].to_numpy(np.float32)


def train(network: Forecast, numbers: np.ndarray, steps: int) -> list[float]:
    """The loss of each step. The input has noise, so that the network does not learn single years by heart."""
    adamw = optax.adamw(optax.cosine_decay_schedule(3e-3, steps), weight_decay=0.1)
    optimizer = nnx.Optimizer(network, adamw, wrt=nnx.Param)
    x = jnp.asarray(numbers[:, None]) / LARGEST
    rngs = nnx.Rngs(1)

    @nnx.jit
    def step(network, optimizer, rngs):
        noisy = x + NOISE * rngs.normal(x.shape)
        loss, gradients = nnx.value_and_grad(lambda network: jnp.mean((network(noisy)[:-1] - x[1:]) ** 2))(network)
        optimizer.update(network, gradients)
        return loss

    return [float(step(network, optimizer, rngs)) for _ in tqdm(range(steps), desc="training", unit="step")]


def linear_forecast(numbers: np.ndarray, learned: int) -> np.ndarray:
    """That of each year by the years of one cycle before, fitted by least squares to the learned ones."""
    past = np.stack([np.roll(numbers, shift) for shift in range(1, CYCLE + 1)] + [np.ones_like(numbers)], -1)
    weights, *_ = np.linalg.lstsq(past[CYCLE:learned], numbers[CYCLE:learned])
    return past @ weights


def draw(path: Path, losses: list[float], years: np.ndarray, numbers: np.ndarray, forecast: np.ndarray) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4), width_ratios=(1, 3), layout="constrained")
    left.semilogy(losses)
    left.set(title="Training loss", xlabel="step")
    shown = years > LAST_LEARNED - 3 * CYCLE
    right.plot(years[shown], numbers[shown], label="sunspots")
    right.plot(years[shown], forecast[shown], "--", label="forecast from the years before")
    right.axvline(LAST_LEARNED, color="gray", linewidth=1)
    right.set(title="Sunspots; the network learned the years left of the line", xlabel="year")
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/sunspots.png"), help="where the figure goes")
    parser.add_argument("--small", action="store_true", help="few steps of a narrow network")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error", jaxconv.FallbackWarning)  # every layer has to run on jaxconv's kernels

    years, numbers = read_sunspots()
    learned = int((years <= LAST_LEARNED).sum())
    network = Forecast(4 if options.small else 16, nnx.Rngs(0))
    losses = train(network, numbers[:learned], 20 if options.small else 200)

    by_network = np.asarray(nnx.jit(network)(numbers[:, None] / LARGEST))[:, 0] * LARGEST
    forecasts = {
        "no change": np.roll(numbers, 1),
        f"linear, of {CYCLE} years": linear_forecast(numbers, learned),
        "network": np.roll(by_network, 1),
    }
    errors = {name: np.sqrt(np.mean((f - numbers)[learned:] ** 2)) for name, f in forecasts.items()}
    draw(options.out, losses, years, numbers, forecasts["network"])
    print(f"root mean square error after {LAST_LEARNED}, in sunspots a year")
    for name, error in errors.items():
        print(f"  {name:20}{error:6.1f}")
    print(f"figure: {options.out}")
    if errors["network"] > errors["no change"] and not options.small:
        sys.exit("the network is worse than no change")


if __name__ == "__main__":
    main()
