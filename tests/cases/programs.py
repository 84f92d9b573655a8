"""Compiled and exported programs."""

import jax
from jax import export

# The HLO instructions of a program that is calls of our kernels alone.
CALLS_ALONE = {"parameter", "constant", "custom-call", "tuple", "get-tuple-element", "bitcast"}


def results_and_kernels(function, *args):
    """Of a call on a GPU: what it gives, and the names of the kernels that it runs."""
    from jax.experimental.mosaic.gpu import profiler  # not for every platform

    results, kernels = profiler.measure(jax.jit(function), aggregate=False)(*args)
    return results, [name for name, _ in kernels]


def exported(function, *types, **options):
    """For arguments of these types. JAX vouches for the stability of its own custom calls only; ours must be named."""
    ours = [export.DisabledSafetyCheck.custom_call(f"jaxconv_{kind}") for kind in ("conv", "wgrad")]
    return export.export(jax.jit(function), disabled_checks=ours, **options)(*types)
