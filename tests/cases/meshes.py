"""Meshes of the eight simulated host devices, arrays on them, and what XLA compiles for them."""

import functools
import math
import re
from collections import Counter

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def mesh(shape=(8,), names=("a",), kind=AxisType.Auto):
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=jax.devices("cpu"))


ONE_AXIS = functools.partial(mesh, (8,), ("a",))
TWO_AXES = functools.partial(mesh, (4, 2), ("a", "b"))

# Where x, w and the result's cotangent lie, by (batch, in channels, out channels) on a mesh.
LAYOUTS = {
    "batch": (ONE_AXIS, P("a"), P(), P("a")),
    "in_channels": (ONE_AXIS, P(None, None, None, "a"), P(None, None, "a"), P()),
    "out_channels": (ONE_AXIS, P(), P(None, None, None, "a"), P(None, None, None, "a")),
    "batch_and_in_channels": (TWO_AXES, P("a", None, None, "b"), P(None, None, "b"), P("a")),
    "batch_and_out_channels": (TWO_AXES, P("a"), P(None, None, None, "b"), P("a", None, None, "b")),
    "in_and_out_channels": (
        TWO_AXES, P(None, None, None, "a"), P(None, None, "a", "b"), P(None, None, None, "b")
    ),
    "batch_over_two_axes": (TWO_AXES, P(("a", "b")), P(), P(("a", "b"))),
    "replicated": (ONE_AXIS, P(), P(), P()),
}  # fmt: skip
OF_ONE_AXIS = ("batch", "in_channels", "out_channels")


def forward(conv):
    return lambda x, w, g: conv(x, w)


def data_gradient(conv):
    return lambda x, w, g: jax.vjp(conv, x, w)[1](g)[0]


def weight_gradient(conv):
    return lambda x, w, g: jax.vjp(conv, x, w)[1](g)[1]


# Each pass, and which of (x, w, g) its result lies like.
PASSES = [(forward, 2), (data_gradient, 0), (weight_gradient, 1)]


def place(mesh, arrays, specs):
    return [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(arrays, specs, strict=True)]


def collectives(hlo):
    found = re.findall(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(", hlo)
    return Counter(found)


def exchanged(hlo):
    """The bytes of float32 numbers that each collective of a kind gives a device: {kind: [bytes]}."""
    found = {}
    for shapes, kind in re.findall(rf"= (\S+|\(.*?\)) ({'|'.join(COLLECTIVES)})(?:-start)?\(", hlo):
        sizes = [math.prod(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", shapes)]
        found.setdefault(kind, []).extend(4 * size for size in sizes)
    return found


def compiled(function, operands, out_shardings=None):
    lowered = jax.jit(function, out_shardings=out_shardings).lower(*operands)
    program = lowered.compile({"xla_backend_optimization_level": 0})
    return program(*operands), program.as_text()
