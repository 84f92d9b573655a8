"""Which transforms the planner tries and chooses, and the calls that they become."""

import dataclasses
import functools
import math

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export, lax

from cases.plans import PARTIAL, tile_of
from cases.problems import channels_first, halves, layer, passes_of, problem_of, sizes
from cases.programs import exported
from cases.random_problems import problems
from jaxconv import ffi, transforms
from jaxconv.planner.choose import Conversion, choose, version_of
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.plan import Constraint
from jaxconv.problem import ROLES
from jaxconv.problem.native import has_channel_vectors
from jaxconv.problem.product import OPERANDS, RESULT, EpilogueKind, Product
from jaxconv.transforms import (
    ChannelsLast,
    KMajorFilter,
    Moves,
    MultipliersAsDepth,
    PackedColumns,
    PackedGroups,
    PackedOutputs,
    PaddedGroups,
    PatchRowsAsImages,
    PositionsLast,
    SeenPixels,
    StridesAsDepth,
    SwappedOperands,
    TapsAsChannels,
    VolumesAsImages,
    added_results_reason,
    apply,
    dense_transforms,
    depthwise_transforms,
    unsupported_reason,
)  # fmt: skip

LAYERS = {
    "stem": (halves((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), (PackedColumns(2),)),
    "patches": (halves((128, 224, 224, 3), (16, 16, 3, 768), window_strides=16, padding=0), (PackedColumns(16),)),
    "images": (halves((2, 512, 512, 128), (3, 3, 128, 3)), (PackedColumns(1),)),
    "groups": (halves((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), (PackedGroups(16),)),
    "groups_of_channels_first": (
        channels_first((128, 128, 56, 56), (128, 4, 3, 3), feature_group_count=32), (ChannelsLast(), PackedGroups(16))
    ),
    "channels_first": (channels_first((32, 128, 28, 28), (128, 128, 3, 3)), (ChannelsLast(),)),
    "stem_of_channels_first": (
        channels_first((128, 3, 224, 224), (64, 3, 7, 7), window_strides=(2, 2)), (ChannelsLast(), PackedColumns(2))
    ),
    "dense": (halves((32, 56, 56, 64), (3, 3, 64, 64)), ()),
    "strided": (halves((32, 56, 56, 64), (3, 3, 64, 128), window_strides=2), ()),
}  # fmt: skip

TRANSPOSE = TYPICAL_DEVICE.own_costs["transpose_copies"]


def without_repeats(transform):
    """Packs of columns as they would be without packed outputs."""
    outs = math.prod(step.columns for step in transform if isinstance(step, PackedOutputs))
    others = (step for step in transform if not isinstance(step, PackedOutputs | TapsAsChannels))
    return tuple(PackedColumns(step.columns // outs) if isinstance(step, PackedColumns) else step for step in others)


@pytest.mark.parametrize("problem", [problem for problem, _ in LAYERS.values()], ids=LAYERS)
def test_a_wider_result_has_the_transforms_of_the_operands(problem):
    """Besides those that add results, which may not be rounded before."""
    for which in ("wgrad", "dgrad"):
        kind, of_pass = passes_of(problem)[which]
        wider = dataclasses.replace(of_pass, **{f"{RESULT[kind]}_dtype": jax.numpy.dtype("float32")})
        tried, of_wider = (
            dense_transforms(Product(kind, p), packs_groups=True, k_major=True) for p in (of_pass, wider)
        )
        assert tried == [t for t in of_wider if added_results_reason(t, Product(kind, of_pass)) is None]


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem, transform", LAYERS.values(), ids=LAYERS)
def test_what_is_chosen(problem, transform, which):
    """And why: the problem as it is costs more, also with what the arrays' conversion takes."""
    kind, problem = passes_of(problem)[which]
    choice = choose("cuda", kind, problem, Constraint(family="mma"))
    if choice.plan.transform[-1:] == (SwappedOperands(),):
        assert which == "wgrad" and problem.in_channels > problem.out_channels
        transform = (*transform, SwappedOperands())
    assert (choice.plan.family, without_repeats(choice.plan.transform)) == ("mma", transform)
    transform = choice.plan.transform
    named = " of " + " and ".join(map(str, transform)) if transform else ""
    assert str(choice.plan).startswith(f"mma {choice.plan.tile}{named}, split ")
    if transform:
        as_it_is = choose("cuda", kind, problem, Constraint(family="mma", transform=()))
        assert as_it_is.plan.transform == ()
        assert as_it_is.cost > choice.cost
        asked = choose("cuda", kind, problem, Constraint(family="mma", transform=transform))
        assert (asked.plan, asked.cost) == (choice.plan, choice.cost)
    else:
        assert not any(" of " in r.what for r in choice.rejected)


FEW = {
    "spectrogram": ("fprop", halves((1, 128, 998, 32), (21, 11, 32, 32)), PackedOutputs),
    "long_taps": ("dgrad", halves((128, 1000, 22), (128, 22, 40)), PackedOutputs),
    "stem": ("dgrad", layer((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), TapsAsChannels),
    "stem_wgrad": ("wgrad", layer((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), PackedOutputs),
    "one_channel": ("wgrad", halves((8, 128, 998, 1), (41, 11, 1, 32)), TapsAsChannels),
}


@pytest.mark.parametrize("which, problem, step", FEW.values(), ids=FEW)
def test_few_channels_become_more(which, problem, step):
    kind, problem = passes_of(problem)[which]
    choice = choose("cuda", kind, problem)
    assert any(isinstance(each, step) for each in choice.plan.transform)
    has_neither = lambda transform: not any(isinstance(s, PackedOutputs | TapsAsChannels) for s in transform)
    without = filter(has_neither, [(), *dense_transforms(Product(kind, problem), k_major=True)])
    others = [choose("cuda", kind, problem, Constraint(transform=transform)) for transform in without]
    assert choice.cost < min(other.cost for other in others) / 1.3


def test_groups_are_filled_up():
    """Strided windows of a volume's channels that are no whole vectors. Kernels would mix two members of a vmap."""
    strided = halves((8, 32, 28, 28, 108), (3, 3, 3, 1, 108), window_strides=(1, 2, 2), feature_group_count=108)
    kind, problem = passes_of(strided)["dgrad"]
    by = {family: choose("cuda", kind, problem, Constraint(family=family)) for family in ("direct", "mma", "depthwise")}
    assert by["direct"].plan.transform == (PaddedGroups(),)
    assert by["mma"].plan.transform == (PaddedGroups(), PackedGroups(56))
    assert max(by["direct"].cost, by["mma"].cost) < by["depthwise"].cost / 3
    of_two = dataclasses.replace(problem, member=problem.member._replace(groups=54))
    for family in ("direct", "mma"):
        asked = Constraint(family=family, transform=by[family].plan.transform)
        assert "several members" in choose("cuda", kind, of_two, asked).unsupported_reason()
    packs = dense_transforms(Product(kind, of_two), packs_groups=True)
    assert not any(PaddedGroups() in steps for steps in packs)


def test_a_residual_moves_as_the_result_does():
    kind, problem = passes_of(halves((8, 28, 28, 100), (3, 3, 1, 100), feature_group_count=100))["fprop"]
    plain, residual = (version_of((PaddedGroups(),), Product(kind, problem, each)).conversions
                       for each in (EpilogueKind.PLAIN, EpilogueKind.RESIDUAL))  # fmt: skip
    assert residual == (*plain, plain[-1])


def test_results_that_are_added_are_not_rounded_before():
    """Nor do they have an epilogue then."""
    stem = layer((2, 32, 32, 3), (7, 7, 3, 64), window_strides=2, padding=3)
    narrow = halves((2, 32, 32, 3), (7, 7, 3, 64), window_strides=2, padding=3)
    packs, taps = (PackedOutputs(2), PackedColumns(4)), (TapsAsChannels(8),)
    reason = lambda steps, which, p, **of: added_results_reason(steps, Product(*passes_of(p)[which], **of))
    taken = {(steps, which): [reason(steps, which, p) is None for p in (stem, narrow)]
             for steps in (packs, taps) for which in ("fprop", "dgrad", "wgrad")}  # fmt: skip
    assert [key for key, each in taken.items() if each == [True, False]] == [(packs, "wgrad"), (taps, "dgrad")]
    assert all(each[0] for each in taken.values())
    assert reason(taps, "dgrad", narrow) == "sums that are rounded to bfloat16 before the last additions"
    assert reason(taps, "dgrad", stem, epilogue_kind=EpilogueKind.PLAIN) == "an epilogue in front of the last additions"
    assert reason(packs, "fprop", narrow, epilogue_kind=EpilogueKind.PLAIN) is None
    asked = Constraint(family="mma", transform=taps)
    refused = choose("cuda", "conv", narrow.dgrad(), asked)
    assert refused.plan is None and "rounded to bfloat16" in refused.unsupported_reason()


OF_PACKED_K = [*((name, which) for name in ("stem", "stem_of_channels_first") for which in ("fprop", "wgrad")),
               ("images", "dgrad"), ("images", "wgrad")]  # fmt: skip


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name, problem, transform", [(name, *layer) for name, layer in LAYERS.items()], ids=LAYERS)
def test_what_is_chosen_of_all_families(name, problem, transform, which):
    """Groups of few channels need no packs where a family takes them as they lie, nor do rows of few channels. They
    only need to be last."""
    kind, problem = passes_of(problem)[which]
    choice = choose("cuda", kind, problem)
    assert choice.cost <= choose("cuda", kind, problem, Constraint(family="mma")).cost
    packs_groups = any(isinstance(step, PackedGroups) for step in transform)
    tile = tile_of(choice.plan) if choice.plan.family == "direct" else None
    is_packed, taps_in_n = (tile.packed > 0, tile.taps_in_n > 0) if tile else (False, False)
    chosen = tuple(step for step in choice.plan.transform if step != SwappedOperands())
    chosen = tuple(PackedColumns(2) if step == PackedColumns(2, whole=False) else step for step in chosen)
    if name == "patches" and which != "dgrad":
        assert choice.plan.family == "wgmma"
        transform = (*transform, PatchRowsAsImages())
    as_they_lie = tuple(step for step in transform if step == ChannelsLast())
    assert chosen == (as_they_lie if packs_groups or is_packed or taps_in_n else transform)
    assert (choice.plan.family == "direct") >= packs_groups
    assert is_packed == ((name, which) in OF_PACKED_K)
    assert taps_in_n == ((name, which) == ("images", "fprop"))


OF_CHANNELS = {
    "as_they_lie": (halves((32, 56, 56, 128), (7, 7, 1, 128), feature_group_count=128), ()),
    "channels_first": (channels_first((32, 128, 56, 56), (128, 1, 7, 7), feature_group_count=128), (ChannelsLast(),)),
    "parts_of_vectors": (halves((32, 56, 56, 100), (3, 3, 1, 100), feature_group_count=100), (PaddedGroups(),)),
    "multipliers": (layer((32, 56, 56, 64), (7, 7, 1, 128), feature_group_count=64), (MultipliersAsDepth(),)),
    "planes": (halves((8, 8, 56, 56, 96), (1, 7, 7, 1, 96), feature_group_count=96), (VolumesAsImages(),)),
    "lines": (
        halves((8, 16, 28, 28, 108), (5, 1, 1, 1, 108), feature_group_count=108),
        (VolumesAsImages(), PaddedGroups()),
    ),
    "all": (
        channels_first((32, 33, 56, 56), (66, 1, 31, 31), feature_group_count=33),
        (ChannelsLast(), PaddedGroups(), MultipliersAsDepth()),
    ),
}


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem, transform", OF_CHANNELS.values(), ids=OF_CHANNELS)
def test_what_is_chosen_of_each_channel_on_its_own(problem, transform, which):
    kind, problem = passes_of(problem)[which]
    assert depthwise_transforms(Product(kind, problem)) == ([transform] if transform else [])
    plan = choose("cuda", kind, problem).plan
    assert (plan.family, plan.transform) == ("depthwise", transform)


POINTS = halves((8, 16, 56, 56, 54), (5, 1, 1, 1, 54), feature_group_count=54, window_strides=(1, 2, 2),
                padding=((2, 2), (0, 0), (0, 0)))  # fmt: skip


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_strides_of_windows_of_one_pixel_are_taken_out(which):
    """An X3D's windows of several planes become rows of an image. Nothing of what they skip is computed."""
    kind, problem = passes_of(POINTS)[which]
    transform = (SeenPixels(), VolumesAsImages(), PaddedGroups())
    assert depthwise_transforms(Product(kind, problem)) == [(PaddedGroups(),), transform]
    choice = choose("cuda", kind, problem)
    assert choice.plan.family == ("depthwise" if which == "wgrad" else "gather") and choice.plan.transform == transform
    assert " of seen pixels and volumes as images and padded groups" in str(choice.plan)
    assert sizes(apply(transform, POINTS).problem)[:3] == ((8, 16, 784, 56), (5, 1, 1, 56), (8, 16, 784, 56))


def test_other_strides_become_planes():
    strided = halves((32, 57, 55, 64), (1, 31, 1, 64), feature_group_count=64, window_strides=2)
    assert depthwise_transforms(Product("conv", strided)) == [(SeenPixels(),), (SeenPixels(), StridesAsDepth())]


def test_a_strided_weight_gradient_is_k_major_from_the_side_of_its_pixels():
    """In float32: those that are seen are transposed, and no others."""
    problem = layer((128, 28, 28, 512), (1, 1, 512, 1024), window_strides=2)
    plan = choose("cuda", "wgrad", problem).plan
    swapped = (KMajorFilter(), PositionsLast("lhs"), SwappedOperands())
    assert (plan.family, plan.transform) == ("wgmma", (SeenPixels(), *swapped))


@pytest.mark.parametrize("precision", [None, "highest"])
def test_a_dilated_weight_gradient_is_k_major_from_the_side_of_its_outputs(precision):
    """In float32: swapped, windows move by several pixels, and there are no residue classes."""
    problem = layer((4, 64, 64, 256), (4, 4, 256, 128), padding=((2, 2), (2, 2)), lhs_dilation=2, precision=precision)
    plan = choose("cuda", "wgrad", problem).plan
    positions = () if precision else (PositionsLast("lhs"),)
    assert (plan.family, plan.transform) == ("wgmma", (KMajorFilter(), *positions, SwappedOperands()))


@pytest.mark.parametrize("channels, dilation", [((128, 64), 2), ((1280, 640), 1)], ids=["transposed", "dense"])
def test_the_pixels_of_a_weight_gradient_become_columns(channels, dilation):
    """In bfloat16, where their channels fill wide tiles and those of the outputs do not, or where they are dilated."""
    ins, outs = channels
    padding = ((0, 0), (0, 0)) if dilation == 1 else ((2, 2), (2, 2))
    shapes = (16, 64, 64, ins), (dilation + 1, dilation + 1, ins, outs)
    problem = halves(*shapes, lhs_dilation=dilation, padding=padding)
    choice = choose("cuda", "wgrad", problem)
    assert (choice.plan.family, choice.plan.transform) == ("wgmma", (KMajorFilter(), SwappedOperands()))
    assert choice.cost < choose("cuda", "wgrad", problem, Constraint(transform=())).cost
    mirrored = halves((16, 64, 64, outs), (dilation + 1, dilation + 1, outs, ins), padding=padding)
    assert choose("cuda", "wgrad", mirrored).plan.transform == ()


TOO_DEEP = {
    "multipliers_of_a_volume": (
        layer((1, 1, 1, 1, 2), (31, 31, 31, 1, 8192), feature_group_count=2), (PaddedGroups(),)
    ),
    "multipliers_of_images": (layer((2, 9, 9, 8), (31, 31, 1, 32768), feature_group_count=8), ()),
    "strides": (layer((1, 5000, 5000, 8), (2, 2, 1, 8), feature_group_count=8, window_strides=2500, padding=0), ()),
}  # fmt: skip


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem, transform", TOO_DEEP.values(), ids=TOO_DEEP)
def test_no_window_becomes_one_of_millions_of_taps(problem, transform, which):
    """No kernel takes it, but planning would tabulate its taps: more than 10 GB for the volume's multipliers."""
    kind, problem = passes_of(problem)[which]
    assert depthwise_transforms(Product(kind, problem)) == ([transform] if transform else [])


@pytest.mark.parametrize("planes, takes", [(1024, True), (1025, False)])
def test_a_window_becomes_as_deep_as_depthwise_takes(planes, takes):
    deep = halves((1, planes, 1, 1, 8), (planes, 1, 1, 1, 8), feature_group_count=8)
    as_it_is = choose("cuda", "wgrad", deep, Constraint(family="depthwise", transform=()))
    assert (as_it_is.plan is not None) == takes
    multipliers = halves((1, 5, 8), (1, 1, 8 * planes), feature_group_count=8)
    assert depthwise_transforms(Product("wgrad", multipliers)) == ([(MultipliersAsDepth(),)] if takes else [])


def conversions_of_order(problem, transform):
    """What a transform's conversions take longer with half of the bandwidth, times the bandwidth: bytes."""
    slow = dataclasses.replace(TYPICAL_DEVICE, bandwidth=TYPICAL_DEVICE.bandwidth / 2)
    product = Product("conv", problem)
    seconds = [version_of(transform, product).conversion_seconds(on) for on in (slow, TYPICAL_DEVICE)]
    return (seconds[0] - seconds[1]) * TYPICAL_DEVICE.bandwidth


def test_a_network_has_its_images_in_one_order():
    """XLA makes it channels last for free. A kernel that takes another order has it copy both; a filter is copied."""
    _, problem = passes_of(LAYERS["channels_first"][0])["fprop"]
    sizes = {role: 2 * math.prod(problem.shape(role)) for role in ROLES}
    assert conversions_of_order(problem, (ChannelsLast(),)) == pytest.approx(TRANSPOSE * 2 * sizes["rhs"])
    assert conversions_of_order(problem, ()) == pytest.approx(2 * (sizes["lhs"] + sizes["out"]))


def test_images_of_one_channel_are_in_both_orders():
    _, problem = passes_of(channels_first((32, 1, 28, 28), (128, 1, 3, 3)))["fprop"]
    _, of_one_pixel = passes_of(channels_first((32, 8, 1, 1), (128, 8, 1, 1)))["fprop"]
    assert transforms.channels_first(problem) == ["out"]
    assert transforms.channels_first(of_one_pixel) == []
    assert conversions_of_order(of_one_pixel, (ChannelsLast(),)) == pytest.approx(TRANSPOSE * 2 * 2 * 128 * 8)


def test_another_order_than_that_of_images_is_copied():
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=("CHWN", "HWIO", "NHWC")
    )
    _, problem = passes_of(problem_of(conv, (128, 28, 28, 32), (3, 3, 128, 64), "bfloat16"))["fprop"]
    assert conversions_of_order(problem, ()) == 0
    copied = conversions_of_order(problem, (ChannelsLast(),))
    assert copied == pytest.approx(TRANSPOSE * 2 * 2 * math.prod(problem.shape("lhs")))


def test_a_conversion_takes_as_long_as_its_slowest_move():
    """A gather of small elements moves fewer bytes in a second."""
    costs, elements = TYPICAL_DEVICE.own_costs, 1 << 24

    def copies(moves, itemsize):
        seconds = Conversion(elements, itemsize, moves).seconds(TYPICAL_DEVICE) - costs["next_kernel_seconds"]
        return pytest.approx(seconds * TYPICAL_DEVICE.bandwidth / (elements * itemsize))

    assert copies(Moves.COPY, 2) == 1
    assert copies(Moves.COPY | Moves.TRANSPOSE, 2) == TRANSPOSE
    assert copies(Moves.GATHER | Moves.TRANSPOSE, 1) == costs["gather_copies_of_byte"]
    assert copies(Moves.GATHER, 8) == costs["gather_copies"]


def test_where_numbers_repeat_an_estimate_is_doubted():
    kind, problem = passes_of(halves((8, 128, 998, 1), (41, 11, 1, 32)))["wgrad"]
    choice = choose("cuda", kind, problem)
    version = version_of(choice.plan.transform, Product(kind, problem))
    assert version.doubt(TYPICAL_DEVICE) == TYPICAL_DEVICE.own_costs["repeat_doubt"] > 1
    assert version_of((), Product(kind, problem)).doubt(TYPICAL_DEVICE) == 1


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_what_is_not_seen_is_not_read(which):
    """But it is written, as zeros."""
    kind, problem = passes_of(halves((16, 30, 30, 512), (1, 1, 512, 1024), window_strides=2))[which]
    slow = dataclasses.replace(TYPICAL_DEVICE, bandwidth=TYPICAL_DEVICE.bandwidth / 2)
    seconds = [
        version_of((SeenPixels(),), Product(kind, problem)).conversion_seconds(on) for on in (slow, TYPICAL_DEVICE)
    ]
    seen, all_pixels = 16 * 15 * 15 * 512, 16 * 30 * 30 * 512
    elements = seen + (all_pixels if which == "dgrad" else seen)
    assert seconds[0] - seconds[1] == pytest.approx(TRANSPOSE * 2 * elements / TYPICAL_DEVICE.bandwidth)


@pytest.mark.parametrize("family", ["simt", "im2col"])
def test_other_families_take_what_lies_there(family):
    problem = LAYERS["stem"][0]
    choice = choose("cuda", "conv", problem, Constraint(family=family))
    assert choice.plan.transform == ()
    assert not any(" of " in r.what for r in choice.rejected)
    choice = choose("cuda", "conv", problem, Constraint(family=family, transform=(PackedColumns(2),)))
    assert choice.plan is None


@settings(max_examples=100, database=None)
@given(problems(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_what_is_tried_has_vectors(problem, packs_groups, joins_groups, stores_parts, k_major):
    asked = dict(packs_groups=packs_groups, joins_groups=joins_groups, stores_parts=stores_parts, k_major=k_major)
    for kind, p in passes_of(problem).values():
        for transform in dense_transforms(Product(kind, p), **asked):
            assert unsupported_reason(transform, p) is None
            assert packs_groups or not any(isinstance(step, PackedGroups) for step in transform)
            assert packs_groups or joins_groups or PaddedGroups() not in transform
            assert stores_parts or not any(isinstance(step, PackedColumns) and not step.whole for step in transform)
            transformed = apply(transform, p).problem
            swaps = SwappedOperands() in transform
            assert (transformed.reverse != p.reverse) == swaps
            assert kind == "wgrad" or not swaps
            # Few channels of a cotangent, which nothing was done to, may be read as packed K.
            has_channels = has_channel_vectors(Product(kind, transformed))
            has_positions = kind == "wgrad" and any(isinstance(step, PositionsLast) for step in transform)
            is_joined = joins_groups and {*transform} <= {ChannelsLast(), PaddedGroups()}
            assert transform == (SwappedOperands(),) or has_channels or has_positions or is_joined


STRIDED = halves((32, 57, 55, 64), (31, 31, 1, 64), feature_group_count=64, window_strides=2)
POINTS_OF_HALVES = halves((16, 29, 29, 64), (1, 1, 64, 128), window_strides=2)
CALLS = {f"{name}_{family}": (family, *LAYERS[name]) for name in LAYERS for family in ("mma", "direct", "wgmma")} | {
    "strided_rows": ("depthwise", STRIDED, (StridesAsDepth(False),)),
    "strided_rows_and_columns": ("depthwise", STRIDED, (StridesAsDepth(),)),
    "seen_pixels": ("wgmma", POINTS_OF_HALVES, (SeenPixels(),)),
    "seen_pixels_of_channels": ("depthwise", POINTS, (SeenPixels(), VolumesAsImages(), PaddedGroups())),
}


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("family, problem, transform", CALLS.values(), ids=CALLS)
def test_the_call_with_any_batch(family, problem, transform, which):
    """The kernel gets the transformed problem's arrays; the function around it has the problem's."""
    (batch,) = export.symbolic_shape("b")
    at_batch = {f"{role}_shape": (batch, *getattr(problem, f"{role}_shape")[1:]) for role in ("lhs", "out")}
    kind, problem = passes_of(dataclasses.replace(problem, **at_batch))[which]
    choice = choose("cuda", kind, problem, Constraint(family=family, transform=transform))
    if choice.plan is None:
        assert family in PARTIAL and all(r.reason for r in choice.rejected)
        return
    plan = choice.plan
    types = {role: jax.ShapeDtypeStruct(getattr(problem, f"{role}_shape"), problem.rhs_dtype) for role in ROLES}
    program = exported(ffi.convolution(plan, problem), *map(types.get, OPERANDS[kind]), platforms=["cuda"])
    assert program.out_avals[0].shape == types[RESULT[kind]].shape
    (call,) = (line for line in program.mlir_module().splitlines() if f"@jaxconv_{kind}" in line)
    transformed = apply(transform, problem).problem
    for role in (*OPERANDS[kind], RESULT[kind]):
        shape = getattr(transformed, f"{role}_shape")
        assert f"tensor<{'x'.join(str(d) if isinstance(d, int) else '?' for d in shape)}xbf16>" in call


def test_without_columns_there_are_none_to_pack():
    """A convolution without spatial dimensions is a matrix product: of channels that are no whole vectors, too."""
    conv = functools.partial(lax.conv_general_dilated, window_strides=(), padding=(), dimension_numbers=None)
    problem = problem_of(conv, (16, 6), (10, 6), "bfloat16")
    for kind, p in passes_of(problem).values():
        assert choose("cuda", kind, p).plan.transform == ()
        assert unsupported_reason((PackedColumns(1),), p) == "there are no columns"
