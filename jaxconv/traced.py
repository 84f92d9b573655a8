"""The convolutions of a function, which is traced, not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval

from jaxconv.fused import bias_gradient
from jaxconv.fused import primitive as fused
from jaxconv.fused.call import Call
from jaxconv.fused.lowering import planned
from jaxconv.install import Pass, our_pass
from jaxconv.primitives import PRIMITIVES
from jaxconv.sharding.block import apart_on_one_device, of_one_device
from jaxconv.tuning.file import NOTHING, Tuning

KINDS = {primitive: kind for kind, primitive in PRIMITIVES.items()} | {bias_gradient.PRIMITIVE: "wgrad"}


class Traced(NamedTuple):
    """equations: those of our primitives and of lax's convolution that the results need, as often as they are written.

    device: the `jax.Device` of committed arrays, else the default one.
    """

    equations: list[JaxprEqn]
    device: Any

    @property
    def platform(self) -> str | None:
        """The device's; None if it has no native kernels."""
        return {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu"}.get(self.device.platform)


def trace(fn: Callable, *args: Any, **kwargs: Any) -> Traced:
    """The convolutions of `fn(*args, **kwargs)`. Arrays may be `jax.ShapeDtypeStruct`s; other arguments are static."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = {index: leaf for index, leaf in enumerate(leaves) if _is_array(leaf)}

    def of_arrays(arrays: dict[int, Any]) -> Any:
        args, kwargs = jax.tree.unflatten(tree, (arrays.get(index, leaf) for index, leaf in enumerate(leaves)))
        return fn(*args, **kwargs)

    jaxpr = jax.make_jaxpr(of_arrays)(arrays).jaxpr
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return Traced(list(_convolutions(needed)), _device(arrays))


def pass_of(equation: JaxprEqn, platform: str | None, tuning: Tuning = NOTHING) -> Pass | None:
    """What an equation is for us, where nothing is split; None: it is left to lax. tuning: the measured plans."""
    if equation.primitive in KINDS:
        kind, whole = KINDS[equation.primitive], equation.params["problem"]
        apart = apart_on_one_device(whole) if kind == "conv" else None
        return Pass(kind, of_one_device(whole), equation.params["implementation"], apart=apart)
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    if equation.primitive is fused.PRIMITIVE:
        call = Call(**equation.params)
        if planned(platform, call, avals[:-1], tuning)[1] is not None:
            ended = call.epilogue.ended(call.problem)
            return Pass("conv", ended, call.implementation, " with its epilogue", call.epilogue_kind)
        problem, then = of_one_device(call.of_sums), ", then its epilogue by XLA,"
        return Pass("conv", problem, call.implementation, then, apart=apart_on_one_device(call.of_sums))
    return our_pass(platform, equation.ctx, avals, equation.params)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)


def _device(arrays: dict[int, Any]) -> Any:
    concrete = (a for a in arrays.values() if isinstance(a, jax.Array) and not isinstance(a, Tracer))
    committed = next((device for a in concrete if a.committed for device in a.devices()), None)
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue] (JAX adds its options)
    if isinstance(default, str):  # a platform
        default = jax.local_devices(backend=default)[0]
    return committed or default or jax.devices()[0]


def _convolutions(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Also those inside loops, branches and calls."""
    for equation in jaxpr.eqns:
        are_sums = equation.params.get("results") == ("bias",)  # of bias_gradient, without a convolution
        if equation.primitive in (*KINDS, fused.PRIMITIVE, lax.conv_general_dilated_p) and not are_sums:
            yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda p: isinstance(p, ClosedJaxpr | Jaxpr)):
            if isinstance(parameter, ClosedJaxpr):
                parameter = parameter.jaxpr
            if isinstance(parameter, Jaxpr):
                yield from _convolutions(parameter)
