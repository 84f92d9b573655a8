"""Convolutions with a bias, whose gradient the kernel of the filter's adds up, by family."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

import jaxconv
from cases.tiles import dtypes_of, has_pass
from jaxconv.fused import bias_gradient
from jaxconv.planner.families import FAMILIES
from jaxconv.traced import trace


@dataclasses.dataclass(frozen=True)
class WithBias:
    """Shapes are channels-last. A filter of fewer input channels than x has groups."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    more: dict = dataclasses.field(default_factory=dict)

    @property
    def conv(self):
        conv = {3: jaxconv.conv1d, 4: jaxconv.conv2d, 5: jaxconv.conv3d}[len(self.lhs)]
        more = {"feature_group_count": self.lhs[-1] // max(1, self.rhs[-2]), "padding": "SAME"} | self.more
        return functools.partial(conv, **more)

    def operands(self, dtype):
        """x, w, the bias, and a cotangent of small integers."""
        integers = lambda seed, shape: jax.random.randint(jax.random.key(seed), shape, -2, 3).astype(dtype)
        x, w = integers(0, self.lhs), integers(1, self.rhs)
        return x, w, jnp.zeros(self.rhs[-1], jnp.float32), integers(2, jax.eval_shape(self.conv, x, w).shape)

    def gradients(self, asked, x, w, bias, g):
        """Of the filter and the bias."""
        return jax.vjp(lambda w, bias: self.conv(x, w, bias=bias, implementation=asked), w, bias)[1](g)

    def problem(self, dtype):
        shapes = jax.eval_shape(functools.partial(self.operands, dtype))
        equations = trace(functools.partial(self.gradients, None), *shapes).equations
        (both,) = (equation.params for equation in equations if equation.primitive is bias_gradient.PRIMITIVE)
        return both["problem"]

    def is_one_kernel(self, asked, dtype):
        return bias_gradient.planned("cuda", self.problem(dtype), asked) is not None


CASES = {
    "wgmma": {
        "3x3": WithBias((3, 13, 17, 72), (3, 3, 72, 200)),
        "1x1": WithBias((2, 31, 9, 136), (1, 1, 136, 328)),
        "strided": WithBias((2, 19, 23, 64), (3, 3, 64, 136), {"window_strides": 2}),
        "line": WithBias((4, 300, 64), (5, 64, 72)),
        "many_tiles": WithBias((2, 304, 520), (15, 520, 1032)),
        "groups": WithBias((2, 16, 16, 256), (3, 3, 128, 512)),
        "groups_apart": WithBias((2, 16, 16, 128), (3, 3, 64, 144)),
        "volume": WithBias((2, 5, 9, 7, 64), (3, 3, 3, 64, 72)),
    },
    "depthwise": {
        "3x3": WithBias((3, 13, 17, 72), (3, 3, 1, 72)),
        "whole_windows": WithBias((3, 23, 17, 64), (3, 3, 1, 64), {"padding": "VALID"}),
        "padded_above": WithBias((2, 21, 9, 64), (3, 3, 1, 64), {"padding": ((2, 0), (0, 2))}),
        "5x5": WithBias((3, 16, 18, 64), (5, 5, 1, 64)),
        "7x7": WithBias((2, 19, 40, 40), (7, 7, 1, 40)),
        "7x7_of_14": WithBias((5, 14, 14, 64), (7, 7, 1, 64)),
        "7x7_of_7": WithBias((37, 7, 7, 96), (7, 7, 1, 96)),
        "7x7_of_5": WithBias((9, 12, 5, 32), (7, 7, 1, 32)),
        "dilated": WithBias((2, 21, 20, 64), (3, 3, 1, 64), {"rhs_dilation": 2}),
        "line": WithBias((3, 300, 64), (5, 1, 64)),
        "long_line": WithBias((3, 300, 64), (31, 1, 64)),
        "volume": WithBias((2, 5, 9, 11, 64), (3, 3, 3, 1, 64)),
    },
    "direct": {
        "stem": WithBias((3, 37, 48, 3), (7, 7, 3, 64), {"window_strides": 2}),
        "first": WithBias((2, 20, 32, 3), (3, 3, 3, 64)),
        "patches": WithBias((2, 32, 48, 3), (4, 4, 3, 96), {"window_strides": 4}),
        "3x3_of_8": WithBias((2, 17, 19, 8), (3, 3, 8, 16)),
        "3x3_of_16": WithBias((3, 18, 35, 16), (3, 3, 16, 40)),
        "5x5_of_8": WithBias((2, 20, 20, 8), (5, 5, 8, 8)),
        "parts": WithBias((2, 12, 12, 64), (3, 3, 64, 16)),
        "groups_of_4": WithBias((2, 14, 15, 64), (3, 3, 4, 64)),
        "groups_of_16": WithBias((2, 14, 15, 64), (3, 3, 16, 128)),
        "dilated": WithBias((2, 20, 20, 16), (3, 3, 16, 16), {"rhs_dilation": 2}),
        "line": WithBias((3, 300, 16), (5, 16, 32)),
        "volume": WithBias((2, 5, 9, 7, 8), (3, 3, 3, 8, 16)),
    },
    "mma": {
        "3x3": WithBias((3, 13, 17, 72), (3, 3, 72, 200)),
        "odd_channels": WithBias((2, 11, 9, 5), (3, 3, 5, 19)),
        "strided": WithBias((2, 19, 23, 64), (3, 3, 64, 136), {"window_strides": 2}),
        "far_taps": WithBias((2, 20, 20, 32), (3, 3, 32, 40), {"rhs_dilation": 12}),
        "line": WithBias((4, 300, 16), (5, 16, 24)),
        "groups": WithBias((2, 16, 16, 96), (3, 3, 24, 160)),
        "volume": WithBias((2, 5, 9, 7, 16), (3, 3, 3, 16, 72)),
    },
}  # fmt: skip

# Problems that are transformed: what is added to the output is zeros.
TRANSFORMED = {
    "padded_groups": WithBias((16, 40, 40, 54), (3, 3, 1, 54)),
    "padded_channels": WithBias((3, 33, 37, 30), (3, 3, 30, 50)),
    "packed_columns": WithBias((8, 111, 113, 3), (7, 7, 3, 64), {"window_strides": 2}),
    "patches": WithBias((2, 64, 64, 3), (16, 16, 3, 72), {"window_strides": 16}),
    "volumes_as_images": WithBias((8, 16, 28, 28, 96), (5, 1, 1, 1, 96), {"window_strides": (1, 2, 2)}),
}

# The tiles that add up gradients, with their types.
SUMMING = [
    (family, tile, dtype)
    for family in CASES for tile in FAMILIES["cuda"][family].tiles for dtype in ("bfloat16", "float16")
    if has_pass(tile, "wgrad") and dtype in dtypes_of(family, tile) and tile.fields.get("sums_gradient", True)
]  # fmt: skip
