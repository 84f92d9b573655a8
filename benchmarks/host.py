"""The host's kernels beside lax's, each pass on its own: a table, and a JSON file that names machine and versions.

python benchmarks/host.py [--out FILE] [--repeats N]
"""

import argparse
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

import jaxconv

# name: (x, w, window_strides, rhs_dilation, feature_group_count), channels-last, padding "SAME", float32
CASES = {
    "3x3 56x56x64": ((8, 56, 56, 64), (3, 3, 64, 64), 1, 1, 1),
    "3x3 28x28x128": ((8, 28, 28, 128), (3, 3, 128, 128), 1, 1, 1),
    "3x3 14x14x256": ((8, 14, 14, 256), (3, 3, 256, 256), 1, 1, 1),
    "1x1 56x56x64 to 256": ((8, 56, 56, 64), (1, 1, 64, 256), 1, 1, 1),
    "3x3 stride 2, 56x56x64 to 128": ((8, 56, 56, 64), (3, 3, 64, 128), 2, 1, 1),
    "7x7 stride 2, 112x112x3 to 64": ((8, 112, 112, 3), (7, 7, 3, 64), 2, 1, 1),
    "3x3 8x8x1 to 32, batch 128": ((128, 8, 8, 1), (3, 3, 1, 32), 1, 1, 1),
    "3x3 8x8x32 to 64, batch 128": ((128, 8, 8, 32), (3, 3, 32, 64), 1, 1, 1),
    "depthwise 3x3 56x56x128": ((8, 56, 56, 128), (3, 3, 1, 128), 1, 1, 128),
    "depthwise 7x7 56x56x128": ((8, 56, 56, 128), (7, 7, 1, 128), 1, 1, 128),
    "32 groups, 3x3 28x28x128": ((4, 28, 28, 128), (3, 3, 4, 128), 1, 1, 32),
    "1-D, 3 taps, dilation 4, 2048x64": ((8, 2048, 64), (3, 64, 64), 1, 4, 1),
    "1-D depthwise, 4 taps, 2048x64": ((8, 2048, 64), (4, 1, 64), 1, 1, 64),
    "3-D 3x3x3 16x16x16x32": ((1, 16, 16, 16, 32), (3, 3, 3, 32, 32), 1, 1, 1),
}
FUNCTIONS = {3: jaxconv.conv1d, 4: jaxconv.conv2d, 5: jaxconv.conv3d}


def passes(case, implementation: str) -> dict:
    """fprop, dgrad and wgrad as compiled functions of no arguments."""
    x_shape, w_shape, strides, dilation, groups = case
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in (x_shape, w_shape))

    def conv(x, w):
        return FUNCTIONS[x.ndim](
            x, w, window_strides=strides, rhs_dilation=dilation, feature_group_count=groups,
            implementation=implementation,
        )  # fmt: skip

    g = jnp.asarray(rng.standard_normal(jax.eval_shape(conv, x, w).shape), jnp.float32)
    functions = {
        "fprop": (conv, x, w),
        "dgrad": (lambda g, w: jax.vjp(lambda x: conv(x, w), x)[1](g)[0], g, w),
        "wgrad": (lambda x, g: jax.vjp(lambda w: conv(x, w), w)[1](g)[0], x, g),
    }
    return {name: (jax.jit(f).lower(*args).compile(), args) for name, (f, *args) in functions.items()}


def milliseconds(compiled, args, repeats: int) -> float:
    """Median wall time of a call, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return median(times[1:]) * 1e3


def machine() -> dict[str, str]:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "cpu": cpu,
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the times as JSON")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    rows = {}
    for name, case in CASES.items():
        ours, laxs = passes(case, "cpu"), passes(case, "xla")
        rows[name] = {
            p: {"ms": milliseconds(*ours[p], options.repeats), "lax_ms": milliseconds(*laxs[p], options.repeats)}
            for p in ours
        }
        speeds = (f"{p} {t['ms']:8.2f} ms {t['lax_ms'] / t['ms']:7.2f}x lax" for p, t in rows[name].items())
        print(f"{name:36}", *speeds, sep="  ", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "float32": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
