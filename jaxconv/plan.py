"""ConvPlan: which kernel answers a ConvProblem on a platform, or why none does."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from jaxconv.offsets import SPATIAL, fits_int32
from jaxconv.problem import ConvProblem, Shape

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


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """A kernel and its settings.

    kind: "gather" (fprop, dgrad) or "reduce" (wgrad).
    """

    platform: str
    kind: str
    family: str

    def attributes(self) -> dict[str, np.generic]:
        return {"family": np.int32(FAMILIES[self.platform].index(self.family))}


def refusal(problem: ConvProblem) -> str | None:
    """Why no native kernel, on any platform, takes the problem; None if one may."""
    if len(problem.kernel) > SPATIAL:
        return f"{len(problem.kernel)} spatial dimensions (1 to {SPATIAL} are native)"
    operand, result = (problem.rhs_dtype, problem.lhs_dtype if problem.reverse else problem.out_dtype)
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
    narrow = problem.groups > 1 and 1 in (problem.in_channels, problem.out_channels)
    if platform == "cpu":
        return ConvPlan(platform, kind, "depthwise" if narrow else "gemm")
    return ConvPlan(platform, kind, "simt")
