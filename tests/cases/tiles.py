"""The tiles of every CUDA family, the dtypes, passes and settings that each has, and constraints that reach it."""

import jax
import pytest

from cases.plans import PARTIAL
from jaxconv import ffi
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint
from jaxconv.transforms import KMajorFilter, PositionsLast


def name_of(family, tile):
    stages = f"_{tile.stages}" if "stages" in tile.fields else ""
    return f"{family}_{tile}{stages}".replace(" ", "_")


CONVS_ALONE = ("gather",)  # families without weight gradients
EVERY_TILE = {
    name_of(family, tile): (family, tile) for family, planner in FAMILIES["cuda"].items() for tile in planner.tiles
}


def is_for_tf32(tile):
    """Whether a tile of wgmma has weight gradients of float32 as tf32, and nothing else."""
    return not (tile.fields.get("has_conv", True) or tile.fields.get("has_wgrad", True))


def skip_without_hopper(family, tile):
    """Skips a test of a tile that GPUs of other architectures have no kernel of: no plan of theirs has it."""
    needs_it = family == "wgmma" or tile.fields.get("has_producers", False)
    if needs_it and not ffi.device("cuda").wgmma:
        pytest.skip(f"{family} {tile}: kernels for Hopper do not run here")


# Without an epilogue, which depthwise's of bytes need. Of the families that take every problem of their types, and of
# those that take some passes of some: tiles of all passes, and of problems as they are.
WITH_SUMS = {
    name: (family, tile) for name, (family, tile) in EVERY_TILE.items() if family != "depthwise" or not tile.of_bytes
}
TILES = {name: of for name, of in WITH_SUMS.items() if of[0] not in PARTIAL}
PARTIAL_TILES = {
    name: (family, tile) for name, (family, tile) in WITH_SUMS.items() if family in PARTIAL
    if not (tile.fields.get("of_bytes") or tile.fields.get("of_floats") or is_for_tf32(tile) or family in CONVS_ALONE)
}  # fmt: skip
every_partial_tile = pytest.mark.parametrize("family, tile", PARTIAL_TILES.values(), ids=PARTIAL_TILES)
# The same, and those of families that have no weight gradients.
TILES_OF_CONVS = PARTIAL_TILES | {name: of for name, of in WITH_SUMS.items() if of[0] in CONVS_ALONE}
every_tile_of_convs = pytest.mark.parametrize("family, tile", TILES_OF_CONVS.values(), ids=TILES_OF_CONVS)
every_family = pytest.mark.parametrize("family", FAMILIES["cuda"])


def has_pass(tile, which, dtype="bfloat16"):
    """Whether a tile is compiled for a pass; those of most families are for all."""
    of_wgrad = "has_wgrad"
    if "has_float32_wgrad" in tile.fields and (dtype == "float32" or tile.bf16x6 or is_for_tf32(tile)):
        of_wgrad = "has_float32_wgrad"
    return bool(tile.fields.get(of_wgrad if which == "wgrad" else "has_conv", True))


def every_tile_of(family, which=None):
    """Of a pass, those that have a kernel for it."""
    tiles = [tile for tile in FAMILIES["cuda"][family].tiles if which is None or has_pass(tile, which)]
    return pytest.mark.parametrize("tile", tiles, ids=lambda tile: tile.name.replace(" ", "_"))


def is_for_highest(asked):
    """Whether a constraint's tile multiplies float32 as several smaller numbers: for the highest precision alone."""
    if not isinstance(asked, Constraint) or asked.tile is None:
        return False
    (fields,) = (tile.fields for tile in FAMILIES["cuda"][asked.family].tiles if tile.name == asked.tile)
    return fields.get("passes") == 3 or bool(fields.get("bf16x6"))


DTYPES = {"float32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float16": "float16",
          "bfloat16_to_float32": "float32", "int8_to_int32": "int32",
          "float8_e4m3fn_to_float32": "float32"}  # fmt: skip
FORWARD_ALONE = {"bfloat16_to_float32", "int8_to_int32", "float8_e4m3fn_to_float32"}
# Of bytes behind an epilogue, by the sums, or alone.
ENDED_DTYPES = {
    of: [f"{operand}_to_{result}" for result in (*own, "bfloat16", "float16", "float32")]
    for of, operand, own in (("int8_to_int32", "int8", ["int8"]),
                             ("float8_e4m3fn_to_float32", "float8_e4m3fn", ["float8_e4m3fn", "float8_e5m2"]))
} | {"int8_to_int8": ["int8_to_int8"]}  # fmt: skip
HALVES = ["bfloat16", "float16", "bfloat16_to_float32"]


def constraint(family=None, tile=None, transform=(), **settings):
    """A tile is reached with the problem as it is, or as asked; a family's problems may be transformed."""
    transform = None if tile is None else transform
    return Constraint("cuda", family, tile and tile.name, transform=transform, **settings)


def dtypes_of(family, tile):
    """Those that a tile is compiled for."""
    if family == "mma":
        return {32: ["float32"], 64: HALVES, 128: ["int8_to_int32"]}[tile.depth]
    if family == "direct":
        return ["int8_to_int32"] if tile.of_bytes else ["float32"] if tile.of_floats else HALVES
    if family == "wgmma":
        bytes_of = {"int8_to_int32": tile.has_int8_conv, "float8_e4m3fn_to_float32": tile.has_float8_conv}
        has = [dtype for dtype, is_there in bytes_of.items() if is_there]
        return ["float32"] if tile.bf16x6 or is_for_tf32(tile) else [*HALVES, "float32", *has]
    if family == "gather":
        return ["float32", "bfloat16", "float16"]
    if family == "depthwise":
        return ["int8_to_int8"] if tile.of_bytes else ["float32"] if tile.on_cuda_cores else ["bfloat16", "float16"]
    floats = ["float32", *HALVES]
    return floats if tile.only_f32 else [*floats, "float64", "int8_to_int32"]


def dtype_of(family, tile):
    """One that has all passes, or int8."""
    dtypes = dtypes_of(family, tile)
    return next(dtype for dtype in ("bfloat16", "float32", *dtypes) if dtype in dtypes)


# Those for floats, and those for int8 alone, which have forward passes.
FLOAT_TILES = {name: of for name, of in TILES.items() if dtype_of(*of) != "int8_to_int32"}
INT8_TILES = {name: of for name, of in TILES.items() if name not in FLOAT_TILES}
every_tile = pytest.mark.parametrize("family, tile", FLOAT_TILES.values(), ids=FLOAT_TILES)
every_tile_for_int8 = pytest.mark.parametrize("family, tile", INT8_TILES.values(), ids=INT8_TILES)


def dtypes_of_family(family):
    """All, if any family may answer."""
    has = {dtype for of in EVERY_TILE.values() if family in (None, of[0]) for dtype in dtypes_of(*of)}
    return [dtype for dtype in DTYPES if dtype in has]


# One dtype of each of a family's kinds of kernels.
FAMILY_TYPES = dict.fromkeys(
    (family, dtype_of(family, tile)) for family, tile in [*FLOAT_TILES.values(), *PARTIAL_TILES.values()]
)


def settings_of(family, tile):
    """Whole and split K; several N tiles a block; and a column matrix at once, or a tile of rows at a time."""
    if family == "mma":
        return [
            *(dict(split=s) for s in (1, 2, 3, 17)),
            dict(split=1, n_tiles_per_cta=3),
            dict(split=2, n_tiles_per_cta=2),
        ]
    if family != "im2col":
        return [dict(split=s) for s in (1, 2, 3, 17)]
    return [dict(split=1), dict(split=3), *(dict(split=s, chunk=tile.rows) for s in (1, 2, 17))]


# The passes of partial families, each alone: others of the same convolution may be another family's.
PASSES = {
    "fprop": lambda conv: lambda x, w, g: conv(x, w),
    "dgrad": lambda conv: lambda x, w, g: jax.linear_transpose(lambda x: conv(x, w), x)(g)[0],
    "wgrad": lambda conv: lambda x, w, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0],
}


def passes_of_family(family):
    return tuple(which for which in PASSES if which != "wgrad" or family not in CONVS_ALONE)


def passes_with_split_k(family):
    """Those with split-K in a partial family."""
    return tuple(PASSES) if family == "wgmma" else () if family in CONVS_ALONE else ("wgrad",)


def kernels_of(family, tile):
    """The (dtype, pass)es that a tile of a partial family has kernels for."""
    passes = lambda dtype: ["fprop"] if dtype in FORWARD_ALONE else PASSES
    return [(dtype, which) for dtype in dtypes_of(family, tile) for which in passes(dtype)
            if has_pass(tile, which, dtype)]  # fmt: skip


EVERY_KERNEL = {
    f"{name}-{dtype}-{which}": (family, tile, dtype, which)
    for name, (family, tile) in WITH_SUMS.items() if family in PARTIAL for dtype, which in kernels_of(family, tile)
}  # fmt: skip


def result_of(dtype):
    return DTYPES.get(dtype, dtype.rpartition("_to_")[2])


def transform_of(family, tile, dtype, which):
    """What brings a problem to a family. wgmma takes bytes and tf32 only K-major, as a dgrad's filters lie."""
    if family != "wgmma" or dtype.partition("_to_")[0] in ("bfloat16", "float16") or (tile and tile.bf16x6):
        return ()
    return {"fprop": (KMajorFilter(),), "wgrad": (PositionsLast("out"),)}.get(which, ())


def transforms_of(family, tile, dtype, which):
    """The same; mma takes int8 by elements, and if it is K-major by vectors."""
    both = family == "mma" and dtype.partition("_to_")[0] == "int8"
    return [(), (KMajorFilter(),)] if both else [transform_of(family, tile, dtype, which)]


# wgmma has slices without steps, too.
SPLITS = {"direct": (1, 3, 12), "depthwise": (1, 3, 12), "gather": (1,), "wgmma": (1, 3, 17), "mma": (1, 3, 17)}


def splits_of(family, tile, which):
    """The blocks of a cluster of wgmma add slices: in convs of some tiles all, in weight gradients those that they may.

    The others are stored.
    """
    if family == "wgmma" and which == "wgrad":
        return (1, 2, 8, 12, 17)
    return (1, 2, 4, 8) if family == "wgmma" and tile.cluster_split else SPLITS[family]
