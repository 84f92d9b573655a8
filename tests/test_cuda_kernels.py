"""The CUDA kernels: every family and tile, in every pass, bit-equal to lax on the host for small integers."""

import dataclasses
import functools
import itertools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.plans import PARTIAL
from cases.problems import passes_of, problem_of
from cases.reference import assert_same, channels_last, cotangent, integers, pullback, run_on_host
from cases.small import GENERAL, named
from jax import export, lax

import jaxconv
from jaxconv import ffi
from jaxconv.families import FAMILIES
from jaxconv.families.depthwise_shape import window
from jaxconv.plan import Constraint, choose
from jaxconv.problem import dilate
from jaxconv.rewriting import (
    ChannelsLast,
    MultipliersAsDepth,
    PackedColumns,
    PackedGroups,
    PaddedGroups,
    PatchRowsAsImages,
    why_not,
)  # fmt: skip

pytestmark = pytest.mark.gpu

CASES = Path(__file__).parents[1] / "benchmarks" / "cases.json"
ROWS = {f"{name}_{row.tile}_{row.tile.stages}".replace(" ", "_"): (name, row)
        for name, family in FAMILIES["cuda"].items() for row in family.TILES}  # fmt: skip
# Of the families that take every problem of their types, and of those that take some passes of some.
TILES = {tile: (family, row) for tile, (family, row) in ROWS.items() if family not in PARTIAL}
PARTIAL_TILES = {tile: (family, row) for tile, (family, row) in ROWS.items() if family in PARTIAL}
every_tile = pytest.mark.parametrize("family, row", TILES.values(), ids=TILES)
every_partial_tile = pytest.mark.parametrize("family, row", PARTIAL_TILES.values(), ids=PARTIAL_TILES)
every_family = pytest.mark.parametrize("family", FAMILIES["cuda"])


def every_tile_of(family):
    rows = FAMILIES["cuda"][family].TILES
    return pytest.mark.parametrize("row", rows, ids=lambda row: str(row.tile).replace(" ", "_"))


DTYPES = {"float32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float16": "float16",
          "bfloat16_to_float32": "float32", "int8_to_int32": "int32"}  # fmt: skip
HALVES = ["bfloat16", "float16", "bfloat16_to_float32"]


def constraint(family=None, row=None, **settings):
    """A tile is reached with the problem as it is; a family's problems may be rewritten."""
    rewriting = None if row is None else ()
    return Constraint("cuda", family, row and row.tile, rewriting=rewriting, **settings)


def dtypes_of(family, row):
    """Those that a tile is compiled for."""
    if family == "mma":
        return ["float32"] if row.tile.depth == 32 else HALVES
    if family in ("direct", "wgmma"):
        return HALVES
    if family == "depthwise":
        return row.tile.dtypes
    return [dtype for dtype in DTYPES if not (row.only_f32 and dtype in ("float64", "int8_to_int32"))]


def dtype_of(family, row):
    return "bfloat16" if "float32" not in dtypes_of(family, row) else "float32"


def dtypes_of_family(family):
    """All, if any family may answer."""
    rows = [(name, row) for name, row in ROWS.values() if family in (None, name)]
    return [dtype for dtype in DTYPES if any(dtype in dtypes_of(*row) for row in rows)]


# One dtype of each of a family's kinds of kernels.
FAMILY_TYPES = dict.fromkeys((family, dtype_of(family, row)) for family, row in ROWS.values())


def settings_of(family, row):
    """Whole and split reductions; several units a block; and a column matrix at once, or a tile of rows at a time."""
    if family == "mma":
        return [*(dict(split=s) for s in (1, 2, 3, 17)), dict(split=1, units=3), dict(split=2, units=2)]
    if family != "im2col":
        return [dict(split=s) for s in (1, 2, 3, 17)]
    return [dict(split=1), dict(split=3), *(dict(split=s, chunk=row.tile.rows) for s in (1, 2, 17))]


@dataclasses.dataclass(frozen=True)
class Convolution:
    lhs: tuple
    rhs: tuple
    params: dict

    def bound(self, conv, **more):
        return functools.partial(conv, **self.params, **more)

    def lax(self):
        return self.bound(lax.conv_general_dilated)

    def ours(self, implementation, result=None):
        exact = implementation.tile is not None and implementation.tile.passes == 3
        return self.bound(jaxconv.conv_general_dilated, implementation=implementation, preferred_element_type=result,
                          precision="highest" if exact else None)  # fmt: skip

    def operands(self, dtype="float32"):
        """x, w and a cotangent."""
        x, w = integers(self.lhs, dtype, 0), integers(self.rhs, dtype, 1)
        return x, w, cotangent(self.lax(), x, w)


def channels_last_convolution(lhs, rhs, **params):
    one = (1,) * (len(lhs) - 2)
    defaults = dict(window_strides=one, padding="SAME", lhs_dilation=one, rhs_dilation=one)
    return Convolution(lhs, rhs, defaults | params | dict(dimension_numbers=channels_last(len(one))))


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


def of_narrow():
    """Groups, channels and windows that direct is for, and its edges: of boxes, pieces, sets, chunks and areas."""
    last = channels_last_convolution
    grouped = lambda lhs, rhs, **more: last(lhs, rhs, feature_group_count=lhs[-1] // rhs[-2], **more)
    yield "groups_of_4", grouped((2, 9, 10, 32), (3, 3, 4, 32))
    yield "groups_of_16", grouped((2, 14, 14, 64), (3, 3, 16, 64))
    yield "groups_of_48", grouped((2, 7, 9, 96), (3, 3, 48, 96))
    yield "groups_of_12", grouped((2, 7, 9, 48), (3, 3, 12, 48))
    yield "groups_of_24", grouped((2, 7, 9, 72), (3, 3, 24, 72))
    yield "dilated_groups", grouped((2, 12, 11, 64), (3, 3, 32, 64), rhs_dilation=(2, 2))
    yield "groups_of_8_to_24", grouped((2, 9, 10, 16), (3, 3, 8, 48))
    yield "twice_as_many", grouped((2, 9, 9, 16), (3, 3, 1, 32))
    yield "thrice_as_many", grouped((2, 9, 9, 16), (3, 3, 1, 48))
    yield "packed_stem", last((2, 40, 36, 8), (7, 4, 8, 64), window_strides=(2, 1))
    yield "to_few_channels", last((2, 20, 20, 128), (3, 3, 128, 8))
    yield "many_to_three", last((1, 70, 300, 72), (3, 3, 72, 3))
    yield "odd_pieces", last((2, 20, 20, 72), (3, 3, 72, 136))
    yield "thirds", last((2, 20, 23, 16), (3, 3, 16, 24), window_strides=(3, 3))
    yield "doubled", last((2, 9, 8, 16), (4, 4, 16, 24), lhs_dilation=(2, 2), padding=((2, 2), (2, 2)))
    yield "narrow_volume", last((2, 5, 6, 9, 8), (3, 3, 3, 8, 16))
    yield "large_image", last((1, 70, 300, 8), (3, 3, 8, 8))
    yield "holes_between_windows", last((2, 11, 12, 24), (1, 2, 24, 16), window_strides=(2, 3), padding="VALID")
    yield "pieces_unseen", last((2, 3, 3, 8), (2, 2, 8, 16), padding=((9, 9), (9, 9)), rhs_dilation=(3, 3),
                                window_strides=(4, 4))  # fmt: skip
    yield "tiny_strided_groups", grouped((1, 5, 11, 16), (3, 2, 8, 16), window_strides=(2, 1))
    yield "tiny_channels", last((2, 4, 9, 32), (2, 2, 32, 16))
    yield "tiny_3_rows", grouped((1, 4, 9, 16), (3, 3, 8, 16))
    yield "tiny_7_rows", last((1, 9, 9, 8), (7, 2, 8, 16), window_strides=(2, 1))
    yield "tiny_doubled_rows", last((1, 5, 9, 16), (7, 2, 16, 8), lhs_dilation=(2, 1), padding=((3, 3), (0, 1)))
    yield "rows_by_three", grouped((2, 31, 21, 64), (3, 4, 8, 64), rhs_dilation=(3, 1))
    yield "tall_groups", grouped((1, 70, 9, 32), (3, 3, 16, 32), padding=((2, 0), (0, 1)))
    yield "doubled_rows", last((2, 11, 20, 64), (7, 3, 64, 8), lhs_dilation=(2, 1), padding=((3, 4), (1, 1)))
    yield "strided_groups", grouped((2, 23, 21, 64), (3, 3, 8, 64), window_strides=(2, 2))
    yield "doubled_groups", grouped((2, 12, 11, 64), (3, 3, 8, 64), lhs_dilation=(2, 2), padding=((1, 2), (1, 1)))
    yield "wide_7_rows", last((150, 7, 283, 16), (7, 1, 16, 8), window_strides=(2, 2), padding=((0, 4), (0, 4)))
    yield "tiny_7_runs", last((1, 9, 8, 3), (7, 7, 3, 16), window_strides=(2, 2))
    yield "tiny_runs", last((1, 3, 8, 4), (2, 3, 4, 8))
    yield "tiny_odd_runs", last((1, 3, 8, 3), (2, 3, 3, 8))
    yield "tiny_7_odd_runs", last((1, 9, 8, 3), (7, 7, 3, 16), window_strides=(2, 1))
    yield "tiny_to_7_runs", last((1, 5, 8, 16), (7, 7, 16, 3), lhs_dilation=(2, 1), padding=((3, 4), (3, 3)))
    yield "tiny_to_runs", last((1, 3, 8, 8), (2, 3, 8, 3))
    yield "image_stem", last((2, 40, 56, 3), (7, 7, 3, 64), window_strides=(2, 2), padding=((3, 3), (3, 3)))
    yield "wide_stem", last((1, 19, 104, 3), (7, 5, 3, 72), window_strides=(2, 2), padding=((2, 4), (0, 1)))
    yield "small_image", last((3, 12, 16, 3), (3, 3, 3, 40), window_strides=(1, 2))
    yield "odd_image", last((2, 12, 24, 3), (3, 3, 3, 72))
    yield "odd_line", last((2, 56, 5), (4, 5, 16), window_strides=(3,), padding=((3, 9),))
    yield "odd_stem", last((2, 23, 40, 1), (7, 7, 1, 32), window_strides=(2, 1), padding=((3, 3), (4, 2)))
    yield "to_an_image", last((2, 12, 24, 64), (3, 3, 64, 3), padding=((0, 2), (1, 1)))
    yield "doubled_to_an_image", last((2, 9, 8, 16), (7, 7, 16, 3), lhs_dilation=(2, 1), padding=((3, 4), (3, 3)))
    yield "latents", last((2, 9, 18, 4), (3, 3, 4, 72))
    yield "dilated_rows_of_runs", last((2, 11, 12, 6), (3, 5, 6, 40), rhs_dilation=(2, 1), padding=((1, 4), (5, -1)))
    yield "line_in_runs", last((2, 200, 2), (9, 2, 16), window_strides=(3,), padding=((2, 9),))
    yield "spectrogram", last((2, 21, 24, 1), (5, 5, 1, 32), window_strides=(2, 2))
    yield "volume_in_runs", last((2, 4, 9, 16, 3), (3, 2, 3, 3, 16), window_strides=(1, 2, 4))
    yield "runs_of_many", last((2, 9, 10, 12), (3, 4, 12, 24))
    layout = dict(dimension_numbers=("HNWC", "OIHW", "WHNC"), window_strides=(2, 2), padding="SAME")
    yield "runs_of_images_inside", Convolution((13, 2, 8, 3), (24, 3, 7, 7), layout)
    yield "to_pairs", last((1, 25, 20, 64), (4, 3, 64, 6), padding=((1, 2), (2, 1)))
    yield "groups_to_pairs", grouped((1, 9, 8, 16), (4, 2, 8, 2))
    yield "doubled_to_pairs", last((2, 11, 20, 64), (7, 3, 64, 2), lhs_dilation=(2, 1), padding=((3, 4), (1, 1)))
    yield "tiny_to_pairs", last((1, 5, 9, 16), (7, 2, 16, 6), lhs_dilation=(2, 1), padding=((3, 3), (0, 1)))
    yield "to_an_odd_image", last((2, 13, 21, 72), (3, 3, 72, 3))
    yield "to_latents", last((2, 37, 18, 136), (3, 3, 136, 4))
    yield "to_one_channel", last((2, 20, 23, 16), (5, 5, 16, 1), window_strides=(2, 3))
    yield "doubled_to_two", last((2, 11, 9, 24), (4, 5, 24, 2), lhs_dilation=(2, 3), padding=((2, 3), (2, 5)))
    yield "dilated_to_three", last((2, 14, 21, 24), (3, 3, 24, 3), rhs_dilation=(2, 3), padding=((-1, 2), (3, 1)))
    yield "volume_to_one", last((2, 4, 6, 9, 8), (3, 3, 3, 8, 1))
    yield "line_to_one", last((2, 300, 64), (9, 64, 1))
    yield "columns_unseen", last((2, 3, 3, 8), (2, 2, 8, 3), padding=((9, 9), (9, 9)), rhs_dilation=(3, 3),
                                 window_strides=(4, 4))  # fmt: skip
    yield "to_three_of_images_inside", Convolution((13, 2, 8, 40), (3, 40, 3, 3), layout | dict(window_strides=(1, 1)))
    yield "four_rows", last((1, 25, 20, 32), (4, 3, 32, 8), padding=((1, 2), (2, 1)))
    yield "four_rows_of_many", last((70, 41, 20, 16), (4, 3, 16, 8), padding=((1, 2), (2, 1)))
    yield "four_rows_to_many", last((2, 25, 20, 32), (4, 3, 32, 24), padding=((1, 2), (2, 1)))


def of_channels():
    """Each channel on its own: windows, strides, rows and images that depthwise is for, and its edges.

    There is a tiny one for each of its tiles.
    """
    each = lambda lhs, kernel, **more: channels_last_convolution(
        lhs, (*kernel, 1, lhs[-1]), feature_group_count=lhs[-1], **more)  # fmt: skip
    twice = dict(lhs_dilation=(2, 2))
    yield "tiny_line", each((2, 11, 8), (3,))
    yield "tiny_31", each((1, 20, 8), (31,))
    yield "tiny_3x3", each((1, 4, 9, 8), (3, 3))
    yield "tiny_5x5", each((1, 6, 9, 8), (5, 5))
    yield "tiny_7x7", each((1, 8, 9, 8), (7, 7))
    yield "tiny_9x19", each((1, 11, 10, 8), (9, 19))
    yield "tiny_line_of_50", each((1, 20, 8), (50,))
    yield "tiny_volume", each((1, 2, 3, 9, 8), (3, 3, 3))
    yield "tiny_5x2x8", each((1, 3, 4, 9, 8), (5, 2, 8))
    yield "tiny_strided_3x3", each((1, 7, 9, 8), (3, 3), window_strides=(2, 2))
    yield "tiny_strided_5x5", each((1, 7, 9, 8), (5, 5), window_strides=(2, 2))
    yield "tiny_dilated_3x3", each((1, 7, 9, 8), (3, 3), rhs_dilation=(3, 2))
    yield "tiny_doubled_3x3", each((1, 4, 5, 8), (3, 3), **twice, padding=((1, 2), (1, 2)))
    yield "tiny_doubled_5x5", each((1, 4, 5, 8), (5, 5), **twice, padding=((2, 3), (2, 3)))
    yield "tiny_boxes", each((2, 3, 5, 32), (3, 3))
    yield "boxes_of_7", each((19, 7, 7, 64), (7, 7))
    yield "boxes_of_14", each((9, 14, 14, 120), (5, 9))
    yield "boxes_of_31", each((5, 9, 30, 32), (7, 3), padding=((0, 3), (-1, 4)))
    yield "boxes_of_60", each((3, 40, 60, 32), (7, 7))
    yield "boxes_of_a_line", each((33, 14, 64), (5,))
    yield (
        "boxes_of_images_inside",
        Convolution(
            (7, 6, 20, 64),
            (5, 5, 1, 64),
            dict(
                window_strides=(1, 1),
                padding="SAME",
                dimension_numbers=("HWNC", "HWIO", "HWNC"),
                feature_group_count=64,
            ),
        ),
    )
    yield "boxes_of_13", each((9, 13, 13, 96), (7, 8))
    yield "boxes_of_8", each((17, 8, 8, 64), (5, 8))
    yield "boxes_of_6_to_7", each((33, 5, 6, 120), (6, 3), padding=((0, 3), (-1, 4)))
    yield "boxes_of_8_to_3", each((5, 9, 8, 64), (3, 6), padding="VALID")
    yield "tall_boxes", each((3, 41, 5, 32), (7, 7))
    yield "low_boxes", each((18, 4, 3, 96), (7, 7), padding=((9, 0), (3, 3)))
    yield "lower_boxes", each((18, 2, 3, 32), (7, 7))
    yield "boxes_of_a_short_line", each((40, 7, 64), (5,))
    yield (
        "boxes_of_small_images_inside",
        Convolution(
            (7, 6, 20, 64),
            (5, 7, 1, 64),
            dict(
                window_strides=(1, 1),
                padding="SAME",
                dimension_numbers=("WHNC", "HWIO", "HWNC"),
                feature_group_count=64,
            ),
        ),
    )
    yield "depthwise_5x5", each((3, 17, 19, 40), (5, 5))
    yield "depthwise_7x7", each((2, 30, 29, 16), (7, 7))
    yield "whole_pieces_of_float32", each((2, 9, 10, 12), (3, 3))
    yield "small_images", each((19, 7, 7, 40), (7, 7))
    yield "tall_image", each((1, 150, 12, 24), (3, 3))
    yield "wide_rows", each((1, 6, 150, 24), (3, 3))
    yield "even_window", each((2, 10, 11, 16), (4, 6))
    yield "dilated_window", each((2, 14, 21, 24), (3, 3), rhs_dilation=(2, 3))
    yield "far_taps", each((3, 13, 17, 40), (3, 3), rhs_dilation=(12, 16))
    yield "dilated_columns", each((2, 9, 40, 24), (1, 5), rhs_dilation=(1, 6))
    yield "dilated_7x7", each((2, 20, 23, 16), (7, 7), rhs_dilation=(3, 3))
    yield "dilated_pieces", each((2, 21, 40, 8), (9, 13), rhs_dilation=(3, 4))
    yield "dilated_rows_of_strided_columns", each((2, 14, 21, 16), (3, 3), rhs_dilation=(3, 2), window_strides=(1, 2))
    yield "cropped", each((2, 9, 12, 16), (3, 3), padding=((-1, 2), (1, -2)))
    yield "window_31x31", each((2, 34, 27, 24), (31, 31), padding=((15, 15), (15, 15)))
    yield "window_13x21", each((1, 24, 30, 40), (13, 21))
    yield "window_31", each((3, 100, 144), (31,))
    yield "window_5x51", each((2, 9, 60, 24), (5, 51))
    yield "window_20x100", each((1, 30, 110, 8), (20, 100), padding=((10, 9), (50, 49)))
    yield "window_63", each((3, 150, 40), (63,), padding=((62, 0),))
    yield "spread_taps", each((3, 150, 40), (5,), rhs_dilation=(20,))
    yield "joined_wide_rows", each((3, 5, 130, 64), (1, 70))
    yield "volume_3x3x3", each((2, 4, 9, 30, 40), (3, 3, 3))
    yield "volume_5x3x7", each((2, 5, 7, 9, 16), (5, 3, 7))
    yield "volume_7x9x8", each((1, 4, 12, 17, 40), (7, 9, 8))
    yield "small_volumes", each((5, 3, 7, 7, 24), (3, 3, 3))
    yield "flat_windows", each((2, 3, 9, 12, 16), (1, 3, 3))
    yield "deep_windows", each((2, 7, 5, 12, 16), (3, 1, 1))
    yield "strided_depths", each((2, 7, 6, 9, 16), (3, 3, 3), window_strides=(2, 1, 1))
    yield "doubled_depths", each((2, 4, 6, 9, 16), (4, 3, 3), lhs_dilation=(2, 1, 1), padding=((2, 2), (1, 1), (1, 1)))
    yield "volume_of_far_taps", each((2, 8, 9, 12, 24), (3, 3, 3), rhs_dilation=(2, 1, 2))
    yield "cropped_volume", each((2, 6, 9, 12, 16), (3, 3, 3), padding=((-1, 0), (2, -1), (-1, 3)))
    yield "depths_unseen", each((2, 2, 6, 9, 16), (7, 3, 3))
    yield "results_of_no_depth", each((2, 2, 6, 9, 16), (3, 3, 3), padding=((9, 0), (1, 1), (1, 9)))
    yield "causal_depthwise", each((2, 300, 64), (4,), padding=((3, 0),))
    yield "joined_lines", each((5, 150, 32), (4,), padding=((3, 0),))
    yield "joined_rows", each((3, 5, 130, 64), (1, 9))
    yield "short_lines", each((9, 20, 24), (4,))
    yield "strided_depthwise", each((2, 17, 19, 144), (3, 3), window_strides=(2, 2))
    yield "strided_7x7", each((2, 15, 17, 24), (7, 7), window_strides=(2, 2))
    yield "strided_rows", each((2, 9, 12, 8), (3, 3), window_strides=(2, 1))
    yield "strided_columns", each((2, 9, 40, 16), (3, 3), window_strides=(1, 3))
    yield "strided_line", each((3, 41, 40), (5,), window_strides=(2,))
    yield "holes", each((2, 9, 11, 24), (1, 1), window_strides=(2, 2))
    yield "doubled_3x3", each((2, 9, 8, 40), (3, 3), **twice, padding=((1, 2), (1, 2)))
    yield "doubled_4x4", each((2, 9, 8, 40), (4, 4), **twice, padding=((2, 2), (2, 2)))
    yield "doubled_7x7", each((2, 9, 8, 16), (7, 7), **twice, padding=((3, 4), (3, 4)))
    yield "four_times_as_wide", each((2, 5, 9, 16), (3, 5), lhs_dilation=(1, 4), padding=((1, 1), (2, 4)))
    yield "eight_times_as_wide", each((2, 5, 9, 16), (3, 9), lhs_dilation=(1, 8), padding=((1, 1), (2, 4)))
    yield "two_thirds_as_wide", each((2, 5, 31, 8), (3, 4), lhs_dilation=(1, 2), padding=((1, 1), (2, 2)),
                                     window_strides=(1, 3))  # fmt: skip
    times = lambda many, lhs, kernel, **more: channels_last_convolution(
        lhs, (*kernel, 1, many * lhs[-1]), feature_group_count=lhs[-1], **more)  # fmt: skip
    yield "two_for_each", times(2, (3, 9, 30, 8), (3, 5))
    yield "three_for_each", times(3, (2, 12, 13, 12), (7, 7))
    yield "two_for_each_of_a_volume", times(2, (2, 4, 6, 9, 8), (3, 2, 3))
    yield "two_for_each_by_two", times(2, (2, 13, 12, 8), (5, 5), window_strides=(2, 2))
    yield "strided_31x31", each((1, 36, 40, 8), (31, 31), window_strides=(2, 2))
    yield "strided_by_three", each((2, 14, 16, 16), (5, 4), window_strides=(3, 3))
    yield "strided_volume", each((2, 5, 9, 12, 16), (3, 3, 3), window_strides=(2, 2, 2))
    yield "thrice_as_wide", each((2, 5, 9, 16), (4, 5), lhs_dilation=(2, 3), padding=((2, 2), (2, 4)))
    yield "four_for_each_of_a_line", times(4, (3, 50, 16), (7,), padding=((6, 0),))
    yield "three_channels", each((2, 20, 21, 3), (5, 5))
    yield "taps_unseen", each((2, 2, 3, 16), (7, 7))
    yield "results_unseen", each((2, 3, 4, 8), (3, 3), padding=((6, 0), (0, 9)))
    layout = dict(dimension_numbers=("NCHW", "OIHW", "NCHW"), window_strides=(1, 1), padding="SAME")
    yield "channels_first", Convolution((2, 20, 9, 12), (20, 1, 3, 3), layout | dict(feature_group_count=20))
    layout = dict(dimension_numbers=("HNWC", "OIHW", "WHNC"), window_strides=(1, 1), padding="SAME")
    yield "images_inside", Convolution((9, 3, 12, 16), (16, 1, 3, 3), layout | dict(feature_group_count=16))
    layout = dict(dimension_numbers=("HDNWC", "OIDHW", "WNHDC"), window_strides=(1, 1, 1), padding="SAME")
    yield "volumes_inside", Convolution((9, 4, 3, 12, 16), (16, 1, 3, 5, 3), layout | dict(feature_group_count=16))


def of_windows():
    """Pixels that TMA reads in its im2col mode, for wgmma, and its edges: of maps' ranks, steps, classes and tiles.

    Results of residue classes that are equally large are stored by TMA, others from registers.
    """
    last = channels_last_convolution
    strided = lambda lhs, rhs, *strides, **more: last(lhs, rhs, window_strides=strides, **more)
    dilated = lambda lhs, rhs, *dilation, **more: last(lhs, rhs, rhs_dilation=dilation, **more)
    spread = lambda lhs, rhs, *dilation, **more: last(lhs, rhs, lhs_dilation=dilation, **more)
    # One for each path, each rank and each way of storing.
    yield "tiny_windows", last((1, 4, 5, 8), (2, 3, 8, 16))
    yield "tiny_windows_of_a_line", last((2, 7, 16), (3, 16, 8))
    yield "tiny_windows_of_a_volume", last((1, 2, 3, 4, 8), (2, 2, 2, 8, 8))
    yield "tiny_windows_by_two", strided((1, 4, 6, 8), (3, 3, 8, 16), 2, 2)
    yield "tiny_odd_windows_by_two", strided((1, 3, 5, 8), (3, 3, 8, 16), 2, 2)
    yield "tiny_doubled_windows", spread((1, 3, 4, 8), (4, 4, 8, 72), 2, 2, padding=((2, 2), (2, 2)))
    yield "tiny_windows_without_taps", strided((1, 4, 4, 8), (1, 1, 8, 16), 2, 2)
    yield "tiny_points", last((2, 3, 3, 8), (1, 1, 8, 16))
    # Ranks: leading dimensions of one pixel are left out.
    yield "line", last((2, 50, 40), (3, 40, 72))
    yield "image_of_a_row", last((2, 1, 50, 16), (1, 5, 16, 24))
    yield "volume_of_a_row", last((2, 1, 1, 31, 16), (1, 1, 3, 16, 24))
    yield "volume_of_a_layer", last((2, 1, 9, 12, 16), (1, 3, 2, 16, 24))
    yield "window_beyond_a_row", last((2, 1, 20, 16), (3, 3, 16, 24))
    yield "volume", last((2, 5, 6, 7, 40), (3, 2, 3, 40, 24))
    yield "columns", last((2, 33, 1, 16), (5, 1, 16, 24))
    # Steps and residue classes: data gradients have those of the strides.
    for step in range(2, 9):
        yield f"line_by_{step}", strided((2, 61, 8), (5, 8, 16), step)
    yield "even_line_by_3", strided((2, 60, 16), (4, 16, 8), 3)
    yield "even_line_by_8", strided((2, 64, 16), (9, 16, 8), 8)
    yield "line_by_4_of_2_pixels", strided((2, 2, 16), (3, 16, 8), 4)
    yield "image_by_3_and_2", strided((2, 23, 19, 16), (3, 5, 16, 24), 3, 2)
    yield "image_by_8_and_1", strided((2, 33, 9, 16), (9, 2, 16, 8), 8, 1)
    yield "even_image_by_2", strided((2, 14, 12, 72), (3, 3, 72, 136), 2, 2)
    yield "volume_by_2", strided((1, 6, 7, 9, 16), (3, 3, 3, 16, 24), 2, 2, 2)
    yield "even_volume_by_2", strided((2, 4, 6, 8, 16), (3, 2, 3, 16, 72), 2, 2, 2)
    yield "volume_by_1_2_3", strided((1, 4, 6, 9, 8), (2, 3, 3, 8, 16), 1, 2, 3)
    yield "points_by_2", strided((2, 10, 12, 40), (1, 1, 40, 64), 2, 2)
    yield "odd_points_by_2", strided((2, 9, 11, 40), (1, 1, 40, 64), 2, 2)
    yield "points_by_2_of_many_tiles", strided((9, 28, 28, 136), (1, 1, 136, 72), 2, 2)
    yield "pairs_by_2", strided((5, 12, 24, 40), (1, 2, 40, 64), 2, 2)
    yield "volume_of_points_by_2", strided((2, 4, 6, 12, 16), (1, 1, 1, 16, 72), 2, 2, 2)
    yield "windows_apart", strided((2, 20, 21, 24), (2, 3, 24, 16), 4, 2, padding="VALID")
    yield "windows_apart_in_a_line", strided((3, 40, 40), (3, 40, 16), 7, padding="VALID")
    yield "doubled_windows", spread((2, 9, 8, 24), (4, 4, 24, 40), 2, 2, padding=((2, 2), (2, 2)))
    yield "oddly_doubled_windows", spread((2, 9, 8, 72), (3, 3, 72, 40), 2, 2, padding=((1, 1), (1, 1)))
    yield "tripled_windows_of_a_line", spread((2, 17, 16), (7, 16, 136), 3, padding=((2, 4),))
    yield "eight_times_as_long", spread((2, 9, 16), (11, 16, 24), 8, padding=((5, 12),))
    yield "doubled_volume", spread((1, 3, 4, 5, 16), (3, 4, 2, 16, 24), 2, 2, 2, padding=((1, 2), (2, 2), (0, 1)))
    yield "two_thirds", spread((2, 13, 12, 24), (4, 3, 24, 16), 2, 3, padding=((2, 1), (3, 2)), window_strides=(3, 2))
    yield "half_is_left", spread((2, 13, 12, 24), (3, 4, 24, 16), 2, 4, padding=((2, 1), (3, 2)), window_strides=(4, 2))
    # Windows' corners and taps.
    yield "dilated_image", dilated((2, 14, 21, 40), (3, 3, 40, 24), 2, 5)
    yield "dilated_volume", dilated((1, 5, 9, 12, 8), (3, 2, 3, 8, 16), 1, 3, 5)
    yield "far_taps_of_an_image", dilated((1, 3, 60, 8), (2, 3, 8, 16), 2, 100)
    yield "far_taps_of_a_line", dilated((2, 700, 24), (3, 24, 16), 300)
    yield "causal_line", dilated((2, 90, 40), (3, 40, 40), 16, padding=((32, 0),))
    yield "taps_that_tiles_do_not_see", dilated((3, 33, 33, 72), (3, 3, 72, 136), 18, 18)
    yield "rows_of_taps_that_tiles_do_not_see", dilated((9, 40, 20, 24), (5, 3, 24, 16), 12, 1)
    yield "dilated_by_strides", dilated((2, 21, 22, 16), (3, 3, 16, 24), 3, 2, window_strides=(2, 3))
    yield "padded_unevenly", last((2, 9, 10, 16), (3, 2, 16, 24), padding=((0, 3), (5, 1)))
    yield "cropped_windows", last((2, 12, 13, 16), (3, 3, 16, 24), padding=((-2, 1), (-1, -3)))
    yield "cropped_line_by_3", strided((2, 40, 16), (4, 16, 24), 3, padding=((-5, -2),))
    yield "padded_widely", last((2, 5, 6, 16), (3, 3, 16, 24), padding=((20, 31), (9, 17)))
    yield "padded_line", last((2, 20, 8), (3, 8, 16), padding=((400, 300),))
    yield "larger_than_the_image", last((2, 3, 4, 16), (7, 9, 16, 24))
    yield "larger_than_the_volume", last((1, 2, 3, 2, 8), (5, 4, 5, 8, 16))
    yield "windows_unseen", strided((2, 3, 3, 8), (2, 2, 8, 16), 4, 2, padding=((9, 9), (9, 9)), rhs_dilation=(3, 3))
    # Channels: whole and begun chunks of 64, columns of one tile and more, whole and not.
    for ins, outs in [
        (8, 200),
        (32, 96),
        (40, 136),
        (64, 64),
        (72, 40),
        (96, 24),
        (104, 16),
        (136, 8),
        (200, 72),
        (64, 328),
        (128, 520),
    ]:
        yield f"channels_{ins}_to_{outs}", last((2, 7, 9, ins), (2, 3, ins, outs))
    # Matrices of pixels: rows of begun tiles, of more tiles than blocks are there at once, and one row.
    yield "points_of_many_channels", last((2, 5, 7, 520), (1, 1, 520, 264))
    yield "points_of_begun_tiles", last((3, 11, 13, 72), (1, 1, 72, 136))
    yield "points_of_a_line", last((2, 700, 24), (1, 24, 40))
    yield "points_of_a_volume", last((2, 3, 5, 7, 40), (1, 1, 1, 40, 24))
    yield "many_points", last((5, 6133, 8), (1, 8, 72))
    yield "one_point", last((1, 1, 1, 72), (1, 1, 72, 136))
    yield "padded_points", last((2, 5, 7, 24), (1, 1, 24, 16), padding=((0, 1), (2, 0)))
    # Rows: even and odd numbers of tiles, more than blocks are there at once, and images of less than a tile.
    yield "three_tiles_of_rows", last((3, 10, 10, 16), (3, 3, 16, 24))
    yield "five_tiles_of_rows", last((2, 30, 10, 72), (2, 2, 72, 72))
    yield "many_tiles_of_rows", last((7, 6113, 8), (3, 8, 72))
    yield "many_tiles_of_classes", strided((3, 101, 119, 16), (3, 3, 16, 8), 2, 2)
    yield "many_small_images", last((301, 3, 2, 16), (2, 2, 16, 24))
    # Boxes of pixels: whole and begun units of 8 x 8 positions or 64 of a line, several planes and chunks, the largest.
    yield "units_of_an_image", last((2, 17, 26, 136), (3, 3, 136, 200))
    yield "units_of_a_line", last((3, 200, 72), (41, 72, 40))
    yield "units_of_a_volume", last((2, 3, 10, 9, 72), (3, 3, 3, 72, 136))
    yield "units_of_a_row", last((2, 1, 130, 24), (1, 7, 24, 16))
    yield "units_of_a_row_in_rows", last((2, 9, 20, 16), (1, 6, 16, 24))
    yield "units_of_a_column", last((2, 20, 9, 16), (6, 1, 16, 24))
    yield "units_of_many_taps", last((1, 5, 9, 9, 8), (7, 3, 3, 8, 16))
    yield "dilated_units", dilated((1, 19, 9, 16), (2, 2, 16, 24), 3, 1)
    yield "padded_units", last((2, 9, 15, 16), (3, 2, 16, 24), padding=((-2, 4), (11, -3)))
    yield "many_units", last((20, 63, 58, 8), (3, 3, 8, 72))
    # Of windows several pixels apart, a plane for each row and column of a step, of other steps than others.
    yield "units_by_2", strided((2, 35, 52, 136), (3, 3, 136, 200), 2, 2)
    yield "units_by_1_and_2", strided((2, 17, 40, 72), (3, 3, 72, 40), 1, 2)
    yield "units_by_2_and_1", strided((2, 36, 17, 24), (4, 2, 24, 16), 2, 1)
    yield "units_by_3", strided((2, 40, 50, 24), (4, 5, 24, 16), 3, 3)
    yield "units_by_8", strided((1, 70, 150, 16), (9, 9, 16, 24), 8, 8)
    yield "units_of_a_line_by_2", strided((3, 401, 72), (3, 72, 136), 2)
    yield "units_of_a_line_by_3", strided((2, 600, 16), (8, 16, 24), 3)
    yield "units_of_a_row_by_2", strided((2, 1, 270, 24), (1, 7, 24, 16), 1, 2)
    yield "units_of_a_volume_by_2", strided((2, 5, 19, 18, 72), (3, 3, 3, 72, 136), 2, 2, 2)
    yield "units_of_a_volume_by_3_1_2", strided((1, 7, 9, 22, 24), (2, 3, 4, 24, 16), 3, 1, 2)
    yield "units_of_many_taps_by_2", strided((1, 7, 18, 20, 16), (4, 4, 4, 16, 72), 2, 2, 2)
    yield "dilated_units_by_2", dilated((2, 33, 40, 72), (3, 2, 72, 24), 3, 3, window_strides=(2, 2))
    yield "padded_units_by_2", strided((2, 29, 35, 16), (3, 4, 16, 24), 2, 2, padding=((-2, 4), (11, -3)))
    yield "units_beyond_an_image", strided((2, 9, 5, 16), (3, 3, 16, 24), 2, 2, padding=((15, 9), (7, 14)))
    by_twos = {"window_strides": (2, 2), "padding": ((2, 1), (1, 2))}
    yield "doubled_units_by_2", spread((2, 9, 10, 16), (5, 5, 16, 24), 2, 2, **by_twos)
    by_fours = {"window_strides": (4, 4), "padding": ((3, 3), (2, 3))}
    yield "doubled_units_by_4", spread((2, 20, 21, 16), (7, 6, 16, 24), 2, 2, **by_fours)
    yield "many_units_by_2", strided((20, 125, 116, 8), (3, 3, 8, 72), 2, 2)
    # Its data gradient has works of equally large classes for several rounds of all clusters.
    yield "many_tiles_of_equal_classes", strided((20, 126, 116, 8), (3, 3, 8, 72), 2, 2)
    yield "no_images_of_pieces", last((0, 5, 6, 8), (3, 3, 8, 16))
    # Filters and activations that lie otherwise.
    sizes = {"N": 3, "C": 40, "H": 9, "W": 8, "I": 40, "O": 72}
    window = sizes | {"H": 3, "W": 2}
    for lhs, rhs, out in [("NHWC", "OHWI", "NHWC"), ("NHWC", "IHWO", "NHWC"), ("NHWC", "HWOI", "NHWC"),
                          ("HWNC", "HWIO", "HWNC"), ("WNHC", "OHWI", "HNWC"), ("HNWC", "IHWO", "WHNC")]:  # fmt: skip
        params = dict(window_strides=(2, 1), padding="SAME", dimension_numbers=(lhs, rhs, out))
        shapes = tuple(sizes[d] for d in lhs), tuple(window[d] for d in rhs)
        yield f"windows_{lhs}_{rhs}_{out}", Convolution(*shapes, params)


CHANNELS = dict(of_channels())
WINDOWS = dict(of_windows())
NARROW = dict(of_narrow())
# Of the partial families, those that each is for.
OWN = {"direct": NARROW | CHANNELS, "depthwise": CHANNELS, "wgmma": WINDOWS}
OF_PARTIAL = NARROW | CHANNELS | WINDOWS


@functools.cache
def convolutions():
    return dict([*of_cases(), *of_layouts(), *of_benchmarks(), *of_tiles(), *OF_PARTIAL.items()])


@functools.cache
def problem(name, dtype="bfloat16"):
    convolution = convolutions()[name]
    return problem_of(convolution.lax(), convolution.lhs, convolution.rhs, dtype.partition("_")[0], DTYPES[dtype])


def are_taken(name, implementation, dtype="bfloat16", passes=("fprop", "dgrad", "wgrad")):
    """Whether an implementation has plans for a convolution's passes, here."""
    device = ffi.device("cuda")
    of_passes = (passes_of(problem(name, dtype))[which] for which in passes)
    return all(choose("cuda", *of_pass, implementation, device).plan is not None for of_pass in of_passes)


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
    operand, result = dtype.partition("_")[0], DTYPES[dtype]
    return rounded(operands, operand, operand, result), rounded(expected, result, operand, operand)


def exact_in(dtype, names):
    return in_dtype(dtype, *({name: of[name] for name in names} for of in exact()))


def check(implementation, dtype, names=None):
    names = [name for name in convolutions() if name not in OF_PARTIAL] if names is None else names
    operands, expected = exact_in(dtype, names)
    ours = lambda convolution: convolution.ours(implementation, DTYPES[dtype])
    forward_alone = implementation.family == "mma" and dtype == "bfloat16_to_float32"
    with jax.enable_x64(dtype == "float64"):
        if dtype == "int8_to_int32" or forward_alone:
            forward = lambda operands: {name: ours(convolutions()[name])(x, w) for name, (x, w, _) in operands.items()}
            assert_same(jax.jit(forward)(operands), {name: y for name, (y, _, _) in expected.items()})
        else:
            assert_same(jax.jit(pulled_back(ours))(operands), expected)


EVERY_SETTING = {
    f"{tile}-{'-'.join(f'{k}_{v}' for k, v in settings.items())}-{dtype}": (family, row, settings, dtype)
    for tile, (family, row) in TILES.items() for settings in settings_of(family, row)
    for dtype in dtypes_of(family, row)
}  # fmt: skip


@pytest.mark.parametrize("family, row, settings, dtype", EVERY_SETTING.values(), ids=EVERY_SETTING)
def test_exact(family, row, settings, dtype):
    check(constraint(family, row, **settings), dtype)


@pytest.mark.parametrize("family, dtype", [
    (family, dtype) for family in (None, *FAMILIES["cuda"]) for dtype in dtypes_of_family(family)
])  # fmt: skip
def test_exact_as_planned(family, dtype):
    """All, or, of partial families, the passes that they take."""
    if family not in PARTIAL:
        return check(constraint(family), dtype, list(convolutions()))
    passes = ("fprop",) if dtype == "bfloat16_to_float32" else tuple(PASSES)
    cases = [(name, which, constraint(family)) for name in convolutions() for which in passes
             if are_taken(name, constraint(family), dtype, (which,))]  # fmt: skip
    assert len({name for name, *_ in cases} & set(OWN[family])) > len(OWN[family]) / 4
    check_alone(cases, dtype)


REWRITINGS = [
    (ChannelsLast(),), (PackedColumns(1),), (PackedColumns(2),), (PackedColumns(3),), (PackedColumns(16),),
    (PackedColumns(2, whole=False),), (PackedColumns(3, whole=False),),
    (PackedGroups(2),), (PackedGroups(16),), (PackedGroups(70),), (ChannelsLast(), PackedColumns(1)),
    (ChannelsLast(), PackedColumns(2)), (ChannelsLast(), PackedGroups(2)), (PaddedGroups(),), (MultipliersAsDepth(),),
    (PatchRowsAsImages(),), (PackedColumns(16), PatchRowsAsImages()),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rewriting", REWRITINGS, ids=lambda rewriting: " and ".join(map(str, rewriting)))
def test_exact_when_rewritten(rewriting, dtype):
    """Those convolutions that it applies to."""
    names = [name for name in convolutions() if why_not(rewriting, problem(name, dtype)) is None]
    assert names
    check(Constraint("cuda", "mma", rewriting=rewriting), dtype, names)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exact_columns_alone(dtype):
    """Data gradients by direct, of packs whose channels are no whole pieces."""
    asked = Constraint("cuda", "direct", rewriting=(PackedColumns(2, whole=False),))
    names = [name for name in convolutions() if why_not(asked.rewriting, problem(name, dtype)) is None]
    cases = [(name, "dgrad", asked) for name in names if are_taken(name, asked, dtype, ("dgrad",))]
    assert "image_stem" in {name for name, *_ in cases}
    check_alone(cases, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exact_when_rewritten_for_wgmma(dtype):
    """Gathers that it takes then."""
    every = [
        (name, which, Constraint("cuda", "wgmma", rewriting=rewriting))
        for rewriting in REWRITINGS
        for name in convolutions()
        if why_not(rewriting, problem(name, dtype)) is None
        for which in GATHERS
    ]
    cases = [(name, which, asked) for name, which, asked in every if are_taken(name, asked, dtype, (which,))]
    assert len({asked.rewriting for *_, asked in cases}) > len(REWRITINGS) / 2
    check_alone(cases, dtype)


def of_family(family, lhs, kernel, outs):
    """A dense convolution, or one that depthwise takes."""
    if family != "depthwise":
        return channels_last_convolution(lhs, (*kernel, lhs[-1], outs))
    return channels_last_convolution(lhs, (*kernel, 1, lhs[-1]), feature_group_count=lhs[-1])


def each_pass(family):
    """`conv -> x, w, g -> results` of the passes that a family has, of convolutions that it takes."""
    has = passes_of_family(family)
    return lambda conv: lambda x, w, g: [PASSES[which](conv)(x, w, g) for which in has]


@pytest.mark.parametrize("family, dtype", FAMILY_TYPES)
def test_exact_where_a_product_is_large(family, dtype):
    """More than one chunk of the column matrix, and more blocks than a GPU holds."""
    large = of_family(family, (64, 112, 112, 32), (3, 3), 8)
    operands = large.operands()
    ours, theirs = (each_pass(family)(conv) for conv in (large.ours(constraint(family)), large.lax()))
    actual = jax.jit(ours)(*(a.astype(dtype) for a in operands))
    assert_same(actual, [a.astype(dtype) for a in run_on_host(theirs, *operands)])


# The passes of partial families, each alone: others of the same convolution may be another family's.

PASSES = {
    "fprop": lambda conv: lambda x, w, g: conv(x, w),
    "dgrad": lambda conv: lambda x, w, g: jax.linear_transpose(lambda x: conv(x, w), x)(g)[0],
    "wgrad": lambda conv: lambda x, w, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0],
}


GATHERS = ("fprop", "dgrad")


def passes_of_family(family):
    return GATHERS if family == "wgmma" else tuple(PASSES)


def passes_in_slices(family):
    """Those whose reductions a partial family cuts into slices."""
    return GATHERS if family == "wgmma" else ("wgrad",)


def kernels_of(family, row):
    """The (dtype, pass)es that a tile of a partial family has kernels for."""
    has = lambda which: family != "depthwise" or (row.tile.reduces if which == "wgrad" else row.tile.gathers)
    passes = {"bfloat16_to_float32": ["fprop"]}
    every = [which for which in passes_of_family(family) if has(which)]
    return [(dtype, which) for dtype in dtypes_of(family, row) for which in passes.get(dtype, every)]


EVERY_KERNEL = {
    f"{tile}-{dtype}-{which}": (family, row, dtype, which)
    for tile, (family, row) in PARTIAL_TILES.items() for dtype, which in kernels_of(family, row)
}  # fmt: skip


def alone(cases, dtype):
    """`{name: x, w, g} -> results` of (name, pass, constraint)s in one program."""
    ours = lambda name, asked: convolutions()[name].ours(asked, DTYPES[dtype])
    return lambda operands: [PASSES[which](ours(name, asked))(*operands[name]) for name, which, asked in cases]


def cases_of(family, row, names, passes=tuple(PASSES), splits=(None,), areas=(None,), dtype=None):
    """What a tile takes of the named convolutions; the splits are of reductions."""
    every = [
        (name, which, constraint(family, row, split=split, area=area)) for name in names for which in passes
        for split in (splits if which in passes_in_slices(family) else (None,)) for area in areas
    ]  # fmt: skip
    dtype = dtype or dtype_of(family, row)
    return [(name, which, asked) for name, which, asked in every if are_taken(name, asked, dtype, (which,))]


def results_of(cases, expected):
    return [expected[name][list(PASSES).index(which)] for name, which, _ in cases]


def check_alone(cases, dtype):
    operands, expected = exact_in(dtype, {name for name, *_ in cases})
    assert_same(jax.jit(alone(cases, dtype))(operands), results_of(cases, expected))


# Gathers of wgmma have slices without steps, too.
SPLITS = {"direct": (1, 3, 12), "depthwise": (1, 3, 12), "wgmma": (1, 3, 17)}


def splits_of(family, row):
    """Of wgmma's tiles some have slices that the blocks of a cluster add, so many or a part."""
    return (1, 2, 4, 8) if family == "wgmma" and row.tile.slices else SPLITS[family]


@pytest.mark.parametrize("family, row, dtype, which", EVERY_KERNEL.values(), ids=EVERY_KERNEL)
def test_exact_where_taken(family, row, dtype, which):
    """Every convolution that the tile takes, but for those that are wgmma's own."""
    own, names = OWN[family], [name for name in convolutions() if name not in WINDOWS]
    cases = cases_of(family, row, names, (which,), dtype=dtype)
    if which in passes_in_slices(family):
        cases += cases_of(family, row, own, (which,), splits_of(family, row), dtype=dtype)
    assert {name for name, *_ in cases} & set(own)
    check_alone(cases, dtype)


def kernels_run_by(cases, dtype, operands):
    """Their names, in a program of all cases."""
    from jax.experimental.mosaic.gpu import profiler  # not for every platform

    program = jax.jit(alone(cases, dtype)).lower(operands).compile()
    _, kernels = profiler.measure(program, aggregate=False)(operands)
    return [name for name, _ in kernels]


@pytest.mark.parametrize("row", [row for row in FAMILIES["cuda"]["depthwise"].TILES if row.tile.by_tma], ids=str)
def test_tma_itself_copies(row):
    """Where it could not be told of the operands, warps would copy in its place, and be as exact."""
    cases, dtype = cases_of("depthwise", row, CHANNELS), dtype_of("depthwise", row)
    operands, _ = exact_in(dtype, {name for name, *_ in cases})
    names = kernels_run_by(cases, dtype, operands)
    assert sum("DepthwiseByTma" in name for name in names) == len(cases) > 0
    assert not any("DepthwiseByRoles" in name for name in names)


@every_tile_of("wgmma")
def test_wgmma_itself_runs(row):
    """Where TMA could not be told of the operands, mma would take its place, and be as exact."""
    cases, dtype = cases_of("wgmma", row, WINDOWS, GATHERS, splits=splits_of("wgmma", row)[:2]), dtype_of("wgmma", row)
    operands, expected = exact_in(dtype, {name for name, *_ in cases})
    names = kernels_run_by(cases, dtype, operands)
    assert sum("WgmmaKernel" in name for name in names) == sum(a.size > 0 for a in results_of(cases, expected))
    assert not any("MmaKernel" in name for name in names)
    assert any("AddSlices" in name for name in names) == (row.tile.slices == 0)


@pytest.mark.parametrize("tile", [row.tile for row in FAMILIES["cuda"]["wgmma"].TILES if not row.tile.slices], ids=str)
def test_exact_where_works_are_dealt_out(tile):
    """Blocks take the next work by a counter of the call's own, which each launch leaves at zero: several launches of
    one call, in turn with those of others, by one program and another."""
    x = jax.random.randint(jax.random.key(0), (1, 1_300_007, 64), -3, 4).astype("bfloat16")
    w = jax.random.randint(jax.random.key(1), (3 if tile.boxed else 1, 64, 72), -3, 4).astype("bfloat16")
    conv = lambda of, x: jaxconv.conv1d(x, w, padding="SAME", implementation=of)
    asked, factors = Constraint("cuda", "wgmma", tile), jnp.array([1, -1, 2], x.dtype)
    expected = jax.jit(functools.partial(conv, Constraint("cuda", "mma")))(x)
    one = jax.jit(functools.partial(conv, asked))
    two = jax.jit(lambda x: (conv(asked, x), conv(asked, -2 * x)))
    loop = jax.jit(lambda x: jax.lax.map(lambda factor: conv(asked, factor * x), factors))
    for _ in range(3):
        assert jnp.array_equal(one(x), expected)
        assert all(map(jnp.array_equal, two(x), (expected, -2 * expected)))
        assert all(map(jnp.array_equal, loop(x), [factor * expected for factor in factors]))


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tile", [row.tile for row in FAMILIES["cuda"]["wgmma"].TILES if not row.tile.slices], ids=str)
def test_exact_where_columns_change(tile, dtype, which):
    """Thread blocks have works for several rounds, of other columns each time: what is left of one is stored among the
    steps of the next, of which there are fewer than pieces, as many, or more."""
    integers = lambda seed, *shape: jax.random.randint(jax.random.key(seed), shape, -3, 4).astype(dtype)

    def conv(of, taps, channels, result=None):
        few = integers(0, 2, 9001, channels)
        bound = functools.partial(jaxconv.conv1d, padding="SAME", implementation=of, preferred_element_type=result)
        if which == "fprop":
            return bound(few, integers(1, taps, channels, 1032))
        many = jnp.zeros((2, 9001, 1032), dtype)
        (gradient,) = jax.vjp(lambda x: bound(x, integers(1, taps, 1032, channels)), many)[1](few)
        return gradient

    steps = [(2, 64), (3, 64), (3, 72), (4, 64), (5, 64)] + ([] if tile.boxed else [(1, 24), (1, 40)])
    all_of = jax.jit(lambda of: [conv(of, *step) for step in steps], static_argnums=0)
    results = all_of(Constraint("cuda", "wgmma", tile)), all_of(Constraint("cuda", "mma"))
    for step, ours, expected in zip(steps, *results, strict=True):
        assert jnp.array_equal(ours, expected), step
    if which == "fprop":  # from registers, and slices
        for split, result in [(1, "float32"), (2, None)]:
            ours = conv(Constraint("cuda", "wgmma", tile, split), 3, 72, result)
            assert jnp.array_equal(ours, conv(Constraint("cuda", "mma"), 3, 72, result)), (split, result)


# By name: of direct a run, and several rows or runs, of depthwise one or more strips. Whether or not they
# divide the image, or are larger.
AREAS = {"direct": [(1, 8), (3, 16), (2, 32), (5, 16)], "depthwise": [(1, 8), (3, 8), (3, 16), (2, 96), (50, 24)]}
WITH_AREAS = {
    "direct": ["groups_of_16", "dilated_groups", "depthwise_5x5", "strided_depthwise", "strided_groups",
               "doubled_groups", "packed_stem", "doubled_rows", "causal_depthwise", "thirds", "doubled",
               "narrow_volume", "large_image", "image_stem", "latents",
               "odd_image", "odd_stem", "to_an_image", "to_latents",
               "many_to_three", "four_rows_of_many", "four_rows_to_many"],
    "depthwise": CHANNELS,
}  # fmt: skip
TILES_WITH_AREAS = {tile: of for tile, of in PARTIAL_TILES.items() if of[0] in WITH_AREAS}


@pytest.mark.parametrize("family, row", TILES_WITH_AREAS.values(), ids=TILES_WITH_AREAS)
def test_exact_areas(family, row):
    has = {
        "direct": lambda area: not row.tile.run or area[1] % 16 == 0,
        "depthwise": lambda area: not row.tile.by_tma or area[1] in ((8,) if row.tile.in_pairs else (8, 16, 32, 64)),
    }[family]
    areas = [area for area in AREAS[family] if has(area)]
    cases = cases_of(family, row, WITH_AREAS[family], areas=areas)
    assert {asked.area for *_, asked in cases} == set(areas)
    check_alone(cases, dtype_of(family, row))


# What compute-sanitizer can go through: tiny, alone in their programs, and on every path of a kernel.

SMOKE = {
    "lhs_dilated_groups": (channels_last_convolution(
        (1, 4, 3, 8), (3, 2, 4, 8), lhs_dilation=(2, 3), padding=((1, 2), (0, 1)), feature_group_count=2), 1),
    "odd_channels": (channels_last_convolution((2, 9, 8, 7), (2, 3, 7, 5)), 2),
    "side_by_side": (channels_last_convolution(
        (1, 4, 4, 8), (2, 2, 8, 16), window_strides=(2, 2), padding="VALID"), 1),
}  # fmt: skip
TINY = {
    family: [name for name in own if name.startswith("tiny")]
    for family, own in {"direct": NARROW, "depthwise": CHANNELS, "wgmma": WINDOWS}.items()
}
TINY_SPLITS = {"direct": (8,), "depthwise": (8,), "wgmma": (1, 2, 8)}


@pytest.mark.parametrize("of_conv", PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("convolution, split", SMOKE.values(), ids=SMOKE)
@every_tile
def test_smoke(family, row, convolution, split, of_conv):
    chunk, dtype = row.tile.rows if family == "im2col" else None, dtype_of(family, row)
    units = 2 if family == "mma" else None
    ours = convolution.ours(constraint(family, row, split=split, chunk=chunk, units=units))
    operands = convolution.operands()
    actual = jax.jit(of_conv(ours))(*(a.astype(dtype) for a in operands))
    assert_same(actual, run_on_host(of_conv(convolution.lax()), *operands).astype(dtype))


@pytest.mark.parametrize("family, row, dtype, which", EVERY_KERNEL.values(), ids=EVERY_KERNEL)
def test_smoke_where_taken(family, row, dtype, which):
    cases = cases_of(family, row, TINY[family], (which,), splits=TINY_SPLITS[family], dtype=dtype)
    assert cases
    operands = {name: convolutions()[name].operands() for name in TINY[family]}
    operands, expected = in_dtype(dtype, operands, run_on_host(pulled_back(Convolution.lax), operands))
    for case in cases:
        assert_same(jax.jit(alone([case], dtype))(operands), results_of([case], expected))


# The same, again and anywhere in memory.

LAYERS = {
    "dense": channels_last_convolution((4, 17, 16, 24), (3, 3, 24, 40)),
    "transposed": channels_last_convolution((4, 9, 8, 24), (4, 4, 24, 20), lhs_dilation=(2, 2), padding=((2, 2),) * 2),
    "depthwise": channels_last_convolution((4, 16, 15, 36), (5, 5, 1, 36), feature_group_count=36),
    "line": channels_last_convolution((4, 1000, 6), (3, 6, 9), rhs_dilation=(8,)),
    "side_by_side": channels_last_convolution((4, 16, 8, 24), (2, 2, 24, 40), window_strides=(2, 2), padding="VALID"),
}


EVERY_TYPE = {
    f"{tile}-{dtype}": (family, row, dtype) for tile, (family, row) in TILES.items()
    for dtype in ("float32", "bfloat16") if dtype in dtypes_of(family, row)
}  # fmt: skip


@pytest.mark.parametrize("split", [1, 3, 8])
@pytest.mark.parametrize("family, row, dtype", EVERY_TYPE.values(), ids=EVERY_TYPE)
def test_the_same_twice(family, row, dtype, split):
    """Gaussian sums, which any other order would change."""
    rng = np.random.default_rng(0)
    operands = {name: [rng.standard_normal(a.shape).astype(dtype) for a in layer.operands(dtype)]
                for name, layer in LAYERS.items()}  # fmt: skip
    ours = constraint(family, row, split=split)
    program = jax.jit(lambda operands: {name: pullback(LAYERS[name].ours(ours))(*o) for name, o in operands.items()})
    first = program(operands)
    assert all(np.all(np.isfinite(np.asarray(a, np.float32))) for a in jax.tree.leaves(first))
    for _ in range(4):
        assert_same(program(operands), first)


@every_partial_tile
def test_the_same_twice_where_taken(family, row):
    rng, dtype = np.random.default_rng(0), dtype_of(family, row)
    names = WITH_AREAS.get(family, WINDOWS)
    operands = {name: [rng.standard_normal(a.shape).astype(dtype) for a in convolutions()[name].operands()]
                for name in names}  # fmt: skip
    program = jax.jit(alone(cases_of(family, row, names, splits=(None, *splits_of(family, row))), dtype))
    first = program(operands)
    assert all(np.all(np.isfinite(np.asarray(a, np.float32))) for a in first)
    for _ in range(4):
        assert_same(program(operands), first)


def poison(*likes):
    """Leaves NaNs where the next arrays will be."""
    likes = (*likes, jax.ShapeDtypeStruct((2**24,), np.float32))
    arrays = [jax.device_put(np.full(a.shape, np.nan, a.dtype)) for a in likes]
    jax.block_until_ready(arrays)
    for array in arrays:
        array.delete()


@pytest.mark.parametrize("split", [1, 5])
@every_tile
def test_results_are_written_everywhere(family, row, split):
    """Whatever was in the memory of results and scratch."""
    names = ["nothing_seen", "no_channels", "many_classes", "many_groups", "odd_channels", "negative_padding"]
    dtypes = [dtype_of(family, row)] * 3
    operands, expected = (rounded({name: of[name] for name in names}, *dtypes) for of in exact())
    ours = lambda convolution: convolution.ours(constraint(family, row, split=split))
    program = jax.jit(pulled_back(ours)).lower(operands).compile()
    for _ in range(3):
        poison(*jax.tree.leaves(expected))
        assert_same(program(operands), expected)


UNEVEN = {
    "direct": ["pieces_unseen", "columns_unseen", "holes_between_windows", "groups_of_12", "thrice_as_many", "doubled",
               "odd_pieces"],
    "depthwise": CHANNELS,
    "wgmma": ["windows_unseen", "pieces_unseen", "odd_points_by_2", "points_by_2", "line_by_8", "even_volume_by_2",
              "volume_by_2", "windows_apart", "line_by_4_of_2_pixels", "padded_widely", "three_tiles_of_rows",
              "channels_136_to_8", "channels_64_to_328"],
}  # fmt: skip


@every_partial_tile
def test_results_are_written_everywhere_where_taken(family, row):
    """Also those that no tap reaches, and slices of no areas."""
    cases, dtype = cases_of(family, row, UNEVEN[family], splits=(1, 5, 8, 40)), dtype_of(family, row)
    operands, expected = exact_in(dtype, {name for name, *_ in cases})
    expected = results_of(cases, expected)
    program = jax.jit(alone(cases, dtype)).lower(operands).compile()
    for _ in range(3):
        poison(*expected)
        assert_same(program(operands), expected)


@pytest.mark.parametrize("operand, padding, reached", [
    ("x", "SAME", ("y", "dw")), ("w", "VALID", ("y",)), ("g", "VALID", ("dx", "dw"))
])  # fmt: skip
@pytest.mark.parametrize("groups", [1, 4])
@every_tile
def test_not_finite_numbers_reach_their_results_alone(family, row, groups, operand, padding, reached):
    """Those results that lax sums them into: it counts them, as a one among zeros.

    Where they meet padding, lax multiplies them with its zeros, but for those of x: the others get none.
    """
    shapes = (2, 9, 8, 12), (3, 3, 12 // groups, 20)
    convolution = channels_last_convolution(*shapes, padding=padding, feature_group_count=groups)
    theirs, ours = (pullback(c) for c in (convolution.lax(), convolution.ours(constraint(family, row))))
    program = jax.jit(ours)
    dtype = dtype_of(family, row)
    ones = {name: np.ones(a.shape, dtype) for name, a in zip("xwg", convolution.operands(), strict=True)}
    for index in [(0, 0, 0, 0), (-1, -2, -3, -1)]:
        one = np.zeros_like(ones[operand])
        one[index] = 1
        counts = run_on_host(theirs, *(a.astype(np.float32) for a in (ones | {operand: one}).values()))
        for value in (np.nan, np.inf):
            actual = program(*(ones | {operand: np.where(one, one.dtype.type(value), ones[operand])}).values())
            for name, result, count in zip(("y", "dx", "dw"), actual, counts, strict=True):
                if name in reached:
                    assert np.any(count)
                    is_finite = np.isfinite(np.asarray(result, np.float32))
                    np.testing.assert_array_equal(~is_finite, np.asarray(count) > 0, err_msg=name)


def check_not_finite(convolution, asked, which, dtype, at, reached):
    """Among ones, a number of an image that is not finite: no results are but those `reached(channel, seen)`.

    The others are the same, bit for bit. Those that lax sums it into, which are `seen`, are not finite.
    """
    ones = [np.ones(a.shape, dtype) for a in convolution.operands()]
    ours, theirs = (PASSES[which](conv) for conv in (convolution.ours(asked), convolution.lax()))
    program = jax.jit(ours)
    clean = np.asarray(program(*ones))
    for operand, channel in itertools.product({"fprop": [0], "dgrad": [2], "wgrad": [0, 2]}[which], (0, -1)):
        place = (1, *at, channel)
        one = [a.astype(np.float32) for a in ones]
        one[operand] = np.zeros_like(one[operand])
        one[operand][place] = 1
        seen = np.asarray(run_on_host(theirs, *one)) > 0
        assert np.any(seen)
        may_be = reached(channel % convolution.lhs[-1], seen)
        for value in (np.nan, np.inf):
            operands = [a.copy() for a in ones]
            operands[operand][place] = value
            actual = np.asarray(program(*operands))
            np.testing.assert_array_equal(actual[~may_be], clean[~may_be], err_msg=which)
            assert not np.any(np.isfinite(actual.astype(np.float32)) & seen)


@pytest.mark.parametrize("of_group", [1, 4])
@every_tile_of("direct")
def test_not_finite_numbers_reach_no_further_than_their_window(row, of_group):
    """In a gather, and there no further than the channels that a set of output channels is multiplied with.

    In a reduction, no further than their own piece of eight channels.
    """
    taps_across = row.tile.taps_across  # of one group
    rhs = (3, 3, 128, 3) if taps_across else (3, 3, of_group, 128)
    convolution = channels_last_convolution((2, 13, 21, 128), rhs, feature_group_count=128 // rhs[-2])
    problems = passes_of(problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "bfloat16"))
    set_channels = 2 ** math.ceil(math.log2(row.tile.columns))
    asked = constraint("direct", row)
    taken = [which for which in PASSES if choose("cuda", *problems[which], asked, ffi.device("cuda")).plan is not None]
    assert {"fprop", "dgrad"} & set(taken) or row.tile.run or (row.tile.walk and row.tile.walk.rows != 3)

    def reached(which, channel, seen):
        many = 8 if which == "wgrad" else set_channels
        near = taps_across | (np.arange(seen.shape[-1]) // many == channel // many)
        return near & (np.full_like(seen, True) if which == "wgrad" else np.any(seen, axis=-1, keepdims=True))

    for which in taken:
        check_not_finite(convolution, asked, which, "bfloat16", (5, 16), functools.partial(reached, which))


IN_RUNS = {
    f"{row.tile}-{name}".replace(" ", "_"): (row, name) for row in FAMILIES["cuda"]["direct"].TILES if row.tile.run
    for name in (["image_stem"] if row.tile.walk else ["image_stem", "latents", "odd_image"])
}  # fmt: skip


@pytest.mark.parametrize("row, name", IN_RUNS.values(), ids=IN_RUNS)
def test_not_finite_numbers_reach_no_further_than_their_runs(row, name):
    """A run is read in whole pieces, and behind its end: up to 32 elements."""
    asked, convolution, at = constraint("direct", row), convolutions()[name], (5, 7)
    assert are_taken(name, asked, passes=("fprop",))
    stride, channels = convolution.params["window_strides"][-1], convolution.lhs[-1]

    def reached(channel, seen):
        cols = np.arange(seen.shape[2]) * stride * channels
        first = cols - problem(name).pad_low[-1] * channels - 1
        element = at[1] * channels + channel
        near = (first <= element) & (element < first + 33)
        return np.any(seen, axis=(2, 3), keepdims=True) & near[:, None] & np.ones_like(seen)

    check_not_finite(convolution, asked, "fprop", "bfloat16", at, reached)


BY_WINDOWS = {
    "begun_chunk": channels_last_convolution((2, 9, 8, 72), (3, 3, 72, 40)),
    "less_than_a_chunk": channels_last_convolution((2, 9, 8, 8), (2, 3, 8, 136), padding="VALID"),
    "of_classes": channels_last_convolution((2, 9, 8, 40), (3, 3, 40, 72), window_strides=(2, 2)),
    "of_even_classes": channels_last_convolution(
        (2, 6, 7, 72), (4, 4, 72, 8), lhs_dilation=(2, 2), padding=((2, 2), (2, 2))),
}  # fmt: skip


@pytest.mark.parametrize("split", [1, 17])
@every_tile_of("wgmma")
def test_not_finite_numbers_reach_what_lax_sums_them_into(row, split):
    """And nothing else: behind the last channel TMA fills zeros of pixels and of the filter, and slices have others."""
    asked, at = constraint("wgmma", row, split=min(split, row.tile.slices or split)), (2, 3)
    for convolution, which in itertools.product(BY_WINDOWS.values(), GATHERS):
        check_not_finite(convolution, asked, which, "bfloat16", at, lambda channel, seen: seen)


@every_tile_of("wgmma")
def test_not_finite_filters_reach_their_channel(row):
    """The filter meets padding in both gathers, as lax's does, and channels that it is not of in none."""
    asked = constraint("wgmma", row)
    for convolution, which in itertools.product(BY_WINDOWS.values(), GATHERS):
        x, w, g = (np.ones(a.shape, "bfloat16") for a in convolution.operands())
        ours, theirs = (PASSES[which](conv) for conv in (convolution.ours(asked), convolution.lax()))
        program = jax.jit(ours)
        clean = np.asarray(program(x, w, g))
        for tap, value in itertools.product((0, -1), (np.nan, np.inf)):
            place = (tap, tap, tap, tap)
            channel = np.arange(clean.shape[-1]) == tap % clean.shape[-1]
            one, bad = np.zeros(w.shape, np.float32), w.copy()
            one[place], bad[place] = 1, value
            seen = np.asarray(run_on_host(theirs, x.astype(np.float32), one, g.astype(np.float32))) > 0
            actual = np.asarray(program(x, bad, g))
            assert np.any(seen) and not np.any(seen[..., ~channel])
            np.testing.assert_array_equal(actual[..., ~channel], clean[..., ~channel], err_msg=which)
            assert not np.any(np.isfinite(actual.astype(np.float32)) & seen)


def strips_that_read(problem, plan, at):
    """bool[output positions] of a gather by depthwise: the strips whose bands have a source pixel."""
    reach, tile = window(problem), plan.settings.tile
    row_pieces, col_pieces = plan.attributes(problem)["shape"][8:10]
    depths, rows, cols = map(np.arange, (1, 1, *problem.out_spatial)[-3:])
    depth, row, col = (0, 0, *at)[-3:]
    depth = depth - reach.first[0] - depths // reach.periods[0] * reach.steps[0]
    row = row - reach.first[1] - rows // reach.periods[1] * reach.steps[1]
    col = col - reach.first[2] - cols // 8 * 8 // reach.periods[2] * reach.steps[2]
    within_depths = (depth >= 0) & (depth < reach.depths)
    within_rows = (row >= 0) & (row < tile.step * tile.lags * row_pieces)
    within_cols = (col >= 0) & (col < tile.pixels * col_pieces)
    return (within_depths[:, None, None] & within_rows[:, None] & within_cols).reshape(problem.out_spatial)


@every_tile_of("depthwise")
def test_not_finite_numbers_reach_no_further_than_their_strips(row):
    """In a gather, and there no further than their channel and image.

    In a reduction, no further than their channel.
    """
    names = ["joined_rows", "short_lines", "window_31", "cropped", "depthwise_5x5", "depthwise_7x7", "boxes_of_7",
             "boxes_of_14", "boxes_of_60", "window_31x31", "strided_depthwise", "strided_7x7", "doubled_3x3",
             "doubled_7x7", "volume_3x3x3"]  # fmt: skip
    dtype, cases = dtype_of("depthwise", row), cases_of("depthwise", row, names)
    assert {which for _, which, _ in cases} == {which for _, which in kernels_of("depthwise", row)}
    for name, which, asked in cases:
        kind, of_pass = passes_of(problem(name, dtype))[which]
        at = (1, 3, 5)[-len(of_pass.kernel) :]
        plan = choose("cuda", kind, of_pass, asked, ffi.device("cuda")).plan

        def reached(channel, seen, kind=kind, of_pass=of_pass, plan=plan, at=at):
            may_be = np.zeros(seen.shape, bool)
            if kind == "reduce":
                may_be[..., channel] = True
            else:
                may_be[1, ..., channel] = strips_that_read(of_pass, plan, at)
            return may_be

        check_not_finite(convolutions()[name], asked, which, dtype, at, reached)


@every_family
def test_offsets_past_31_bits(family):
    """The first and the last image of more than 2^31 elements; the others are zeros."""
    images, positions, channels = 2**31 // 2**20 + 3, 2**10, 2**10
    convolution = of_family(family, (images, positions, channels), (1,), 8)
    ends = dataclasses.replace(convolution, lhs=(2, positions, channels))
    x, w, g = ends.operands("bfloat16")
    ours, theirs = (each_pass(family)(c) for c in (convolution.ours(constraint(family)), ends.lax()))

    @jax.jit
    def apart(ends):
        return jnp.zeros((images, *ends.shape[1:]), ends.dtype).at[jnp.array([0, -1])].set(ends)

    @jax.jit
    def check(x, w, g):
        y, dx, *dw = ours(x, w, g)
        return [a[jnp.array([0, -1])] for a in (y, dx)] + dw, [jnp.any(a[1:-1] != 0) for a in (y, dx)]

    actual, others = check(apart(x), w, apart(g))
    assert math.prod(convolution.lhs) > 2**31
    expected = run_on_host(theirs, *(a.astype(np.float32) for a in (x, w, g)))
    assert_same(actual, [a.astype(x.dtype) for a in expected])
    assert not any(others)


@pytest.mark.parametrize("family, dtype", FAMILY_TYPES)
def test_operands_within_larger_arrays(family, dtype):
    """Those begin anywhere in a program's memory."""
    convolution = of_family(family, (2, 9, 8, 16), (3, 3), 24)
    operands = convolution.operands()

    def apart(flat):
        pieces = [(math.prod(a.shape), a.shape) for a in operands]
        begins = [3, *(3 + end for end in itertools.accumulate(size for size, _ in pieces))]
        return [flat[b : b + size].reshape(shape) for b, (size, shape) in zip(begins, pieces, strict=False)]

    flat = np.concatenate([np.zeros(3, dtype), *(a.ravel().astype(dtype) for a in operands)])
    ours, theirs = (each_pass(family)(conv) for conv in (convolution.ours(constraint(family)), convolution.lax()))
    actual = jax.jit(lambda flat: ours(*apart(flat)))(flat)
    assert_same(actual, [a.astype(dtype) for a in run_on_host(theirs, *operands)])


# Inside of programs.


@pytest.mark.parametrize("name", ["dense", "strided", "grouped", "causal", "odd_channels"])
@every_tile
def test_exported_with_any_batch(family, row, name):
    convolution, conv = convolutions()[name], convolutions()[name].ours(constraint(family, row))
    (batch,) = export.symbolic_shape("b")
    dtype = dtype_of(family, row)
    x, w, g = convolution.operands(dtype)
    types = [jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype) for a in (x, g)]
    checks = [export.DisabledSafetyCheck.custom_call(f"jaxconv_{kind}") for kind in ("gather", "reduce")]
    program = export.export(jax.jit(pullback(conv)), disabled_checks=checks)(types[0], w, types[1])
    program = export.deserialize(program.serialize())
    for images in (1, 5):
        resized = dataclasses.replace(convolution, lhs=(images, *convolution.lhs[1:]))
        operands = resized.operands()
        expected = run_on_host(pullback(resized.lax()), *operands)
        actual = program.call(*(a.astype(dtype) for a in operands))
        assert_same(actual, tuple(a.astype(dtype) for a in expected))


ALONE = {
    "direct": [
        "depthwise_5x5",
        "strided_depthwise",
        "causal_depthwise",
        "rn50_56_1x1s2_256_512",
        "groups_of_4",
        "strided_groups",
        "packed_stem",
        "doubled_rows",
        "doubled_groups",
        "image_stem",
        "latents",
        "odd_stem",
        "to_an_image",
        "doubled_to_an_image",
    ],
    "depthwise": [*TINY["depthwise"], "small_images", "boxes_of_7", "short_lines", "causal_depthwise", "joined_rows"],
    "wgmma": [
        *TINY["wgmma"],
        "even_image_by_2",
        "volume_by_2",
        "far_taps_of_a_line",
        "channels_136_to_8",
        "windows_NHWC_OHWI_NHWC",
        "many_small_images",
        "five_tiles_of_rows",
    ],
}


@every_partial_tile
def test_exported_with_any_batch_where_taken(family, row):
    """The plan is made for another batch."""
    cases, dtype = cases_of(family, row, ALONE[family]), dtype_of(family, row)
    names = {name for name, *_ in cases}
    assert {which for _, which, _ in cases} == {which for _, which in kernels_of(family, row)}
    (batch,) = export.symbolic_shape("b")
    checks = [export.DisabledSafetyCheck.custom_call(f"jaxconv_{kind}") for kind in ("gather", "reduce")]

    def types(name):
        x, w, g = (jax.ShapeDtypeStruct(a.shape, dtype) for a in convolutions()[name].operands())
        return x.update(shape=(batch, *x.shape[1:])), w, g.update(shape=(batch, *g.shape[1:]))

    program = jax.jit(alone(cases, dtype))
    program = export.export(program, disabled_checks=checks)({name: types(name) for name in names})
    program = export.deserialize(program.serialize())

    def resized(name, images):
        convolution = convolutions()[name]
        return dataclasses.replace(convolution, lhs=(images, *convolution.lhs[1:]))

    for images in (1, 5):
        operands = {name: resized(name, images).operands() for name in names}
        expected = run_on_host(pulled_back(Convolution.lax), operands)
        actual = program.call(rounded(operands, *3 * [dtype]))
        assert_same(actual, results_of(cases, rounded(expected, *3 * [dtype])))


@pytest.mark.parametrize("family, dtype", [of for of in FAMILY_TYPES if of[0] in PARTIAL])
def test_command_buffers_where_taken(family, dtype):
    """Every tile and pass, as below."""
    rows = [row for row in FAMILIES["cuda"][family].TILES if dtype in dtypes_of(family, row)]
    cases = [case for row in rows
             for case in cases_of(family, row, ALONE[family], splits=splits_of(family, row), dtype=dtype)]  # fmt: skip
    operands, expected = exact_in(dtype, ALONE[family])
    program = jax.jit(lambda operands, sign: [sign * a for a in alone(cases, dtype)(operands)])
    for repeat in range(6):
        sign = np.asarray((-1) ** repeat, dtype)
        assert_same(program(operands, sign), [sign * a for a in results_of(cases, expected)])


def test_command_buffers():
    """A program of every tile, again and again: XLA records its calls into a CUDA graph and replays them."""
    layer = named("odd_channels")
    x, w = layer.operands()

    def network(x, w):
        ys = {}
        for tile, (family, row) in TILES.items():
            for settings in settings_of(family, row):
                precision = "highest" if row.tile.passes == 3 else None
                conv = functools.partial(layer.general(constraint(family, row, **settings)), precision=precision)
                operands = [a.astype(dtype_of(family, row)) for a in (x, w)]
                results = pullback(conv)(*operands, jnp.sign(conv(*operands)))
                ys[tile, str(settings)] = tuple(a.astype(x.dtype) for a in results)
        return list(ys.values())

    conv = layer.lax()
    expected = [run_on_host(lambda x, w: pullback(conv)(x, w, jnp.sign(conv(x, w))), a * x, w) for a in (1, -1)]
    program = jax.jit(network)
    for repeat in range(6):
        for result in program((-1) ** repeat * x, w):
            assert_same(result, expected[repeat % 2])
