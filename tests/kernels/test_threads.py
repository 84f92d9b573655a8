"""Several threads and streams: kernels give what they give alone, whatever else is being launched.

Each test runs this file in a process of its own, as XLA reads its flags once, and so that a deadlock ends with it.
"""

import functools
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import compute_on

import jaxconv

pytestmark = pytest.mark.gpu

START = 180  # seconds for a process to begin and to compile its programs
GRAPHS = {
    "command_buffers": "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1",
    "no_command_buffers": "--xla_gpu_enable_command_buffer=",
}


class Layer(NamedTuple):
    family: str
    dtype: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: int = 1


# Sizes whose kernels take different amounts of shared memory, in at most some 100 us each.
CONVNEXT = [((128, 56, 56, 128), (7, 7, 1, 128)), ((128, 28, 28, 256), (7, 7, 1, 256)),
            ((32, 14, 14, 512), (7, 7, 1, 512)), ((8, 7, 7, 1024), (7, 7, 1, 1024))]  # fmt: skip
FEWER_IMAGES = [((32, *x[1:]), w) for x, w in CONVNEXT[:3]] + CONVNEXT[3:]
FLOAT32 = [((4, 28, 28, 32), (3, 3, 32, 48)), ((2, 14, 14, 96), (1, 1, 96, 64)), ((2, 30, 30, 3), (7, 7, 3, 64), 2)]
DENSE = [((8, 28, 28, 128), (3, 3, 128, 128)), ((4, 56, 56, 64), (3, 3, 64, 16), 2), ((4, 56, 56, 32), (3, 3, 32, 32)),
         ((8, 56, 56, 16), (7, 7, 16, 16))]  # fmt: skip
GROUPED = [((2, 28, 28, 512), (3, 3, 16, 512))]
LAYERS = [
    *(Layer("depthwise", "bfloat16", *sizes) for sizes in CONVNEXT),
    *(Layer("depthwise", "float32", *sizes) for sizes in FEWER_IMAGES),
    *(Layer(family, "float32", *sizes) for family in ("simt", "im2col") for sizes in FLOAT32),
    *(Layer("mma", "bfloat16", *sizes) for sizes in DENSE[:2] + GROUPED),
    *(Layer("mma", "float32", *sizes) for sizes in DENSE[:2]),
    *(Layer("wgmma", "bfloat16", *sizes) for sizes in DENSE),
    *(Layer("direct", "bfloat16", *sizes) for sizes in DENSE + GROUPED),
]


class Program(NamedTuple):
    name: str
    function: Callable  # compiled
    operands: tuple
    results: tuple  # when nothing else runs


def passes(layer: Layer) -> Callable:
    """(x, w, g) -> the forward pass and the gradients."""
    conv = functools.partial(jaxconv.conv2d, window_strides=layer.strides, implementation=layer.family,
                             feature_group_count=layer.x[-1] // layer.w[-2])  # fmt: skip

    def function(x, w, g):
        data_gradient = jax.vjp(lambda x: conv(x, w), x)[1]
        filter_gradient = jax.vjp(lambda w: conv(x, w), w)[1]
        return conv(x, w), *data_gradient(g), *filter_gradient(g)

    return function


def program_of(layer: Layer) -> Program:
    batch, *image, _ = layer.x
    out = (batch, *(-(-size // layer.strides) for size in image), layer.w[-1])
    noise = np.random.default_rng(0).standard_normal(99_991).astype(layer.dtype)
    operands = tuple(jnp.asarray(np.resize(noise, shape)) for shape in (layer.x, layer.w, out))
    function = jax.jit(passes(layer))
    results = function(*operands)
    assert same(results, results)  # compiled before there are threads
    return Program(str(layer), function, operands, results)


def on_two_streams(one: Program, other: Program) -> Program:
    """Both programs as one, each on a stream of its own; unjitted, as XLA has no streams for calls within calls."""
    place = getattr(compute_on, "compute_on2", compute_on.compute_on)  # its name in jax 0.10
    streams = [
        place(p.function.__wrapped__, compute_type=f"gpu_stream:{i}", out_memory_spaces=jax.memory.Space.Device)
        for i, p in enumerate((one, other), 1)
    ]
    function = jax.jit(
        lambda a, b: (streams[0](*a), streams[1](*b)),
        compiler_options={"xla_gpu_experimental_stream_annotation": True},
    )
    program = Program(f"{one.name} beside {other.name}", function, (one.operands, other.operands),
                      (one.results, other.results))  # fmt: skip
    check(program, function(*program.operands))
    return program


@jax.jit
def same(results, expected):
    """Whether all bits are."""
    bits = lambda a: lax.bitcast_convert_type(a, f"uint{8 * a.dtype.itemsize}")
    equal = jax.tree.map(lambda a, b: jnp.all(bits(a) == bits(b)), results, expected)
    return jnp.all(jnp.array(jax.tree.leaves(equal)))


def check(program: Program, results) -> None:
    if not same(results, program.results):
        raise AssertionError(f"other results than alone: {program.name}")


def run_in_threads(programs_of_threads: list[list[Program]], seconds: float) -> int:
    """Each thread runs its programs in random order; how many calls there were. The first thread's error is raised."""
    end = time.monotonic() + seconds

    def run(seed: int, programs: list[Program]) -> int:
        order = random.Random(seed)
        for calls in itertools.count(step=2):
            if time.monotonic() > end:
                return calls
            pair = order.choices(programs, k=2)  # both are on their way before the first is waited for
            for program, results in [(p, p.function(*p.operands)) for p in pair]:
                check(program, results)

    with ThreadPoolExecutor(len(programs_of_threads)) as pool:
        return sum(pool.map(run, itertools.count(), programs_of_threads))


def first_two_stages(seconds: float) -> int:
    return run_in_threads([[program_of(layer)] for layer in LAYERS[:2]], seconds)


def every_family(seconds: float) -> int:
    """Half of the time all threads share one program after the other, half of it each takes any."""
    programs = [program_of(layer) for layer in LAYERS]
    depthwise, simt, mma, direct = (next(p for p in programs if family in p.name)
                                    for family in ("depthwise", "simt", "mma", "direct"))  # fmt: skip
    programs += [on_two_streams(*pair) for pair in ((programs[1], programs[2]), (simt, mma), (depthwise, direct))]
    share = seconds / 2 / len(programs)
    calls = sum(run_in_threads([[program]] * 4, share) for program in programs)
    return calls + run_in_threads([programs] * 4, seconds / 2)


def run_alone(work: Callable, seconds: float, flags: str) -> None:
    """`work(seconds)` in a process that this one leaves room on the GPU for."""
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    command = [sys.executable, __file__, work.__name__, str(seconds)]
    process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=START + 2 * seconds)
    assert process.returncode == 0, process.stderr[-5000:]
    print(process.stdout)


@pytest.mark.parametrize("flags", GRAPHS.values(), ids=GRAPHS)
def test_depthwise_layers_of_convnext_in_two_threads(flags):
    """The two need different amounts of shared memory of the same kernels."""
    run_alone(first_two_stages, 3, flags)


@pytest.mark.parametrize("flags", GRAPHS.values(), ids=GRAPHS)
def test_every_family_in_four_threads(flags):
    """Also one program in all of them, and programs that use two streams."""
    run_alone(every_family, 15, flags)


if __name__ == "__main__":
    _, name, seconds = sys.argv
    print(f"{globals()[name](float(seconds)):,} calls, the same results as alone")
