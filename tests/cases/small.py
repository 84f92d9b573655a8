"""A small, named list of convolutions that several test modules walk through, channels last."""

import functools
from dataclasses import dataclass, field

from jax import lax

import jaxconv
from cases import reference
from cases.parts import repeated


@dataclass(frozen=True)
class Case:
    name: str
    lhs: tuple  # (batch, *spatial, channels)
    rhs: tuple  # (*spatial, channels in per group, channels out)
    params: dict = field(default_factory=dict, hash=False)

    @property
    def rank(self):
        return len(self.lhs) - 2

    def __str__(self):
        return self.name

    def operands(self, dtype="float32", seed=0):
        return reference.integers(self.lhs, dtype, seed), reference.integers(self.rhs, dtype, seed + 1)

    def _general(self, conv, **extra):
        one = (1,) * self.rank
        params = {"window_strides": one, "padding": "SAME", "lhs_dilation": one, "rhs_dilation": one} | self.params
        return functools.partial(conv, dimension_numbers=reference.channels_last(self.rank), **params, **extra)

    def lax(self):
        """The convolution `(x, w) -> y` that the others are compared with."""
        return self._general(lax.conv_general_dilated)

    def general(self, implementation):
        return self._general(jaxconv.conv_general_dilated, implementation=implementation)

    def front_door(self, implementation):
        conv = getattr(jaxconv, f"conv{self.rank}d")
        return functools.partial(conv, **self.params, implementation=implementation)


CASES = [
    Case("dense", (2, 5, 4, 3), (3, 2, 3, 4)),
    Case("valid", (2, 5, 4, 4), (2, 3, 4, 2), {"padding": "VALID"}),
    Case("strided", (2, 7, 6, 2), (3, 3, 2, 3), {"window_strides": (2, 3)}),
    Case("lhs_dilated", (2, 3, 4, 2), (3, 2, 2, 3), {"lhs_dilation": (2, 3), "padding": ((1, 2), (0, 1))}),
    Case("rhs_dilated", (2, 6, 5, 2), (3, 2, 2, 3), {"rhs_dilation": (2, 3), "padding": "SAME_LOWER"}),
    Case(
        "strided_lhs_dilated",
        (1, 4, 3, 2),
        (3, 4, 2, 3),
        {"window_strides": (2, 4), "lhs_dilation": (3, 6), "padding": ((2, 0), (1, 3))},
    ),
    Case("grouped", (2, 4, 3, 6), (3, 3, 2, 9), {"feature_group_count": 3}),
    Case("depthwise", (2, 4, 3, 5), (3, 3, 1, 5), {"feature_group_count": 5}),
    Case("depthwise_multiplier", (2, 3, 4, 3), (2, 3, 1, 6), {"feature_group_count": 3, "window_strides": (1, 2)}),
    Case("causal", (2, 9, 3), (3, 3, 4), {"rhs_dilation": (2,), "padding": ((4, 0),)}),
    Case("volume", (2, 3, 4, 3, 2), (2, 3, 2, 2, 3), {"window_strides": (1, 2, 1)}),
    Case("negative_padding", (2, 7, 6, 2), (2, 3, 2, 3), {"padding": ((-1, 2), (1, -2))}),
    Case("odd_channels", (3, 3, 3, 7), (3, 3, 7, 11)),
]
BATCH_GROUPS = Case("batch_groups", (4, 4, 3, 3), (3, 2, 3, 6), {"batch_group_count": 2})

ENTRIES = ("front_door", "general")  # conv1d/2d/3d (jax.custom_vjp functions), conv_general_dilated
BY_ENTRY = [(case, entry) for case in CASES for entry in ENTRIES] + [(BATCH_GROUPS, "general")]
GENERAL = [*CASES, BATCH_GROUPS]
# Each case by one of the entries, in turns; by the other one in the full run.
BY_ENTRIES_IN_TURNS = [
    (case, entry) if entry == ENTRIES[n % 2] else repeated(case, entry)
    for n, case in enumerate(CASES)
    for entry in ENTRIES
]


def named(name):
    return next(case for case in GENERAL if case.name == name)
