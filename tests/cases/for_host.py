"""What the host's families are tested with: sizes where their blocks, vectors and words end."""

import contextlib
import functools

import jax
import pytest

import jaxconv
from cases.convolution import Convolution, channels_last_convolution
from cases.reference import assert_same
from jaxconv import _cpu

GEMM = {
    "dense": channels_last_convolution((2, 9, 8, 17), (3, 3, 17, 33)),
    "one": channels_last_convolution((2, 5, 7, 1), (3, 3, 1, 1)),
    "few_outputs": channels_last_convolution((1, 70, 60, 24), (5, 5, 24, 3)),
    "few_inputs": channels_last_convolution((2, 33, 31, 3), (7, 7, 3, 20), window_strides=(2, 2)),
    "deep": channels_last_convolution((1, 4, 5, 600), (2, 2, 600, 40)),
    "wide": channels_last_convolution((1, 3, 4, 5), (1, 1, 5, 700)),
    "groups": channels_last_convolution((2, 5, 6, 15), (3, 3, 5, 21), feature_group_count=3),
    "batch_groups": channels_last_convolution((6, 5, 6, 4), (3, 3, 4, 9), batch_group_count=3),
    "classes_without_taps": channels_last_convolution(
        (2, 6, 5, 17), (2, 1, 17, 19), lhs_dilation=(3, 2), padding=((1, 3), (2, 1))),
    "patches_apart": channels_last_convolution((2, 11, 9, 6), (2, 1, 6, 18), window_strides=(3, 2), padding="VALID"),
    "out_of_reach": channels_last_convolution((1, 3, 3, 4), (2, 2, 4, 5), padding=((9, 9), (9, 9))),
    "line": channels_last_convolution((3, 70, 6), (5, 6, 2)),
    "volume": channels_last_convolution((2, 5, 4, 6, 7), (3, 2, 3, 7, 18)),
}  # fmt: skip
DEPTHWISE = {
    "channels": channels_last_convolution((2, 6, 9, 33), (3, 3, 1, 33), feature_group_count=33),
    "fewer_than_lanes": channels_last_convolution((2, 6, 70, 3), (3, 3, 1, 3), feature_group_count=3),
    "multiplier": channels_last_convolution((2, 6, 9, 17), (3, 3, 1, 34), feature_group_count=17),
    "classes_without_taps": channels_last_convolution(
        (2, 5, 6, 18), (2, 1, 1, 18), lhs_dilation=(3, 2), padding=((1, 3), (2, 1)), feature_group_count=18),
    "patches_apart": channels_last_convolution(
        (2, 11, 9, 16), (2, 1, 1, 16), window_strides=(3, 2), padding="VALID", feature_group_count=16),
    "batch_groups": channels_last_convolution((6, 5, 6, 1), (3, 3, 1, 6), batch_group_count=6),
}  # fmt: skip
conv2d = functools.partial(jaxconv.conv2d, implementation="cpu")
FAMILIES = {"gemm": GEMM, "depthwise": DEPTHWISE}
CASES = [(family, name) for family, convolutions in FAMILIES.items() for name in convolutions]
EACH = pytest.mark.parametrize("family, name", CASES)


@contextlib.contextmanager
def instruction_set(name):
    """Kernels are those for an older instruction set within this."""
    _cpu.use_instruction_set(name)
    try:
        yield
    finally:
        _cpu.use_instruction_set(_cpu.instruction_sets()[-1])


def channels_first(convolution):
    """The same with NCHW and OIHW."""
    rank = len(convolution.lhs) - 2
    spatial = "DHW"[3 - rank :]
    lhs, rhs = convolution.lhs, convolution.rhs
    layouts = dict(dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"))
    return Convolution((lhs[0], lhs[-1], *lhs[1:-1]), (rhs[-1], rhs[-2], *rhs[:-2]), convolution.params | layouts)


def named(family, name, first=False):
    """One of the families' convolutions; with channels first if asked."""
    convolution = FAMILIES[family][name]
    return channels_first(convolution) if first else convolution


def check_by_every_instruction_set(function, arrays, expected):
    """One program: which kernels run is decided when they are called."""
    program = jax.jit(function)
    for name in _cpu.instruction_sets():
        with instruction_set(name):
            actual = jax.block_until_ready(program(arrays))
        try:
            assert_same(actual, expected)
        except AssertionError as error:
            error.add_note(name)
            raise
