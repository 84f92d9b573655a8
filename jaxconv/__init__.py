"""Convolutions for JAX on the project's own kernels, in place of `jax.lax.conv_general_dilated`."""

from jaxconv import activations
from jaxconv.api import conv1d, conv2d, conv3d, conv_general_dilated, conv_transpose, fused_conv_general_dilated
from jaxconv.blocks import from_nchw32, to_nchw32
from jaxconv.explain import explain
from jaxconv.fallback import FallbackWarning
from jaxconv.filters import PreparedFilter, prepare_filter
from jaxconv.install import install, uninstall
from jaxconv.tuning.autotune import autotune
from jaxconv.tuning.loaded import load_tuning

__all__ = [
    "FallbackWarning",
    "PreparedFilter",
    "activations",
    "autotune",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_general_dilated",
    "conv_transpose",
    "explain",
    "from_nchw32",
    "fused_conv_general_dilated",
    "install",
    "load_tuning",
    "prepare_filter",
    "to_nchw32",
    "uninstall",
]
