"""`python -m benchmarks calls`: what a call costs besides its kernel, beside lax.

Eager calls are of arrays so small that the kernel takes next to no time. Both sides take turns in one process. Import,
tracing and lowering of a training step, and calls under `install` are measured in processes of their own, in turns too:
the first of a process pays for what later ones find. Each number is a median.
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
from convbench import machine
from convbench.clients.programs import Measured, cross_entropy, model_of, step_of
from convbench.measure import rounded
from convbench.programs import Program
from convbench.rows import RowFile
from convbench.tables import time_text

RESULTS = Path(__file__).parent.parent / "calls"
KEY = ("what",)
CALLS_A_ROUND = 50
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}
SIDES = ("function", "install", "lax")  # jaxconv's function in flax's layers; lax's, with and without `install`
TRACING, LOWERING, EAGER = "tracing ResNet-50's step", "lowering ResNet-50's step", "eager lax.conv_general_dilated"
IMPORT = "import; beside it, of JAX"
# What jaxconv promises: times lax's time, or seconds.
BARS = {
    "eager conv2d": "1.3",
    "eager conv2d in bfloat16": "1.3",
    f"{TRACING}, by function": "1.2",
    f"{TRACING}, by install": "1.2",
    f"{EAGER}, by install": "1.3",
    IMPORT: "0.2 s",
}
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
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two processes share a GPU
    on, origin = machine.describe(), machine.origin(options.commit)
    file = RowFile.continued(options.out, on) if options.out else RowFile(on)
    for row in (*eager_rows(options.rounds), *fresh_rows(options.processes)):
        file.put(row | origin, KEY)
    if options.out:
        file.save(options.out)
    print(table(file.rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks calls", description="What a call costs besides its kernel: eager, traced, lowered; import."
    )
    parser.add_argument("--rounds", type=int, default=40, help=f"of {CALLS_A_ROUND} eager calls; default: 40")
    parser.add_argument("--processes", type=int, default=7, help="of each side; default: 7")
    parser.add_argument("--out", type=Path, metavar="FILE", help="merge the rows into this JSON file")
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
    half = x.astype("bfloat16"), w.astype("bfloat16")
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
        "conv2d in bfloat16": Call(jaxconv.conv2d, of_lax, half),
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
    for _ in tqdm(range(processes), unit=f"x {len(SIDES)} processes"):
        for side in SIDES:
            times[side].append(_in_process(side))
    of = lambda name, *sides: [numbers[name] for side in sides for numbers in times[side]]
    compared = {"function": (TRACING, LOWERING), "install": (TRACING, LOWERING, EAGER)}
    rows = [
        _row(f"{name}, by {side}", of(name, side), of(name, "lax"))
        for side, names in compared.items()
        for name in names
    ]
    return [*rows, _row(IMPORT, of("import jaxconv", *SIDES), of("import jax", *SIDES))]


def _in_process(side: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", FRESH, side]
    return json.loads(subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE).stdout)


def fresh(side: str) -> dict[str, float]:
    """Seconds of tracing and lowering a training step that this process has not seen, and of an eager call."""
    conv = jaxconv.conv_general_dilated if side == "function" else lax.conv_general_dilated
    step = training_step(conv)
    if side == "install":
        jaxconv.install()
    jax.clear_caches()
    start = time.perf_counter()
    traced = jax.jit(step.function).trace(*step.operands)
    traced_at = time.perf_counter()
    traced.lower()
    lowered_at = time.perf_counter()
    eager = partial(_seconds_a_call, partial(conv, **_arguments(2)), (jnp.ones((1, 4, 4, 4)), jnp.ones((3, 3, 4, 4))))
    eager()  # compiles
    steps = {TRACING: traced_at - start, LOWERING: lowered_at - traced_at}
    return steps | {EAGER: median(eager() for _ in range(20))}


def training_step(conv: Callable[..., Array]) -> Program:
    """Of flax's ResNet-50 on a convolution. That of lax has initialised it."""
    model, variables, x = model_of(Measured("resnet50", "training", "float32"))
    labels = jax.ShapeDtypeStruct(x.shape[:1], jnp.int32)
    step = step_of(model.clone(conv_general_dilated=conv), cross_entropy)
    return Program(step, ((variables, variables["params"]), x, labels))


def table(rows: Sequence[dict]) -> str:
    """Markdown: median times of both sides, and what jaxconv promises."""
    lines = [
        (row["what"], time_text(1e6 * row["s"]), time_text(1e6 * row["lax_s"]), row["ratio"], BARS.get(row["what"]))
        for row in rows
    ]
    return tabulate(lines, ("", "jaxconv", "lax", "jaxconv / lax", "at most"), floatfmt=".2f", tablefmt="github",
                    disable_numparse=[4])  # fmt: skip
