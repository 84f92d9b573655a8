"""Many of the host's convolutions at once: a handler that waited for XLA's thread pool could wait for itself."""

import functools
import threading

import jax
import jax.numpy as jnp

from cases.for_host import conv2d
from cases.reference import assert_same, cotangent, integers, lax_channels_last, pullback, run_on_host


def test_many_convolutions_in_one_program():
    x, w = integers((2, 12, 10, 16)), integers((3, 3, 16, 16), bound=1)

    def wide(conv):
        """Independent convolutions, and a chain."""

        def network(x, w):
            branches = [conv(x + i, w) for i in range(40)]
            y = sum(branches)
            for _ in range(5):
                y = jnp.sign(conv(y, w))
            return y

        return network

    expected = run_on_host(wide(lax_channels_last), x, w)
    program = jax.jit(wide(conv2d))
    for _ in range(5):
        assert_same(program(x, w), expected)


def test_programs_from_many_threads():
    problems = [
        (integers((2, 8 + i, 9, 16), seed=i), integers((3, 3, 16 // groups, 16), seed=i), groups)
        for i, groups in enumerate([1, 16, 4, 1, 16, 2, 1, 8])
    ]
    programs, expected = [], []
    for x, w, groups in problems:
        g = cotangent(functools.partial(lax_channels_last, feature_group_count=groups), x, w)
        passes = lambda conv: pullback(functools.partial(conv, feature_group_count=groups))
        programs.append(jax.jit(passes(conv2d)).lower(x, w, g).compile())
        expected.append(((x, w, g), run_on_host(passes(lax_channels_last), x, w, g)))
    failures = []

    def work(program, operands, results):
        try:
            for _ in range(20):
                assert_same(program(*operands), results)
        except BaseException as error:
            failures.append(error)

    jobs = 2 * [(program, *e) for program, e in zip(programs, expected, strict=True)]
    threads = [threading.Thread(target=work, args=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a deadlock"
    assert not failures, failures[0]


def test_on_every_device():
    """Eight simulated devices run their own convolutions at once."""
    devices = jax.devices("cpu")
    assert len(devices) == 8
    x, w = integers((2, 9, 8, 16)), integers((3, 3, 16, 24))
    program, expected = jax.jit(conv2d), run_on_host(lax_channels_last, x, w)
    results = [program(*jax.device_put((x, w), device)) for device in devices for _ in range(4)]
    for result in results:
        assert_same(result, expected)
