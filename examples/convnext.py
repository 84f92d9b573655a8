"""Times ConvNeXt-B in flax on jaxconv and on lax: inference and a training step, from the same parameters.

The network is that of Liu et al., "A ConvNet for the 2020s", 2022: 88.6 million parameters, for images of
224 x 224 pixels. Each of its 36 blocks has a depthwise convolution of 7 x 7; its stem and the three places
where it halves an image are convolutions whose windows do not overlap. Stochastic depth is left out, images
and labels are random.
"""

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import shared
from jax import lax
from tqdm import tqdm

import jaxconv

# Initially. The paper's 1e-6 would hide what the blocks compute from the comparison with lax.
LAYER_SCALE = 1.0
REPETITIONS = 5  # of the timed iterations
# Relative to the norm of what is compared. Blocks that leave out one tap of 49 make a difference of 0.16 in
# outputs. On a GPU float32 is multiplied as tf32.
TOLERANCES = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-2}
NATIVE = {"cpu": "cpu", "gpu": "cuda"}


class Size(NamedTuple):
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    image: int
    classes: int


BASE = Size(depths=(3, 3, 27, 3), widths=(128, 256, 512, 1024), image=224, classes=1000)
SMALL = Size(depths=(1, 1, 1, 1), widths=(8, 16, 32, 64), image=32, classes=10)


class Block(nn.Module):
    conv: Callable[..., nn.Conv]
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        channels = x.shape[-1]
        y = self.conv(channels, (7, 7), feature_group_count=channels, name="depthwise")(x)
        y = nn.LayerNorm(dtype=self.dtype, name="norm")(y)
        y = nn.gelu(nn.Dense(4 * channels, dtype=self.dtype, name="expand")(y))
        y = nn.Dense(channels, dtype=self.dtype, name="project")(y)
        scale = self.param("scale", nn.initializers.constant(LAYER_SCALE), (channels,))
        return x + scale.astype(self.dtype) * y


class ConvNeXt(nn.Module):
    """Computes in `dtype`; the parameters, in float32, do not depend on the function that convolves."""

    conv_general_dilated: Callable[..., jax.Array]
    size: Size
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        injected = dict(conv_general_dilated_cls=lambda: self.conv_general_dilated)
        conv = functools.partial(nn.Conv, dtype=self.dtype, **injected)
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype)
        for stage, (depth, width) in enumerate(zip(self.size.depths, self.size.widths)):
            if stage == 0:
                x = norm(name="stem_norm")(conv(width, (4, 4), strides=(4, 4), name="stem")(x))
            else:
                x = norm(name=f"halve_{stage}_norm")(x)
                x = conv(width, (2, 2), strides=(2, 2), name=f"halve_{stage}")(x)
            for i in range(depth):
                x = Block(conv, self.dtype, name=f"block_{stage}_{i}")(x)
        x = norm(name="head_norm")(x.mean((1, 2)))
        return nn.Dense(self.size.classes, dtype=self.dtype, name="head")(x)


class Batch(NamedTuple):
    images: jax.Array
    labels: jax.Array


class State(NamedTuple):
    params: Any
    moments: optax.OptState


class Program(NamedTuple):
    call: Callable[[], jax.Array]
    compile_s: float


class Measured(NamedTuple):
    compile_s: float
    call_ms: float


Programs = dict[str, Program]


class Results(NamedTuple):
    """By pass: what was measured of each side, and how far their results are apart."""

    times: dict[str, dict[str, Measured]]
    differences: dict[str, float]


def networks(size: Size, dtype: str) -> dict[str, ConvNeXt]:
    """Ours, forced, so that a convolution that lax would answer is an error, and lax's."""
    ours = functools.partial(jaxconv.conv_general_dilated, implementation=NATIVE[jax.default_backend()])
    return {"jaxconv": ConvNeXt(ours, size, dtype), "lax": ConvNeXt(lax.conv_general_dilated, size, dtype)}


def random_batch(size: Size, count: int) -> Batch:
    images, labels = jax.random.split(jax.random.key(1))
    return Batch(
        jax.random.normal(images, (count, size.image, size.image, 3)),
        jax.random.randint(labels, (count,), 0, size.classes),
    )


def initial_params(network: ConvNeXt, batch: Batch) -> Any:
    return jax.jit(network.init)(jax.random.key(0), batch.images[:1])


def initial_state(params: Any, optimizer: optax.GradientTransformation) -> State:
    """A state of its own, to be donated."""
    return State(jax.tree.map(jnp.copy, params), optimizer.init(params))


def train(network: ConvNeXt, optimizer: optax.GradientTransformation, state: State, batch: Batch):
    """A step: the next state, and the loss before it."""

    def loss_of(params: Any) -> jax.Array:
        logits = network.apply(params, batch.images).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    updates, moments = optimizer.update(gradients, state.moments, state.params)
    return State(optax.apply_updates(state.params, updates), moments), loss


def compiled(function: Callable, *arguments: Any, **options: Any) -> tuple[Callable, float]:
    """A function compiled for its arguments, and the seconds that tracing, lowering and compiling it took."""
    start = time.perf_counter()
    executable = jax.jit(function, **options).lower(*arguments).compile()
    return executable, time.perf_counter() - start


def inference_of(network: ConvNeXt, params: Any, batch: Batch) -> Program:
    infer, compile_s = compiled(network.apply, params, batch.images)
    return Program(functools.partial(infer, params, batch.images), compile_s)


def training_of(network: ConvNeXt, params: Any, batch: Batch) -> Program:
    """Each call is a step on the state that the one before it left; the result is the loss."""
    optimizer = optax.adamw(1e-4, weight_decay=0.05)
    state = initial_state(params, optimizer)
    step, compile_s = compiled(functools.partial(train, network, optimizer), state, batch, donate_argnums=0)

    def call() -> jax.Array:
        nonlocal state
        state, loss = step(state, batch)
        return loss

    return Program(call, compile_s)


# How a network becomes a program of the pass, and how many of its calls are compared.
PASSES = {"inference": (inference_of, 1), "training": (training_of, 3)}


def milliseconds(call: Callable[[], jax.Array], iterations: int) -> float:
    """The time of a call, one of many in a row, from dispatching the first until the last has its result."""
    start = time.perf_counter()
    for _ in range(iterations):
        result = call()
    result.block_until_ready()
    return (time.perf_counter() - start) / iterations * 1e3


def measure(programs: Programs, iterations: int, bar: tqdm) -> dict[str, Measured]:
    """Medians of repetitions that take turns, so that a clock that slows down does so for both."""
    times = []
    for _ in range(REPETITIONS):
        times.append({name: milliseconds(program.call, iterations) for name, program in programs.items()})
        bar.update()
    return {
        name: Measured(program.compile_s, statistics.median(t[name] for t in times))
        for name, program in programs.items()
    }


def difference(programs: Programs, calls: int) -> float:
    """Between what the two return in their next calls, relative to lax's; NaN if anything is not finite."""
    ours, theirs = [np.array([programs[name].call() for _ in range(calls)], np.float64) for name in ("jaxconv", "lax")]
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def machine() -> dict[str, str]:
    packages = ("jax", "jaxlib", "flax", "optax", "jaxconv")
    return {"device": jax.devices()[0].device_kind} | {package: version(package) for package in packages}


def print_pass(which: str, measured: dict[str, Measured]) -> None:
    """A table's lines, above the progress bar, as soon as they are known: XLA takes minutes to compile all."""
    ours, theirs = measured["jaxconv"], measured["lax"]
    tqdm.write(f"{which + ', compilation':24}{ours.compile_s:>10.1f} s{theirs.compile_s:>10.1f} s")
    tqdm.write(
        f"{which + ', a call':24}{ours.call_ms:>9.2f} ms{theirs.call_ms:>9.2f} ms"
        f"   {theirs.call_ms / ours.call_ms:.2f}x as fast as lax"
    )


def measure_passes(both: dict[str, ConvNeXt], params: Any, batch: Batch, iterations: int) -> Results:
    results = Results({}, {})
    with tqdm(total=len(PASSES) * (len(both) + REPETITIONS), unit="step") as bar:
        for which, (program_of, compared_calls) in PASSES.items():
            programs = {}
            for name, network in both.items():  # ours first: XLA remembers what it measured of products that both have
                bar.set_description(f"{which}, compiling {name}")
                programs[name] = program_of(network, params, batch)
                bar.update()
            bar.set_description(f"{which}, measuring")
            results.differences[which] = difference(programs, compared_calls)
            results.times[which] = measure(programs, iterations, bar)
            print_pass(which, results.times[which])
    return results


def draw(path: Path, results: Results) -> None:
    charts = {}
    for which, sides in results.times.items():
        charts[f"{which}: a call, ms"] = [side.call_ms for side in sides.values()]
        charts[f"{which}: compilation, s"] = [side.compile_s for side in sides.values()]
    shared.draw(path, list(results.times["inference"]), charts, inches=14, label="%.2f")


def write(path: Path, network: dict[str, Any], results: Results) -> None:
    rows = [
        {"pass": which, "implementation": name} | measured._asdict()
        for which, of in results.times.items()
        for name, measured in of.items()
    ]
    written = {"machine": machine(), "network": network, "rows": rows, "differences": results.differences}
    path.write_text(json.dumps(written, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dtype", choices=TOLERANCES, default="bfloat16", help="to compute in")
    parser.add_argument("--iterations", type=int, default=10, help=f"timed in a row, {REPETITIONS} times")
    parser.add_argument("--small", action="store_true", help="a tiny network, for a CPU")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--figure", type=Path, default=Path("build/convnext.png"), help="where the figure goes")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_compilation_cache", False)  # what it finds is not a compilation

    size = SMALL if options.small else BASE
    both = networks(size, options.dtype)
    batch = random_batch(size, options.batch)
    params = initial_params(both["lax"], batch)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{machine()}\n{count / 1e6:.1f} million parameters, batch {options.batch}, {options.dtype}\n")
    print(f"{'':24}{'jaxconv':>12}{'lax':>12}", flush=True)
    results = measure_passes(both, params, batch, options.iterations)
    print(
        f"\ndifference from lax: {results.differences['inference']:.1e} of the outputs, "
        f"{results.differences['training']:.1e} of the first losses"
    )
    if options.out:
        write(options.out, size._asdict() | {"batch": options.batch, "dtype": options.dtype}, results)
    draw(options.figure, results)
    print(f"figure: {options.figure}")
    tolerance = TOLERANCES[options.dtype]
    if not all(value <= tolerance for value in results.differences.values()):
        sys.exit(f"a difference is above {tolerance}")


if __name__ == "__main__":
    main()
