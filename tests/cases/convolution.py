"""A convolution with its layout, by lax and by us, and operands of small integers."""

import dataclasses
import functools

from jax import lax

import jaxconv
from cases.reference import channels_last, cotangent, integers
from cases.tiles import has_three_passes


@dataclasses.dataclass(frozen=True)
class Convolution:
    lhs: tuple
    rhs: tuple
    params: dict

    def bound(self, conv, **more):
        return functools.partial(conv, **self.params, **more)

    def lax(self):
        return self.bound(lax.conv_general_dilated)

    def ours(self, implementation, result=None):
        precision = "highest" if has_three_passes(implementation) else None
        return self.bound(jaxconv.conv_general_dilated, implementation=implementation, preferred_element_type=result,
                          precision=precision)  # fmt: skip

    def operands(self, dtype="float32"):
        """x, w and a cotangent."""
        x, w = integers(self.lhs, dtype, 0), integers(self.rhs, dtype, 1)
        return x, w, cotangent(self.lax(), x, w)


def channels_last_convolution(lhs, rhs, **params):
    one = (1,) * (len(lhs) - 2)
    defaults = dict(window_strides=one, padding="SAME", lhs_dilation=one, rhs_dilation=one)
    return Convolution(lhs, rhs, defaults | params | dict(dimension_numbers=channels_last(len(one))))
