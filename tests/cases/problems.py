"""Problems, named and of any lax convolution, and the passes of each."""

import functools
import math

import jax
from jax import lax

from cases.reference import lax_channels_last
from jaxconv.problem import ConvProblem


def problem_of(conv, lhs, rhs, dtype="float32", result=None) -> ConvProblem:
    """The problem of lax's equation in `conv`."""
    conv = functools.partial(conv, preferred_element_type=result)
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(conv)(jax.ShapeDtypeStruct(lhs, dtype), jax.ShapeDtypeStruct(rhs, dtype))
    (equation,) = jaxpr.eqns
    return ConvProblem.from_lax(*(v.aval for v in equation.invars), jaxpr.out_avals[0], equation.params)


def layer(lhs, rhs, dtype="float32", result=None, **params) -> ConvProblem:
    return problem_of(functools.partial(lax_channels_last, **params), lhs, rhs, dtype, result)


def sizes(problem):
    return problem.lhs_shape, problem.rhs_shape, problem.out_shape, problem.window_strides, problem.pad_low


def steps_of(problem) -> tuple:
    """The distance of the lhs elements that neighbours of a residue class read through one tap."""
    pairs = zip(problem.window_strides, problem.lhs_dilation, strict=True)
    return tuple(stride // math.gcd(stride, dilation) for stride, dilation in pairs)


def passes_of(problem) -> dict:
    """The arguments `kind, problem` of each pass."""
    return {"fprop": ("conv", problem), "dgrad": ("conv", problem.dgrad()), "wgrad": ("wgrad", problem)}


CONV_PASSES, EVERY_PASS = ("fprop", "dgrad"), ("fprop", "dgrad", "wgrad")
LAYERS = {
    "dense": layer((32, 28, 28, 128), (3, 3, 128, 128)),
    "stem": layer((32, 224, 224, 3), (7, 7, 3, 64), window_strides=2),
    "halves": layer((32, 28, 28, 128), (3, 3, 128, 128), "bfloat16"),
    "depthwise": layer((32, 56, 56, 128), (7, 7, 1, 128), feature_group_count=128),
    "transposed": layer((8, 32, 32, 64), (4, 4, 64, 32), lhs_dilation=2, padding=2),
    "dilated": layer((4, 4096, 64), (3, 64, 64), rhs_dilation=64),
    "latency": layer((1, 7, 7, 512), (1, 1, 512, 2048)),
    "volume": layer((1, 16, 64, 64, 32), (3, 3, 3, 32, 32)),
    "wide": layer((32, 28, 28, 128), (3, 3, 128, 128), "float64"),
    "tiny": layer((2, 3, 3, 1), (2, 2, 1, 1)),
    "int8": layer((32, 28, 28, 128), (3, 3, 128, 128), "int8", "int32"),
    "narrow": layer((32, 56, 56, 128), (3, 3, 4, 128), "bfloat16", feature_group_count=32),
    "stem_of_halves": layer((32, 224, 224, 3), (7, 7, 3, 64), "bfloat16", window_strides=2, padding=3),
}
PASSES = {f"{name}_{which}": kind for name, p in LAYERS.items() for which, kind in passes_of(p).items()
          if name != "int8" or which == "fprop"}  # fmt: skip


halves = functools.partial(layer, dtype="bfloat16")


def each_channel(lhs, kernel, dtype="bfloat16", result=None, **params):
    """Convolved on its own."""
    return layer(lhs, (*kernel, 1, lhs[-1]), dtype, result, feature_group_count=lhs[-1], **params)


def of_layouts(lhs, rhs, dimension_numbers, **params):
    defaults = dict(dimension_numbers=dimension_numbers, window_strides=(1,) * (len(lhs) - 2), padding="SAME")
    return problem_of(functools.partial(lax.conv_general_dilated, **defaults | params), lhs, rhs, "bfloat16")


channels_first = functools.partial(of_layouts, dimension_numbers=("NCHW", "OIHW", "NCHW"))


VECTORS = halves((2, 20, 20, 16), (3, 3, 16, 24))
