"""`install`: the convolutions of a whole process, by jaxconv.

It replaces the rule by which JAX lowers lax's convolution primitive. So it reaches every convolution, whatever library
calls it, and what differentiation makes of it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.interpreters import mlir

from jaxconv import fallback, ffi, lowering
from jaxconv._jax_private import _lowerings, _platform_specific_lowerings
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint, Implementation, check_implementation, constraint_of
from jaxconv.problem import ConvProblem
from jaxconv.problem.algorithms import precision_of_lax
from jaxconv.problem.factors import other_filter
from jaxconv.problem.of_lax import read
from jaxconv.problem.product import EpilogueKind
from jaxconv.sharding.block import Apart
from jaxconv.sharding.partitioning import lower_without_mesh
from jaxconv.tuning.loaded import loaded_tuning

CONV = lax.conv_general_dilated_p


class Pass(NamedTuple):
    """A convolution as one of ours: its kind, its problem, and which of our kernels may answer it.

    epilogue: in words, what computes one; nothing if there is none. epilogue_kind: of our kernel. apart: the problem as
    a kernel may have it, if it is periodic.
    """

    kind: str
    problem: ConvProblem
    implementation: Implementation
    epilogue: str = ""
    epilogue_kind: EpilogueKind = EpilogueKind.NONE
    apart: Apart | None = None


_lock = threading.RLock()  # of what follows, for threads that install and uninstall
_installed: dict[str, Constraint | None] = {}  # by platform: what is asked of our kernels
IN_SILENCE = "Without jaxconv.install, lax answers without this warning"
# By platform: lax's own entry among JAX's rules. None: of the platforms that have no rule of their own.
_replaced: dict[str | None, Any] = {}


def install(implementation: str | None = None) -> None:
    """Makes every convolution of this process run on jaxconv, whatever library it comes from, and its gradients.

    lax computes what our kernels do not support, with one `FallbackWarning` for each reason, also if an implementation
    is named. It also computes calls of jaxconv's functions with implementation="xla". `jax.clear_caches()` is a part of
    this: functions that are compiled already are compiled again at their next call. What `.lower(...).compile()`
    returned before stays as it is. Installing the same again changes nothing; another implementation replaces the
    first.

    A `FallbackWarning` says so if the named platform's native module is missing, and at the first convolution that is
    lowered for a platform that is left to lax.

    Args:
      implementation: None: on the CPU and on CUDA, as in `conv_general_dilated`. "cuda", "cpu", or the name of a kernel
        family: only on the platforms that have it, and only by such kernels.

    Raises:
      ValueError: an unknown implementation.
    """
    check_implementation(implementation)
    wanted = constraint_of(implementation)
    asked = None if implementation is None else dataclasses.replace(wanted, or_lax=True)
    platforms = [platform for platform in FAMILIES if wanted.is_for(platform)]
    with _lock:
        if _installed != dict.fromkeys(platforms, asked):
            _install(platforms, asked, implementation)


def _install(platforms: Sequence[str], asked: Constraint | None, implementation: str | None) -> None:
    reasons = [ffi.missing_module_reason(platform) for platform in platforms]
    if all(reasons):
        fallback.warn(str(reasons[0]), IN_SILENCE)
    uninstall()
    _installed.update(dict.fromkeys(platforms, asked))
    for platform in (None, *(platform for platform, rules in _platform_specific_lowerings.items() if CONV in rules)):
        _replaced[platform] = _rules(platform)[CONV]
        by_lax = _replaced[platform].rule  # another thread may lower while this one uninstalls
        leave_to_lax = partial(_leave_to_lax, platform, by_lax, implementation)
        rule = partial(_lower, platform, by_lax) if platform in _installed else leave_to_lax
        mlir.register_lowering(CONV, rule, platform=platform)
    jax.clear_caches()


def uninstall() -> None:
    """Undoes `install`: convolutions are lax's own again, also those of functions that are compiled already."""
    with _lock:
        if not _installed:
            return
        for platform, rule in _replaced.items():
            _rules(platform)[CONV] = rule
        _installed.clear()
        _replaced.clear()
        jax.clear_caches()


def _rules(platform: str | None) -> Any:
    return _lowerings if platform is None else _platform_specific_lowerings[platform]


def our_pass(platform: str | None, context: Any, avals: Sequence[Any], params: dict[str, Any]) -> Pass | None:
    """What an equation of lax's primitive is for us: its context, avals of operands and result, and parameters.

    None: it is left to lax, also to be refused.
    """
    (lhs, rhs, out), installed = avals, dict(_installed)
    if platform not in installed or fallback.is_by_lax(context):
        return None
    dilations = params["lhs_dilation"], params["rhs_dilation"]
    is_refused = min(params["window_strides"], default=1) < 1 or any(len(d) != lhs.ndim - 2 for d in dilations)
    if is_refused or 0 in (*lhs.shape, *rhs.shape, *out.shape):
        return None
    kind, problem = read(lhs, rhs, out, params)
    return Pass(kind, problem, installed[platform])


def _leave_to_lax(
    platform: str | None,
    by_lax: Any,
    name: str | None,
    ctx: mlir.LoweringRuleContext,
    lhs: mlir.Value,
    rhs: mlir.Value,
    **params: Any,
) -> Sequence[mlir.Value]:
    """The rule of platforms that `install` was not asked for, or that have no kernels. A warning says so."""
    if not fallback.is_by_lax(ctx.jaxpr_eqn_ctx):
        for here in (platform,) if platform else ctx.platforms or ctx.module_context.platforms:
            is_for_others = f"install({name!r}) is not for {here}, but install() is"
            fallback.warn(is_for_others if here in FAMILIES else str(ffi.missing_module_reason(here)), IN_SILENCE)
    return by_lax(ctx, lhs, rhs, **params | {"precision": precision_of_lax(params["precision"])})


def _lower(
    platform: str, by_lax: Any, ctx: mlir.LoweringRuleContext, lhs: mlir.Value, rhs: mlir.Value, **params: Any
) -> Sequence[mlir.Value]:
    ours = our_pass(platform, ctx.jaxpr_eqn_ctx, [*ctx.avals_in, *ctx.avals_out], params)
    if ours is None:
        return by_lax(ctx, lhs, rhs, **params)
    kind, problem, implementation = ours[:3]
    choice = lowering.decide(kind, platform, problem, implementation, loaded_tuning())
    if choice.plan is None:
        fallback.warn(choice.unsupported_reason(), IN_SILENCE)
        return by_lax(ctx, lhs, rhs, **params | {"precision": precision_of_lax(params["precision"])})
    if problem.reverse:
        to_ours = partial(other_filter, dataclasses.replace(problem, reverse=False))
        lhs_aval, rhs_aval = ctx.avals_in
        (rhs,) = lower_without_mesh(to_ours, ctx.replace(avals_in=[rhs_aval]), rhs)
        ctx = ctx.replace(avals_in=[lhs_aval, rhs_aval.update(shape=problem.rhs_shape)])
    return lowering.lower(kind, platform, ctx, lhs, rhs, problem=problem, implementation=implementation, sharding=None)
