"""Runs the CUDA kernels on small integers, whose sums are exact, beside lax on the host."""

import functools

import jax
import numpy as np

from cases.convolution import Convolution, channels_last_convolution, depthwise_convolution
from cases.convolutions import OF_PARTIAL, convolutions, problem
from cases.problems import passes_of
from cases.programs import results_and_kernels
from cases.reference import assert_same, pullback, run_on_host
from cases.tiles import DTYPES, FORWARD_ALONE, PASSES, constraint, dtype_of, passes_with_split_k, transform_of
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint
from jaxconv.problem.product import Product
from jaxconv.transforms import (
    ChannelsLast,
    MultipliersAsDepth,
    PackedColumns,
    PackedGroups,
    PackedOutputs,
    PaddedGroups,
    PatchRowsAsImages,
    SeenPixels,
    TapsAsChannels,
    VolumesAsImages,
    added_results_reason,
    unsupported_reason,
)


def are_supported(name, implementation, dtype="bfloat16", passes=("fprop", "dgrad", "wgrad")):
    """Whether an implementation has plans for a convolution's passes, here."""
    device = ffi.device("cuda")
    of_passes = (passes_of(problem(name, dtype, implementation))[which] for which in passes)
    return all(choose("cuda", *of_pass, implementation, device).plan is not None for of_pass in of_passes)


def those_supported(cases, dtype):
    """Of (name, pass, constraint)s."""
    return [(name, which, asked) for name, which, asked in cases if are_supported(name, asked, dtype, (which,))]


def pulled_back(of_convolution):
    """`{name: x, w, g} -> {name: results}` of many convolutions in one program."""
    return lambda operands: {name: pullback(of_convolution(convolutions()[name]))(*o) for name, o in operands.items()}


@functools.cache
def exact():
    """Operands and results of all convolutions in float32, whose sums have no more than 24 bits."""
    operands = {name: c.operands() for name, c in convolutions().items()}
    return operands, run_on_host(pulled_back(Convolution.lax), operands)


def rounded(arrays, *dtypes):
    """Each of the convolutions' arrays in its dtype."""
    cast = lambda of: tuple(np.asarray(a).astype(d) for a, d in zip(of, dtypes, strict=True))
    return {name: cast(of) for name, of in arrays.items()}


def in_dtype(dtype, operands, expected):
    """Operands and results: sums are exact in the accumulator, and are rounded once to the result's dtype."""
    operand, result = dtype.partition("_to_")[0], DTYPES[dtype]
    return rounded(operands, operand, operand, result), rounded(expected, result, operand, operand)


def exact_in(dtype, names):
    return in_dtype(dtype, *({name: of[name] for name in names} for of in exact()))


def check(implementation, dtype, names=None):
    names = [name for name in convolutions() if name not in OF_PARTIAL] if names is None else names
    operands, expected = exact_in(dtype, names)
    ours = lambda convolution: convolution.ours(implementation, DTYPES[dtype])
    forward_alone = dtype in FORWARD_ALONE and (implementation.family == "mma" or dtype != "bfloat16_to_float32")
    with jax.enable_x64(dtype == "float64"):
        if forward_alone:
            forward = lambda operands: {name: ours(convolutions()[name])(x, w) for name, (x, w, _) in operands.items()}
            assert_same(jax.jit(forward)(operands), {name: y for name, (y, _, _) in expected.items()})
        else:
            assert_same(jax.jit(pulled_back(ours))(operands), expected)


def of_family(family, lhs, kernel, outs):
    """A dense convolution, or one that depthwise takes."""
    if family not in ("depthwise", "gather"):
        return channels_last_convolution(lhs, (*kernel, lhs[-1], outs))
    return depthwise_convolution(lhs, kernel)


def each_pass(conv, passes=tuple(PASSES)):
    """`x, w, g -> results` of each pass of a convolution, or of some."""
    return lambda x, w, g: [PASSES[which](conv)(x, w, g) for which in passes]


def alone(cases, dtype):
    """`{name: x, w, g} -> results` of (name, pass, constraint)s in one program."""
    ours = lambda name, asked: convolutions()[name].ours(asked, DTYPES[dtype])
    return lambda operands: [PASSES[which](ours(name, asked))(*operands[name]) for name, which, asked in cases]


def cases_of(family, tile, names, passes=tuple(PASSES), splits=(None,), output_tiles=(None,), dtype=None):
    """What a tile supports of the named convolutions; split-K is for the passes that have it."""
    dtype = dtype or dtype_of(family, tile)
    every = [
        (name, which, constraint(family, tile, transform_of(family, tile, dtype, which), split=split, output_tile=of))
        for name in names for which in passes
        for split in (splits if which in passes_with_split_k(family) else (None,)) for of in output_tiles
    ]  # fmt: skip
    return those_supported(every, dtype)


def results_of(cases, expected):
    return [expected[name][list(PASSES).index(which)] for name, which, _ in cases]


def check_alone(cases, dtype):
    operands, expected = exact_in(dtype, {name for name, *_ in cases})
    assert_same(jax.jit(alone(cases, dtype))(operands), results_of(cases, expected))


def kernels_run_by(cases, dtype, operands):
    """Their names, in a program of all cases."""
    return results_and_kernels(alone(cases, dtype), operands)[1]


TRANSFORMS = [
    (ChannelsLast(),), (PackedColumns(1),), (PackedColumns(2),), (PackedColumns(3),), (PackedColumns(16),),
    (PackedColumns(2, whole=False),), (PackedColumns(3, whole=False),),
    (PackedGroups(2),), (PackedGroups(16),), (PackedGroups(70),), (ChannelsLast(), PackedColumns(1)),
    (ChannelsLast(), PackedColumns(2)), (ChannelsLast(), PackedGroups(2)), (PaddedGroups(),), (MultipliersAsDepth(),),
    (PaddedGroups(), PackedGroups(8)),
    (PatchRowsAsImages(),), (PackedColumns(16), PatchRowsAsImages()), (SeenPixels(),), (VolumesAsImages(),),
    (PackedOutputs(8),), (PackedOutputs(2), PackedColumns(2)), (PackedOutputs(4), PackedColumns(8)),
    (TapsAsChannels(2), PackedColumns(1)), (TapsAsChannels(3), PackedColumns(1)), (TapsAsChannels(8),),
    (TapsAsChannels(2, "out"), PackedColumns(1)), (TapsAsChannels(8, "out"),),
]  # fmt: skip


def cases_of_transform(family, transform, dtype):
    """All convolutions and passes that the transform is for, without those whose results would be rounded twice."""
    asked, passes = Constraint("cuda", family, transform=transform), ("fprop",) if dtype in FORWARD_ALONE else PASSES
    problems = {name: problem(name, dtype) for name in convolutions()}
    products = [(name, which, Product(*passes_of(p)[which])) for name, p in problems.items() for which in passes
                if unsupported_reason(transform, p) is None]  # fmt: skip
    return [(name, which, asked) for name, which, product in products
            if added_results_reason(transform, product) is None]  # fmt: skip
