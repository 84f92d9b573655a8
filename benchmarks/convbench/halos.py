"""`python -m benchmarks halos`: what rows of neighbours cost the convolution of a shard.

A shard is an eighth of an image, split along its first dimension. Its device receives rows of neighbours.
Here they are its own, as in a periodic dimension, so that one GPU is enough. Beside them stand zeros in their place.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, lax
from tabulate import tabulate

import jaxconv
from convbench import forward
from convbench.measure import operands_of, rounded, timed
from convbench.programs import Program

CONVS = {1: jaxconv.conv1d, 2: jaxconv.conv2d, 3: jaxconv.conv3d}
KEY = ("shard", "dtype")


class Shard(NamedTuple):
    """Images, channels last, and a filter with windows of odd size."""

    name: str
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    dilation: int = 1
    dtype: str = "bfloat16"

    @property
    def rank(self) -> int:
        return len(self.lhs) - 2

    @property
    def padding(self) -> list[tuple[int, int]]:
        reaches = (size // 2 * self.dilation for size in self.rhs[: self.rank])
        return [(reach, reach) for reach in reaches]

    @property
    def operands(self) -> tuple[ShapeDtypeStruct, ...]:
        return tuple(ShapeDtypeStruct(shape, self.dtype) for shape in (self.lhs, self.rhs))


SHARDS = (
    Shard("vae_1024_128", (1, 128, 1024, 128), (3, 3, 128, 128)),
    Shard("vae_1024_256_128", (1, 128, 1024, 256), (3, 3, 256, 128)),
    Shard("vae_512_256", (1, 64, 512, 256), (3, 3, 256, 256)),
    Shard("vae_512_512", (1, 64, 512, 512), (3, 3, 512, 512)),
    Shard("vae_256_512", (2, 32, 256, 512), (3, 3, 512, 512)),
    Shard("unet_512_64", (8, 64, 512, 64), (3, 3, 64, 64)),
    Shard("unet_256_128", (8, 32, 256, 128), (3, 3, 128, 128)),
    Shard("weather_721_256", (1, 90, 1440, 256), (5, 5, 256, 256)),
    Shard("dilated_1024_128", (1, 128, 1024, 128), (3, 3, 128, 128), dilation=2),
    Shard("volume_128_32", (2, 16, 128, 128, 32), (3, 3, 3, 32, 32)),
    Shard("volume_128_64", (1, 16, 128, 128, 64), (3, 3, 3, 64, 64)),
    Shard("volume_64_128", (2, 8, 64, 64, 128), (3, 3, 3, 128, 128)),
    Shard("wave_512", (8, 16384, 512), (3, 512, 512)),
    Shard("wave_dilated_256", (8, 16384, 256), (3, 256, 256), dilation=64),
)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our kernels failed."""
    parser = forward.without_cases("halos", "The convolution of a shard with rows of its neighbours.", seconds=0.1)
    parser.add_argument("--shards", nargs="+", choices=[shard.name for shard in SHARDS], help="default: all")
    options = parser.parse_args(arguments)
    forward.begin("halos")
    every = [(shard,) for shard in SHARDS if not options.shards or shard.name in options.shards]
    return forward.measure_all(options, every, measure, KEY, table)


def programs(shard: Shard, implementation: str | None) -> dict[str, Program]:
    """With rows of neighbours and with zeros in their place, by us and by lax."""
    conv = partial(CONVS[shard.rank], rhs_dilation=shard.dilation, implementation=implementation)
    others = shard.padding[1:]

    def by_lax(x: Array, w: Array, first: tuple[int, int]) -> Array:
        names = "DHW"[3 - shard.rank :]
        numbers = f"N{names}C", f"{names}IO", f"N{names}C"
        ones, dilation = (1,) * shard.rank, (shard.dilation,) * shard.rank
        return lax.conv_general_dilated(x, w, ones, [first, *others], ones, dilation, numbers)

    def rows_by_lax(x: Array, w: Array) -> Array:
        edges = [(0, 0), shard.padding[0], *[(0, 0)] * shard.rank]
        return by_lax(jnp.pad(x, edges, mode="wrap"), w, (0, 0))

    functions = {
        "us": lambda x, w: conv(x, w, padding=["CIRCULAR", *others]),
        "zeros_us": lambda x, w: conv(x, w, padding=shard.padding),
        "lax_us": rows_by_lax,
        "lax_zeros_us": lambda x, w: by_lax(x, w, shard.padding[0]),
    }
    return {name: Program(function, shard.operands) for name, function in functions.items()}


def measure(shard: Shard, budget_s: float) -> dict:
    """A row. No failure of a side raises."""
    sides = programs(shard, "cuda")
    operands = operands_of(sides["us"])
    times = {name: timed(side, operands, budget_s, ours="lax" not in name) for name, side in sides.items()}
    us = {name: timing.us for name, timing in times.items()}
    ratio = us["us"] and us["zeros_us"] and us["us"] / us["zeros_us"]
    names = {"shard": shard.name, "dtype": shard.dtype, "plan": times["us"].plan, "zeros_plan": times["zeros_us"].plan}
    error = times["us"].error or times["zeros_us"].error
    return names | rounded(us | {"ratio": ratio}) | {"error": error}


def table(rows: list[dict]) -> str:
    header = ("shard", "dtype", "zeros us", "rows us", "ratio", "lax zeros us", "lax rows us")
    fields = ("shard", "dtype", "zeros_us", "us", "ratio", "lax_zeros_us", "lax_us")
    return tabulate([[row[field] for field in fields] for row in rows], header, floatfmt=".4g", missingval="-")
