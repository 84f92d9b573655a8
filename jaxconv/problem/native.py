"""A product as the native planners see it: src_common/matrix_product.h."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from jaxconv.compiled import planning
from jaxconv.problem.conv_problem import ConvProblem, Shape, Spec
from jaxconv.problem.offsets import in_three, offset_tables
from jaxconv.problem.product import EpilogueKind, Product


@lru_cache(maxsize=4096)
def native(product: Product, images: int | None = None) -> planning.Product:
    """images: of a batch group, that stand for a symbolic batch."""
    p, tables = product.problem, offset_tables(product.problem)
    return planning.Product(
        **arguments(p, product.images if images is None else images),
        is_wgrad=product.kind == "wgrad",
        float32=product.float32,
        kernel=in_three(p.kernel),
        member_groups=p.member.groups,
        has_epilogue=product.epilogue_kind is not EpilogueKind.NONE,
        has_residual=product.epilogue_kind is EpilogueKind.RESIDUAL,
        taps=tables.taps,
        classes=tables.classes,
    )


def arguments(problem: ConvProblem, images: int = 1) -> dict[str, Any]:
    """What C++ makes a problem of, by its names. images: of a batch group."""
    src, filter, dst = _arrays(problem, images)
    return dict(
        src=src,
        filter=filter,
        dst=dst,
        window_strides=problem.window_strides,
        lhs_dilation=problem.lhs_dilation,
        rhs_dilation=problem.rhs_dilation,
        groups=problem.groups,
        src_batch_grouped=problem.lhs_batch_grouped,
        dst_batch_grouped=problem.out_batch_grouped,
        filter_in_grouped=problem.reverse,
        dst_in_blocks=problem.out_in_blocks,
    )


def has_channel_vectors(product: Product) -> bool:
    """Whether both operands lie in memory as contiguous 16-byte vectors of a group's channels."""
    p = product.problem
    arrays = _arrays(p, product.images)
    return planning.has_channel_vectors(product.kind == "wgrad", *arrays, p.in_channels, p.out_channels)


def _arrays(p: ConvProblem, images: int) -> tuple[planning.Array, planning.Array, planning.Array]:
    """The lhs, the rhs and the out."""
    src = _array(p.lhs_shape, p.lhs_spec, p.lhs_dtype, _batch(p, p.lhs_batch_grouped, images))
    dst = _array(p.stored_shape("out"), p.out_spec, p.out_dtype, _batch(p, p.out_batch_grouped, images))
    return src, (p.rhs_shape, p.rhs_spec.axes, p.rhs_dtype.name), dst


def _batch(problem: ConvProblem, is_grouped: bool, images: int) -> int:
    return images * problem.groups if is_grouped else images


def _array(shape: Shape, spec: Spec, dtype: np.dtype, batch: int) -> planning.Array:
    return (*shape[: spec.first], batch, *shape[spec.first + 1 :]), spec.axes, dtype.name
