"""One layer of the network of `digits.py` in int8 and in float8, beside float32: error, bytes and time.

The network is trained in float32. Then its 3x3 layer is computed on the held-out digits: input, filter and result are
numbers of 8 bits. Scales map the largest number of the input, of each output channel's filter, and of the result to the
largest one of the type. `jaxconv.conv2d` multiplies, adds the bias, applies relu and rounds in one call.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import digits
import jax
import jax.numpy as jnp
import numpy as np
import shared

import jaxconv

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
# By name: the types of the input, of the filter, and of the result.
TYPES = {
    "float32": ("float32", "float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16", "bfloat16"),
    "int8": ("int8", "int8", "int8"),
    "e4m3": (E4M3, E4M3, E4M3),
    "e5m2": (E5M2, E5M2, E5M2),
    "e4m3 x e5m2": (E4M3, E5M2, E4M3),
}
STRIDES = (2, 2)
LARGEST_ERROR = 0.1


class Layer(NamedTuple):
    """x: what comes to it. It computes relu(conv2d(x, w) + bias)."""

    x: jax.Array
    w: jax.Array
    bias: jax.Array


class Measured(NamedTuple):
    """error: root mean square, of that of the result in float32. kilobytes: of input, filter and result."""

    name: str
    error: float
    kilobytes: float
    milliseconds: float


def trained_layer(epochs: int) -> Layer:
    """The second layer of the network, and what the first makes of the held-out digits."""
    training, held_out = digits.read_digits()
    network = digits.Network(jaxconv.conv2d)
    initial = network.init(jax.random.key(0), training.images[:1])
    params = digits.train("float32", network, initial, training, epochs).params["params"]
    first, layer = params["first"], params["strided"]
    x = jaxconv.conv2d(held_out.images, first["kernel"], bias=first["bias"], activation="relu")
    return Layer(x, layer["kernel"], layer["bias"])


def quantised(a: jax.Array, dtype: str, axes: tuple[int, ...] | None = None) -> tuple[jax.Array, jax.Array | float]:
    """Numbers of the type, and the scale that they are to be multiplied by. axes: that share a scale; None: all."""
    if jnp.dtype(dtype).itemsize > 1:
        return a.astype(dtype), 1.0
    scale = jnp.max(jnp.abs(a), axes) / largest(dtype)
    a = a / scale
    return (jnp.rint(a) if dtype == "int8" else a).astype(dtype), scale


def largest(dtype: str) -> float:
    return float(jnp.iinfo(dtype).max if dtype == "int8" else jnp.finfo(dtype).max)


def measure(name: str, layer: Layer, exact: np.ndarray) -> Measured:
    x_dtype, w_dtype, out_dtype = TYPES[name]
    x, x_scale = quantised(layer.x, x_dtype)
    w, w_scale = quantised(layer.w, w_dtype, (0, 1, 2))
    epilogue = dict(bias=layer.bias, activation="relu", out_dtype=out_dtype)
    out_scale = 1.0
    if jnp.dtype(out_dtype).itemsize == 1:
        out_scale = largest(out_dtype) / exact.max()
        epilogue |= dict(scale=x_scale * w_scale, out_scale=out_scale)
    program = jax.jit(lambda x, w: jaxconv.conv2d(x, w, window_strides=STRIDES, **epilogue)).lower(x, w).compile()
    y = program(x, w)
    difference = np.asarray(y).astype("float32") / out_scale - exact
    error = np.sqrt(np.mean(difference**2) / np.mean(exact**2))
    return Measured(name, float(error), (x.nbytes + w.nbytes + y.nbytes) / 1024, shared.seconds(program, x, w) * 1e3)


def print_table(rows: list[Measured]) -> None:
    print(f"\n{'':14}{'error':>9}{'bytes':>12}{'a call':>12}")
    for row in rows:
        print(f"{row.name:14}{row.error:>9.2%}{row.kilobytes:>8.0f} KiB{row.milliseconds:>9.2f} ms")


def draw(path: Path, rows: list[Measured]) -> None:
    charts = {
        "Error of the layer's result, %": [100 * row.error for row in rows],
        "Input, filter and result, KiB": [row.kilobytes for row in rows],
        "A call, ms": [row.milliseconds for row in rows],
    }
    shared.draw(path, [row.name.replace(" x ", "\nx ") for row in rows], charts, inches=15, label="%.3g")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/int8_layer.png"), help="where the figure goes")
    parser.add_argument("--small", action="store_true", help="train for a few steps")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error", jaxconv.FallbackWarning)  # every type has to run on jaxconv's kernels

    layer = trained_layer(digits.EPOCHS[options.small])
    exact = np.asarray(jaxconv.conv2d(layer.x, layer.w, window_strides=STRIDES, bias=layer.bias, activation="relu"))
    rows = [measure(name, layer, exact) for name in TYPES]
    print_table(rows)
    draw(options.out, rows)
    print(f"\nfigure: {options.out}")
    if (error := max(row.error for row in rows)) > LARGEST_ERROR:
        sys.exit(f"an error of {error:.1%} is above {LARGEST_ERROR:.0%}")


if __name__ == "__main__":
    main()
