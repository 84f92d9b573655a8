"""`python -m benchmarks calls`: what a call costs besides its kernel, beside lax.

Eager calls are of arrays so small that the kernel takes next to no time. Both sides take turns in one process. Import,
and tracing and lowering of a training step, are measured in processes of their own, in turns too: the first of a
process pays for what later ones find. Each number is a median.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from tabulate import tabulate
from tqdm import tqdm

import jaxconv
from convbench import machine, resnet50
from convbench.measure import rounded
from convbench.rows import RowFile
from convbench.tables import time_text

CALLS_A_ROUND = 50
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}
SIDES = ("jaxconv", "lax")
# A process measures `fresh` of a side. Imports come first: nothing may have imported JAX.
FRESH = """
import time
start = time.perf_counter(); import jax
jax_at = time.perf_counter(); import jaxconv
end = time.perf_counter()
import json, sys
from convbench.calls import fresh
print(json.dumps({"import jaxconv": end - jax_at, "import jax": jax_at - start} | fresh(sys.argv[1])))
"""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    rows = [*eager_rows(options.rounds), *fresh_rows(options.processes)]
    if options.out:
        origin = machine.origin(options.commit)
        RowFile(machine.describe(), [row | origin for row in rows]).save(options.out)
    print(table(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks calls", description="What a call costs besides its kernel: eager, traced, lowered; import."
    )
    parser.add_argument("--rounds", type=int, default=40, help=f"of {CALLS_A_ROUND} eager calls; default: 40")
    parser.add_argument("--processes", type=int, default=7, help="of each side; default: 7")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows to this JSON file")
    parser.add_argument("--commit", help="to be noted with the rows; default: git's")
    return parser


def _row(what: str, ours: Sequence[float], theirs: Sequence[float]) -> dict:
    """s, lax_s: seconds; median times of both sides. ratio: above 1 lax is faster."""
    ours_s, lax_s = median(ours), median(theirs)
    return {"what": what} | rounded({"s": ours_s, "lax_s": lax_s, "ratio": ours_s / lax_s})


# Eager calls.


class Call(NamedTuple):
    """A call of ours, and the same of lax's."""

    ours: Callable[..., Any]
    lax: Callable[..., Any]
    operands: tuple[Array, ...]


def eager_calls() -> dict[str, Call]:
    x, w, bias = jnp.ones((1, 4, 4, 4)), jnp.ones((3, 3, 4, 4)), jnp.ones(4)
    general, of_lax = (partial(f, **_arguments(2)) for f in (jaxconv.conv_general_dilated, lax.conv_general_dilated))
    transposed, of_lax_transposed = (
        partial(f, strides=(2, 2), padding="SAME") for f in (jaxconv.conv_transpose, lax.conv_transpose)
    )
    of_lax_1d = partial(lax.conv_general_dilated, **_arguments(1))
    gradients = lambda conv: lambda x, w: jax.grad(lambda x, w: conv(x, w).sum(), argnums=(0, 1))(x, w)
    tangent = lambda conv: lambda x, w: jax.jvp(conv, (x, w), (x, w))
    mapped = lambda conv: lambda x, w: jax.vmap(conv, (0, None))(x, w)
    fused = lambda x, w, bias: jaxconv.conv2d(x, w, bias=bias, activation="relu")
    return {
        "conv2d": Call(jaxconv.conv2d, of_lax, (x, w)),
        "conv1d": Call(jaxconv.conv1d, of_lax_1d, (x[0], w[0])),
        "conv_general_dilated": Call(general, of_lax, (x, w)),
        "conv_transpose": Call(transposed, of_lax_transposed, (x, w)),
        "conv2d with bias and relu": Call(fused, lambda x, w, bias: jax.nn.relu(of_lax(x, w) + bias), (x, w, bias)),
        "gradients of conv2d": Call(gradients(jaxconv.conv2d), gradients(of_lax), (x, w)),
        "jvp of conv_general_dilated": Call(tangent(general), tangent(of_lax), (x, w)),
        "vmap of conv2d": Call(mapped(jaxconv.conv2d), mapped(of_lax), (x[None], w)),
    }


def _arguments(rank: int) -> dict[str, Any]:
    return dict(window_strides=(1,) * rank, padding="SAME", dimension_numbers=LAYOUTS[rank])


def eager_rows(rounds: int) -> list[dict]:
    rows = []
    for what, call in tqdm(eager_calls().items(), unit="call"):
        sides = call.ours, call.lax
        times = [[_seconds_a_call(side, call.operands) for side in sides] for _ in range(1 + rounds)]
        rows.append(_row(f"eager {what}", *zip(*times[1:])))  # the first round compiles
    return rows


def _seconds_a_call(function: Callable[..., Any], operands: tuple[Array, ...]) -> float:
    start = time.perf_counter()
    results = [function(*operands) for _ in range(CALLS_A_ROUND)]
    end = time.perf_counter()
    jax.block_until_ready(results)
    return (end - start) / CALLS_A_ROUND


# In a process of its own.


def fresh_rows(processes: int) -> list[dict]:
    times: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in tqdm(range(processes), unit="process"):
        for side in SIDES:
            times[side].append(_in_process(side))
    ours, theirs = times.values()
    of = lambda measured, name: [numbers[name] for numbers in measured]
    steps = [_row(f"{name} a step of ResNet-50", of(ours, name), of(theirs, name)) for name in ("tracing", "lowering")]
    every = ours + theirs
    return [*steps, _row("import; beside it, of JAX", of(every, "import jaxconv"), of(every, "import jax"))]


def _in_process(side: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", FRESH, side]
    return json.loads(subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE).stdout)


def fresh(side: str) -> dict[str, float]:
    """Seconds of tracing and lowering a training step that this process has not seen."""
    conv = {"jaxconv": jaxconv.conv_general_dilated, "lax": lax.conv_general_dilated}[side]
    on = lambda x, w, stride: conv(x, w, **_arguments(2) | {"window_strides": (stride, stride)})
    operands = jax.eval_shape(resnet50.parameters), resnet50.IMAGES, resnet50.LABELS
    jax.devices()  # starts JAX's backends
    start = time.perf_counter()
    traced = jax.jit(partial(resnet50.train_step, on)).trace(*operands)
    traced_at = time.perf_counter()
    traced.lower()
    return {"tracing": traced_at - start, "lowering": time.perf_counter() - traced_at}


def table(rows: Sequence[dict]) -> str:
    lines = [(row["what"], time_text(1e6 * row["s"]), time_text(1e6 * row["lax_s"]), row["ratio"]) for row in rows]
    return tabulate(lines, ("", "jaxconv", "lax", "jaxconv / lax"), floatfmt=".2f", tablefmt="github")
