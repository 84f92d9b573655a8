"""What the families that take only some problems refuse, with reasons; output tiles and batches of the others."""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
from jax import export, lax

from cases.plans import CUDA, PARTIAL, as_it_is, plan_of, tile_of
from cases.problems import (
    CONV_PASSES,
    EVERY_PASS,
    LAYERS,
    PASSES,
    VECTORS,
    channels_first,
    each_channel,
    halves,
    layer,
    of_layouts,
    passes_of,
    problem_of,
)
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint

GROUPED = halves((2, 20, 20, 32), (2, 2, 8, 32), feature_group_count=4)
EACH = each_channel((2, 20, 20, 32), (3, 3))
ROWS = each_channel((2, 20, 100, 8), (1, 4))
TURNED = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 1, 0), (0, 3, 1, 2))  # NHWC, WHIO
FROM_FEW = ("fprop", "wgrad")
REFUSED = {
    "direct": {
        "float32": (
            layer((2, 20, 20, 64), (3, 3, 64, 64)), {}, EVERY_PASS,
            "more than 32 channels|filter does not fit into registers|float32"
        ),
        "float32_itself": (
            layer((2, 20, 20, 16), (3, 3, 16, 16), precision=lax.DotAlgorithmPreset.F32_F32_F32), {}, EVERY_PASS,
            "multiplied as it is|operands of float32",
        ),
        "two_types": (
            layer((2, 20, 20, 16), (3, 3, 16, 16), "bfloat16", "float32"), {}, EVERY_PASS[1:], "two types"
        ),
        "channels_first": (channels_first((2, 16, 20, 20), (16, 16, 3, 3)), {}, EVERY_PASS, "last"),
        "too_many_columns": (
            halves((2, 20, 20, 64), (3, 3, 64, 5)), {}, EVERY_PASS[:1],
            r"vectors of [28]$|N would be 45 \(tap, output channel\)s"
        ),
        "large_halo_tile": (
            halves((2, 20, 20, 64), (3, 3, 64, 3)), dict(output_tile=(20, 24)), EVERY_PASS[:1],
            r"vectors of [28]$|halo tile has more pixels"
        ),
        "part_of_a_vector": (halves((2, 20, 20, 12), (3, 3, 12, 12)), {}, EVERY_PASS, "vectors of 8$"),
        "rows_of_parts": (halves((2, 20, 21, 4), (3, 3, 4, 24)), {}, FROM_FEW, "whole 16-byte vectors|vectors of 8$"),
        "dilated_rows": (
            halves((2, 20, 24, 4), (3, 3, 4, 16), rhs_dilation=(1, 2)), {}, FROM_FEW, "neighbours|vectors of 8$",
        ),
        "wide_groups": (
            halves((2, 20, 20, 192), (3, 3, 96, 192), feature_group_count=2), {}, EVERY_PASS, "96 channels"
        ),
        "groups_of_images": (
            halves((4, 20, 20, 16), (3, 3, 16, 16), batch_group_count=2), {}, EVERY_PASS, "images"
        ),
        "dilated_input": (
            halves((2, 20, 20, 16), (2, 2, 16, 16), lhs_dilation=2, padding=1), {}, EVERY_PASS[2:], "dilated"
        ),
        "split_conv": (GROUPED, dict(split=2), CONV_PASSES, "split of 2"),
        "no_split": (GROUPED, dict(split=0), EVERY_PASS, "split of 0"),
        "large_output_tile": (GROUPED, dict(output_tile=(64, 64)), CONV_PASSES, "more positions than warps hold"),
        "long_output_tile": (GROUPED, dict(output_tile=(1, 264)), EVERY_PASS[2:], "larger than TMA copies"),
        "part_of_a_row": (GROUPED, dict(output_tile=(4, 12)), EVERY_PASS, r"output tile of \(4, 12\)"),
        "no_output_tile": (GROUPED, dict(output_tile=(0, 8)), EVERY_PASS, r"output tile of \(0, 8\)"),
        "chunks": (GROUPED, dict(chunk=128), EVERY_PASS, "no setting chunk"),
        "n_tiles_per_cta": (GROUPED, dict(n_tiles_per_cta=2), EVERY_PASS, "no setting n_tiles_per_cta"),
        "nothing": (halves((0, 20, 20, 16), (3, 3, 16, 16)), {}, EVERY_PASS, "nothing"),
    },
    "depthwise": {
        "float64": (each_channel((2, 20, 20, 16), (3, 3), "float64"), {}, EVERY_PASS, "float64"),
        "two_types": (
            each_channel((2, 20, 20, 16), (3, 3), result="float32"), {}, EVERY_PASS, "bfloat16 and float32"
        ),
        "dense": (halves((2, 20, 20, 16), (3, 3, 16, 16)), {}, EVERY_PASS, "one channel"),
        "groups_of_8": (GROUPED, {}, EVERY_PASS, "one channel"),
        "one_group": (each_channel((2, 20, 20, 1), (3, 3)), {}, EVERY_PASS, "vectors of 16 bytes"),
        "twice_as_many": (
            halves((2, 20, 20, 16), (3, 3, 1, 32), feature_group_count=16), {}, EVERY_PASS, "one channel"
        ),
        "groups_of_images": (
            halves((16, 20, 20, 1), (3, 3, 1, 16), batch_group_count=16), {}, EVERY_PASS, "images"
        ),
        "strided_volume": (
            each_channel((2, 5, 6, 7, 16), (3, 3, 3), window_strides=2), {}, EVERY_PASS, "three spatial dimensions"
        ),
        "channels_first": (
            channels_first((2, 16, 20, 20), (16, 1, 3, 3), feature_group_count=16), {}, EVERY_PASS, "last"
        ),
        "part_of_a_vector": (each_channel((2, 20, 20, 12), (3, 3)), {}, EVERY_PASS, "vectors of 16 bytes"),
        "part_of_a_vector_of_float32": (
            each_channel((2, 20, 20, 10), (3, 3), "float32"), {}, EVERY_PASS, "vectors of 16 bytes"
        ),
        "nothing": (each_channel((0, 20, 20, 16), (3, 3)), {}, EVERY_PASS, "nothing"),
        "nothing_but_holes": (
            each_channel((2, 40, 16), (1,), lhs_dilation=2, window_strides=2, padding=((1, 0),)), {},
            EVERY_PASS, "nothing|dilated"
        ),
        "dilated_input": (
            each_channel((2, 20, 20, 16), (4, 4), lhs_dilation=2, padding=2), {}, EVERY_PASS[2:], "dilated"
        ),
        "columns_thrice_as_wide": (
            each_channel((2, 20, 20, 16), (3, 3), lhs_dilation=(1, 3), padding=1), {}, EVERY_PASS[:1],
            "columns of a residue class are [38] apart"
        ),
        "columns_eight_times_as_wide": (
            each_channel((5, 112, 8), (3,), lhs_dilation=8, padding=((1, 1),)), {}, EVERY_PASS[:1],
            "columns of a residue class are [38] apart"
        ),
        "too_many_parts": (
            each_channel((2, 16384, 1, 16), (8400, 1), padding=0), {}, EVERY_PASS[2:], "window in [0-9]+ parts"
        ),
        "rows_by_three": (
            each_channel((2, 20, 20, 16), (3, 3), window_strides=(3, 1)), {}, EVERY_PASS,
            "rows move by (3:1|1:3)"
        ),
        "tall_window": (
            each_channel((2, 40, 20, 16), (31, 3), window_strides=2), {}, EVERY_PASS, "taps in"
        ),
        "wide_window": (
            each_channel((2, 20, 90, 16), (3, 71), window_strides=2), {}, EVERY_PASS, "source pixels"
        ),
        "too_many_sums": (
            each_channel((2, 20, 20, 16), (7, 7), window_strides=2), {}, EVERY_PASS[2:], "sums of all taps"
        ),
        "split_conv": (EACH, dict(split=2), CONV_PASSES, "split of 2"),
        "no_split": (EACH, dict(split=0), EVERY_PASS, "split of 0"),
        "negative_split": (EACH, dict(split=-4), EVERY_PASS, "split of -4"),
        "large_output_tile": (EACH, dict(output_tile=(1, 256)), EVERY_PASS, "more positions than warps hold"),
        "long_output_tile": (EACH, dict(output_tile=(1, 1024)), EVERY_PASS, "more than 64 images, 512 columns"),
        "part_of_a_strip": (EACH, dict(output_tile=(4, 12)), EVERY_PASS, r"output tile of \(4, 12\)"),
        "no_output_tile": (EACH, dict(output_tile=(0, 8)), EVERY_PASS, r"output tile of \(0, 8\)"),
        "no_columns": (EACH, dict(output_tile=(4, 0)), EVERY_PASS, r"output tile of \(4, 0\)"),
        "chunks": (EACH, dict(chunk=128), EVERY_PASS, "no setting chunk"),
        "n_tiles_per_cta": (EACH, dict(n_tiles_per_cta=2), EVERY_PASS, "no setting n_tiles_per_cta"),
    },
    "gather": {
        "float64": (each_channel((2, 20, 20, 16), (3, 3), "float64"), {}, CONV_PASSES, "float64"),
        "two_types": (
            each_channel((2, 20, 20, 16), (3, 3), result="float32"), {}, CONV_PASSES, "bfloat16 and float32"
        ),
        "weight_gradient": (EACH, {}, EVERY_PASS[2:], "weight gradients"),
        "dense": (halves((2, 20, 20, 16), (3, 3, 16, 16)), {}, CONV_PASSES, "one channel"),
        "twice_as_many": (
            halves((2, 20, 20, 16), (3, 3, 1, 32), feature_group_count=16), {}, CONV_PASSES, "one channel"
        ),
        "groups_of_images": (
            halves((16, 20, 20, 1), (3, 3, 1, 16), batch_group_count=16), {}, CONV_PASSES, "images"
        ),
        "channels_first": (
            channels_first((2, 16, 20, 20), (16, 1, 3, 3), feature_group_count=16), {}, CONV_PASSES, "last"
        ),
        "part_of_a_vector": (each_channel((2, 20, 20, 12), (3, 3)), {}, CONV_PASSES, "vectors of 16 bytes"),
        "dilated_input": (
            each_channel((2, 20, 20, 16), (4, 4), lhs_dilation=2, padding=2), {}, EVERY_PASS[:1], "of 2 residue classes"
        ),
        "strides": (each_channel((2, 20, 20, 16), (3, 3), window_strides=2), {}, EVERY_PASS[1:2], "2 residue classes"),
        "nothing": (each_channel((0, 20, 20, 16), (3, 3)), {}, CONV_PASSES, "nothing"),
        "far_away": (
            each_channel((1, 2, 2, 16), (3, 3), rhs_dilation=1 << 23, padding=1 << 24), {}, EVERY_PASS[:1],
            "2\\^31 bytes"
        ),
        "far_behind_the_last_result": (
            each_channel(
                (1, 1, (1 << 25) + 64, 4), (1, 2), "float32", window_strides=(1, 1 << 25), rhs_dilation=(1, 1 << 25),
                padding=((0, 0), ((1 << 27) - 1 - (1 << 25), -100663358)),
            ),
            dict(tile="any window by 4"), EVERY_PASS[:1], "2\\^31 bytes",
        ),
        "split": (EACH, dict(split=2), CONV_PASSES, "split of 2"),
        "no_split": (EACH, dict(split=0), CONV_PASSES, "split of 0"),
        "chunks": (EACH, dict(chunk=128), CONV_PASSES, "no setting chunk"),
        "output_tile": (EACH, dict(output_tile=(4, 8)), CONV_PASSES, "no setting (rows|cols)"),
    },
    "wgmma": {
        "float32": (layer((2, 20, 20, 16), (3, 3, 16, 16)), {}, EVERY_PASS[::2], "float32"),
        "float32_itself": (
            layer((2, 20, 20, 16), (3, 3, 16, 16), precision=lax.DotAlgorithmPreset.F32_F32_F32), {}, EVERY_PASS,
            "multiplied as it is|operands of float32",
        ),
        "float64": (layer((2, 20, 20, 16), (3, 3, 16, 16), "float64"), {}, EVERY_PASS, "float64"),
        "int8": (layer((2, 20, 20, 16), (3, 3, 16, 16), "int8", "int32"), {}, EVERY_PASS[:1], "int8"),
        "two_types": (
            layer((2, 20, 20, 16), (3, 3, 16, 16), "bfloat16", "float32"), {}, EVERY_PASS[1:], "two types"
        ),
        "many_groups": (
            halves((2, 9, 9, 136), (3, 3, 8, 136), feature_group_count=17), {}, EVERY_PASS, "of 16 at most"
        ),
        "many_groups_of_images": (
            halves((17, 9, 9, 8), (3, 3, 8, 136), batch_group_count=17), {}, EVERY_PASS, "of 16 at most"
        ),
        "groups_of_parts": (
            halves((2, 9, 9, 24), (3, 3, 12, 16), feature_group_count=2), {}, EVERY_PASS, "vectors of 8"
        ),
        "channels_first": (channels_first((2, 16, 20, 20), (16, 16, 3, 3)), {}, EVERY_PASS, "vectors of 8"),
        "parts_of_vectors": (halves((2, 20, 20, 12), (3, 3, 12, 12)), {}, EVERY_PASS, "vectors of 8"),
        "from_parts_of_vectors": (halves((2, 20, 20, 12), (3, 3, 12, 16)), {}, EVERY_PASS, "vectors of 8"),
        "to_parts_of_vectors": (halves((2, 20, 20, 16), (3, 3, 16, 12)), {}, EVERY_PASS, "vectors of 8"),
        "filter_of_windows": (
            of_layouts((2, 20, 20, 16), (24, 16, 3, 3), ("NHWC", "OIHW", "NHWC")), {}, EVERY_PASS, "last axis"
        ),
        "window_around_channels": (
            of_layouts((2, 20, 20, 16), (3, 16, 3, 24), ("NHWC", "HIWO", "NHWC")), {}, EVERY_PASS, "one axis"
        ),
        "window_turned": (
            of_layouts((2, 20, 20, 16), (3, 3, 16, 24), TURNED), {}, EVERY_PASS, "one axis"
        ),
        "filter_of_output_channels": (
            of_layouts((2, 20, 20, 16), (24, 3, 3, 16), ("NHWC", "OHWI", "NHWC")), {}, EVERY_PASS[2:],
            "output channels are not its last axis"
        ),
        "classes_of_two_sizes": (
            halves((2, 9, 16), (3, 16, 24), lhs_dilation=2, padding=1), {}, EVERY_PASS[2:], "not equally large"
        ),
        "nine_classes": (
            halves((2, 9, 9, 16), (4, 4, 16, 24), lhs_dilation=3, padding=((2, 3), (2, 3))), {}, EVERY_PASS[2:],
            "9 residue classes"
        ),
        "no_channels": (halves((2, 20, 20, 0), (3, 3, 0, 16)), {}, CONV_PASSES[:1], "nothing"),
        "no_cotangents": (halves((2, 20, 20, 16), (3, 3, 16, 0)), {}, CONV_PASSES[1:], "nothing"),
        "no_outputs": (halves((2, 2, 20, 16), (3, 3, 16, 16), padding=0), {}, EVERY_PASS[2:], "nothing"),
        "no_weights": (halves((2, 20, 20, 0), (3, 3, 0, 16)), {}, EVERY_PASS[2:], "nothing"),
        "no_pixels": (halves((2, 0, 20, 16), (3, 3, 16, 16), padding=3), {}, CONV_PASSES[:1], "nothing"),
        "too_many_positions": (halves((2**15, 2**15, 8), (3, 8, 8)), {}, EVERY_PASS, "positions"),
        "too_many_slices": (
            halves((2**8, 2**15, 8), (3, 8, 8)), dict(split=2**20), CONV_PASSES, "positions|thread blocks|8 slices"
        ),
        "too_many_sums": (
            halves((2, 20, 20, 64), (3, 3, 64, 512)), dict(split=2**31 - 1), EVERY_PASS[2:],
            "split into more than 32768"
        ),
        "no_split": (VECTORS, dict(split=0), EVERY_PASS, "split of 0"),
        "output_tile": (VECTORS, dict(output_tile=(4, 8)), EVERY_PASS, "no setting (rows|cols)"),
        "chunks": (VECTORS, dict(chunk=128), EVERY_PASS, "no setting chunk"),
        "n_tiles_per_cta": (VECTORS, dict(n_tiles_per_cta=2), EVERY_PASS, "no setting n_tiles_per_cta"),
    },
}  # fmt: skip
# Than a tile is for.
OTHER_WINDOWS = (
    "rows move by|columns move by|taps in|source pixels|sums of all taps|few channels|whole 16-byte vectors|"
    r"there are groups|\(tap, output channel\)s|rows of [0-9]+ columns|no conv|for convs alone|"
    "for weight gradients alone|for 16 bits alone"
)

EVERY_REFUSED = {f"{family}_{name}": (family, *case)
                 for family, cases in REFUSED.items() for name, case in cases.items()}  # fmt: skip


@pytest.mark.parametrize("family, problem, asked, passes, why", EVERY_REFUSED.values(), ids=EVERY_REFUSED)
def test_what_is_unsupported_says_why(family, problem, asked, passes, why):
    """Of each tile, or of the family."""
    for which in passes:
        choice = choose("cuda", *passes_of(problem)[which], as_it_is(family, **asked))
        assert choice.plan is None
        reasons = [r.reason for r in choice.rejected if r.what.startswith(family)]
        assert any(re.search(why, reason) for reason in reasons), reasons
        assert all(re.search(f"{why}|{OTHER_WINDOWS}", reason) for reason in reasons), reasons


@pytest.mark.parametrize("operand, result", [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_results_of_a_third_type(operand, result):
    """Which no convolution of lax has: refused while planning by wgmma, and by tiles of direct that stream rows."""
    dtypes = {"lhs_dtype": operand, "rhs_dtype": operand, "out_dtype": result}
    grouped = halves((2, 20, 20, 32), (3, 3, 8, 32), feature_group_count=4)
    for family, problem in (("direct", grouped), ("wgmma", VECTORS)):
        problem = dataclasses.replace(problem, **{name: np.dtype(dtype) for name, dtype in dtypes.items()})
        choice = choose("cuda", "conv", problem, as_it_is(family))
        reasons = [r.reason for r in choice.rejected if r.what.startswith(family)]
        assert f"results of {result}" in reasons, reasons
        assert choice.plan is None or not tile_of(choice.plan).stream_rows


@pytest.mark.parametrize("family", ["simt", "im2col", "mma"])
def test_an_output_tile_is_of_partial_families(family):
    kind, problem = PASSES["narrow_fprop"]
    choice = choose("cuda", kind, problem, Constraint(family=family, output_tile=(4, 8)))
    assert choice.plan is None
    assert all("no setting cols" in r.reason for r in choice.rejected if r.what.startswith(family))


@pytest.mark.parametrize("family", PARTIAL)
def test_without_spatial_dimensions(family):
    """A matrix product, which is a pixel for each image: planned, or refused with a reason."""
    conv = functools.partial(lax.conv_general_dilated, window_strides=(), padding=(), dimension_numbers=None)
    for groups in (1, 8):
        grouped = functools.partial(conv, feature_group_count=groups)
        problem = problem_of(grouped, (16, 8), (8, 8 // groups), "bfloat16")
        for kind, problem in passes_of(problem).values():
            assert choose("cuda", kind, problem).plan is not None
            plan_of(choose("cuda", kind, problem, as_it_is(family)), family)


@pytest.mark.parametrize("family, problem", [("direct", LAYERS["narrow"]), ("depthwise", ROWS)])
def test_plans_print_their_output_tile(family, problem):
    tile = CUDA[family].tiles[0].name
    plan = choose("cuda", "conv", problem, as_it_is(family, tile, output_tile=(3, 16))).plan
    assert re.fullmatch(rf"{family} {tile}, split 1, output tile 3x16", str(plan))


AT_BATCH = {
    "narrow_groups": ("direct", lambda b: halves((b, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32)),
    "depthwise": ("depthwise", lambda b: each_channel((b, 56, 56, 128), (7, 7))),
    "depthwise_float32": ("depthwise", lambda b: each_channel((b, 56, 56, 128), (3, 3), "float32")),
    "small_images": ("depthwise", lambda b: each_channel((b, 7, 7, 1024), (7, 7))),
    "lines": ("depthwise", lambda b: each_channel((b, 2048, 1024), (4,), padding=((3, 0),))),
    "large_window": ("depthwise", lambda b: each_channel((b, 56, 56, 128), (31, 31))),
    "volume": ("depthwise", lambda b: each_channel((b, 16, 56, 56, 128), (5, 5, 5))),
}


@pytest.mark.parametrize("which", EVERY_PASS)
@pytest.mark.parametrize("family, at_batch", AT_BATCH.values(), ids=AT_BATCH)
def test_partial_families_with_any_batch(family, at_batch, which):
    """The plan is that of a typical batch, and its workspace, of weights' gradients, has no batch."""
    (batch,) = export.symbolic_shape("b")
    (kind, symbolic), (_, known) = (passes_of(at_batch(b))[which] for b in (batch, 32))
    plans = [choose("cuda", kind, problem, as_it_is(family)).plan for problem in (symbolic, known)]
    assert plans[0] == plans[1]
    split = plans[0].settings["split"]
    workspace = 0 if split == 1 else split * math.prod(known.rhs_shape) * 4
    assert plans[0].workspace_bytes(symbolic) == plans[1].workspace_bytes(known) == workspace
