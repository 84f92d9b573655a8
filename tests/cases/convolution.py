"""A convolution with its layout, by lax and by us, and operands of small integers."""

import dataclasses
import functools

from jax import lax

import jaxconv
from cases.reference import channels_last, cotangent, integers
from cases.tiles import is_for_highest

BY_TWO, DOUBLED = dict(window_strides=(2, 2)), dict(lhs_dilation=(2, 2))


def ours(implementation):
    """The function of all layouts."""
    return functools.partial(jaxconv.conv_general_dilated, implementation=implementation)


@dataclasses.dataclass(frozen=True)
class Convolution:
    lhs: tuple
    rhs: tuple
    params: dict

    def bound(self, conv, **more):
        return functools.partial(conv, **self.params, **more)

    def lax(self):
        return self.bound(lax.conv_general_dilated)

    def lax_for(self, implementation):
        """At the precision that an implementation's tile is for."""
        return self.bound(lax.conv_general_dilated, precision=_precision(implementation))

    def ours(self, implementation, result=None):
        return self.bound(jaxconv.conv_general_dilated, implementation=implementation, preferred_element_type=result,
                          precision=_precision(implementation))  # fmt: skip

    def operands(self, dtype="float32"):
        """x, w and a cotangent."""
        x, w = integers(self.lhs, dtype, 0), integers(self.rhs, dtype, 1)
        return x, w, cotangent(self.lax(), x, w)


def _precision(implementation):
    return "highest" if is_for_highest(implementation) else None


def channels_last_convolution(lhs, rhs, **params):
    one = (1,) * (len(lhs) - 2)
    defaults = dict(window_strides=one, padding="SAME", lhs_dilation=one, rhs_dilation=one)
    return Convolution(lhs, rhs, defaults | params | dict(dimension_numbers=channels_last(len(one))))


def depthwise_convolution(lhs, kernel, times=1, **params):
    """Each channel on its own, with so many results."""
    return channels_last_convolution(lhs, (*kernel, 1, times * lhs[-1]), feature_group_count=lhs[-1], **params)
