"""`python -m benchmarks folded`: ResNet-50's inference with each normalisation folded into a convolution.

Ours in 16 bits, and in 8 bits with filters prepared before; lax's in bfloat16, folded and as it is written without.
Numbers are random, and such that results stay about as large from layer to layer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from tabulate import tabulate

import jaxconv
from convbench import forward
from convbench.measure import LONGEST_ERROR, Timing, rounded
from convbench.programs import Program, answered_by_us, compile_fresh
from convbench.resnet50 import blocks, parameters
from jaxconv.tuning.timing import CLOCKS, median_us

HALF, BYTES = "bfloat16", ("int8", "float8_e4m3fn")
AMPLITUDES = {"int8": 32.0}  # of images, filters and results; else 1
KEY = ("side", "dtype", "images")

# (x, layer, stride, what is added to the result or None, whether relu follows) -> result
Layer = Callable[[Array, Any, int, Array | None, bool], Array]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our programs failed."""
    description = "ResNet-50's inference, its normalisation folded into the convolutions."
    parser = forward.without_cases("folded", description, seconds=0.2)
    parser.add_argument("--images", type=int, default=256, help="of a batch; default: 256")
    options = parser.parse_args(arguments)
    forward.begin("folded")
    sides = [Side("lax", written), Side("lax folded", folded_by_lax), Side("jaxconv", folded_by_us)]
    sides += [Side("jaxconv", folded_by_us, dtype) for dtype in BYTES]
    return forward.measure_all(options, [(side, options.images) for side in sides], measure, KEY, table)


def written(x: Array, layer: Any, stride: int, residual: Array | None, relu: bool) -> Array:
    """lax's convolution, then the normalisation, as networks are written."""
    w, scale, bias = layer
    y = (_convolved(x, w, stride) * scale + bias).astype(x.dtype)
    return _ended(y, residual, relu)


def folded_by_lax(x: Array, layer: Any, stride: int, residual: Array | None, relu: bool) -> Array:
    """The scale is in the filter."""
    w, _, bias = layer
    return _ended(_convolved(x, w, stride) + bias.astype(x.dtype), residual, relu)


def _convolved(x: Array, w: Array, stride: int) -> Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _ended(y: Array, residual: Array | None, relu: bool) -> Array:
    y = y if residual is None else y + residual
    return jax.nn.relu(y) if relu else y


def folded_by_us(
    x: Array, layer: Any, stride: int, residual: Array | None, relu: bool, implementation: str | None = "cuda"
) -> Array:
    """All in one kernel, from bytes to bytes."""
    w, scale, bias = layer
    of_bytes: dict[str, Any] = dict(out_dtype=x.dtype) if x.dtype in BYTES else {}
    return jaxconv.conv2d(
        x, w, window_strides=stride, scale=scale, bias=bias, residual=residual,
        activation="relu" if relu else None, implementation=implementation, **of_bytes,
    )  # fmt: skip


class Side(NamedTuple):
    name: str
    layer: Layer
    dtype: str = HALF


def program(layer: Layer, dtype: str, images: int) -> Program:
    """The network on arrays: images, and the leaves of its layers."""
    x, layers = jax.eval_shape(partial(_arrays, layer, dtype, images))
    leaves, tree = jax.tree.flatten(layers)
    return Program(lambda x, *leaves: logits(layer, jax.tree.unflatten(tree, leaves), x), (x, *leaves))


def operands(layer: Layer, dtype: str, images: int) -> tuple[Array, ...]:
    """The program's arrays."""
    return tuple(jax.tree.leaves(jax.jit(partial(_arrays, layer, dtype, images))()))


def _arrays(layer: Layer, dtype: str, images: int) -> tuple[Array, dict[str, Any]]:
    """Images and layers. A sum of K products is `amplitude * sqrt(K)` times as large as an image's numbers."""
    amplitude = AMPLITUDES.get(dtype, 1.0)
    keys = iter(jax.random.split(jax.random.key(0), 256))
    normal = lambda shape: amplitude * jax.random.normal(next(keys), shape)
    of_dtype = lambda a: jnp.rint(a).astype(dtype) if dtype == "int8" else a.astype(dtype)

    def of_layer(w: Array, scale: Array, bias: Array) -> tuple[Any, ...]:
        per_sum = 1 / (amplitude * prod(w.shape[:-1]) ** 0.5)
        filters = normal(w.shape) * (per_sum if layer is folded_by_lax else 1)
        prepare = jaxconv.prepare_filter if layer is folded_by_us and dtype in BYTES else lambda w: w
        return prepare(of_dtype(filters)), jnp.full(scale.shape, per_sum), 0.1 * normal(bias.shape)

    layers = parameters()
    head = layers.pop("head")
    x = of_dtype(normal((images, 224, 224, 3)))
    return x, {name: of_layer(*arrays) for name, arrays in layers.items()} | {"head": (normal(head[0].shape), head[1])}


def logits(layer: Layer, layers: dict[str, Any], x: Array) -> Array:
    x = layer(x, layers["stem"], 2, None, True)
    x = lax.reduce_window(x.astype(HALF), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").astype(x.dtype)
    for name, _, stride, has_shortcut in blocks():
        y = layer(x, layers[f"{name}.in"], 1, None, True)
        y = layer(y, layers[f"{name}.window"], stride, None, True)
        x = layer(x, layers[f"{name}.shortcut"], stride, None, False) if has_shortcut else x
        x = layer(y, layers[f"{name}.out"], 1, x, True)
    w, bias = layers["head"]
    return x.astype(HALF).mean((1, 2)) @ w.astype(HALF) + bias.astype(HALF)


def measure(side: Side, images: int, budget_s: float) -> dict:
    """A row. No failure of a side raises."""
    timing = _timed(side, images, budget_s)
    numbers = {"ms": timing.us and timing.us / 1e3, "compile_s": timing.compile_s}
    names = {"side": side.name, "dtype": side.dtype, "images": images}
    ours = side.layer is folded_by_us
    errors = {"error": timing.error if ours else None, "lax_error": None if ours else timing.error}
    return names | rounded(numbers) | errors


def _timed(side: Side, images: int, budget_s: float) -> Timing:
    try:
        compiled, lower_s, compile_s = compile_fresh(program(side.layer, side.dtype, images))
        if side.layer is folded_by_us and not answered_by_us(compiled.as_text() or ""):
            return Timing(error="lax answered in place of our kernels")
        arrays = operands(side.layer, side.dtype, images)
        if not 0 < float(compiled(*arrays).std(dtype=jnp.float32)) < float("inf"):
            return Timing(error="the results are not finite, or all the same")
        us = median_us(CLOCKS[jax.default_backend()], compiled, arrays, budget_s)
        return Timing(us=us, lower_s=lower_s, compile_s=compile_s)
    except Exception as error:  # whatever one side fails by, the others are measured
        return Timing(error=f"{type(error).__name__}: {error}"[:LONGEST_ERROR])


def table(rows: list[dict], tablefmt: str = "simple") -> str:
    """Kernel times, and the speed against lax as it is written, and folded."""
    lines = []
    for row in rows:
        times = {of["side"]: of["ms"] for of in rows if of["dtype"] == HALF and of["images"] == row["images"]}
        against = [row["ms"] and times.get(side) and times[side] / row["ms"] for side in ("lax", "lax folded")]
        lines.append((row["side"], row["dtype"], row["images"], row["ms"], *against, row["compile_s"]))
    header = ("side", "dtype", "images", "ms", "x lax", "x lax folded", "compile s")
    return tabulate(lines, header, tablefmt, floatfmt=".3g", missingval="-")
