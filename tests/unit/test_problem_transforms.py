"""Transforms: the transformed convolution has the same results, and what does not apply says why."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.parts import diagonal, parts
from cases.problems import channels_first, layer, passes_of, problem_of, sizes
from cases.reference import assert_same, integers, lax_channels_last, pullback, run_on_host
from jaxconv import ffi
from jaxconv.fallback import LAX
from jaxconv.planner.choose import choose, options
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.plan import ANY, Constraint
from jaxconv.problem import ROLES
from jaxconv.problem.product import OPERANDS, RESULT, EpilogueKind, Product
from jaxconv.transforms import (
    ChannelsLast,
    KMajorFilter,
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
    apply,
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
    steps += [step(many) for step in (PackedOutputs, TapsAsChannels) for many in (2, 3)]
    steps += [TapsAsChannels(many, "out") for many in (2, 3)]
    tried = {(*first, *last) for first in ((), (ChannelsLast(),)) for last in ((), *((step,) for step in steps))}
    tried |= {(*steps, PatchRowsAsImages()) for steps in tried}
    unstrided = [(*r, StridesAsDepth(columns)) for r in ((), (MultipliersAsDepth(),)) for columns in (False, True)]
    tried |= {(PaddedGroups(),), (PaddedGroups(), PackedGroups(2)), (MultipliersAsDepth(),), *unstrided}
    tried |= {(SeenPixels(),), (ChannelsLast(), SeenPixels()), (SeenPixels(), PackedColumns(1))}
    tried |= {(PackedOutputs(2), PackedColumns(2 * problem.window_strides[-1])), (TapsAsChannels(4), PackedColumns(1))}
    tried |= {(TapsAsChannels(4, "out"), PackedColumns(1)), (TapsAsChannels(2, "out"), PackedOutputs(2))}
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
@settings(max_examples=2, database=None, phases=[Phase.generate])
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
    applied = [a for a in applied if not any(view.is_summed for view in a.views.values())]
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
            if not views[role].moves:
                assert_same(np.ravel(new[role]), arrays[role].ravel())


@pytest.mark.parametrize("name, which", diagonal(list(PACKED), ["fprop", "dgrad", "wgrad"]))
def test_array_views_that_sum_are_transposed(name, which):
    """The way back is the transpose of the way there, which has the transformed problem's shape."""
    _, problem = passes_of(PACKED[name])[which]
    applied = [apply(transform, problem) for transform in all_that_apply(problem)]
    views = [(role, a.views[role], a.problem) for a in applied for role in ROLES if a.views[role].is_summed]
    there = run_on_host(lambda: [view.to(array(problem, role)) for role, view, _ in views])
    assert [x.shape for x in there] == [after.shape(role) for role, _, after in views]
    back = run_on_host(lambda there: [view.back(x) for (_, view, _), x in zip(views, there, strict=True)], there)
    transposed = run_on_host(lambda there: [
        jax.linear_transpose(view.to, array(problem, role))(x)[0]
        for (role, view, _), x in zip(views, there, strict=True)
    ], there)  # fmt: skip
    assert_same(back, transposed)


def test_outputs_that_are_packed():
    """Of 8 columns of one channel, where the filter sees 11 columns: 3 packs hold all that 8 neighbours see.

    Activations stay where they are.
    """
    line = layer((4, 1000, 1), (11, 1, 32), "bfloat16", padding=5)
    transformed, views, *_ = apply((PackedOutputs(8), PackedColumns(8)), line)
    assert sizes(transformed) == ((4, 125, 8), (3, 8, 256), (4, 125, 256), (1,), (1,))
    assert not views["lhs"].moves and not views["out"].moves and views["out"].packs == 8


def test_taps_that_become_channels():
    """A stem's row of 7 taps is one tap of 8 times the channels. Columns between windows are left out."""
    stem = layer((32, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3)
    transformed = apply((TapsAsChannels(8),), stem).problem
    assert sizes(transformed) == ((32, 224, 112, 24), (7, 1, 24, 64), (32, 112, 112, 64), (2, 1), (3, 0))
    halved = apply((TapsAsChannels(4),), stem).problem
    assert halved.lhs_shape == (32, 224, 114, 12) and halved.kernel == (7, 2) and halved.rhs_dilation == (1, 2)
    apart = apply((TapsAsChannels(3),), stem).problem  # three columns are no whole number of strides
    assert apart.window_strides == (2, 2) and apart.rhs_dilation == (1, 3)


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
    assert not views["lhs"].moves and not views["out"].moves
    choice = choose("cuda", "conv", stem.dgrad())
    assert (choice.plan.family, choice.plan.transform) == ("direct", (PackedColumns(2, whole=False),))


def test_patches():
    """16x16 by 16 of 3 channels is 16x1 by (16, 1) of 48, and nothing moves."""
    patches = layer((32, 224, 224, 3), (16, 16, 3, 768), "bfloat16", window_strides=16, padding=0)
    transformed, views, *_ = apply((PackedColumns(16),), patches)
    assert sizes(transformed) == (
        (32, 224, 14, 48), (16, 1, 48, 768), (32, 14, 14, 768), (16, 1), (0, 0)
    )  # fmt: skip
    assert not any(views[role].moves for role in ROLES)


def test_rows_of_patches():
    """Then each row of patches is an image of 16 rows, and nothing moves either."""
    patches = layer((32, 224, 224, 3), (16, 16, 3, 768), "bfloat16", window_strides=16, padding=0)
    transformed, views, *_ = apply((PackedColumns(16), PatchRowsAsImages()), patches)
    assert sizes(transformed) == (
        (448, 16, 14, 48), (16, 1, 48, 768), (448, 1, 14, 768), (1, 1), (0, 0)
    )  # fmt: skip
    assert not any(views[role].moves for role in ROLES)


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


@pytest.mark.parametrize("epilogue_kind", EpilogueKind)
@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem, of_zeros", [
    (STRIDED_POINTS, ["dgrad"]), (TWICE_AS_MANY_POINTS, ["fprop", "wgrad"])
])  # fmt: skip
def test_where_seen_pixels_are_tried(problem, of_zeros, which, epilogue_kind):
    """Kernels read no other pixels. So it is for outputs that are zeros, and before weight gradients become K-major."""
    kind, problem = passes_of(problem)[which]
    tried = {o.transform for o in options("cuda", Product(kind, problem, epilogue_kind), ANY, TYPICAL_DEVICE)}
    assert has_more_zeros((SeenPixels(),), problem) == (which in of_zeros)
    assert not has_more_zeros((), problem)
    is_tried = epilogue_kind is EpilogueKind.NONE if which in of_zeros else kind == "wgrad"
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
    assert not any(views[role].moves for role in ROLES)


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
def test_columns_side_by_side_are_packed(which):
    """Where 2x2 by 2 of 96 channels is 2x1 by (2, 1) of 192, three K blocks of wgmma's instead of two times two."""
    kind, problem = passes_of(layer((128, 56, 56, 96), (2, 2, 96, 192), "bfloat16", window_strides=2, padding=0))[which]
    choice = choose("cuda", kind, problem)
    assert (choice.plan.family, choice.plan.transform) == ("wgmma", (PackedColumns(2),))
    assert not any(view.moves for view in apply(choice.plan.transform, problem).views.values())


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
    "groups_of_outputs": (layer((2, 5, 6), (2, 3, 4), feature_group_count=2), PackedOutputs(2), "groups"),
    "dilated_outputs": (layer((2, 5, 9), (2, 9, 4), rhs_dilation=2), PackedOutputs(2), "dilated"),
    "groups_of_taps": (layer((2, 5, 6), (2, 3, 4), feature_group_count=2), TapsAsChannels(2), "groups"),
    "taps_of_a_dilated_lhs": (layer((2, 5, 9), (2, 9, 4), lhs_dilation=2, padding=1), TapsAsChannels(2), "holes"),
    "taps_of_nothing": (layer((2, 0, 9), (2, 9, 4), padding=2), TapsAsChannels(2), "no columns"),
    "output_taps_of_nothing": (layer((2, 1, 9), (2, 9, 4), padding=0), TapsAsChannels(2, "out"), "no columns"),
    "output_taps_of_strides": (layer((2, 5, 9), (2, 9, 4), window_strides=2), TapsAsChannels(2, "out"), "holes"),
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
