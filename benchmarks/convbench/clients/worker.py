"""A process that compiles and times programs on one side: lax, or jaxconv by `install`.

Each side has its own process. So neither compiles with what the other left in XLA's caches, a program that never
compiles can be given up, and one that crashes leaves the others.
"""

import re
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxconv
from convbench.clients.programs import Measured, Runnable, runnable
from convbench.measure import LONGEST_ERROR
from convbench.programs import Program, compile_fresh
from jaxconv.explain import answers
from jaxconv.tuning.timing import wall_seconds

OURS = re.compile(r'custom_call_target="jaxconv_')
OTHERS = re.compile(r"\bconvolution\(|__cudnn\$conv|__onednn\$conv")


class Side(NamedTuple):
    """What a program takes on one side, or why there is no time.

    ms: median wall time of a call, until its result is there. queued_ms: of a call among others that do not wait for
    each other. ours, others: convolutions in the compiled text that are our kernels, and that are not. reasons:
    of the latter. compared: the arrays that both sides must have in common.
    """

    ms: float | None = None
    compile_s: float | None = None
    ours: int | None = None
    others: int | None = None
    reasons: tuple[str, ...] = ()
    error: str | None = None
    compared: Any = ()
    queued_ms: float | None = None


class Worker:
    """implementation: what is installed, as `install` has it. Without installed=True, lax's own convolutions."""

    def __init__(self, implementation: str | None, installed: bool):
        self._side = implementation, installed
        self._start()

    def ask(self, measured: Measured, calls: int, limit_s: float) -> Side:
        """No failure raises. A process that fails is replaced."""
        return self._answer(measured, calls, limit_s)

    def again(self, calls: int, limit_s: float) -> Side:
        """Of what was asked last, only the time is measured."""
        return self._answer(None, calls, limit_s)

    def _answer(self, measured: Measured | None, calls: int, limit_s: float) -> Side:
        try:
            self._tasks.send((measured, calls))
            if self._tasks.poll(limit_s):
                return self._tasks.recv()
            failure = f"no result after {limit_s:.0f} s"
        except (EOFError, OSError):
            failure = "the process ended"
        self.close()
        self._start()
        return Side(error=failure)

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        context = get_context("spawn")
        self._tasks, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._side), daemon=True)
        self._process.start()
        theirs.close()  # else the end of the process would go unnoticed


def _serve(tasks: Connection, implementation: str | None, installed: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", False)  # what it finds is not a compilation
    if installed:
        jaxconv.install(implementation)
    _warm_up()
    program = Compiled()
    while True:
        measured, calls = tasks.recv()
        tasks.send(program.measure(measured, calls) if measured else program.time(calls))


def _warm_up() -> None:
    """Does once what only the first convolution and the first product of a process need, before anything is timed."""
    x = jax.numpy.ones((1, 8, 8, 8))
    loss = lambda w: (jax.lax.conv(x, w, (1, 1), "SAME") @ w[0, 0]).sum()
    jax.block_until_ready(jax.jit(jax.grad(loss))(jax.numpy.ones((8, 8, 8, 8))))


class Compiled:
    """The program that was compiled last, which may be timed several times."""

    def __init__(self) -> None:
        self._program: tuple[jax.stages.Compiled, tuple[Any, ...]] | None = None

    def measure(self, measured: Measured, calls: int) -> Side:
        """By what this process has installed."""
        self._program = None  # what it holds is free before the next one is compiled
        return _or_error(lambda: self._measure(runnable(measured), calls))

    def time(self, calls: int) -> Side:
        return _or_error(lambda: self._timed(Side(), calls))

    def _measure(self, run: Runnable, calls: int) -> Side:
        types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), run.operands)
        compiled, lower_s, compile_s = compile_fresh(Program(run.function, types))
        hlo = compiled.as_text() or ""
        ours, others = len(OURS.findall(hlo)), len(OTHERS.findall(hlo))
        compared = jax.tree.map(lambda a: np.asarray(a, np.float32), compiled(*run.operands)[0])
        self._program = compiled, run.operands
        reasons = _reasons(run.function, types) if others else ()
        return self._timed(Side(None, lower_s + compile_s, ours, others, reasons, None, compared), calls)

    def _timed(self, side: Side, calls: int) -> Side:
        assert self._program is not None, "nothing was compiled"
        ms = 1e3 * statistics.median(wall_seconds(*self._program, calls))
        return side._replace(ms=ms, queued_ms=1e3 * queued_seconds(*self._program, calls))


def queued_seconds(compiled: Callable[..., Any], operands: tuple[Any, ...], calls: int) -> float:
    """The time of a call among others, as a loop has it that waits for the last result alone."""
    jax.block_until_ready(compiled(*operands))
    start = time.perf_counter()
    for _ in range(calls):
        result = compiled(*operands)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def _or_error(measure: Callable[[], Side]) -> Side:
    try:
        return measure()
    except Exception as error:  # whatever one program fails by, the others are measured
        return Side(error=" ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_ERROR])


def _reasons(function: Any, types: tuple[Any, ...]) -> tuple[str, ...]:
    """Why lax answers convolutions; nothing if it answers all of them, because nothing is installed."""
    by_lax = [answer for answer in answers(function, *types) if answer.by.startswith("lax")]
    return tuple(dict.fromkeys(answer.reason or f"{answer.by} {answer.time or ''}".strip() for answer in by_lax))
