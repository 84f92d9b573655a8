"""Keeps XLA from storing an array in another order.

XLA chooses the order in which an array lies in memory, and gives it to all that is computed elementwise before. So the
transposed operand of a weight gradient would have XLA compute a network's other arrays transposed as well, and copy
them back for the convolutions that read them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import mlir

_row_major_p = Primitive("jaxconv_row_major")
_row_major_p.def_impl(lambda x: x)  # without a program there is nothing to constrain
_row_major_p.def_abstract_eval(lambda x: x)


def row_major(x: Array) -> Array:
    """The array, which lies in the order of its axes while a program runs."""
    return _row_major_p.bind(x)


def _lower(ctx: mlir.LoweringRuleContext, x: mlir.Value) -> Sequence[mlir.Value]:
    """An exported program has no such constraint: JAX does not vouch that other versions know it."""
    if ctx.module_context.lowering_parameters.for_export:
        return [x]
    return mlir.lower_fun(_in_order_of_axes, multiple_results=False)(ctx, x)


def _in_order_of_axes(x: Array) -> Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


mlir.register_lowering(_row_major_p, lambda ctx, x: [x])  # programs with a constraint may not run on a host
mlir.register_lowering(_row_major_p, _lower, platform="cuda")
