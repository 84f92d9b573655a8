"""Trains a U-Net to find the coins of a photograph, with the layers of `jaxconv.nn.linen`.

The photograph is scikit-image's. Its own segmentation, by a watershed, says where the coins are. The network sees the
left part with noise. The figure shows the right part, which it is judged by.
"""

import argparse
import sys
import warnings
from pathlib import Path

import flax.linen as linen
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from jax import lax
from skimage import data, filters, segmentation
from tqdm import tqdm

import jaxconv
from jaxconv.nn.linen import Conv, ConvTranspose

SPLIT = 256  # columns left of it are for training
PATCH = 64
BATCH = 8
NOISE = 0.15  # standard deviation; the photograph has numbers from 0 to 1
REQUIRED_OVERLAP = 0.85


class UNet(linen.Module):
    """(batch, height, width, 1), both divisible by 2 ** (len(widths) - 1), to the logits of a coin, of the same shape.

    What comes down is added to what goes up, as the residual of the upsampling layer.
    """

    widths: tuple[int, ...] = (16, 32, 64)

    @linen.compact
    def __call__(self, x):
        x = Conv(self.widths[0], (3, 3), activation="relu")(x)
        skips = []
        for width in self.widths[1:]:
            skips.append(x)
            x = Conv(width, (3, 3), strides=2, activation="relu")(x)
            x = Conv(width, (3, 3), activation="relu")(x, residual=x)
        for skip in reversed(skips):
            x = ConvTranspose(skip.shape[-1], (2, 2), strides=(2, 2), activation="relu")(x, residual=skip)
            x = Conv(skip.shape[-1], (3, 3), activation="relu")(x, residual=x)
        return Conv(1, (1, 1))(x)


def read_coins() -> tuple[np.ndarray, np.ndarray]:
    """The photograph, from 0 to 1, and where its coins are, both (height, width, 1)."""
    photograph = data.coins()[: 303 // 4 * 4]  # the network halves it twice
    markers = np.where(photograph < 30, 1, np.where(photograph > 150, 2, 0))
    is_coin = segmentation.watershed(filters.sobel(photograph), markers) == 2
    return photograph[..., None].astype(np.float32) / 255, is_coin[..., None]


def random_patch(key, photograph, is_coin):
    """A part of both, turned and mirrored."""
    place, side, turn = jax.random.split(key, 3)
    limits = jnp.array(photograph.shape[:2]) - PATCH + 1
    row, column = jax.random.randint(place, (2,), 0, limits)
    both = jnp.concatenate([photograph, is_coin], -1)
    patch = lax.dynamic_slice(both, (row, column, 0), (PATCH, PATCH, 2))
    patch = jnp.where(jax.random.bernoulli(side), patch[:, ::-1], patch)
    patch = jnp.where(jax.random.bernoulli(turn), patch.swapaxes(0, 1), patch)
    return patch[..., :1], patch[..., 1:]


def train(network: UNet, photograph: np.ndarray, is_coin: np.ndarray, steps: int):
    """The trained parameters, and the loss of each step."""
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    def loss_of(params, key):
        patch_key, noise_key = jax.random.split(key)
        patch = lambda key: random_patch(key, photograph, is_coin)
        x, labels = jax.vmap(patch)(jax.random.split(patch_key, BATCH))
        x += NOISE * jax.random.normal(noise_key, x.shape)
        return optax.sigmoid_binary_cross_entropy(network.apply(params, x), labels).mean()

    @jax.jit
    def step(params, state, key):
        loss, gradients = jax.value_and_grad(loss_of)(params, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = network.init(jax.random.key(0), jnp.zeros((1, PATCH, PATCH, 1)))
    state, losses = optimizer.init(params), []
    for key in tqdm(jax.random.split(jax.random.key(1), steps), desc="training", unit="step"):
        params, state, loss = step(params, state, key)
        losses.append(float(loss))
    return params, losses


def overlap_of(found: np.ndarray, is_coin: np.ndarray) -> float:
    """The pixels that are in both, by those that are in one of them."""
    return (found & is_coin).sum() / (found | is_coin).sum()


def draw(path: Path, losses: list[float], noisy: np.ndarray, is_coin: np.ndarray, found: np.ndarray) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 6), layout="constrained")
    axes[0].semilogy(losses)
    axes[0].set(title="Training loss", xlabel="step")
    for ax, image, title in zip(axes[1:], (noisy, is_coin, found), ("What the network sees", "Coins", "Found")):
        ax.imshow(image[..., 0], cmap="gray")
        ax.set_title(title)
        ax.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/coins.png"), help="where the figure goes")
    parser.add_argument("--small", action="store_true", help="few steps of a narrow network")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error", jaxconv.FallbackWarning)  # every layer has to run on jaxconv's kernels

    photograph, is_coin = read_coins()
    network = UNet((4, 8)) if options.small else UNet()
    params, losses = train(network, photograph[:, :SPLIT], is_coin[:, :SPLIT], 20 if options.small else 300)

    noise = np.random.default_rng(0).normal(0, NOISE, photograph[:, SPLIT:].shape)
    noisy = photograph[:, SPLIT:] + noise.astype(np.float32)
    found = np.asarray(jax.jit(network.apply)(params, noisy[None])[0] > 0)
    overlap = overlap_of(found, is_coin[:, SPLIT:])
    draw(options.out, losses, noisy, is_coin[:, SPLIT:], found)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; overlap with the coins that it did not see: {overlap:.1%}")
    print(f"figure: {options.out}")
    if overlap < REQUIRED_OVERLAP and not options.small:
        sys.exit(f"overlap {overlap:.1%} is below {REQUIRED_OVERLAP:.0%}")


if __name__ == "__main__":
    main()
