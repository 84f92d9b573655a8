"""ConvPlan: which kernel answers a ConvProblem on a platform, or why none does."""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxconv.offsets import SPATIAL, fits_int32
from jaxconv.problem import ConvProblem, Dim, Shape

# Kernel families of each platform, in the order of the `Family` enums of src_cpu and src_cuda.
FAMILIES = {"cpu": ("gemm", "depthwise"), "cuda": ("simt",)}

# (lhs and rhs, out) of a forward convolution. Its gradients have the same three, in other roles.
DTYPES = frozenset(
    (jnp.dtype(operand), jnp.dtype(result))
    for operand, result in [
        ("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"), ("float16", "float16"),
        ("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("int8", "int32"),
    ]
)  # fmt: skip


class SimtTile(NamedTuple):
    """A thread block's part of the product: rows x columns of results."""

    rows: int
    cols: int
    only_f32: bool


# Those of src_cuda/launch.h, in its order.
SIMT_TILES = (
    SimtTile(128, 128, only_f32=True),
    SimtTile(128, 64, only_f32=True),
    SimtTile(64, 64, only_f32=False),
    SimtTile(128, 32, only_f32=False),
)
SIMT_DEPTH = 8  # steps of the reduction that a tile takes at a time
RESIDENT_RESULTS = 2 * 128 * 128  # results that a multiprocessor's resident blocks hold, whatever their tile
MULTIPROCESSORS = 132
MAX_SPLIT = 32
TYPICAL_BATCH = 32  # stands for a batch that is symbolic while planning


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """A kernel and its settings.

    kind: "gather" (fprop, dgrad) or "reduce" (wgrad).
    tile: on CUDA, an index of the family's tiles.
    split: on CUDA, slices of the reduction, each summed on its own, then added in order.
    """

    platform: str
    kind: str
    family: str
    tile: int | None = None
    split: int | None = None

    def attributes(self) -> dict[str, np.generic]:
        settings = {"family": FAMILIES[self.platform].index(self.family), "tile": self.tile, "split": self.split}
        return {name: np.int32(value) for name, value in settings.items() if value is not None}

    def scratch_bytes(self, problem: ConvProblem) -> Dim | None:
        """Bytes for the slices of a split reduction; None on a platform whose kernels take no scratch buffer."""
        if self.split is None:
            return None
        shape = problem.out_shape if self.kind == "gather" else problem.rhs_shape
        return 0 if self.split == 1 else self.split * math.prod(shape) * _sum_bytes(problem)


def refusal(problem: ConvProblem) -> str | None:
    """Why no native kernel, on any platform, takes the problem; None if one may."""
    if len(problem.kernel) > SPATIAL:
        return f"{len(problem.kernel)} spatial dimensions (1 to {SPATIAL} are native)"
    operand = problem.rhs_dtype
    result = problem.out_dtype if problem.lhs_dtype == operand else problem.lhs_dtype  # of the forward convolution
    if (operand, result) not in DTYPES:
        return f"dtype {operand.name} with result {result.name}"
    # Every size and stride but those of an outermost batch is in the tables.
    if not _are_known(problem.rhs_shape + problem.lhs_shape[1:] + problem.out_shape[1:]) or not _are_known(
        (problem.in_channels, problem.out_channels, *problem.in_spatial, *problem.out_spatial)
    ):
        return "a symbolic dimension other than an outermost batch"
    if not (fits_int32(problem) and fits_int32(problem.dgrad())):
        return "an offset inside an image does not fit 32 bits"
    return None


def _are_known(shape: Shape) -> bool:
    return all(isinstance(d, int) for d in shape)


@lru_cache(maxsize=4096)
def make_plan(platform: str, kind: str, problem: ConvProblem) -> ConvPlan:
    """The plan for a problem that `refusal` passed, on a platform that has kernels."""
    if platform == "cpu":
        narrow = problem.groups > 1 and 1 in (problem.in_channels, problem.out_channels)
        return ConvPlan(platform, kind, "depthwise" if narrow else "gemm")
    tile, split = _simt_tile(kind, problem)
    return ConvPlan(platform, kind, "simt", tile, split)


def _simt_tile(kind: str, problem: ConvProblem) -> tuple[int, int]:
    """The tile and split whose waves of thread blocks take the least time.

    A wave computes RESIDENT_RESULTS on each multiprocessor, full of results or not, for a slice of the reduction. A
    split costs its scratch twice more, which counts as steps of that many results.
    """
    batch = problem.batch if isinstance(problem.batch, int) else TYPICAL_BATCH
    positions = batch * math.prod(problem.out_spatial)
    filter_rows = math.prod(problem.kernel) * problem.in_channels
    rows, steps = (positions, filter_rows) if kind == "gather" else (filter_rows, positions)
    results = rows * problem.out_channels * problem.groups
    wide = _sum_bytes(problem) == 8 or problem.rhs_dtype.kind == "i"

    def cost(choice: tuple[int, int]) -> float:
        tile, split = SIMT_TILES[choice[0]], choice[1]
        blocks = -(-rows // tile.rows) * -(-problem.out_channels // tile.cols) * problem.groups * split
        resident = MULTIPROCESSORS * RESIDENT_RESULTS // (tile.rows * tile.cols)
        depth = -(-steps // split) + 4 * SIMT_DEPTH  # and the pipeline's filling and emptying
        # Narrow tiles load more for each product.
        return -(-blocks // resident) * depth * (1 + 8 / tile.rows + 8 / tile.cols) + (split > 1) * split * (
            results * 16 / (MULTIPROCESSORS * RESIDENT_RESULTS)
        )

    tiles = [i for i, tile in enumerate(SIMT_TILES) if not (wide and tile.only_f32)]
    splits = [s for s in range(1, MAX_SPLIT + 1) if s == 1 or steps >= 4 * SIMT_DEPTH * s]
    return min(((t, s) for t in tiles for s in splits), key=cost)


def _sum_bytes(problem: ConvProblem) -> int:
    """Size of the type that sums are kept in."""
    return 8 if jnp.dtype("float64") in (problem.lhs_dtype, problem.rhs_dtype, problem.out_dtype) else 4
