"""The activations that a convolution may end with, as frozen values.

Each is a function of float32 or float64 numbers, and hands NaNs on. Kernels know three forms, of three numbers each:
  "piecewise" (slope, low, high): z, below zero slope * z, then clipped to [low, high].
  "sigmoid" (a, b, 0): z * sigmoid(z * (a + b * z * z)).
  "hard_sigmoid" (0, 0, 0): z * clip(z + 3, 0, 6) / 6.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

KernelForm = tuple[str, tuple[float, float, float]]


def _number(what: str, value: Any) -> float:
    """The value as a float: kernels take no arrays."""
    try:
        number = float(value)
    except (TypeError, ValueError, jax.errors.ConcretizationTypeError) as e:
        raise TypeError(f"{what} must be a number known while tracing, got {value!r}") from e
    if math.isnan(number):
        raise ValueError(f"{what} must be a number, got {number}")
    return number


@dataclasses.dataclass(frozen=True)
class Activation:
    """What all have in common."""

    def derivative_from_result(self, dtype: np.dtype) -> bool:
        """Whether `backward` has the derivative from a result of this dtype: then nothing else need be kept for it."""
        return False

    def __call__(self, z: Array) -> Array:
        raise NotImplementedError

    def backward(self, y: Array, dy: Array) -> Array:
        """The cotangent (or tangent) dy of the result y, times the derivative."""
        raise NotImplementedError

    def kernel_form(self) -> KernelForm:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Masking(Activation):
    """Those whose derivative is 0 or 1: so a cotangent needs no wider dtype behind it."""

    def mask(self, z: Array) -> Array:
        """Where the derivative is 1, by what the activation is applied to or by its result."""
        raise NotImplementedError

    def backward(self, y: Array, dy: Array) -> Array:
        return jnp.where(self.mask(y), dy, 0)


@dataclasses.dataclass(frozen=True)
class Relu(Masking):
    """max(z, 0). The derivative at 0 is 0, as that of `jax.nn.relu`."""

    def derivative_from_result(self, dtype: np.dtype) -> bool:
        return True

    def __call__(self, z: Array) -> Array:
        return jax.nn.relu(z)

    def mask(self, z: Array) -> Array:
        return z > 0

    def kernel_form(self) -> KernelForm:
        return "piecewise", (1.0, 0.0, math.inf)


@dataclasses.dataclass(frozen=True)
class LeakyRelu(Activation):
    """z, below zero slope * z. The derivative at -0 is the slope: a small result is rounded to it."""

    slope: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", _number("LeakyRelu: slope", self.slope))
        if math.isinf(self.slope):
            raise ValueError(f"LeakyRelu: slope must be finite, got {self.slope}")

    def derivative_from_result(self, dtype: np.dtype) -> bool:
        return self.slope > 0

    def __call__(self, z: Array) -> Array:
        # A sum of zero times a negative scale is -0, and no negative number. XLA would fold z + 0.
        zero = jax.lax.stop_gradient(jnp.where(z == 0, -z, 0))
        return jax.nn.leaky_relu(z + zero, self.slope)

    def backward(self, y: Array, dy: Array) -> Array:
        return jnp.where(jnp.signbit(y), self.slope * dy, dy)  # what is rounded to -0 was negative

    def kernel_form(self) -> KernelForm:
        return "piecewise", (self.slope, -math.inf, math.inf)


@dataclasses.dataclass(frozen=True)
class Clip(Masking):
    """z, clipped to [low, high]. The derivative at both ends is 0, as that of `jax.nn.relu6`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", _number("Clip: low", self.low))
        object.__setattr__(self, "high", _number("Clip: high", self.high))
        if self.low > self.high:
            raise ValueError(f"Clip: low must be at most high, got {self.low} and {self.high}")

    def derivative_from_result(self, dtype: np.dtype) -> bool:
        """Where both ends are numbers of the dtype: only what is clipped, or rounded to an end, is one of them."""
        with np.errstate(over="ignore"):
            return all(float(dtype.type(end)) == end for end in (self.low, self.high))

    def __call__(self, z: Array) -> Array:
        return jnp.where(z <= self.low, self.low, jnp.where(z >= self.high, self.high, z))

    def mask(self, z: Array) -> Array:
        return ~((z <= self.low) | (z >= self.high))

    def kernel_form(self) -> KernelForm:
        return "piecewise", (1.0, self.low, self.high)


@dataclasses.dataclass(frozen=True)
class Silu(Activation):
    """z * sigmoid(z)."""

    def __call__(self, z: Array) -> Array:
        return jax.nn.silu(z)

    def kernel_form(self) -> KernelForm:
        return "sigmoid", (1.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Gelu(Activation):
    """The tanh form: (1 + tanh(t)) / 2 is sigmoid(2 t)."""

    def __call__(self, z: Array) -> Array:
        return jax.nn.gelu(z, approximate=True)

    def kernel_form(self) -> KernelForm:
        linear = 2 * math.sqrt(2 / math.pi)
        return "sigmoid", (linear, linear * 0.044715, 0.0)


@dataclasses.dataclass(frozen=True)
class HardSwish(Activation):
    """z * clip(z + 3, 0, 6) / 6."""

    def __call__(self, z: Array) -> Array:
        return jax.nn.hard_swish(z)

    def kernel_form(self) -> KernelForm:
        return "hard_sigmoid", (0.0, 0.0, 0.0)


NAMED: dict[str, Activation] = {
    "relu": Relu(),
    "relu6": Clip(0.0, 6.0),
    "leaky_relu": LeakyRelu(),
    "gelu": Gelu(),
    "silu": Silu(),
    "hard_swish": HardSwish(),
}


def activation_of(value: Any) -> Activation | None:
    """The activation that an argument is or names. Kernels know no others."""
    if value is None or type(value) in {type(activation) for activation in NAMED.values()}:
        return value
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]
    names = ", ".join(map(repr, NAMED))
    raise ValueError(
        f"activation must be None, one of {names}, or a value such as jaxconv.activations.Clip(low, high) or "
        f"LeakyRelu(slope), got {value!r}"
    )
