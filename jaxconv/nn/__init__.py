"""Layers for flax, whose bias, activation and residual are fused into the convolution: `nn.linen` and `nn.nnx`."""

try:
    import flax
except ImportError as error:
    raise ImportError("jaxconv.nn needs flax: pip install 'jaxconv[nn]'") from error

from jaxconv.nn import linen, nnx

__all__ = ["linen", "nnx"]
