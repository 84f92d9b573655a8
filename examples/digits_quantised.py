"""Quantises the network of `digits.py` by qwix, to int8 and to float8, on jaxconv.

The network is trained in float32. Then qwix makes its filters int8 or float8, with a scale for each output channel. It
quantises the input of a layer when the layer is called (post-training quantisation). qwix calls lax, and
`jaxconv.install()` makes that jaxconv.
"""

import argparse
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import digits
import jax
import numpy as np
import qwix
import shared

import jaxconv

TYPES = ("float32", "int8", "float8_e4m3fn")
MOST_LOST = 0.005  # of the accuracy in float32


class Measured(NamedTuple):
    """dtype: of filters and of what comes to them. ours: convolutions that jaxconv's kernels compute, of all."""

    dtype: str
    accuracy: float
    kilobytes: float
    milliseconds: float
    ours: int
    convolutions: int


def quantised(dtype: str, params: Any, images: np.ndarray) -> tuple[Callable[..., jax.Array], Any]:
    """The network's function of parameters and images, and its parameters."""
    network = digits.Network(digits.lax_conv2d)
    if dtype == "float32":
        return network.apply, params
    rule = qwix.QuantizationRule(module_path=".*", weight_qtype=dtype, act_qtype=dtype)
    network = qwix.quantize_model(network, qwix.PtqProvider([rule]))
    like = jax.eval_shape(network.init, jax.random.key(0), images)
    return network.apply, {"params": qwix.quantize_params(params["params"], like["params"])}


def measure(dtype: str, params: Any, held_out: digits.Digits) -> Measured:
    function, params = quantised(dtype, params, held_out.images)
    program = jax.jit(function).lower(params, held_out.images).compile()
    predicted = np.asarray(program(params, held_out.images)).argmax(-1)
    text = program.as_text()
    ours = len(re.findall(r'custom_call_target="jaxconv_conv"', text))
    by_lax = len(re.findall(r" convolution\(|custom_call_target=\"__cudnn", text))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    accuracy = float((predicted == held_out.labels).mean())
    return Measured(
        dtype, accuracy, size / 1024, shared.seconds(program, params, held_out.images) * 1e3, ours, ours + by_lax
    )


def print_table(rows: list[Measured], images: int) -> None:
    print(f"\n{'':16}{'accuracy':>10}{'parameters':>14}{f'{images} images':>14}{'on jaxconv':>12}")
    for row in rows:
        ours = f"{row.ours} of {row.convolutions}"
        print(f"{row.dtype:16}{row.accuracy:>10.2%}{row.kilobytes:>10.0f} KiB{row.milliseconds:>11.2f} ms{ours:>12}")


def draw(path: Path, rows: list[Measured]) -> None:
    charts = {
        "Held-out digits that are wrong, %": [100 * (1 - row.accuracy) for row in rows],
        "Parameters, KiB": [row.kilobytes for row in rows],
        "All held-out digits, ms": [row.milliseconds for row in rows],
    }
    shared.draw(path, [row.dtype for row in rows], charts, inches=12, label="%.2f")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/digits_quantised.png"), help="where the figure goes")
    parser.add_argument("--small", action="store_true", help="train for a few steps")
    options = parser.parse_args(arguments)

    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of qwix's imports
    jaxconv.install()
    training, held_out = digits.read_digits()
    network = digits.Network(digits.lax_conv2d)
    initial = network.init(jax.random.key(0), training.images[:1])
    params = digits.train("float32", network, initial, training, digits.EPOCHS[options.small]).params

    rows = [measure(dtype, params, held_out) for dtype in TYPES]
    print_table(rows, len(held_out.labels))
    draw(options.out, rows)
    print(f"\nfigure: {options.out}")
    lost = max(rows[0].accuracy - row.accuracy for row in rows)
    if lost > MOST_LOST:
        sys.exit(f"{100 * lost:.2f} points of accuracy are lost, more than {100 * MOST_LOST}")


if __name__ == "__main__":
    main()
