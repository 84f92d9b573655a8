"""Members of a vmap are independent: an infinity or a NaN in one changes no bit of another's results."""

import dataclasses
import functools
from dataclasses import dataclass, field

import jax
import numpy as np
import pytest

import jaxconv
from cases.parts import diagonal
from cases.reference import channels_last, integers, pullback
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint
from jaxconv.problem import Member
from jaxconv.transforms import PackedGroups

BOTH, IMAGES, FILTERS = (0, 0), (0, None), (None, 0)
MEMBERS = 6


@dataclass(frozen=True)
class Ensemble:
    """Shapes of one member, and which operands the members have of their own."""

    name: str
    lhs: tuple
    rhs: tuple
    params: dict = field(default_factory=dict)
    mapped: tuple = BOTH

    def __str__(self):
        return self.name

    def conv(self, implementation):
        rank = len(self.lhs) - 2
        params = dict(window_strides=(1,) * rank, padding="SAME", dimension_numbers=channels_last(rank))
        return functools.partial(jaxconv.conv_general_dilated, implementation=implementation, **params | self.params)

    def passes(self, implementation):
        """(x, w, g) -> each member's results, its input's gradient and its filter's: a function each."""
        conv = self.conv(implementation)
        one = {
            "y": lambda x, w, g: conv(x, w),
            "dx": lambda x, w, g: jax.linear_transpose(lambda x: conv(x, w), x)(g)[0],
            "dw": lambda x, w, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0],
        }
        return {name: jax.vmap(function, (*self.mapped, 0)) for name, function in one.items()}

    def operands(self, dtype):
        """x, w and g, of each member where it has its own."""
        shapes = [(MEMBERS, *s) if axis == 0 else s for s, axis in zip((self.lhs, self.rhs), self.mapped)]
        x, w = (integers(shape, dtype, seed) for seed, shape in enumerate(shapes))
        y = jax.eval_shape(jax.vmap(self.conv(None), self.mapped), x, w)
        return x, w, integers(y.shape, dtype, 2)

    def spoilt(self, dtype):
        """Operands; in turn the first member's x, w or g are no numbers."""
        operands = self.operands(dtype)
        for value in (np.inf, np.nan):
            for role, axis in enumerate((*self.mapped, 0)):
                if axis == 0:
                    other = operands[role].copy()
                    other[0] = value
                    yield f"{value} in {'xwg'[role]}", (*operands[:role], other, *operands[role + 1 :])


def grouped(name, lhs, rhs, mapped=BOTH, **params):
    return Ensemble(name, lhs, rhs, dict(feature_group_count=lhs[-1] // rhs[-2]) | params, mapped)


ENSEMBLES = [
    grouped("a_kernel_an_image", (1, 20, 22, 3), (11, 11, 1, 3)),
    grouped("a_small_kernel_an_image", (1, 20, 22, 3), (5, 5, 1, 3)),
    grouped("3_groups_of_4", (2, 12, 12, 12), (3, 3, 4, 12)),
    grouped("2_groups_of_8", (2, 12, 12, 16), (3, 3, 8, 16)),
    grouped("8_groups_of_4", (2, 12, 12, 32), (3, 3, 4, 32)),
    grouped("4_groups_of_16", (2, 9, 9, 64), (3, 3, 16, 64)),
    grouped("depthwise_4", (2, 12, 12, 4), (3, 3, 1, 4)),
    grouped("depthwise_16", (2, 12, 12, 16), (7, 7, 1, 16)),
    grouped("depthwise_line", (2, 40, 4), (4, 1, 4), window_strides=(1,)),
    grouped("depthwise_volume", (1, 4, 9, 9, 4), (3, 3, 3, 1, 4)),
    grouped("depthwise_strided", (2, 12, 12, 8), (3, 3, 1, 8), window_strides=(2, 2)),
    grouped("doubled_results", (2, 9, 9, 8), (3, 3, 1, 16)),
    Ensemble("dense", (2, 9, 9, 8), (3, 3, 8, 16)),
    Ensemble("few_channels", (2, 12, 12, 3), (3, 3, 3, 4), dict(window_strides=(2, 2))),
    Ensemble("one_by_one", (2, 8, 8, 16), (1, 1, 16, 8)),
    Ensemble("images", (1, 12, 12, 8), (3, 3, 8, 8), mapped=IMAGES),
    Ensemble("images_of_few_channels", (1, 12, 16, 3), (7, 7, 3, 16), dict(window_strides=(2, 2)), IMAGES),
    grouped("depthwise_images", (1, 7, 7, 32), (7, 7, 1, 32), IMAGES),
    grouped("depthwise_lines", (1, 1, 30, 32), (1, 5, 1, 32), IMAGES),
    grouped("depthwise_large_window", (1, 14, 14, 16), (31, 31, 1, 16), IMAGES),
    Ensemble("filters", (2, 9, 9, 8), (3, 3, 8, 4), mapped=FILTERS),
    Ensemble("filters_of_an_image", (2, 12, 12, 3), (3, 3, 3, 2), mapped=FILTERS),
    grouped("depthwise_filters", (2, 9, 9, 16), (3, 3, 1, 16), FILTERS),
    grouped("large_depthwise_filters", (2, 14, 14, 8), (13, 13, 1, 8), FILTERS),
    grouped("grouped_filters", (2, 9, 9, 16), (3, 3, 4, 16), FILTERS),
]
every_ensemble = pytest.mark.parametrize("ensemble", ENSEMBLES, ids=str)


def changed_members(before, after):
    """Those but the first whose results are other bits."""
    before, after = np.asarray(before), np.asarray(after)
    return [m for m in range(1, len(before)) if before[m].tobytes() != after[m].tobytes()]


def assert_apart(function, ensemble, dtype):
    function = jax.jit(function)
    before = function(*ensemble.operands(dtype))
    for what, operands in ensemble.spoilt(dtype):
        for clean, now in zip(jax.tree.leaves(before), jax.tree.leaves(function(*operands))):
            assert not changed_members(clean, now), what


@pytest.mark.parametrize("ensemble, dtype", diagonal(ENSEMBLES, ["float32", "bfloat16"]), ids=str)
def test_on_the_default_platform(ensemble, dtype, implementation):
    passes = ensemble.passes(implementation)
    assert_apart(lambda *operands: [function(*operands) for function in passes.values()], ensemble, dtype)


@pytest.mark.gpu
@every_ensemble
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES["cuda"])
def test_in_every_family(ensemble, dtype, family):
    """In the passes that it takes."""
    for function in ensemble.passes(family).values():
        try:
            assert_apart(function, ensemble, dtype)
        except NotImplementedError:
            continue


@pytest.mark.parametrize("channels", [1, 4])
def test_of_a_nested_vmap(channels, implementation):
    """Members of members, by filters, by images, and by both; each of the innermost is a member."""
    conv = functools.partial(jaxconv.conv2d, feature_group_count=3, implementation=implementation)
    both = jax.vmap(pullback(conv))
    x = integers((3, 2, 1, 9, 9, 3 * channels), seed=0)
    w = integers((3, 2, 3, 3, channels, 3 * channels), seed=1)
    g = integers((3, 2, 1, 9, 9, 3 * channels), seed=2)
    nested = jax.jit(jax.vmap(both))
    flat = lambda results: [np.asarray(r).reshape(6, -1) for r in results]
    before = flat(nested(x, w, g))
    for role in range(3):
        operands = [x, w, g]
        operands[role] = operands[role].copy()
        operands[role][0, 0] = np.inf
        for clean, now in zip(before, flat(nested(*operands))):
            assert not changed_members(clean, now), "xwg"[role]


def test_of_a_vmap_of_a_gradient(implementation):
    """An ensemble's training step: one member that diverges is alone."""
    conv = functools.partial(jaxconv.conv2d, feature_group_count=4, implementation=implementation)
    loss = lambda w, x: (conv(conv(x, w), w) ** 2).sum()
    step = jax.jit(jax.vmap(jax.value_and_grad(loss), (0, None)))
    x, w = integers((2, 9, 9, 4)), integers((5, 3, 3, 1, 4), seed=1)
    before = step(w, x)
    w[0] = np.nan
    for clean, now in zip(before, step(w, x)):
        assert not changed_members(clean, now)


def problem_of(function, *args):
    """That of the only convolution."""
    jaxpr = jax.make_jaxpr(function)(*args)
    (equation,) = (e for e in jaxpr.eqns if "problem" in e.params)
    return equation.params["problem"]


def member_of(function, *args):
    return problem_of(function, *args).member


def test_the_problem_knows_its_members():
    x, w = np.ones((2, 9, 9, 12), np.float32), np.ones((3, 3, 4, 24), np.float32)
    conv = functools.partial(jaxconv.conv_general_dilated, window_strides=(1, 1), padding="SAME",
                             dimension_numbers=channels_last(2), feature_group_count=3)  # fmt: skip
    many = lambda a, *sizes: np.broadcast_to(a, (*sizes, *a.shape))
    one = Member(groups=3, in_channels=4, out_channels=8)
    assert member_of(conv, x, w) == one
    assert member_of(jax.vmap(conv), many(x, 5), many(w, 5)) == one
    assert member_of(jax.vmap(jax.vmap(conv)), many(x, 2, 5), many(w, 2, 5)) == one
    assert member_of(jax.vmap(conv, (None, 0)), x, many(w, 5)) == one
    assert member_of(jax.vmap(conv, (0, None)), many(x, 5), w) == one
    assert member_of(jax.vmap(jax.vmap(conv, (None, 0))), many(x, 2), many(w, 2, 5)) == one


def test_packs_on_a_gpu_stay_within_a_member():
    """Of the same groups, those of one convolution are packed, and read in vectors of eight channels, by any number."""
    conv = functools.partial(jaxconv.conv_general_dilated, window_strides=(1, 1), padding="SAME",
                             dimension_numbers=channels_last(2))  # fmt: skip
    x, w = np.ones((2, 9, 9, 12), "bfloat16"), np.ones((3, 3, 4, 12), "bfloat16")
    many = lambda a: np.broadcast_to(a, (4, *a.shape))
    of_members = problem_of(jax.vmap(functools.partial(conv, feature_group_count=3)), many(x), many(w))
    of_user = dataclasses.replace(of_members, member=Member(12, 4, 4))
    packed = Constraint("cuda", "mma", transform=(PackedGroups(4),))
    within = Constraint("cuda", "mma", transform=(PackedGroups(3),))
    direct = Constraint("cuda", "direct", transform=())
    for asked in (packed, direct):
        assert choose("cuda", "conv", of_user, asked).plan is not None
        refused = choose("cuda", "conv", of_members, asked)
        assert refused.plan is None and "of several members of a vmap" in refused.unsupported_reason()
        assert choose("cuda", "wgrad", of_members, asked).plan is not None  # what is between groups is thrown away
    assert choose("cuda", "conv", of_members, within).plan is not None
