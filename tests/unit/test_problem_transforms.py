"""Transforms: the transformed convolution has the same results, and the planner takes it where that is cheaper."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.parts import diagonal, parts
from cases.plans import PARTIAL, tile_of
from cases.problems import halves, layer, passes_of, problem_of
from cases.random_problems import problems
from cases.reference import assert_same, integers, lax_channels_last, pullback, run_on_host
from jaxconv import ffi, transforms
from jaxconv.fallback import LAX
from jaxconv.planner.choose import choose, options, version_of
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.plan import ANY, Constraint
from jaxconv.problem import ROLES
from jaxconv.problem.product import OPERANDS, RESULT, Ending, Product
from jaxconv.transforms import (
    ChannelsLast,
    KMajorFilter,
    MultipliersAsDepth,
    PackedColumns,
    PackedGroups,
    PaddedGroups,
    PatchRowsAsImages,
    PositionsLast,
    SeenPixels,
    StridesAsDepth,
    SwappedOperands,
    VolumesAsImages,
    apply,
    dense_transforms,
    depthwise_transforms,
    has_more_zeros,
    unsupported_reason,
)  # fmt: skip
from jaxconv.transforms.array_views import spread

PROBLEMS_IN_AN_EXAMPLE = 6  # they share a compilation


def in_float32(problem):
    """A vector's elements depend on the type; sums of small integers are exact in this one."""
    return dataclasses.replace(problem, **{f"{role}_dtype": np.dtype("float32") for role in ROLES})


def array(problem, role):
    return integers(getattr(problem, f"{role}_shape"), seed=ROLES.index(role))


def transformed_by_lax(kind, problem, transform):
    """The pass as lax computes the transformed one."""
    transformed, views, swapped = apply(transform, problem)
    compute = LAX[kind](in_float32(transformed))
    into = [views[role].to for role in OPERANDS[kind]]

    def computed(a, b):
        a, b = (b, a) if swapped else (a, b)
        return views[RESULT[kind]].back(compute(into[0](a), into[1](b)))

    return computed


def all_that_apply(problem):
    groups = [PackedGroups(many) for many in range(2, problem.groups + 1)]
    steps = [PackedColumns(1), PackedColumns(problem.window_strides[-1]), *groups]
    tried = {(*first, *last) for first in ((), (ChannelsLast(),)) for last in ((), *((step,) for step in steps))}
    tried |= {(*steps, PatchRowsAsImages()) for steps in tried}
    unstrided = [(*r, StridesAsDepth(columns)) for r in ((), (MultipliersAsDepth(),)) for columns in (False, True)]
    tried |= {(PaddedGroups(),), (MultipliersAsDepth(),), *unstrided}
    tried |= {(SeenPixels(),), (ChannelsLast(), SeenPixels()), (SeenPixels(), PackedColumns(1))}
    tried |= {(VolumesAsImages(),), (SeenPixels(), VolumesAsImages())}
    k_major = (KMajorFilter(), KMajorFilter(of_dgrad=True), PositionsLast("lhs"), PositionsLast("out"))
    tried |= {*depthwise_transforms(Product("conv", problem)), *((step,) for step in k_major)}
    return [r for r in sorted(tried, key=str) if unsupported_reason(r, problem) is None]


def check(problems):
    """Every pass of the problems under every transform, compiled together."""
    cases = [(kind, p, r) for problem in problems for kind, p in passes_of(problem).values()
             for r in all_that_apply(p)]  # fmt: skip
    cases += [(kind, p, (*r, SwappedOperands())) for kind, p, r in cases if kind == "wgrad"]
    operands = [tuple(array(p, role) for role in OPERANDS[kind]) for kind, p, _ in cases]

    def answers(transformed):
        computes = [transformed_by_lax(kind, p, r if transformed else ()) for kind, p, r in cases]
        return lambda operands: [compute(*o) for compute, o in zip(computes, operands, strict=True)]

    run = functools.partial(run_on_host, xla_disable_hlo_passes="algsimp")  # as test_property's
    assert_same(run(answers(True), operands), run(answers(False), operands))


def layout(draw, letters):
    return "".join(draw(st.permutations(letters)))


@st.composite
def small_problems(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    spatial = "DHW"[3 - rank :]
    last = draw(st.booleans())
    layouts = (
        (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C") if last
        else (layout(draw, f"N{spatial}C"), layout(draw, f"{spatial}IO"), layout(draw, f"N{spatial}C"))
    )  # fmt: skip
    groups = draw(st.sampled_from([1, 1, 1, 2, 4, 6]))
    ins, outs = (draw(st.integers(1, 20 if groups == 1 else 4)) for _ in range(2))
    strides, dilations = st.integers(1, 3), st.sampled_from([1, 1, 2])
    params = dict(
        window_strides=(*each(strides)[:-1], draw(st.integers(1, 5))),
        padding=each(st.tuples(st.integers(-2, 4), st.integers(-2, 4))),
        lhs_dilation=each(dilations), rhs_dilation=each(dilations),
    )  # fmt: skip
    if draw(st.booleans()):  # so that columns can be packed
        params |= {name: (*params[name][:-1], 1) for name in ("lhs_dilation", "rhs_dilation")}
    lhs = dict(zip(f"N{spatial}C", (2, *each(st.integers(5, 9)), groups * ins), strict=True))
    rhs = dict(zip(f"{spatial}IO", (*each(st.integers(1, 4)), ins, groups * outs), strict=True))
    conv = functools.partial(lax.conv_general_dilated, dimension_numbers=layouts, feature_group_count=groups, **params)
    shapes = tuple(lhs[d] for d in layouts[0]), tuple(rhs[d] for d in layouts[1])
    return problem_of(conv, *shapes, draw(st.sampled_from(["float32", "bfloat16"])))


@parts(12)
@settings(max_examples=2, deadline=None, database=None, phases=[Phase.generate])
@given(problems=st.lists(small_problems(), min_size=PROBLEMS_IN_AN_EXAMPLE, max_size=PROBLEMS_IN_AN_EXAMPLE))
def test_same_results(problems, part):
    check(problems)


PACKED = {
    "stem": layer((2, 15, 17, 3), (7, 7, 3, 8), "bfloat16", window_strides=2, padding=3),
    "patches": layer((2, 9, 12, 3), (4, 4, 3, 5), window_strides=4, padding=0),
    "rows_of_patches": layer((2, 9, 7, 3), (3, 2, 3, 5), window_strides=(3, 2), padding=((0, 0), (1, 0))),
    "rows_of_patches_of_groups": layer((3, 8, 6), (4, 2, 6), window_strides=4, padding=0, feature_group_count=3),
    "window_within_a_stride": layer((2, 11, 3), (2, 3, 4), window_strides=5, padding=((-3, 6),)),
    "gaps": layer((2, 7, 6, 3), (1, 1, 3, 4), window_strides=(2, 3), padding=0),
    "gaps_of_planes": layer((2, 5, 4, 6, 4), (1, 3, 1, 4, 8), window_strides=(2, 1, 2),
                            padding=((0, 0), (1, 1), (-1, 0))),
    "gaps_and_a_border": layer((2, 9, 4), (1, 4, 3), window_strides=4, padding=((-2, 1),)),
    "gaps_and_padding": layer((2, 9, 8, 4), (1, 2, 4, 3), window_strides=(3, 2), padding=((4, 5), (1, 0))),
    "gaps_of_a_doubled_image": layer((2, 4, 5, 6), (1, 1, 6, 4), lhs_dilation=(2, 3), padding=((1, 2), (-2, 0))),
    "gaps_on_both_sides": layer((2, 11, 6), (1, 6, 4), window_strides=2, lhs_dilation=3, padding=((-2, 3),)),
    "gaps_of_a_column": layer((2, 7, 1, 4), (1, 1, 4, 3), window_strides=2, padding=0),
    "gaps_of_dilated_taps": layer((2, 9, 7, 4), (1, 3, 4, 6), window_strides=2, rhs_dilation=2,
                                  padding=((0, 0), (2, 2))),
    "gaps_of_groups": layer((2, 7, 6, 8), (1, 1, 2, 12), window_strides=2, padding=0, feature_group_count=4),
    "gaps_of_channels": layer((2, 4, 5, 6, 6), (3, 1, 1, 1, 6), window_strides=(1, 2, 2), feature_group_count=6,
                              padding=((1, 1), (0, 0), (0, 0))),
    "gaps_of_multipliers": layer((2, 7, 6, 4), (1, 3, 1, 8), window_strides=2, feature_group_count=4,
                                 padding=((0, 0), (1, 1))),
    "gaps_of_planes_of_channels": layer((2, 5, 4, 6, 4), (1, 3, 2, 1, 8), window_strides=(2, 1, 2),
                                        feature_group_count=4, padding=((0, 0), (1, 1), (0, 0))),
    "to_few_channels": layer((2, 5, 6, 16), (3, 3, 16, 3), "bfloat16"),
    "groups": layer((2, 5, 6, 16), (3, 3, 2, 24), feature_group_count=8),
    "depthwise": layer((2, 9, 12), (3, 1, 12), window_strides=2, feature_group_count=12),
    "multipliers": layer((2, 5, 6, 4), (3, 2, 1, 12), feature_group_count=4, window_strides=(2, 1)),
    "multipliers_of_lines": layer((2, 9, 3), (3, 1, 6), feature_group_count=3, lhs_dilation=2, padding=1),
    "multipliers_of_volumes": layer((2, 3, 4, 5, 3), (3, 2, 2, 1, 6), feature_group_count=3, lhs_dilation=(2, 1, 1),
                                    padding=((2, 1), (0, 1), (1, 1))),
    "three_channels": layer((2, 5, 6, 3), (3, 2, 1, 3), "bfloat16", feature_group_count=3),
    "strided_rows": layer((2, 8, 7, 4), (5, 3, 1, 4), feature_group_count=4, window_strides=(2, 3)),
    "strided_volume": layer((2, 5, 7, 6, 4), (3, 4, 3, 1, 4), feature_group_count=4, window_strides=(2, 3, 2)),
    "strided_multipliers": layer((2, 7, 6, 4), (3, 2, 1, 8), feature_group_count=4, window_strides=(2, 2)),
    "strided_and_cropped": layer((2, 11, 12, 4), (3, 4, 1, 4), feature_group_count=4, window_strides=(3, 2),
                                 padding=((-2, 3), (-1, -2))),
    "doubled": layer((2, 4, 5, 4), (4, 3, 1, 4), feature_group_count=4, lhs_dilation=(2, 3), padding=((2, 2), (1, 3))),
}  # fmt: skip


@pytest.mark.full
def test_same_results_of_layers():
    check(PACKED.values())


@pytest.mark.parametrize("name, which", diagonal(list(PACKED), ["fprop", "dgrad", "wgrad"]))
def test_array_views_are_those_of_the_problem(name, which):
    """Of the transformed problem's shapes, and there and back is the same, but for what is left out."""
    _, problem = passes_of(PACKED[name])[which]
    arrays = {role: array(problem, role) for role in ROLES}
    applied = [apply(transform, problem) for transform in all_that_apply(problem)]
    each = lambda way: lambda of_each: [
        {role: getattr(a.views[role], way)(x) for role, x in of.items()} for a, of in zip(applied, of_each, strict=True)
    ]  # fmt: skip
    there = run_on_host(each("to"), [arrays] * len(applied))
    back = run_on_host(each("back"), there)
    assert_same(run_on_host(each("to"), back), there)
    for (transformed, views, *_), new, again in zip(applied, there, back, strict=True):
        for role in ROLES:
            assert np.size(new[role]) < np.size(arrays[role]) or np.array_equal(again[role], arrays[role])
            assert new[role].shape == getattr(transformed, f"{role}_shape")
            if not views[role].copies:
                assert_same(np.ravel(new[role]), arrays[role].ravel())


def sizes(problem):
    return problem.lhs_shape, problem.rhs_shape, problem.out_shape, problem.window_strides, problem.pad_low


def test_a_stem():
    """7x7 by 2 of 3 channels is 7x4 by (2, 1) of 8."""
    stem = layer((32, 224, 224, 3), (7, 7, 3, 64), "bfloat16", window_strides=2, padding=3)
    transformed = apply((PackedColumns(2),), stem).problem
    assert sizes(transformed) == (
        (32, 224, 112, 8), (7, 4, 8, 64), (32, 112, 112, 64), (2, 1), (3, 2)
    )  # fmt: skip


def test_columns_alone():
    """A stem's data gradient is written as it lies: two pixels of three channels are one of six."""
    stem = layer((32, 224, 224, 3), (7, 7, 3, 64), "bfloat16", window_strides=2, padding=3)
    transformed, views, *_ = apply((PackedColumns(2, whole=False),), stem.dgrad())
    assert sizes(transformed)[:3] == ((32, 112, 112, 64), (7, 4, 6, 64), (32, 224, 112, 6))
    assert not views["lhs"].copies and not views["out"].copies
    choice = choose("cuda", "conv", stem.dgrad())
    assert (choice.plan.family, choice.plan.transform) == ("direct", (PackedColumns(2, whole=False),))


def test_patches():
    """16x16 by 16 of 3 channels is 16x1 by (16, 1) of 48, and nothing moves."""
    patches = layer((32, 224, 224, 3), (16, 16, 3, 768), "bfloat16", window_strides=16, padding=0)
    transformed, views, *_ = apply((PackedColumns(16),), patches)
    assert sizes(transformed) == (
        (32, 224, 14, 48), (16, 1, 48, 768), (32, 14, 14, 768), (16, 1), (0, 0)
    )  # fmt: skip
    assert not any(views[role].copies for role in ROLES)


def test_rows_of_patches():
    """Then each row of patches is an image of 16 rows, and nothing moves either."""
    patches = layer((32, 224, 224, 3), (16, 16, 3, 768), "bfloat16", window_strides=16, padding=0)
    transformed, views, *_ = apply((PackedColumns(16), PatchRowsAsImages()), patches)
    assert sizes(transformed) == (
        (448, 16, 14, 48), (16, 1, 48, 768), (448, 1, 14, 768), (1, 1), (0, 0)
    )  # fmt: skip
    assert not any(views[role].copies for role in ROLES)


def test_seen_pixels():
    """A strided 1x1 layer is one of fewer pixels, also if windows are beside the image."""
    strided = layer((16, 29, 29, 512), (1, 1, 512, 1024), "bfloat16", window_strides=2)
    transformed = apply((SeenPixels(),), strided).problem
    assert sizes(transformed) == ((16, 15, 15, 512), (1, 1, 512, 1024), (16, 15, 15, 1024), (1, 1), (0, 0))
    padded = layer((16, 28, 28, 512), (1, 1, 512, 1024), "bfloat16", window_strides=2, padding=((3, 1), (2, -1)))
    transformed = apply((SeenPixels(),), padded).problem
    assert sizes(transformed) == ((16, 14, 14, 512), (1, 1, 512, 1024), (16, 16, 15, 1024), (1, 1), (2, 1))


def test_pixels_that_see():
    """Of a dilated lhs, it is the outputs that lie apart. With strides as well it may be both, or none."""
    doubled = functools.partial(layer, (2, 5, 4), (1, 4, 3))
    transformed = apply((SeenPixels(),), doubled(lhs_dilation=2, padding=((1, 3),))).problem
    assert sizes(transformed) == ((2, 5, 4), (1, 4, 3), (2, 5, 3), (1,), (0,))
    transformed = apply((SeenPixels(),), doubled(lhs_dilation=4, window_strides=6, padding=((2, 0),))).problem
    assert sizes(transformed) == ((2, 2, 4), (1, 4, 3), (2, 2, 3), (1,), (0,))
    assert unsupported_reason((SeenPixels(),), doubled(lhs_dilation=2, window_strides=2, padding=0)) is not None
    assert unsupported_reason((SeenPixels(),), doubled(lhs_dilation=4, window_strides=2, padding=((1, 0),))) is not None


STRIDED_POINTS = layer((16, 30, 30, 512), (1, 1, 512, 1024), window_strides=2)
TWICE_AS_MANY_POINTS = layer((16, 15, 15, 512), (1, 1, 512, 1024), lhs_dilation=2, padding=0)


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem, of_zeros", [
    (STRIDED_POINTS, ["dgrad"]), (TWICE_AS_MANY_POINTS, ["fprop", "wgrad"])
])  # fmt: skip
def test_where_seen_pixels_are_tried(problem, of_zeros, which, ending):
    """Kernels read no other pixels. So it is for outputs that are zeros, and before weight gradients become K-major."""
    kind, problem = passes_of(problem)[which]
    tried = {o.transform for o in options("cuda", Product(kind, problem, ending), ANY, TYPICAL_DEVICE)}
    assert has_more_zeros((SeenPixels(),), problem) == (which in of_zeros)
    assert not has_more_zeros((), problem)
    is_tried = ending is Ending.SUMS if which in of_zeros else kind == "wgrad"
    assert any(SeenPixels() in transform for transform in tried) == is_tried


@pytest.mark.parametrize("which", ["fprop", "wgrad"])
def test_what_is_not_finite_and_not_seen_is_not_read(which):
    kind, problem = passes_of(PACKED["gaps_and_padding"])[which]
    lhs, other = (array(problem, role) for role in OPERANDS[kind])
    view, of_seen = apply((SeenPixels(),), problem).views["lhs"], transformed_by_lax(kind, problem, (SeenPixels(),))
    is_seen = np.asarray(view.back(view.to(np.ones_like(lhs)))) == 1
    actual, expected = (run_on_host(of_seen, np.where(is_seen, lhs, fill), other) for fill in (np.float32(np.nan), lhs))
    assert not np.all(is_seen)
    assert_same(actual, expected)


def test_what_no_window_sees_is_zero():
    """Also if nothing is finite."""
    kind, problem = passes_of(PACKED["gaps_and_padding"])["dgrad"]
    operands = (np.full(problem.shape(role), np.inf, np.float32) for role in OPERANDS[kind])
    actual = np.asarray(run_on_host(transformed_by_lax(kind, problem, (SeenPixels(),)), *operands))
    assert_same(np.isinf(actual), actual != 0)
    assert np.any(actual == 0) and np.any(actual != 0)


@pytest.mark.parametrize("kernel, strides, images", [
    ((1, 3, 3), (1, 2, 2), ((32, 14, 12, 8), (3, 3, 1, 8), (32, 7, 6, 8), (2, 2), (0, 0))),
    ((5, 1, 1), (1, 1, 1), ((2, 16, 168, 8), (5, 1, 1, 8), (2, 16, 168, 8), (1, 1), (2, 0))),
    ((1, 1, 1), (1, 1, 1), ((32, 14, 12, 8), (1, 1, 1, 8), (32, 14, 12, 8), (1, 1), (0, 0))),
])  # fmt: skip
def test_volumes_as_images(kernel, strides, images):
    """Planes are images, or rows of one."""
    volume = layer((2, 16, 14, 12, 8), (*kernel, 1, 8), window_strides=strides, feature_group_count=8)
    transformed, views, *_ = apply((VolumesAsImages(),), volume)
    assert sizes(transformed) == images
    assert not any(views[role].copies for role in ROLES)


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
def test_columns_side_by_side_are_packed(which):
    """Where 2x2 by 2 of 96 channels is 2x1 by (2, 1) of 192, three whole chunks of wgmma's instead of two times two."""
    kind, problem = passes_of(layer((128, 56, 56, 96), (2, 2, 96, 192), "bfloat16", window_strides=2, padding=0))[which]
    choice = choose("cuda", kind, problem)
    assert (choice.plan.family, choice.plan.transform) == ("wgmma", (PackedColumns(2),))
    assert not any(view.copies for view in apply(choice.plan.transform, problem).views.values())


def test_zeros_of_packed_groups_are_not_products():
    """What is not finite stays in its group's block, and what comes back is of the diagonal alone."""
    problem = layer((1, 3, 4), (1, 2, 4), feature_group_count=2)
    view = apply((PackedGroups(2),), problem).views["rhs"]
    rhs = np.array([[[1, 2, np.inf, 4], [5, 6, 7, np.nan]]], np.float32)
    blocks = np.array([[[1, 2, 0, 0], [5, 6, 0, 0], [0, 0, np.inf, 4], [0, 0, 7, np.nan]]], np.float32)
    assert_same(np.asarray(view.to(rhs)), blocks)
    assert_same(np.asarray(view.back(np.where(blocks == 0, np.float32(np.nan), blocks))), rhs)


def test_only_a_wgrad_is_swapped():
    for kind, problem in passes_of(layer((2, 5, 6, 16), (3, 3, 16, 8))).values():
        choice = choose("cuda", kind, problem, Constraint(family="mma", transform=(SwappedOperands(),)))
        assert (choice.plan is not None) == (kind == "wgrad")
        assert choice.plan is not None or any("swapped" in r.reason for r in choice.rejected)


def channels_first(lhs, rhs, **params):
    layouts = dict(dimension_numbers=("NCHW", "OIHW", "NCHW"), window_strides=(1, 1), padding="SAME")
    return problem_of(functools.partial(lax.conv_general_dilated, **layouts | params), lhs, rhs, "bfloat16")


INAPPLICABLE = {
    "no_gaps": (layer((2, 5, 6, 3), (1, 1, 3, 4)), SeenPixels(), "leave gaps"),
    "windows_of_several": (layer((2, 5, 3), (2, 3, 4), window_strides=3, padding=0), SeenPixels(), "leave gaps"),
    "no_windows": (layer((2, 300, 3), (1, 3, 4), window_strides=2, padding=((-4, -296),)), SeenPixels(), "leave gaps"),
    "windows_beside_the_image": (layer((2, 5, 3), (1, 3, 4), window_strides=8, padding=3), SeenPixels(), "leave gaps"),
    "no_gaps_of_a_pixel": (layer((2, 1, 3), (1, 3, 4), window_strides=2, padding=0), SeenPixels(), "leave gaps"),
    "channels_last": (layer((2, 5, 6, 3), (3, 3, 3, 4)), ChannelsLast(), "last"),
    "whole_vectors": (layer((2, 5, 6, 4), (3, 3, 4, 8)), PackedColumns(1), "vectors"),
    "another_stride": (layer((2, 5, 6, 3), (3, 3, 3, 4), window_strides=2), PackedColumns(3), "stride"),
    "dilated": (layer((2, 5, 9), (2, 9, 4), window_strides=2, rhs_dilation=2), PackedColumns(2), "dilated"),
    "groups_of_columns": (layer((2, 5, 6), (2, 3, 4), feature_group_count=2), PackedColumns(1), "groups"),
    "rows_that_overlap": (
        layer((2, 6, 3), (3, 3, 4), window_strides=2, padding=0), PatchRowsAsImages(), "side by side"
    ),
    "rows_left_over": (layer((2, 7, 3), (3, 3, 4), window_strides=3, padding=0), PatchRowsAsImages(), "side by side"),
    "rows_behind_columns": (
        channels_first((2, 3, 6, 6), (4, 3, 3, 3), window_strides=(3, 3)), PatchRowsAsImages(), "next to images"
    ),
    "rows_of_groups_of_images": (
        layer((2, 6, 6), (3, 6, 4), window_strides=3, padding=0, batch_group_count=2), PatchRowsAsImages(), "groups"
    ),
    "no_groups": (layer((2, 5, 6), (2, 6, 4)), PackedGroups(2), "groups"),
    "groups_of_images": (layer((2, 5, 6), (2, 6, 4), batch_group_count=2), PackedGroups(2), "groups"),
    "other_groups": (layer((2, 5, 6), (2, 2, 6), feature_group_count=3), PackedGroups(2), "3 groups"),
    "wide_groups": (layer((2, 5, 6), (2, 2, 6), feature_group_count=3), PaddedGroups(), "one channel"),
    "whole_groups": (layer((2, 5, 4), (2, 1, 4), feature_group_count=4), PaddedGroups(), "whole 16-byte vectors"),
    "wide_groups_of_volumes": (
        layer((2, 3, 4, 5, 6), (1, 2, 2, 2, 6), feature_group_count=3), VolumesAsImages(), "one channel"
    ),
    "no_volumes": (layer((2, 5, 6, 4), (1, 1, 1, 4), feature_group_count=4), VolumesAsImages(), "2 spatial dimensions"),
    "windows_of_several_planes": (
        layer((2, 3, 4, 5, 6), (2, 1, 2, 1, 6), feature_group_count=6), VolumesAsImages(), "several planes"
    ),
    "strided_planes": (
        layer((2, 3, 4, 5, 6), (1, 2, 2, 1, 6), feature_group_count=6, window_strides=(2, 1, 1)), VolumesAsImages(),
        "move by several"
    ),
    "planes_not_next_to_images": (
        problem_of(
            functools.partial(
                lax.conv_general_dilated, window_strides=(1, 1, 1), padding="SAME", feature_group_count=6,
                dimension_numbers=("NHDWC", "DHWIO", "NHDWC"),
            ),
            (2, 4, 3, 5, 6), (1, 2, 2, 1, 6),
        ),
        VolumesAsImages(), "next to images"
    ),
    "wide_multipliers": (layer((2, 5, 6), (2, 2, 6), feature_group_count=3), MultipliersAsDepth(), "one channel"),
    "no_multipliers": (layer((2, 5, 6), (2, 1, 6), feature_group_count=6), MultipliersAsDepth(), "one result"),
    "multipliers_of_strided_volumes": (
        layer((2, 3, 4, 5, 6), (2, 2, 2, 1, 12), feature_group_count=6, window_strides=2), MultipliersAsDepth(),
        "strided"
    ),
    "too_many_multipliers": (
        layer((2, 5, 2), (1, 1, 2 * 1025), feature_group_count=2), MultipliersAsDepth(), "1025 planes"
    ),
    "wide_groups_of_strides": (
        layer((2, 5, 6), (2, 2, 6), feature_group_count=3, window_strides=2), StridesAsDepth(), "one channel"
    ),
    "no_strides": (layer((2, 5, 6, 4), (2, 2, 1, 4), feature_group_count=4), StridesAsDepth(), "not strided"),
    "no_strided_rows": (
        layer((2, 9, 4), (2, 1, 4), feature_group_count=4, window_strides=2), StridesAsDepth(columns=False), "rows"
    ),
    "strided_and_dilated": (
        layer((2, 9, 9, 4), (2, 2, 1, 4), feature_group_count=4, window_strides=2, rhs_dilation=2), StridesAsDepth(),
        "dilated window"
    ),
    "both_strided_and_doubled": (
        layer((2, 9, 9, 4), (2, 2, 1, 4), feature_group_count=4, window_strides=(2, 1), lhs_dilation=(1, 2), padding=1),
        StridesAsDepth(columns=False), "dilated input"
    ),
    "far_apart": (
        layer((2, 40, 40, 4), (1, 1, 1, 4), feature_group_count=4, window_strides=(33, 32), padding=0),
        StridesAsDepth(), "1056 planes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem, step, why", INAPPLICABLE.values(), ids=INAPPLICABLE)
@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_what_does_not_apply_says_why(problem, step, why, which):
    kind, problem = passes_of(problem)[which]
    choice = choose("cuda", kind, problem, Constraint(family="mma", transform=(step,)))
    assert choice.plan is None
    (rejection,) = (r for r in choice.rejected if r.what == f"mma of {step}")
    assert why in rejection.reason


# The planner.


LAYERS = {
    "stem": (halves((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), (PackedColumns(2),)),
    "patches": (halves((128, 224, 224, 3), (16, 16, 3, 768), window_strides=16, padding=0), (PackedColumns(16),)),
    "images": (halves((2, 512, 512, 128), (3, 3, 128, 3)), (PackedColumns(1),)),
    "groups": (halves((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), (PackedGroups(16),)),
    "channels_first": (channels_first((32, 128, 28, 28), (128, 128, 3, 3)), (ChannelsLast(),)),
    "stem_of_channels_first": (
        channels_first((128, 3, 224, 224), (64, 3, 7, 7), window_strides=(2, 2)), (ChannelsLast(), PackedColumns(2))
    ),
    "dense": (halves((32, 56, 56, 64), (3, 3, 64, 64)), ()),
    "strided": (halves((32, 56, 56, 64), (3, 3, 64, 128), window_strides=2), ()),
}  # fmt: skip


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem, transform", LAYERS.values(), ids=LAYERS)
def test_what_is_chosen(problem, transform, which):
    """And why: the problem as it is costs more, also with what the arrays' conversion takes."""
    kind, problem = passes_of(problem)[which]
    choice = choose("cuda", kind, problem, Constraint(family="mma"))
    if choice.plan.transform[-1:] == (SwappedOperands(),):
        assert which == "wgrad" and problem.in_channels > problem.out_channels
        transform = (*transform, SwappedOperands())
    assert (choice.plan.family, choice.plan.transform) == ("mma", transform)
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


IN_RUNS = [("stem", "fprop"), ("stem", "wgrad"), ("images", "dgrad"), ("images", "wgrad")]


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name, problem, transform", [(name, *layer) for name, layer in LAYERS.items()], ids=LAYERS)
def test_what_is_chosen_of_all_families(name, problem, transform, which):
    """Groups of few channels need no packs where a family takes them as they lie, nor do rows of few channels."""
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
    assert chosen == (() if packs_groups or is_packed or taps_in_n else transform)
    assert (choice.plan.family == "direct") >= packs_groups
    assert is_packed == ((name, which) in IN_RUNS)
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
        channels_first((32, 33, 56, 56), (66, 1, 15, 15), feature_group_count=33),
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
    assert (choice.plan.family, choice.plan.transform) == ("depthwise", transform)
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


def test_what_is_converted_has_a_price():
    """Bytes read and written by a transpose, and a launch each; less bandwidth, more of it."""
    _, problem = passes_of(LAYERS["channels_first"][0])["fprop"]
    converted = transforms.apply((ChannelsLast(),), problem).problem
    slow = dataclasses.replace(TYPICAL_DEVICE, bandwidth=TYPICAL_DEVICE.bandwidth / 2)

    def conversions(device):
        costs = [choose("cuda", "conv", of, Constraint("cuda", "mma", transform=transform, split=1), device).cost
                 for of, transform in ((problem, (ChannelsLast(),)), (converted, ()))]  # fmt: skip
        return costs[0] - costs[1]

    elements = sum(np.prod(getattr(problem, f"{role}_shape")) for role in ROLES)
    more = conversions(slow) - conversions(TYPICAL_DEVICE)
    assert more == pytest.approx(1.3 * 2 * 2 * elements / TYPICAL_DEVICE.bandwidth)


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_what_is_not_seen_is_not_read(which):
    """But it is written, as zeros."""
    kind, problem = passes_of(halves((16, 30, 30, 512), (1, 1, 512, 1024), window_strides=2))[which]
    slow = dataclasses.replace(TYPICAL_DEVICE, bandwidth=TYPICAL_DEVICE.bandwidth / 2)
    seconds = [version_of((SeenPixels(),), Product(kind, problem), on).conversions for on in (slow, TYPICAL_DEVICE)]
    seen, all_pixels = 16 * 15 * 15 * 512, 16 * 30 * 30 * 512
    elements = seen + (all_pixels if which == "dgrad" else seen)
    assert seconds[0] - seconds[1] == pytest.approx(1.3 * 2 * elements / TYPICAL_DEVICE.bandwidth)


@pytest.mark.parametrize("family", ["simt", "im2col"])
def test_other_families_take_what_lies_there(family):
    problem = LAYERS["stem"][0]
    choice = choose("cuda", "conv", problem, Constraint(family=family))
    assert choice.plan.transform == ()
    assert not any(" of " in r.what for r in choice.rejected)
    choice = choose("cuda", "conv", problem, Constraint(family=family, transform=(PackedColumns(2),)))
    assert choice.plan is None


@settings(max_examples=100, deadline=None, database=None)
@given(problems(), st.booleans(), st.booleans(), st.booleans())
def test_what_is_tried_has_vectors(problem, packs_groups, stores_parts, k_major):
    for kind, p in passes_of(problem).values():
        for transform in dense_transforms(Product(kind, p), packs_groups, stores_parts, k_major):
            assert unsupported_reason(transform, p) is None
            assert packs_groups or not any(isinstance(step, PackedGroups) for step in transform)
            assert stores_parts or not any(isinstance(step, PackedColumns) and not step.whole for step in transform)
            transformed = apply(transform, p).problem
            swaps = SwappedOperands() in transform
            assert (transformed.reverse != p.reverse) == swaps
            assert kind == "wgrad" or not swaps
            vector = 16 // p.rhs_dtype.itemsize
            # Few channels of a cotangent, which nothing was done to, may be read as packed K.
            has_channels = Product(kind, transformed).has_contiguous_channels(vector)
            has_positions = kind == "wgrad" and any(isinstance(step, PositionsLast) for step in transform)
            assert transform == (SwappedOperands(),) or has_channels or has_positions


# The call.


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("transform, ins, groups", [((PackedColumns(2),), 3, 1), ((PackedGroups(4),), 2, 8)])
def test_on_a_mesh(transform, ins, groups, kind, monkeypatch):
    """Each device transforms the part of the problem that it has: here lax is the kernel."""

    def convolution(plan, problem):
        assert problem.batch == 1
        return transformed_by_lax(plan.kind, problem, transform)

    monkeypatch.setattr(ffi, "convolution", convolution)
    params = dict(window_strides=(2, 2), padding="SAME", feature_group_count=groups)
    ours, theirs = (functools.partial(conv, **params) for conv in (jaxconv.conv2d, lax_channels_last))
    operands = [integers(shape) for shape in ((8, 6, 5, groups * ins), (3, 3, ins, 16), (8, 3, 3, 16))]
    mesh = jax.make_mesh((8,), ("a",), axis_types=(kind,), devices=jax.devices("cpu"))
    specs = P("a"), P(), P("a")
    with jax.set_mesh(mesh):
        sharded = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(operands, specs, strict=True)]
        results = jax.jit(pullback(ours))(*sharded)
    assert_same(tuple(map(np.asarray, results)), run_on_host(pullback(theirs), *operands))


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
    checks = [export.DisabledSafetyCheck.custom_call(f"jaxconv_{kind}")]
    function = jax.jit(ffi.convolution(plan, problem))
    exported = export.export(function, platforms=["cuda"], disabled_checks=checks)(*map(types.get, OPERANDS[kind]))
    assert exported.out_avals[0].shape == types[RESULT[kind]].shape
    (call,) = (line for line in exported.mlir_module().splitlines() if f"@jaxconv_{kind}" in line)
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


def test_what_is_not_finite_stays_in_its_pack():
    """Results of other packs are as without it, bit for bit."""
    problem = layer((1, 7, 6, 8), (3, 3, 1, 8), "float32", feature_group_count=8)
    (kind, p), transform = passes_of(problem)["fprop"], (PackedGroups(4),)
    x, w = array(p, "lhs"), array(p, "rhs")
    spoilt = x.copy()
    spoilt[0, 3, 3, 1] = np.inf
    actual, expected = (run_on_host(transformed_by_lax(kind, p, transform), a, w) for a in (spoilt, x))
    assert_same(actual[..., 4:], expected[..., 4:])
    seen = np.zeros(actual.shape[1:3], bool)
    seen[2:5, 2:5] = True  # by windows that hold it
    assert_same(actual[0][~seen], expected[0][~seen])
    assert not np.all(np.isfinite(actual[..., 0]))


@pytest.mark.parametrize("dtype, channels, in_words", [
    ("bfloat16", 16, True), ("float16", 8, True), ("bfloat16", 12, False), ("float32", 16, False), ("int8", 16, False),
])  # fmt: skip
def test_what_lies_apart_moves_in_words(dtype, channels, in_words):
    """Pairs of 16 bits, where channels are whole vectors. Zeros come between them on the way back."""
    x, at = integers((2, 7, 5, channels), dtype), range(1, 6, 2)
    view = spread(x.shape, {1: at, 2: range(5)})
    np.testing.assert_array_equal(view.to(x), x[:, 1:6:2])
    expected = np.zeros_like(x)
    expected[:, 1:6:2] = x[:, 1:6:2]
    np.testing.assert_array_equal(view.back(x[:, 1:6:2]), expected)
    assert all(("uint32" in str(jax.make_jaxpr(move)(x))) == in_words for move in (view.to, view.back))
