"""`python -m benchmarks halos`: what rows of neighbours cost the convolution of a shard.

A shard is an eighth of an image, split along its first dimension. Its device has received rows of its neighbours, which
are arrays of their own. Beside them stand zeros in their place.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, lax
from tabulate import tabulate

import jaxconv
from convbench import forward
from convbench.cases import LAYOUTS
from convbench.measure import operands_of, rounded, timed
from convbench.programs import Program
from jaxconv import ffi
from jaxconv.lowering import decide_apart
from jaxconv.sharding.block import apart_on_one_device
from jaxconv.traced import trace

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


class Side(NamedTuple):
    """A program, and the plan of its kernel, if that reads the rows where they lie."""

    program: Program
    plan: str | None = None


def sides(shard: Shard, implementation: str | None) -> dict[str, Side]:
    """With rows of neighbours and with zeros in their place, by us and by lax."""
    conv = partial(CONVS[shard.rank], rhs_dilation=shard.dilation, implementation=implementation)
    (first, *others), numbers = shard.padding, LAYOUTS[shard.rank]
    ones, dilation = (1,) * shard.rank, (shard.dilation,) * shard.rank

    def by_lax(x: Array, w: Array, first: tuple[int, int]) -> Array:
        return lax.conv_general_dilated(x, w, ones, [first, *others], ones, dilation, numbers)

    def joined_by_lax(x: Array, w: Array, before: Array, after: Array) -> Array:
        return by_lax(jnp.concatenate((before, x, after), axis=1), w, (0, 0))

    periodic = Program(lambda x, w: conv(x, w, padding=["CIRCULAR", *others]), shard.operands)
    rows = [ShapeDtypeStruct((shard.lhs[0], count, *shard.lhs[2:]), shard.dtype) for count in first]
    with_rows = (*shard.operands, *rows)
    return {
        "us": _where_they_lie(periodic, with_rows, implementation) or Side(periodic),
        "zeros_us": Side(Program(lambda x, w: conv(x, w, padding=shard.padding), shard.operands)),
        "lax_us": Side(Program(joined_by_lax, with_rows)),
        "lax_zeros_us": Side(Program(lambda x, w: by_lax(x, w, first), shard.operands)),
    }


def _where_they_lie(periodic: Program, operands: tuple[ShapeDtypeStruct, ...], implementation) -> Side | None:
    """The kernel of a device, if it reads the rows so: that of an image which is its own neighbour."""
    (equation,) = trace(periodic.function, *periodic.operands).equations
    apart = apart_on_one_device(equation.params["problem"])
    choice = decide_apart("cuda", apart, implementation) if apart else None
    if apart is None or choice is None:
        return None
    return Side(Program(ffi.convolution(choice.plan, apart.problem), operands), str(choice.plan))


def measure(shard: Shard, budget_s: float) -> dict:
    """A row. No failure of a side raises."""
    us, plans, error = {}, {}, None
    for name, side in sides(shard, "cuda").items():
        is_api = "lax" not in name and side.plan is None
        timing = timed(side.program, operands_of(side.program), budget_s, ours=is_api)
        us[name], plans[name] = timing.us, side.plan or timing.plan
        error = error or (None if "lax" in name else timing.error)
    ratio = us["us"] and us["zeros_us"] and us["us"] / us["zeros_us"]
    names = {"shard": shard.name, "dtype": shard.dtype, "plan": plans["us"], "zeros_plan": plans["zeros_us"]}
    return names | rounded(us | {"ratio": ratio}) | {"error": error}


def table(rows: list[dict]) -> str:
    header = ("shard", "dtype", "zeros us", "rows us", "ratio", "lax zeros us", "lax rows us")
    fields = ("shard", "dtype", "zeros_us", "us", "ratio", "lax_zeros_us", "lax_us")
    return tabulate([[row[field] for field in fields] for row in rows], header, floatfmt=".4g", missingval="-")
