"""Compiled and exported programs."""

import jax
from jax import export

# The HLO instructions of a program that is calls of our kernels alone.
CALLS_ALONE = {"parameter", "constant", "custom-call", "tuple", "get-tuple-element", "bitcast"}


def exported(function, *types, **options):
    """For arguments of these types. JAX vouches for the stability of its own custom calls only; ours must be named."""
    ours = [export.DisabledSafetyCheck.custom_call(f"jaxconv_{kind}") for kind in ("conv", "wgrad")]
    return export.export(jax.jit(function), disabled_checks=ours, **options)(*types)
