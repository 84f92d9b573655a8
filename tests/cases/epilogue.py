"""Convolutions of kernels that end with an epilogue: small integers and powers of two, whose sums are exact."""

import dataclasses
import functools

import jax
import numpy as np

from cases.convolutions import OF_PARTIAL, OWN, convolutions, problem
from cases.exact import exact
from cases.float8 import FLOAT8, largest_of
from cases.plans import PARTIAL
from cases.problems import CONV_PASSES, passes_of
from cases.reference import FLOATS, assert_same, integers
from cases.tiles import EVERY_TILE, constraint, settings_of, splits_of, transforms_of
from jaxconv import ffi
from jaxconv.activations import activation_of
from jaxconv.epilogue import EPILOGUE_OPERANDS, Epilogue
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import constraint_of
from jaxconv.problem.offsets import offset_tables
from jaxconv.problem.product import EpilogueKind

EVERY = ("scale", "bias", "residual", "residual_scale")
NUMBERS = {"float64": "float64"}  # else float32
# Of activations that are no rounded sum of exact numbers, by the bytes of a result.
RTOL_OF_SMOOTH = {1: 0.07, 2: 8e-3, 4: 1e-5, 8: 1e-6}
PAGE = 2**16
# Where no tap reaches a result, or nothing is summed up.
NOTHING_SUMMED = ("nothing_seen", "no_channels", "many_classes", "doubled_without_overlap")


def plan_with(platform, problem, implementation):
    """Without a transform: some change what a channel is."""
    asked = dataclasses.replace(constraint_of(implementation), transform=())
    return choose(platform, "conv", problem, asked, ffi.device(platform)).plan


def with_epilogue(platform, problem, implementation, lhs, rhs, operands, activation=None):
    """A conv that ends with operands by name, which are as the kernel takes them, and an activation or its name."""
    epilogue = Epilogue(tuple(name for name in EPILOGUE_OPERANDS if name in operands), activation_of(activation))
    convolve = ffi.convolution(plan_with(platform, problem, implementation), problem, epilogue)
    return convolve(lhs, rhs, *(operands[name] for name in epilogue.operands))


def operands_of(problem, dtype, names=EVERY, one=()):
    """Numbers that differ from each channel to the next: each shows where it is missing, or used twice.

    dtype: of all but the residual. one: the names of those that are one number for all channels.
    """
    number = np.arange(problem.groups * problem.out_channels)
    values = {
        "scale": 2.0 ** (number % 3 - 1) * np.where(number % 5 == 2, -1, 1),
        "bias": (number * 7 + 25) % 31 - 15.0,
        "residual": integers(problem.out_shape, problem.out_dtype, 8, 20),
        "residual_scale": np.full((), -0.5),
        "out_scale": 2.0 ** -(number % 4 + 3),
    }
    for_all = {"scale": -2.0, "bias": 11.0, "out_scale": 0.125}
    values |= {name: np.full((), for_all[name]) for name in one}
    return {name: x if name == "residual" else x.astype(dtype) for name, x in values.items() if name in names}


def ended(problem, sums, operands, activation=None):
    """What becomes of the sums of a problem's groups, by numpy; the activation by its own function, in float64."""
    y = np.asarray(sums).astype("float64")
    if "scale" in operands:
        y = of_channels(problem, operands["scale"]) * y
    if "bias" in operands:
        y = y + of_channels(problem, operands["bias"])
    if "residual" in operands:
        y = y + float(operands.get("residual_scale", 1)) * operands["residual"].astype("float64")
    if activation is not None:
        with jax.enable_x64(True):
            y = activated(activation_of(activation), y)
    if "out_scale" in operands:
        y = of_channels(problem, operands["out_scale"]) * y
    if problem.out_dtype == np.int8:
        y = np.clip(np.rint(y), -128, 127)
    elif problem.out_dtype in FLOAT8:
        y = np.clip(y, -largest_of(problem.out_dtype), largest_of(problem.out_dtype))
    return y.astype(problem.out_dtype)


def activated(activation, y):
    """By the activation's own function, of whole pages: arrays of other shapes need no other compilation."""
    pages = np.zeros(-(-y.size // PAGE) * PAGE, y.dtype)
    pages[: y.size] = y.ravel()
    return np.asarray(of_pages(activation, pages))[: y.size].reshape(y.shape)


@functools.partial(jax.jit, static_argnums=0)
def of_pages(activation, y):
    return activation(y)


def of_channels(problem, numbers):
    if numbers.size == 1:
        return numbers.reshape(()).astype("float64")
    numbers = numbers.reshape(problem.groups, problem.out_channels).astype("float64")
    images = problem.out_shape[problem.out_spec.first]
    by_image = np.repeat(numbers, images // problem.groups, 0) if problem.out_batch_grouped else numbers.reshape(1, -1)
    spatial = tuple(range(2, len(problem.out_shape)))
    return np.transpose(np.expand_dims(by_image, spatial), np.argsort(problem.out_spec.axes))


@functools.cache
def plan_of(platform, name, which, asked, dtype):
    """A pass of a convolution, and its plan or None."""
    kind, of_pass = passes_of(problem(name, dtype, asked))[which]
    # Plans without an epilogue reach more tiles. Floats become one byte with one only.
    is_rounded = of_pass.out_dtype.itemsize == 1 and of_pass.lhs_dtype != np.int8
    epilogue_kind = EpilogueKind.PLAIN if is_rounded else EpilogueKind.NONE
    return of_pass, choose(platform, kind, of_pass, asked, ffi.device(platform), epilogue_kind).plan


def supported(platform, cases, dtype, start=0, most=40):
    """Of (name, "fprop" or "dgrad", constraint)s those that have plans: those without sums, one with results that no
    tap reaches, and some of the others."""
    has_plan = [case for case in cases if plan_of(platform, *case, dtype)[1] is not None]
    special = [case for case in has_plan if case[0] in NOTHING_SUMMED]
    others = [case for case in has_plan if case[0] not in NOTHING_SUMMED]
    unreached = [case for case in others if has_unreached_results(plan_of(platform, *case, dtype)[0])]
    step = max(1, len(others) // most)
    some = unreached[start % max(1, len(unreached)) :][:1] + others[start % step :: step]
    return special + list(dict.fromkeys(some))


def cases_of(family, tile, dtype):
    """Also where no tap reaches, where nothing is summed, and behind split-K, where another kernel ends the sums."""
    passes = CONV_PASSES if dtype in FLOATS else ("fprop",)
    if family in PARTIAL:
        splits = splits_of(family, tile, "fprop")[:3] if family == "wgmma" else (None,)
        names, settings = OWN[family], [dict(split=split) for split in splits]
    else:
        names, settings = set(convolutions()) - set(OF_PARTIAL), settings_of(family, tile)[:3]
    cases = [(name, which, constraint(family, tile, transform, **of))
             for of in settings for name in sorted(names) for which in passes
             for transform in transforms_of(family, tile, dtype, which)]  # fmt: skip
    return supported("cuda", cases, dtype, start=list(EVERY_TILE.values()).index((family, tile)))


def has_unreached_results(of_pass):
    """Whether a residue class has positions, and no taps."""
    classes = offset_tables(of_pass).classes
    return bool(np.any((classes[:, 1] == 0) & (classes[:, 5:8].prod(axis=1) > 0)))


def program(platform, cases, dtype, names, activation=None, one=()):
    """Cases as a function of arrays, these, and lax's results with their epilogue. names, one: of the operands, see
    above."""
    operands, expected = exact()
    numbers, epilogue = NUMBERS.get(dtype, "float32"), Epilogue(names, activation_of(activation))
    calls, arrays, results = [], [], []
    for name, which, asked in cases:
        of_pass, plan = plan_of(platform, name, which, asked, dtype)
        assert plan.transform == (asked.transform or ())
        x, w, g = operands[name]
        y, dx, _ = expected[name]
        lhs, result = {"fprop": (x, y), "dgrad": (g, dx)}[which]
        given = operands_of(of_pass, numbers, names, one)
        calls.append(ffi.convolution(plan, of_pass, epilogue))
        arrays.append([lhs.astype(of_pass.lhs_dtype), w.astype(of_pass.rhs_dtype), *given.values()])
        results.append(ended(of_pass, result, given, activation))
    return lambda arrays: [call(*of) for call, of in zip(calls, arrays, strict=True)], arrays, results


def check(platform, cases, dtype, names, activation=None, rtol=0.0, one=()):
    """Cases in one program: equal to lax's results with their epilogue."""
    function, arrays, results = program(platform, cases, dtype, names, activation, one)
    with jax.enable_x64(dtype == "float64"):
        assert_same(jax.jit(function)(arrays), results, rtol)
