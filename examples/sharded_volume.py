"""Trains a 3-D U-Net to segment volumes that are split over the devices: none of them holds a whole one.

Where there is one device, eight of the host are simulated.
"""

import argparse
import collections
import itertools
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

import jaxconv

CHANNELS = (8, 16, 32)


class Batch(NamedTuple):
    """Volumes (batch, depth, height, width, 1), and 1 where a voxel is inside of a ball."""

    volumes: Any
    labels: Any


class Run(NamedTuple):
    losses: list[float]
    predicted: np.ndarray
    sent: collections.Counter
    temporary_bytes: int


def devices() -> list[jax.Device]:
    found = jax.devices()
    return found if len(found) > 1 else jax.devices("cpu")


def mesh_of(devices: list[jax.Device], batch: int) -> Mesh:
    """The devices by batch and depth."""
    images = math.gcd(batch, len(devices)) if len(devices) > 4 else 1
    shape = (images, len(devices) // images)
    return jax.make_mesh(shape, ("batch", "depth"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def shardings(mesh: Mesh) -> tuple[NamedSharding, NamedSharding]:
    """Of volumes, and of parameters."""
    return NamedSharding(mesh, P("batch", "depth")), NamedSharding(mesh, P())


def random_batch(seed: int, batch: int, size: int) -> Batch:
    """Balls in noise."""
    rng = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"))
    labels = np.zeros((batch, size, size, size, 1), np.float32)
    for volume in labels:
        for _ in range(4):
            centre, radius = rng.uniform(0, size, (3, 1, 1, 1)), rng.uniform(size / 10, size / 5)
            volume[((place - centre) ** 2).sum(0) < radius**2] = 1
    return Batch(labels + rng.normal(0, 1, labels.shape).astype(np.float32), labels)


def initial_params(key: jax.Array) -> dict[str, jax.Array]:
    shapes = {"in": (3, 1, CHANNELS[0]), "out": (1, CHANNELS[0], 1)}
    for i, (above, below) in enumerate(itertools.pairwise(CHANNELS)):
        shapes |= {f"down{i}": (3, above, below), f"deep{i}": (3, below, below)}
        shapes |= {f"up{i}": (2, below, above), f"join{i}": (3, 2 * above, above)}
    init = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(shapes))
    return {
        name: init(key, (window, window, window, *channels))
        for key, (name, (window, *channels)) in zip(keys, shapes.items(), strict=True)
    }


def network(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The logit of each voxel."""
    x = jax.nn.relu(jaxconv.conv3d(x, params["in"]))
    skipped = []
    for i in range(len(CHANNELS) - 1):
        skipped.append(x)
        x = jax.nn.relu(jaxconv.conv3d(x, params[f"down{i}"], window_strides=2))
        x = jax.nn.relu(jaxconv.conv3d(x, params[f"deep{i}"]))
    for i, skip in reversed(list(enumerate(skipped))):
        x = jaxconv.conv_transpose(x, params[f"up{i}"], (2, 2, 2), "SAME")
        x = jax.nn.relu(jaxconv.conv3d(jnp.concatenate([x, skip], -1), params[f"join{i}"]))
    return jaxconv.conv3d(x, params["out"])


def loss_of(params: dict[str, jax.Array], batch: Batch) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(network(params, batch.volumes), batch.labels).mean()


def sent_bytes(hlo: str) -> collections.Counter:
    """The bytes that each kind of collective gives a device, by the text of the compiled program."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    sent = collections.Counter()
    for shapes, kind in re.findall(rf"= (\S+|\(.*?\)) ({kinds})(?:-start)?\(", hlo):
        for dims in re.findall(r"f32\[([\d,]*)\]", shapes):
            sent[kind] += 4 * math.prod(int(d) for d in dims.split(",") if d)
    return sent


def train(mesh: Mesh, batch: int, size: int, steps: int) -> Run:
    split, whole = shardings(mesh)
    optimizer = optax.adam(3e-3)

    def step(params, state, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    params = jax.device_put(initial_params(jax.random.key(0)), whole)
    carry = params, jax.device_put(optimizer.init(params), whole)
    placed = lambda seed: jax.device_put(random_batch(seed, batch, size), split)
    program = jax.jit(step).lower(*carry, placed(0)).compile()
    losses = []
    for seed in tqdm(range(steps), unit="step"):
        *carry, loss = program(*carry, placed(seed))
        losses.append(float(loss))
    predicted = jax.jit(network)(carry[0], placed(steps).volumes)
    memory = program.memory_analysis().temp_size_in_bytes
    return Run(losses, np.asarray(predicted), sent_bytes(program.as_text()), memory)


def draw(path: Path, run: Run, batch: Batch) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (volume, label, predicted, losses, sent) = plt.subplots(1, 5, figsize=(18, 4), layout="constrained")
    fullest = batch.labels[0].sum((1, 2, 3)).argmax()
    images = batch.volumes, batch.labels, run.predicted > 0
    for axes, title, image in zip((volume, label, predicted), ("Slice", "Balls", "Segmented"), images, strict=True):
        axes.imshow(image[0, fullest, :, :, 0], cmap="gray")
        axes.set_title(title)
        axes.axis("off")
    losses.plot(run.losses)
    losses.set(title="Training loss", xlabel="step")
    sent.bar(list(run.sent), [count / 1024 for count in run.sent.values()])
    sent.set(title="Sent a step and device", ylabel="KiB")
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=32, help="voxels along each side")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("sharded_volume.png"))
    options = parser.parse_args(arguments)
    mesh = mesh_of(devices(), options.batch)
    run = train(mesh, options.batch, options.size, options.steps)
    batch = random_batch(options.steps, options.batch, options.size)
    right = (run.predicted > 0) == (batch.labels > 0)
    print(f"{mesh.devices.size} devices, {dict(mesh.shape)}; loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f}")
    print(f"{right.mean():.1%} of the voxels of another batch are right")
    print(f"temporary memory of a step: {run.temporary_bytes / 2**20:.1f} MiB a device")
    for kind, count in run.sent.items():
        print(f"{kind}: {count / 1024:.1f} KiB a step and device")
    draw(options.out, run, batch)
    print(f"figure: {options.out}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
