"""`python -m benchmarks narrow`: forward passes of int8 and float8, beside bfloat16, and lax's where it has them."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import geometric_mean
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, lax
from tabulate import tabulate

import jaxconv
from convbench import forward, selection
from convbench.cases import Case
from convbench.floor import flops
from convbench.measure import operands_of, rounded, timed
from convbench.programs import Program
from convbench.rows import grouped

KEY = ("case", "dtype", "result", "ends", "layout")
SCALE = 2.0**-8  # of a quantised result


class Kind(NamedTuple):
    """ends: whether there are scale, bias and relu. layout: of images, and of the result."""

    dtype: str
    result: str
    ends: bool
    layout: str = "NHWC"

    def is_for(self, case: Case) -> bool:
        in_blocks = case.rank == 2 and case.feature_group_count == 1 and not any(c % 32 for c in case.rhs[-2:])
        return self.layout == "NHWC" or (in_blocks and set(case.lhs_dilation) == {1})


FLOAT8 = "float8_e4m3fn"
KINDS = (
    Kind(FLOAT8, "bfloat16", False),
    Kind(FLOAT8, "bfloat16", True),
    Kind(FLOAT8, FLOAT8, True),
    Kind("int8", "bfloat16", True),
    Kind("int8", "int8", True),
    Kind("int8", "int8", True, "NCHW32"),
)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our kernels failed."""
    options = forward.parser("narrow", "Convolutions of int8 and float8.").parse_args(arguments)
    forward.begin("narrow")
    every = [(case, kind) for case in selection.selected(options) for kind in KINDS if kind.is_for(case)]
    return forward.measure_all(options, every, measure, KEY, table)


def ours(case: Case, kind: Kind, is_prepared: bool, implementation: str | None = "cuda") -> Program:
    """In one call. is_prepared: whether the filter is as `prepare_filter` makes it."""
    if kind.layout != "NHWC":
        return _in_blocks(case, kind, is_prepared, implementation)
    arguments = case.arguments
    lhs, (*window, ins, outs), out = arguments["dimension_numbers"]
    shape = case.rhs
    if is_prepared:
        arguments |= dict(dimension_numbers=(lhs, "".join((*window, outs, ins)), out))
        shape = (*shape[:-2], shape[-1], shape[-2])
    conv = partial(jaxconv.fused_conv_general_dilated, **arguments, **_ending(kind), implementation=implementation)
    return _program(conv, case, kind, ShapeDtypeStruct(case.lhs, kind.dtype), ShapeDtypeStruct(shape, kind.dtype))


def _program(conv: Callable[..., Array], case: Case, kind: Kind, *operands: ShapeDtypeStruct) -> Program:
    return Program(
        lambda x, w, *numbers: conv(x, w, **dict(zip(("scale", "bias"), numbers, strict=False))),
        (*operands, *_numbers(case, kind)),
    )


def _ending(kind: Kind) -> dict[str, Any]:
    more: dict[str, Any] = {"out_dtype": kind.result}
    if kind.ends:
        more |= dict(activation="relu")
    if kind.ends and jnp.dtype(kind.result).itemsize == 1:
        more |= dict(out_scale=SCALE)
    return more


def _in_blocks(case: Case, kind: Kind, is_prepared: bool, implementation: str | None) -> Program:
    shape, filters = ShapeDtypeStruct(case.lhs, kind.dtype), ShapeDtypeStruct(case.rhs, kind.dtype)
    if is_prepared:
        filters = jax.eval_shape(partial(jaxconv.prepare_filter, layout=kind.layout), filters)
    (w,), tree = jax.tree.flatten(filters)
    names = ("window_strides", "padding", "rhs_dilation")
    conv = partial(jaxconv.conv2d, **{name: case.arguments[name] for name in names}, **_ending(kind),
                   layout=kind.layout, implementation=implementation)  # fmt: skip
    of_array = lambda x, w, **numbers: conv(x, tree.unflatten([w]), **numbers)
    return _program(of_array, case, kind, jax.eval_shape(jaxconv.to_nchw32, shape), w)


def theirs(case: Case, kind: Kind) -> Program | None:
    """What users of lax write; None for int8, whose sums lax has on no GPU."""
    if kind.dtype == "int8":
        return None

    def function(x: Array, w: Array, *numbers: Array) -> Array:
        y = lax.conv_general_dilated(x, w, **case.arguments, preferred_element_type=jnp.bfloat16)
        if numbers:
            scale, bias = numbers
            y = jax.nn.relu(scale * y + bias)
        return (SCALE * y if kind.result == FLOAT8 else y).astype(kind.result)

    operands = (ShapeDtypeStruct(shape, kind.dtype) for shape in (case.lhs, case.rhs))
    return Program(function, (*operands, *_numbers(case, kind)))


def _numbers(case: Case, kind: Kind) -> tuple[ShapeDtypeStruct, ...]:
    return (ShapeDtypeStruct(case.out[-1:], jnp.float32),) * 2 if kind.ends else ()


def measure(case: Case, kind: Kind, budget_s: float) -> dict:
    """A row. No failure of a side raises."""
    half = Kind("bfloat16", "bfloat16", kind.ends)
    sides = {
        "us": ours(case, kind, is_prepared=True),
        "given_us": ours(case, kind, is_prepared=False),
        "bfloat16_us": ours(case, half, is_prepared=False),
    }
    times = {name: timed(side, operands_of(side), budget_s, ours=True) for name, side in sides.items()}
    if (of_lax := theirs(case, kind)) is not None:
        times["lax_us"] = timed(of_lax, operands_of(of_lax), budget_s, ours=False)
    us = {name: timing.us for name, timing in times.items()}
    best, half_us, lax_us = us["us"], us["bfloat16_us"], us.get("lax_us")
    numbers = us | {
        "tflops": best and flops(case) / best * 1e-6,
        "speedup": best and half_us and half_us / best,
        "speedup_of_lax": best and lax_us and lax_us / best,
    }
    errors = [timing.error for name, timing in times.items() if timing.error and name != "lax_us"]
    names = {"case": case.name, "suite": case.suite} | kind._asdict() | {"plan": times["us"].plan}
    return names | rounded(numbers) | {"error": errors[0] if errors else None}


def table(rows: list[dict], tablefmt: str = "simple") -> str:
    """By suite: geometric means of the speed against our bfloat16, with filters prepared and as given, and against lax;
    and the most TFLOP/s."""
    mean = lambda speeds: geometric_mean(speeds) if speeds else None
    lines = []
    for names, group in grouped(rows, "suite", "dtype", "result", "ends", "layout").items():
        suite, dtype, result, ends, layout = names
        prepared = [row["speedup"] for row in group if row["speedup"]]
        given = [row["bfloat16_us"] / row["given_us"] for row in group if row["bfloat16_us"] and row["given_us"]]
        against_lax = [row["speedup_of_lax"] for row in group if row["speedup_of_lax"]]
        most = max((row["tflops"] for row in group if row["tflops"]), default=None)
        speeds = map(mean, (prepared, given, against_lax))
        lines.append((suite, dtype, result, "scale bias relu" if ends else "", layout, len(group), *speeds, most))
    header = ("suite", "dtype", "result", "ending", "layout", "layers")
    means = ("x bfloat16", "as given", "x lax")
    floatfmt = ("",) * len(header) + (".3g",) * len(means) + (".0f",)
    return tabulate(lines, (*header, *means, "most TFLOP/s"), tablefmt, floatfmt=floatfmt, missingval="-")
