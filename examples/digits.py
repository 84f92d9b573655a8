"""Trains a small flax network on scanned digits, once on jaxconv and once on lax, and compares the two."""

import argparse
import collections
import functools
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from jax import lax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import jaxconv

BATCH = 128
EPOCHS = {False: 60, True: 4}  # by whether the example is to be small
REQUIRED_ACCURACY = 0.98

Conv2d = Callable[..., jax.Array]


def lax_conv2d(x, w, *, window_strides, feature_group_count):
    """What `jaxconv.conv2d` means, on lax."""
    return lax.conv_general_dilated(
        x,
        w,
        window_strides,
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=feature_group_count,
    )


class Conv(nn.Module):
    conv2d: Conv2d
    features: int
    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    groups: int = 1

    @nn.compact
    def __call__(self, x):
        shape = (*self.window, x.shape[-1] // self.groups, self.features)
        kernel = self.param("kernel", nn.initializers.he_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return self.conv2d(x, kernel, window_strides=self.strides, feature_group_count=self.groups) + bias


class Network(nn.Module):
    conv2d: Conv2d

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(Conv, self.conv2d)
        x = nn.relu(conv(32, (5, 5), name="first")(x))
        x = nn.relu(conv(64, (3, 3), strides=(2, 2), name="strided")(x))
        x = nn.relu(conv(64, (3, 3), groups=64, name="depthwise")(x))
        x = nn.relu(conv(128, (1, 1), name="pointwise")(x))
        return nn.Dense(10, name="head")(x.reshape(len(x), -1))


class Digits(NamedTuple):
    images: np.ndarray
    labels: np.ndarray


class Run(NamedTuple):
    params: Any
    losses: np.ndarray
    calls: collections.Counter
    compile_s: float
    step_s: float
    training_s: float


def read_digits() -> tuple[Digits, Digits]:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=0)
    return Digits(train_x, train_y), Digits(test_x, test_y)


def batches(digits: Digits, epochs: int):
    """Every training batch, in order: the same ones for both networks."""
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(digits.labels))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            yield Digits(digits.images[chosen], digits.labels[chosen])


def shift(key, images):
    """Moves each image by up to one pixel, so that 1347 scans are enough to learn from."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    starts = jax.random.randint(key, (len(images), 2), 0, 3)
    return jax.vmap(lambda image, start: lax.dynamic_slice(image, (*start, 0), (8, 8, 1)))(padded, starts)


def loss_of(network: Network, params, digits: Digits):
    logits = network.apply(params, digits.images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, digits.labels).mean()


def train(name: str, network: Network, params, digits: Digits, epochs: int) -> Run:
    steps = epochs * (len(digits.labels) // BATCH)
    optimizer = optax.adamw(optax.cosine_decay_schedule(3e-3, steps), weight_decay=1e-2)

    @jax.jit
    def step(params, state, key, batch):
        key, shift_key = jax.random.split(key)
        batch = batch._replace(images=shift(shift_key, batch.images))
        loss, grads = jax.value_and_grad(functools.partial(loss_of, network))(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, key, loss

    carry = params, optimizer.init(params), jax.random.key(0)
    start = time.perf_counter()
    step = step.lower(*carry, next(batches(digits, epochs))).compile()
    compile_s = time.perf_counter() - start

    losses, times = [], [time.perf_counter()]
    for batch in tqdm(batches(digits, epochs), desc=f"{name:8}", total=steps, unit="step"):
        *carry, loss = step(*carry, batch)
        losses.append(float(loss))
        times.append(time.perf_counter())
    calls = collections.Counter(re.findall(r'custom_call_target="(jaxconv_\w+)"', step.as_text()))
    return Run(carry[0], np.array(losses), calls, compile_s, np.median(np.diff(times)), times[-1] - times[0])


def largest_difference(ours, theirs) -> str:
    """Over all leaves of two trees, next to the largest value it is to be judged by."""
    difference = max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)))
    largest = max(np.abs(b).max() for b in jax.tree.leaves(theirs))
    return f"{difference:.1e} (values up to {largest:.1e})"


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradients(network: Network, params, batch: Digits):
    return network.apply(params, batch.images), jax.grad(functools.partial(loss_of, network))(params, batch)


def print_differences(ours: Network, theirs: Network, params, batch: Digits) -> None:
    outputs, gradients = jax.device_get(outputs_and_gradients(ours, params, batch))
    lax_outputs, lax_gradients = jax.device_get(outputs_and_gradients(theirs, params, batch))
    print(f"  in outputs    {largest_difference(outputs, lax_outputs)}")
    print(f"  in gradients  {largest_difference(gradients, lax_gradients)}")


def print_table(ours: Run, theirs: Run, accuracies: tuple[float, float]) -> None:
    print(f"{'':24}{'jaxconv':>10}{'lax':>10}")
    print(f"{'held-out accuracy':24}{accuracies[0]:>10.2%}{accuracies[1]:>10.2%}")
    print(f"{'compilation':24}{ours.compile_s:>8.2f} s{theirs.compile_s:>8.2f} s")
    print(f"{'training step (median)':24}{ours.step_s * 1e3:>7.2f} ms{theirs.step_s * 1e3:>7.2f} ms")
    print(f"{'training, ' + str(len(ours.losses)) + ' steps':24}{ours.training_s:>8.2f} s{theirs.training_s:>8.2f} s")


def draw(path: Path, ours: Run, theirs: Run, digits: Digits, predicted: np.ndarray) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(15, 5), layout="constrained")
    left, middle, right = figure.subfigures(1, 3)

    axes = left.subplots()
    axes.semilogy(ours.losses, label="jaxconv")
    axes.semilogy(theirs.losses, "--", label="lax", linewidth=1)
    axes.set(title="Training loss", xlabel="step")
    axes.legend()

    middle.suptitle("Held-out digits and predictions (errors first, in red)")
    shown = np.argsort(predicted == digits.labels, kind="stable")
    for ax, i in zip(middle.subplots(4, 6).flat, shown):
        ax.imshow(digits.images[i, :, :, 0], cmap="gray_r")
        right_answer = predicted[i] == digits.labels[i]
        ax.set_title(
            f"{predicted[i]}" if right_answer else f"{predicted[i]} (is {digits.labels[i]})",
            color="black" if right_answer else "red",
        )
        ax.axis("off")

    right.suptitle("First-layer filters")
    filters = np.asarray(ours.params["params"]["first"]["kernel"])
    limit = np.abs(filters).max()
    for ax, image in zip(right.subplots(4, 8).flat, np.moveaxis(filters[:, :, 0], -1, 0)):
        ax.imshow(image, cmap="RdBu", vmin=-limit, vmax=limit)
        ax.axis("off")

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/digits.png"), help="where the figure goes")
    parser.add_argument("--small", action="store_true", help="train for a few steps")
    options = parser.parse_args(arguments)
    # The network has to train on jaxconv's own kernels: an answer by lax would be compared with itself.
    warnings.simplefilter("error", jaxconv.FallbackWarning)

    training, held_out = read_digits()
    ours, theirs = Network(jaxconv.conv2d), Network(lax_conv2d)
    initial = jax.jit(ours.init)(jax.random.key(0), training.images[:1])

    epochs = EPOCHS[options.small]
    run = train("jaxconv", ours, initial, training, epochs)
    lax_run = train("lax", theirs, initial, training, epochs)

    predicted = [
        np.asarray(jax.jit(network.apply)(r.params, held_out.images)).argmax(-1)
        for network, r in ((ours, run), (theirs, lax_run))
    ]
    accuracy, lax_accuracy = [(p == held_out.labels).mean() for p in predicted]

    print(f"\nplatform: {jax.default_backend()}; custom calls in the compiled training step: {dict(run.calls)}\n")
    print_table(run, lax_run, (accuracy, lax_accuracy))
    for when, params in (("initial", initial), ("trained", run.params)):
        print(f"\nlargest difference from lax with the {when} parameters, all held-out digits")
        print_differences(ours, theirs, params, held_out)
    draw(options.out, run, lax_run, held_out, predicted[0])
    print(f"\nfigure: {options.out}")
    if accuracy < REQUIRED_ACCURACY and not options.small:
        sys.exit(f"accuracy {accuracy:.2%} is below {REQUIRED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
