"""The rows: a pass of a layer by our kernels and by lax, in one process, on the same arrays."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

import jaxconv
from convbench.cases import Case
from convbench.floor import PEAKS, bytes_touched, floor_us, flops
from convbench.programs import PASSES, SUMS, Program, answered_by_us, compile_fresh, program
from jaxconv.explain import lines
from jaxconv.tuning.timing import CLOCKS, median_us, random_operands

LONGEST_ERROR = 300  # characters: XLA's can be pages


class Timing(NamedTuple):
    """A program's times, or why there are none; and what jaxconv planned."""

    plan: str | None = None
    us: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    error: str | None = None


def measure(
    case: Case, which: str, dtype: str, precision: str, implementations: Sequence[str], budget_s: float
) -> list[dict]:
    """A row for each implementation of jaxconv's, as `results` describes it. No failure of a side raises."""
    with jax.enable_x64(dtype == "float64"):
        reference = program(case, which, dtype, precision, lax.conv_general_dilated)
        operands = operands_of(reference)
        theirs = timed(reference, operands, budget_s, ours=False)
        rows = []
        for implementation in implementations:
            timing = timed(_forced(case, which, dtype, precision, implementation), operands, budget_s, ours=True)
            rows.append(_row(case, which, dtype, precision, implementation, timing, theirs))
        return rows


def unmeasured(case: Case, which: str, dtype: str, precision: str, implementation: str, why: str) -> dict:
    """A row without times."""
    return _row(case, which, dtype, precision, implementation, Timing(error=why), Timing())


def planned(case: Case, which: str, dtype: str, precision: str, implementation: str) -> str:
    """What a row's plan would be today."""
    with jax.enable_x64(dtype == "float64"):
        return _plan(_forced(case, which, dtype, precision, implementation))


def _forced(case: Case, which: str, dtype: str, precision: str, implementation: str) -> Program:
    function = partial(jaxconv.conv_general_dilated, implementation=implementation)
    return program(case, which, dtype, precision, function)


def _row(case: Case, which: str, dtype: str, precision: str, implementation: str, ours: Timing, theirs: Timing) -> dict:
    names = {"case": case.name, "suite": case.suite, "pass": which, "dtype": dtype, "precision": precision}
    names |= {"implementation": implementation, "plan": ours.plan}
    return names | _numbers(case, which, dtype, precision, ours, theirs)


def operands_of(side: Program) -> Callable[[], tuple[Array, ...]]:
    """Makes random operands of a program, at the first call."""
    return cache(lambda: jax.block_until_ready(random_operands(side.operands)))


def rounded(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    """To four digits. What is None, or zero, stays so."""
    return {name: value and float(f"{value:.4g}") for name, value in numbers.items()}


def timed(side: Program, operands: Callable[[], tuple[Array, ...]], budget_s: float, ours: bool) -> Timing:
    """The times of a program. ours: its kernels must be jaxconv's. No failure raises."""
    try:
        compiled, lower_s, compile_s = compile_fresh(side)
        if ours and not answered_by_us(compiled.as_text() or ""):
            return Timing(error="lax answered in place of our kernels")
        clock = CLOCKS[jax.default_backend()]
        us = median_us(clock, compiled, operands(), budget_s)
        return Timing(_plan(side) if ours else None, us, lower_s, compile_s)
    except Exception as error:  # whatever one row fails by, the others are measured
        return Timing(error=f"{type(error).__name__}: {error}"[:LONGEST_ERROR])


def device_answers() -> bool:
    """Whether this process still has its device, which an access outside of all arrays takes away."""
    try:
        jax.block_until_ready(jnp.zeros(1) + 1)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def warm_up(implementations: Sequence[str]) -> None:
    """Lets both sides do once what only the first convolution of a process needs, before anything is timed."""
    tiny = Case("", "", (1, 8, 8, 4), (3, 3, 4, 4), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
    for which in PASSES:
        measure(tiny, which, "float32", "default", implementations, budget_s=0)


def _plan(side: Program) -> str:
    """What answers the program's convolutions, without the problem before and the rejected plans behind."""
    plans = [line.partition(": ")[2].partition("; not ")[0] for line in lines(side.function, *side.operands)]
    assert plans, "a program without a convolution"
    return "; ".join(plans)


def _numbers(case: Case, which: str, dtype: str, precision: str, ours: Timing, theirs: Timing) -> dict:
    peaks = PEAKS.get(jax.devices()[0].device_kind)
    itemsize, of_result = (jnp.dtype(name).itemsize for name in (dtype, SUMS.get(dtype, dtype)))
    floor = floor_us(case, which, dtype, precision, itemsize, peaks, of_result)
    numbers = {
        "us": ours.us,
        "tflops": ours.us and flops(case) / ours.us * 1e-6,
        "flops_per_byte": flops(case) / bytes_touched(case, which, itemsize, of_result),
        "lax_us": theirs.us,
        "speedup": ours.us and theirs.us and theirs.us / ours.us,
        "floor_us": floor,
        "over_floor": ours.us and floor and ours.us / floor,
        "lower_s": ours.lower_s,
        "compile_s": ours.compile_s,
        "lax_lower_s": theirs.lower_s,
        "lax_compile_s": theirs.compile_s,
    }
    return rounded(numbers) | {"error": ours.error, "lax_error": theirs.error}
