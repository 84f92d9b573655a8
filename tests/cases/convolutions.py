"""All convolutions that the CUDA kernels are tested with, by name, and those that each family is for."""

import dataclasses
import functools
import json

import numpy as np

from cases.convolution import Convolution, channels_last_convolution
from cases.files import ROOT
from cases.for_depthwise import CHANNELS
from cases.for_direct import NARROW
from cases.for_wgmma import WINDOWS
from cases.problems import problem_of
from cases.small import GENERAL
from cases.tiles import result_of
from jaxconv.problem.conv_problem import dilate

CASES = ROOT / "benchmarks" / "cases.json"


def fewer(size, most):
    """At most about `most`, with the size's remainder in vectors of four."""
    return size if size <= most else most + size % 4


def shrunk(case):
    """A benchmark's convolution with less of everything but its window: all that indices depend on."""
    tuples = {name: tuple(tuple(v) if isinstance(v, list) else v for v in value)
              for name, value in case.items() if isinstance(value, list)}  # fmt: skip
    lhs, rhs, groups = tuples.pop("lhs"), tuples.pop("rhs"), case["feature_group_count"]
    kernel, in_channels, out_channels = rhs[:-2], rhs[-2], rhs[-1] // groups
    reach, rest = map(dilate, kernel, tuples["rhs_dilation"]), 6 if len(kernel) < 3 else 2
    spatial = (min(s, r + t + rest) for s, r, t in zip(lhs[1:-1], reach, tuples["window_strides"], strict=True))
    groups = fewer(groups, 16 if in_channels == 1 else 3)
    in_channels, out_channels = (fewer(c, 32 if groups == 1 else 12) for c in (in_channels, out_channels))
    return channels_last_convolution(
        (min(2, lhs[0]), *spatial, groups * in_channels), (*kernel, in_channels, groups * out_channels),
        feature_group_count=groups, **tuples,
    )  # fmt: skip


def of_cases():
    for case in GENERAL:
        yield case.name, Convolution(case.lhs, case.rhs, case.lax().keywords)


def of_layouts():
    """Every operand's channels, images and pixels outermost or innermost."""
    sizes = {"N": 3, "C": 6, "H": 9, "W": 7, "I": 3, "O": 10}
    window = sizes | {"H": 3, "W": 2}
    for layout in [("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC"), ("NHWC", "OHWI", "NCHW"),
                   ("HWCN", "HWOI", "CNHW"), ("WNHC", "OWIH", "NWCH")]:  # fmt: skip
        lhs, rhs = tuple(sizes[d] for d in layout[0]), tuple(window[d] for d in layout[1])
        params = dict(window_strides=(2, 1), padding="SAME", dimension_numbers=layout, feature_group_count=2)
        yield "_".join(layout), Convolution(lhs, rhs, params)
    stem = dict(window_strides=(2, 2), padding="SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    yield "channels_first_stem", Convolution((2, 3, 12, 11), (10, 3, 5, 5), stem)
    groups = stem | dict(window_strides=(1, 1), feature_group_count=8)
    yield "channels_first_groups", Convolution((2, 32, 9, 8), (64, 4, 3, 3), groups)


def of_benchmarks():
    by_convolution = {}
    for case in json.loads(CASES.read_text()):
        by_convolution.setdefault(str(shrunk(case)), (case["name"], shrunk(case)))
    yield from by_convolution.values()


def of_tiles():
    """Several tiles in each dimension of the product, and one result or one step."""
    yield "many_columns", channels_last_convolution((2, 5, 6, 20), (3, 3, 20, 300))
    yield "many_rows", channels_last_convolution((3, 700, 5), (4, 5, 3), padding=((3, 0),))
    yield "many_steps", channels_last_convolution((1, 9, 8, 260), (2, 3, 260, 12))
    yield "many_groups", channels_last_convolution((2, 6, 5, 140), (3, 3, 2, 210), feature_group_count=70)
    yield "many_classes", channels_last_convolution((2, 9, 11, 6), (5, 4, 6, 7), lhs_dilation=(4, 3),
                                                    padding=((3, 1), (2, 5)), window_strides=(3, 2))  # fmt: skip
    yield "many_of_all", channels_last_convolution((3, 23, 21, 72), (3, 3, 72, 200))
    yield "many_taps", channels_last_convolution((2, 9, 8, 8), (7, 6, 8, 16))
    yield "very_many_taps", channels_last_convolution((2, 90, 16), (100, 16, 136), padding=((60, 50),))
    yield (
        "many_taps_of_classes",
        channels_last_convolution(
            (2, 7, 6, 24), (9, 10, 24, 8), lhs_dilation=(1, 2), padding=((4, 5), (6, 4)), window_strides=(2, 1)
        ),
    )
    yield "many_taps_of_groups", channels_last_convolution((2, 9, 8, 32), (5, 7, 8, 64), feature_group_count=4)
    # Windows that do not overlap: residue classes that mma merges.
    beside = lambda lhs, rhs, strides, **more: channels_last_convolution(
        lhs, rhs, window_strides=strides, **dict(padding="VALID") | more)  # fmt: skip
    yield "windows_side_by_side", beside((2, 10, 9, 24), (2, 3, 24, 40), (2, 3))
    yield "many_taps_side_by_side", beside((1, 40, 4, 16), (35, 2, 16, 136), (1, 2))
    yield "columns_side_by_side", beside((2, 8, 1, 32), (2, 1, 32, 64), (2, 2))
    yield "one_window", beside((4, 2, 2, 32), (2, 2, 32, 64), (4, 4))
    yield "groups_side_by_side", beside((2, 6, 8, 16), (2, 2, 8, 48), (2, 2), feature_group_count=2)
    yield (
        "volumes_side_by_side",
        beside((1, 4, 6, 4, 16), (3, 2, 2, 16, 136), (1, 2, 2), padding=((1, 1), (0, 0), (0, 0))),
    )
    yield "patches", beside((2, 32, 32, 3), (16, 16, 3, 24), (16, 16))
    yield (
        "doubled_without_overlap",
        channels_last_convolution((3, 7, 6, 64), (2, 2, 64, 40), lhs_dilation=(2, 2), padding=((1, 1), (1, 1))),
    )
    yield "one_of_everything", channels_last_convolution((1, 1, 1), (1, 1, 1))
    yield "nothing_seen", channels_last_convolution(
        (2, 3, 3, 4), (2, 2, 4, 5), padding=((9, 9), (9, 9)), rhs_dilation=(3, 3), window_strides=(4, 4))  # fmt: skip
    yield "no_channels", channels_last_convolution((2, 3, 3, 0), (2, 2, 0, 5))
    yield "no_results", channels_last_convolution((2, 3, 3, 4), (2, 2, 4, 0))
    yield "no_images", channels_last_convolution((0, 3, 3, 4), (2, 2, 4, 5))


# Of the partial families, those that each is for.
OWN = {"direct": NARROW | CHANNELS, "depthwise": CHANNELS, "gather": CHANNELS, "wgmma": WINDOWS}
OF_PARTIAL = NARROW | CHANNELS | WINDOWS


@functools.cache
def convolutions():
    return dict([*of_cases(), *of_layouts(), *of_benchmarks(), *of_tiles(), *OF_PARTIAL.items()])


@functools.cache
def problem(name, dtype="bfloat16", implementation=None):
    """implementation: the precision is that of its tile."""
    convolution, operands, result = convolutions()[name], dtype.partition("_to_")[0], result_of(dtype)
    of = lambda out: problem_of(convolution.lax_for(implementation), convolution.lhs, convolution.rhs, operands, out)
    if result == "int8" and operands != "int8":  # lax has no such sums
        return dataclasses.replace(of(operands), out_dtype=np.dtype(result))
    return of(result)


TINY = {
    family: [name for name in own if name.startswith("tiny")]
    for family, own in {"direct": NARROW, "depthwise": CHANNELS, "gather": CHANNELS, "wgmma": WINDOWS}.items()
}
WITH_OUTPUT_TILES = {
    "direct": ["groups_of_16", "dilated_groups", "depthwise_5x5", "strided_depthwise", "strided_groups",
               "doubled_groups", "packed_stem", "doubled_rows", "causal_depthwise", "thirds", "doubled",
               "narrow_volume", "large_image", "image_stem", "latents",
               "odd_image", "odd_stem", "to_an_image", "to_latents",
               "many_to_three", "four_rows_of_many", "four_rows_to_many"],
    "depthwise": CHANNELS,
}  # fmt: skip
