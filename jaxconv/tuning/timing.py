"""The time of a compiled program: of its kernels on a GPU, of the call on a host."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxconv.problem.product import ceil_div

FEWEST, MOST = 3, 20
NUMBERS = 1_000_003  # odd: rows of a power of two of pixels are then not alike

# (compiled program, operands, calls) -> seconds of each call; a call before them is not counted.
Clock = Callable[[jax.stages.Compiled, tuple, int], list[float]]


def kernel_seconds(compiled: jax.stages.Compiled, operands: tuple, calls: int) -> list[float]:
    """Time that a GPU spends in all kernels of a call, by CUPTI, without copies, memsets and gaps between kernels."""
    from jax.experimental.mosaic.gpu import profiler  # not for every platform

    _, milliseconds = profiler.measure(compiled, aggregate=False, iterations=calls)(*operands)
    if milliseconds is None:
        raise RuntimeError("no kernel ran")
    kernels_by_call: list[Any] = [milliseconds] if calls == 1 else milliseconds
    return [sum(ms for _, ms in kernels) * 1e-3 for kernels in kernels_by_call]


def wall_seconds(compiled: jax.stages.Compiled, operands: tuple, calls: int) -> list[float]:
    """Time from a call to its result on a host."""
    times = []
    for _ in range(calls + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*operands))
        times.append(time.perf_counter() - start)
    return times[1:]


CLOCKS: dict[str, Clock] = {"gpu": kernel_seconds, "cpu": wall_seconds}


def median_us(clock: Clock, compiled: jax.stages.Compiled, operands: tuple, budget_s: float) -> float:
    """Median microseconds of a call, over as many as take about `budget_s` seconds: 3 to 20."""
    (first,) = clock(compiled, operands, 1)
    calls = min(max(int(budget_s / first), FEWEST), MOST)
    return 1e6 * median(clock(compiled, operands, calls))


def random_operands(types: Sequence[jax.ShapeDtypeStruct]) -> tuple[Array, ...]:
    """Normally distributed arrays, the same in every process; integers are rounded towards zero. They repeat NUMBERS
    numbers: for each new shape, XLA takes a second to compile a generator of so many."""
    return _repeated(np.random.default_rng(0).standard_normal((len(types), NUMBERS), np.float32), types)


@partial(jax.jit, static_argnums=1)
def _repeated(blocks: Array, types: Sequence[jax.ShapeDtypeStruct]) -> tuple[Array, ...]:
    return tuple(_of_type(block, type) for block, type in zip(blocks, types))


def _of_type(block: Array, type: jax.ShapeDtypeStruct) -> Array:
    elements = math.prod(type.shape)
    return jnp.tile(block, ceil_div(elements, NUMBERS))[:elements].reshape(type.shape).astype(type.dtype)
