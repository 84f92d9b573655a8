"""The tiles of every CUDA family, the dtypes, passes and settings that each has, and constraints that reach it."""

import jax
import pytest

from cases.plans import PARTIAL
from cases.problems import GATHERS
from jaxconv.families import FAMILIES
from jaxconv.plan import Constraint

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


# The passes of partial families, each alone: others of the same convolution may be another family's.
PASSES = {
    "fprop": lambda conv: lambda x, w, g: conv(x, w),
    "dgrad": lambda conv: lambda x, w, g: jax.linear_transpose(lambda x: conv(x, w), x)(g)[0],
    "wgrad": lambda conv: lambda x, w, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0],
}


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

# Gathers of wgmma have slices without steps, too.
SPLITS = {"direct": (1, 3, 12), "depthwise": (1, 3, 12), "wgmma": (1, 3, 17)}


def splits_of(family, row):
    """Of wgmma's tiles some have slices that the blocks of a cluster add, so many or a part."""
    return (1, 2, 4, 8) if family == "wgmma" and row.tile.slices else SPLITS[family]
