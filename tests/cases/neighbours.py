"""Convs of an image whose first and last rows lie in arrays of their own: the rows of neighbours."""

import dataclasses
from functools import lru_cache

import numpy as np

from cases.problems import layer
from cases.reference import integers, run_on_host
from jaxconv import ffi
from jaxconv.fallback import LAX
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint

# The tiles that read such rows.
TILES = [
    (family, tile)
    for family in ("wgmma", "direct")
    for tile in FAMILIES["cuda"][family].tiles
    if (tile.has_wgrad if family == "direct" else tile.has_conv and not tile.bf16x6 and tile.cluster_split == 0)
]

# Of each: the array with its neighbours' rows, the filter, the rows before and after, and the window's arguments.
CASES = {
    "image": ((2, 26, 12, 24), (3, 3, 24, 40), 1, 1),
    "one_image": ((1, 26, 64, 16), (3, 3, 16, 24), 1, 1),
    "images_of_many_tiles": ((9, 18, 16, 72), (3, 3, 72, 136), 1, 1),
    "even_window": ((2, 27, 10, 16), (4, 2, 16, 8), 1, 2),
    "five_rows": ((3, 20, 16, 16), (5, 5, 16, 72), 2, 2),
    "before_alone": ((2, 18, 9, 16), (3, 3, 16, 24), 2, 0),
    "after_alone": ((2, 18, 9, 16), (3, 1, 16, 24), 0, 2),
    "dilated": ((2, 38, 11, 16), (3, 3, 16, 24), 3, 3, dict(rhs_dilation=(3, 2))),
    "by_two": ((2, 33, 20, 24), (3, 3, 24, 16), 1, 0, dict(window_strides=(2, 2))),
    "one_row": ((4, 3, 40, 16), (3, 3, 16, 24), 1, 1),
    "four_rows_of_windows_of_nine": ((4, 12, 20, 16), (9, 3, 16, 24), 4, 4),
    "long": ((1, 402, 24, 16), (3, 3, 16, 24), 1, 1),
    "long_of_one_column": ((1, 1026, 1, 16), (3, 1, 16, 24), 1, 1),
    "long_images": ((3, 258, 16, 16), (3, 3, 16, 24), 1, 1),
    "long_and_forward": ((1, 400, 3, 16), (3, 3, 16, 24), 0, 100, dict(rhs_dilation=(50, 1))),
    "long_and_backward": ((1, 400, 3, 16), (3, 3, 16, 24), 100, 0, dict(rhs_dilation=(50, 1))),
    "line": ((3, 130, 16), (3, 16, 24), 1, 1),
    "long_line": ((1, 5002, 40), (3, 40, 24), 1, 1),
    "dilated_line": ((2, 144, 16), (3, 16, 24), 8, 8, dict(rhs_dilation=8)),
    "line_by_three": ((2, 98, 16), (5, 16, 8), 2, 0, dict(window_strides=3)),
    "volume": ((2, 10, 9, 12, 16), (3, 3, 3, 16, 24), 1, 1),
    "volume_of_many_depths": ((1, 42, 8, 8, 16), (3, 3, 3, 16, 24), 1, 1),
    "volume_and_forward": ((1, 30, 5, 4, 16), (5, 3, 3, 16, 24), 0, 8, dict(rhs_dilation=(2, 1, 1))),
    "volume_of_depths": ((2, 12, 8, 16, 16), (5, 1, 3, 16, 24), 2, 2),
    "narrow_volume": ((2, 9, 20, 24, 16), (3, 3, 3, 16, 16), 1, 1),
    "narrow_volume_of_32": ((1, 6, 17, 40, 32), (3, 3, 3, 32, 32), 1, 1),
    "narrow_volume_of_five": ((1, 10, 9, 16, 8), (5, 3, 3, 8, 16), 2, 2),
    "narrow_depths": ((2, 10, 9, 16, 8), (3, 1, 1, 8, 8), 2, 2, dict(rhs_dilation=(2, 1, 1))),
    "narrow_image": ((2, 36, 44, 16), (3, 3, 16, 16), 1, 1),
    "narrow_image_of_five": ((2, 24, 40, 8), (5, 5, 8, 16), 2, 2),
    "narrow_image_by_two": ((2, 35, 40, 8), (3, 3, 8, 16), 1, 0, dict(window_strides=(2, 2))),
    "few_outputs": ((1, 34, 48, 64), (3, 3, 64, 8), 1, 1),
    "stem": ((2, 37, 32, 3), (7, 7, 3, 64), 3, 2, dict(window_strides=(2, 2))),
    "grouped_image": ((1, 26, 24, 64), (3, 3, 8, 64), 1, 1, dict(feature_group_count=8)),
}


@lru_cache(maxsize=len(CASES))
def case_of(name, dtype="bfloat16"):
    """The joined problem, that of the image alone, its arrays, and the result."""
    lhs, rhs, before, after, *more = CASES[name]
    rank = len(lhs) - 2
    params = more[0] if more else {}
    kernel, dilation = rhs[:rank], np.broadcast_to(params.get("rhs_dilation", 1), rank)
    same = [((k - 1) * d // 2, (k - 1) * d - (k - 1) * d // 2) for k, d in zip(kernel, dilation, strict=True)]
    joined = layer(lhs, rhs, dtype, padding=((0, 0), *same[1:]), **params)
    x, w = integers(lhs, dtype, 0), integers(rhs, dtype, 1)
    rows = lhs[1] - before - after
    apart = dataclasses.replace(joined, lhs_shape=(lhs[0], rows, *lhs[2:]), pad_low=(before, *joined.pad_low[1:]))
    arrays = x[:, before : before + rows], w, [x[:, :before]] * (before > 0) + [x[:, before + rows :]] * (after > 0)
    return apart, arrays, expected_of(joined, x, w)


def expected_of(problem, x, w):
    """Exact sums, rounded once."""
    wide = dataclasses.replace(problem, **{f"{role}_dtype": np.dtype("float32") for role in ("lhs", "rhs", "out")})
    return run_on_host(LAX["conv"](wide), x.astype("float32"), w.astype("float32")).astype(problem.out_dtype)


def planned(apart, name, family=None, tile=None, **more):
    before, after = CASES[name][2:4]
    asked = Constraint("cuda", family, tile and tile.name, rows_before=before, rows_after=after, transform=(), **more)
    return choose("cuda", "conv", apart, asked, ffi.device("cuda")).plan


def calls_of(family, tile):
    """The calls that a tile takes, their arrays and results, and the names of their cases."""
    calls, arrays, results, supported = [], [], [], set()
    for name in CASES:
        apart, (x, w, rows), expected = case_of(name)
        for split in (1, 3) if family == "wgmma" else (None,):
            if plan := planned(apart, name, family, tile, split=split):
                calls.append(ffi.convolution(plan, apart))
                arrays.append((x, w, *rows))
                results.append(expected)
                supported.add(name)
    return lambda arrays: [call(*of) for call, of in zip(calls, arrays, strict=True)], arrays, results, supported
