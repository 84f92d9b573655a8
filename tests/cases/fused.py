"""Convolutions with epilogues, by us and by lax and jax.numpy. Operands are small integers and powers of two."""

import dataclasses
import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxconv
from cases.reference import channels_last, integers
from jaxconv.activations import Clip, LeakyRelu

EVERY = ("scale", "bias", "residual", "residual_scale")
# By name: what our functions take, and the function that it stands for.
ACTIVATIONS = {
    "none": (None, lambda z: z),
    "relu": ("relu", jax.nn.relu),
    "relu6": ("relu6", jax.nn.relu6),
    "clip": (Clip(-2, 3), lambda z: jnp.where(z <= -2, -2, jnp.where(z >= 3, 3, z))),
    "leaky": (LeakyRelu(0.25), lambda z: jax.nn.leaky_relu(z, 0.25)),
    "silu": ("silu", jax.nn.silu),
    "gelu": ("gelu", lambda z: jax.nn.gelu(z, approximate=True)),
    "hard_swish": ("hard_swish", jax.nn.hard_swish),
}
EXACT = ("none", "relu", "relu6", "clip", "leaky")
SMOOTH = ("silu", "gelu", "hard_swish")


@dataclass(frozen=True)
class Fused:
    """operands: the names of those of the epilogue. scalars: those that are one number, not one for each channel."""

    lhs: tuple
    rhs: tuple
    params: dict = field(hash=False)
    operands: tuple = EVERY
    scalars: tuple = ()
    activation: str = "relu"

    def __str__(self):
        return "_".join([*self.operands, *self.scalars, self.activation])

    def with_activation(self, activation):
        return dataclasses.replace(self, activation=activation)

    def conv(self):
        return functools.partial(lax.conv_general_dilated, **self.params)

    def ours(self, implementation, **more):
        """`(x, w, *operands) -> y`."""

        def function(x, w, *operands):
            given = dict(zip(self.operands, operands, strict=True)) | dict(activation=ACTIVATIONS[self.activation][0])
            conv = functools.partial(jaxconv.fused_conv_general_dilated, **self.params)
            return conv(x, w, **given, **more, implementation=implementation)

        return function

    def theirs(self):
        """The same from lax's convolution, in the dtype of that."""

        def function(x, w, *operands):
            y, given = self.conv()(x, w), dict(zip(self.operands, operands, strict=True))
            if "scale" in given:
                y = self._of_channels(given["scale"], y.ndim) * y
            if "bias" in given:
                y = y + self._of_channels(given["bias"], y.ndim)
            if "residual" in given:
                y = y + given.get("residual_scale", 1) * given["residual"].astype(y.dtype)
            return ACTIVATIONS[self.activation][1](y)

        return function

    def _of_channels(self, numbers, rank):
        if jnp.ndim(numbers) == 0:
            return numbers
        layout = self.params["dimension_numbers"]
        axis = layout.out_spec[1] if isinstance(layout, lax.ConvDimensionNumbers) else layout[2].index("C")
        return jnp.expand_dims(numbers, [i for i in range(rank) if i != axis])

    def arrays(self, dtype="float32", residual_dtype=None, bound=2):
        """x, w, and the operands of the epilogue: float32, the residual of x's dtype or another one."""
        x, w = integers(self.lhs, dtype, 0, bound), integers(self.rhs, dtype, 1, bound)
        y = jax.eval_shape(self.conv(), x, w).shape
        channels = self.channels(len(y))
        powers = 2.0 ** integers((channels,), "float32", 3, 1) * np.where(np.arange(channels) % 3 == 1, -1, 1)
        values = {
            "scale": np.float32(-2) if "scale" in self.scalars else powers.astype("float32"),
            "bias": np.float32(3) if "bias" in self.scalars else integers((channels,), "float32", 4, 9),
            "residual": integers(y, residual_dtype or dtype, 5, 4),
            "residual_scale": np.float32(0.5),
        }
        return x, w, *(values[name] for name in self.operands)

    def channels(self, rank):
        layout = self.params["dimension_numbers"]
        axis = layout.rhs_spec[0] if isinstance(layout, lax.ConvDimensionNumbers) else layout[1].index("O")
        return self.rhs[axis]


def channels_last_fused(lhs, rhs, operands=EVERY, scalars=(), activation="relu", **params):
    rank = len(lhs) - 2
    defaults = dict(window_strides=(1,) * rank, padding="SAME", dimension_numbers=channels_last(rank))
    return Fused(lhs, rhs, defaults | params, operands, scalars, activation)


CASES = {
    "dense": channels_last_fused((2, 5, 4, 3), (3, 2, 3, 4)),
    "strided": channels_last_fused((2, 7, 6, 2), (3, 3, 2, 3), ("scale", "bias"), window_strides=(2, 3)),
    "dilated": channels_last_fused(
        (2, 3, 4, 2), (3, 2, 2, 3), ("bias", "residual"), lhs_dilation=(2, 3), padding=((1, 2), (0, 1))
    ),
    "grouped": channels_last_fused((2, 4, 3, 6), (3, 3, 2, 9), feature_group_count=3),
    "depthwise": channels_last_fused((2, 4, 3, 5), (3, 3, 1, 5), ("bias",), feature_group_count=5),
    "multiplier": channels_last_fused((2, 3, 4, 3), (2, 3, 1, 6), ("scale", "residual"), feature_group_count=3),
    "batch_groups": channels_last_fused((4, 4, 3, 3), (3, 2, 3, 6), batch_group_count=2),
    "scalars": channels_last_fused((2, 5, 4, 3), (3, 2, 3, 4), scalars=("scale", "bias")),
    "activation_alone": channels_last_fused((2, 9, 3), (3, 3, 4), ()),
    "volume": channels_last_fused((2, 3, 4, 3, 2), (2, 3, 2, 2, 3), ("scale", "bias", "residual")),
    "channels_first": Fused(
        (2, 3, 5, 4), (6, 3, 3, 2),
        dict(window_strides=(2, 1), padding="SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")),
    ),
    "channels_outermost": Fused(
        (3, 5, 4, 2), (3, 3, 6, 2),
        dict(window_strides=(1, 1), padding="SAME", dimension_numbers=("CHWN", "IHOW", "HWCN")),
    ),
    "out_of_reach": channels_last_fused((1, 3, 3, 4), (2, 2, 4, 5), padding=((9, 9), (9, 9))),
    "no_images": channels_last_fused((0, 3, 3, 4), (2, 2, 4, 5)),
    "no_input_channels": channels_last_fused((2, 3, 3, 0), (2, 2, 0, 5)),
}  # fmt: skip


def pullback(function):
    """`(arrays, g) -> (y, all gradients)`."""

    def forward_and_transposes(arrays, g):
        y, vjp = jax.vjp(function, *arrays)
        return y, vjp(g)

    return forward_and_transposes


def cotangent(case, arrays):
    y = jax.eval_shape(case.theirs(), *arrays)
    return integers(y.shape, y.dtype, 9)
