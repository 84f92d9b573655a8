"""Which families are chosen, as the least of all options that can be named."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases.plans import constraints, device, factor
from cases.problems import EVERY_PASS, each_channel, halves, layer, passes_of
from cases.random_problems import problems, problems_of_channels, problems_of_vectors
from jaxconv.planner.choose import choose
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem.product import EpilogueKind

CHOSEN_FOR = {
    "narrow_groups": (
        "direct", halves((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), EVERY_PASS
    ),
    "stem": (
        "direct", halves((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), ("fprop", "wgrad")
    ),
    "to_an_image": ("direct", halves((2, 512, 512, 128), (3, 3, 128, 3)), EVERY_PASS),
    "latents": ("direct", halves((8, 64, 64, 4), (3, 3, 4, 320)), EVERY_PASS),
    "convnext": ("depthwise", each_channel((128, 56, 56, 128), (7, 7)), EVERY_PASS),
    "convnext_of_small_images": ("depthwise", each_channel((128, 7, 7, 1024), (7, 7)), EVERY_PASS),
    "depthwise_5x5": ("depthwise", each_channel((128, 28, 28, 240), (5, 5), "float16"), EVERY_PASS),
    "replknet": ("depthwise", each_channel((32, 56, 56, 128), (31, 31)), EVERY_PASS),
    "replknet_of_small_images": ("depthwise", each_channel((32, 14, 14, 512), (27, 27)), EVERY_PASS),
    "conformer": ("depthwise", each_channel((32, 1000, 512), (31,)), EVERY_PASS),
    "wide_windows": ("depthwise", each_channel((32, 56, 56, 128), (5, 51)), EVERY_PASS),
    "volume": ("depthwise", each_channel((8, 16, 56, 56, 128), (3, 3, 3)), EVERY_PASS),
    "volume_of_float32": ("depthwise", each_channel((4, 32, 32, 32, 64), (5, 5, 5), "float32"), EVERY_PASS),
    "replknet_of_float32": ("depthwise", each_channel((32, 56, 56, 128), (31, 31), "float32"), EVERY_PASS),
    "long_lines_of_float32": ("depthwise", each_channel((32, 1000, 512), (63,), "float32"), EVERY_PASS),
    "convnext_of_float32": ("depthwise", each_channel((128, 56, 56, 128), (7, 7), "float32"), EVERY_PASS),
    "transposed": (
        "depthwise", each_channel((32, 56, 56, 128), (4, 4), lhs_dilation=2, padding=2), EVERY_PASS[2:]
    ),
    "dilated_7x7": ("depthwise", each_channel((64, 56, 56, 64), (7, 7), rhs_dilation=3), EVERY_PASS),
    "dilated_lines": ("depthwise", each_channel((8, 3200, 512), (3,), "float32", rhs_dilation=128), EVERY_PASS),
    "strided_31x31": ("depthwise", each_channel((64, 56, 56, 128), (31, 31), window_strides=2), EVERY_PASS),
    "strided_7x7_of_float32": (
        "depthwise", each_channel((64, 56, 56, 128), (7, 7), "float32", window_strides=2), EVERY_PASS[1:]
    ),
    "strided_7x7_of_float32_forward": (
        "gather", each_channel((64, 56, 56, 128), (7, 7), "float32", window_strides=2), EVERY_PASS[:1]
    ),
    "narrow_groups_of_float32": (
        "direct", layer((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), EVERY_PASS[:2]
    ),
    "dense": ("wgmma", halves((128, 28, 28, 256), (3, 3, 256, 256)), EVERY_PASS),
    "dense_of_float16": ("wgmma", layer((128, 28, 28, 256), (3, 3, 256, 256), "float16"), EVERY_PASS),
    "dense_of_float32": ("wgmma", layer((128, 28, 28, 256), (3, 3, 256, 256)), EVERY_PASS),
    "dense_to_float32": ("wgmma", layer((128, 28, 28, 256), (3, 3, 256, 256), "bfloat16", "float32"), EVERY_PASS[:1]),
    "strided": ("wgmma", halves((128, 56, 56, 256), (3, 3, 256, 512), window_strides=2), EVERY_PASS),
    "dilated": ("wgmma", halves((16, 64, 64, 512), (3, 3, 512, 512), rhs_dilation=12), EVERY_PASS),
    "large_volume": ("wgmma", halves((4, 32, 56, 56, 128), (3, 3, 3, 128, 128)), EVERY_PASS),
}  # fmt: skip
NOT_CHOSEN_FOR = {
    "many_channels": ("direct", halves((32, 28, 28, 512), (3, 3, 512, 512)), EVERY_PASS),
    "float32": ("direct", layer((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), EVERY_PASS[2:]),
    "weights_of_a_stem": (
        "wgmma", halves((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), EVERY_PASS[2:]
    ),
    "twice_as_many": (
        "depthwise", halves((128, 56, 56, 64), (3, 3, 1, 128), feature_group_count=64), EVERY_PASS
    ),
}  # fmt: skip
EITHER = [(*case, cases is CHOSEN_FOR) for cases in (CHOSEN_FOR, NOT_CHOSEN_FOR) for case in cases.values()]


@pytest.mark.parametrize("family, problem, passes, is_chosen", EITHER, ids=[*CHOSEN_FOR, *NOT_CHOSEN_FOR])
def test_what_partial_families_are_chosen_for(family, problem, passes, is_chosen):
    for which in passes:
        choice = choose("cuda", *passes_of(problem)[which])
        assert (choice.plan.family == family) == is_chosen
        others = [factor(r) for r in choice.rejected if r.what.startswith(family) != is_chosen]
        assert all(times is None or times >= 1 for times in others)


# What is chosen of any problem.


@settings(max_examples=60, database=None)
@given(
    problems() | problems_of_vectors() | problems_of_channels(), st.sampled_from([1, 3, 132, 1000]),
    st.sampled_from([1e10, 4.9e12, 1e15]),
)  # fmt: skip
def test_the_choice_is_the_least_of_all_options(problem, multiprocessors, bandwidth):
    """An option can be named, with its tile and its transform. The others have reasons, each once."""
    asked = device(multiprocessors=multiprocessors, bandwidth=bandwidth)
    for kind, problem in passes_of(problem).values():
        if unsupported_reason(problem, kind) is not None:
            continue
        options = [choose("cuda", kind, problem, each, asked) for each in constraints(kind, problem).values()]
        choice = choose("cuda", kind, problem, device=asked)
        assert choice.cost == min(option.cost for option in options) < math.inf
        assert choice.plan in [option.plan for option in options if option.cost == choice.cost]
        dearer = [r.what for r in choice.rejected if factor(r)]
        assert len(set(dearer)) == len(dearer) == sum(option.plan is not None for option in options) - 1
        assert len(set(choice.rejected)) == len(choice.rejected)


# Images of the first have no columns left. The second has no output channels, the third no images.
WITHOUT_ELEMENTS = {
    ("conv", "columns"): lambda dtype: layer(
        (3, 3, 3, 3), (1, 4, 3, 5), dtype, lhs_dilation=(2, 1), padding=((1, 0), (0, 0))
    ),
    ("wgrad", "channels"): lambda dtype: layer((3, 4, 4, 4), (1, 1, 4, 0), dtype, padding=((3, -1), (1, 1))),
    ("wgrad", "images"): lambda dtype: layer((0, 4, 4, 8), (1, 1, 8, 8), dtype),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind, what", WITHOUT_ELEMENTS)
def test_what_has_no_elements_is_planned(kind, what, dtype):
    nothing = WITHOUT_ELEMENTS[kind, what](dtype)
    assert 0 in (*nothing.lhs_shape, *nothing.out_shape)
    for epilogue_kind in EpilogueKind if kind == "conv" else [EpilogueKind.NONE]:
        assert choose("cuda", kind, nothing, epilogue_kind=epilogue_kind).plan is not None


TOO_LARGE = {
    "does not fit 32 bits": lambda: layer((1, 4, 2**28, 4), (3, 1, 4, 4)),
    "or a coordinate 30": lambda: layer((1, 2**30, 1), (1, 1, 1)),
    "1,002,001 residue classes": lambda: layer((1, 2, 2, 1), (1, 1, 1, 1), lhs_dilation=1001, padding=500),
    "2^34 output positions": lambda: layer((2**20, 2**7, 2**7, 1), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("reason", TOO_LARGE)
@pytest.mark.parametrize("kind", ["conv", "wgrad"])
def test_what_is_too_large_is_refused(reason, kind):
    assert reason in unsupported_reason(TOO_LARGE[reason](), kind)
