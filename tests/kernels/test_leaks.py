"""Memory of the host and of the device is level, however many calls, problems and programs there were.

Without a GPU the same with fewer of them. Nothing else may use the GPU meanwhile.
"""

import contextlib
import ctypes
import functools
import gc
import sys
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import jaxconv
from cases.parts import repeated
from cases.reference import assert_same, integers, pullback

MIB = 2**20
LIBC = ctypes.CDLL(None)


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc: bytes in all arenas."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


LIBC.mallinfo2.restype = Allocated


class Memory(NamedTuple):
    """What is in use.

    host: bytes that malloc has given. Pages would count the holes between them, too, which XLA's compiler leaves.
    objects: Python's small ones, which are not by malloc. device: bytes that the driver has given, also for programs.
    arrays: bytes of JAX's own share of these.
    """

    host: int
    objects: int
    device: int
    arrays: int


def memory() -> Memory:
    gc.unfreeze()  # what conftest.py froze may be garbage by now
    gc.collect()
    allocated = LIBC.mallinfo2()
    on_host = allocated.uordblks + allocated.hblkhd, sys.getallocatedblocks()
    if jax.default_backend() != "gpu":
        return Memory(*on_host, 0, 0)
    return Memory(*on_host, device_memory(), jax.devices()[0].memory_stats()["bytes_in_use"])


def device_memory() -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
    return total.value - free.value


@contextlib.contextmanager
def level(what: str, most: int, capsys):
    """malloc may have given `most` bytes more at the end, Python an object for each 256 of these; the driver 32 MiB,
    as it gives 2 MiB at a time; arrays none.
    """
    before = memory()
    yield
    after = memory()
    grown = Memory(*(b - a for a, b in zip(before, after)))
    with capsys.disabled():
        in_mib = (f"{name} {getattr(before, name) / MIB:.1f} -> {getattr(after, name) / MIB:.1f} MiB"
                  for name in ("host", "device", "arrays"))  # fmt: skip
        print(f"\n{what}: {', '.join(in_mib)}, objects {before.objects:,} -> {after.objects:,}")
    assert grown.host <= most
    assert grown.objects <= most // 256
    assert grown.device <= 32 * MIB, "a leak, unless something else used the GPU: run this file without -n"
    assert grown.arrays <= 0


def forget():
    """Drops the programs that JAX keeps of each function, and our plans of 4096 problems: what is left is a leak."""
    jax.clear_caches()
    for cache in gc.get_objects():
        if isinstance(cache, functools._lru_cache_wrapper) and cache.__module__.startswith("jaxconv"):
            cache.cache_clear()


@pytest.mark.parametrize("calls", [2_000, pytest.param(100_000, marks=pytest.mark.gpu)])
def test_eager_calls(calls, implementation, capsys):
    """A result that is kept of each call would be 16 MiB of 2,000; 40 bytes of each are 4 MiB of 100,000."""
    conv = functools.partial(jaxconv.conv2d, implementation=implementation)
    x, w = jax.device_put((integers((1, 16, 16, 8)), integers((3, 3, 8, 8))))

    def call(times):
        for i in range(times):
            if i % 20:
                y = conv(x, w)
            else:
                y, pull_back = jax.vjp(conv, x, w)
                y, _ = pull_back(y)
        y.block_until_ready()

    call(500)
    with level(f"{calls:,} eager calls", 4 * MIB, capsys):
        call(calls)


@pytest.mark.parametrize("problems", [repeated(200), pytest.param(1_000, marks=pytest.mark.gpu)])
def test_distinct_problems(problems, implementation, capsys):
    """JAX itself keeps some 4 KiB of each, as of lax's convolutions; a plan and its program are 20 and more."""
    conv = functools.partial(jaxconv.conv2d, implementation=implementation)

    def solve(numbers):
        for i in numbers:
            height, width, channels = 4 + i % 10, 4 + i // 10 % 10, 1 + i // 100
            x, w = np.ones((1, height, width, channels), "float32"), np.ones((3, 3, channels, 2), "float32")
            jax.block_until_ready(jax.jit(pullback(conv))(x, w, x[..., :1] * w[0, 0, 0]))
            if i % 50 == 49:  # more at a time would leave holes in the host's memory
                forget()

    solve(range(7, 100 + problems, 11))  # of every size: the driver loads a kernel when it is first launched
    with level(f"{problems:,} distinct problems", problems * 10 * 1024, capsys):
        solve(range(100, 100 + problems))


@pytest.mark.full
@pytest.mark.parametrize("times", [1_000, pytest.param(10_000, marks=pytest.mark.gpu)])
def test_programs_loaded_and_dropped(times, implementation, capsys):
    """On a GPU, calls of loaded programs have numbers. There are 16,384, so they must be given back."""
    conv = functools.partial(jaxconv.conv2d, implementation=implementation)
    x, w, g = integers((1, 8, 8, 8)), integers((3, 3, 8, 8)), integers((1, 8, 8, 8), seed=2)
    compiled = jax.jit(pullback(conv)).lower(x, w, g).compile()
    expected, program = compiled(x, w, g), serialize(compiled)

    def load(times):
        for i in range(times):
            loaded = deserialize_and_load(*program, execution_devices=jax.devices()[:1])
            if i % 100 == 0:
                assert_same(loaded(x, w, g), expected)
        return loaded

    load(200)
    forget()
    before = numbers_in_use()
    with level(f"{times:,} programs loaded and dropped", 4 * MIB, capsys):
        load(times)
    assert numbers_in_use() == before
    kept = load(1)
    assert numbers_in_use() > before or jax.default_backend() == "cpu"
    del kept


def numbers_in_use() -> int:
    if jax.default_backend() != "gpu":
        return 0
    from jaxconv import _cuda

    return _cuda.calls_loaded()
