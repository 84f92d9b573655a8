"""Plans of wgmma's products of bfloat16, which multiply float32 at HIGHEST."""

import math

import pytest
from jax import export, lax

from cases.plans import CUDA, as_it_is, tile_of
from cases.problems import layer, passes_of, problem_of
from jaxconv.planner.choose import choose
from jaxconv.transforms import KMajorFilter, SwappedOperands

TILES = [tile for tile in CUDA["wgmma"].tiles if tile.bf16x6]
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)
each_pass = pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
X, W = (4, 20, 20, 64), (3, 3, 64, 128)
PARTS_BYTES = 4 * 2  # of a number


def at(precision, x=X, w=W, dtype="float32", **more):
    return layer(x, w, dtype, precision=precision, **more)


def choice_of(which, problem, tile=None, **settings):
    kind, of_pass = passes_of(problem)[which]
    return choose("cuda", kind, of_pass, as_it_is("wgmma", tile and tile.name, **settings))


@each_pass
@every_tile
def test_tiles_are_for_float32_at_highest(which, tile):
    has_pass = which != "wgrad" or tile.has_float32_wgrad
    assert (choice_of(which, at("highest"), tile).plan is not None) == has_pass
    for other in (at("default"), at("highest", dtype="bfloat16")):
        assert choice_of(which, other, tile).plan is None


@each_pass
def test_float32_at_highest_is_for_no_other_tile(which):
    for tile in CUDA["wgmma"].tiles:
        assert tile.bf16x6 or choice_of(which, at("highest"), tile).plan is None


@each_pass
@pytest.mark.parametrize("split", [1, 3, 8])
def test_the_workspace_has_slices_and_parts(which, split):
    """Parts of a conv's filter, or of the output's gradient."""
    problem = at("highest")
    plan = choice_of(which, problem, TILES[0], split=split).plan
    kind, of_pass = passes_of(problem)[which]
    tile = tile_of(plan)
    slices = split // math.gcd(split, 8 // (tile.row_blocks * tile.col_blocks)) if which == "wgrad" else split
    results = math.prod(of_pass.rhs_shape if kind == "wgrad" else of_pass.out_shape)
    operand = math.prod(of_pass.out_shape if kind == "wgrad" else of_pass.rhs_shape)
    sums = 4 * slices * results if slices > 1 else 0
    assert plan.workspace_bytes(of_pass) == PARTS_BYTES * operand + sums


@each_pass
@pytest.mark.parametrize("split", [1, 3, 11])
@pytest.mark.parametrize("channels", [64, 328])
def test_the_workspace_of_a_symbolic_batch(which, split, channels):
    """It is as much as that of as many images, or little more."""
    (batch,) = export.symbolic_shape("b")
    of = lambda images: at("highest", (images, 3, 3, 512), (3, 3, 512, channels))
    plan = choice_of(which, of(batch), TILES[0], split=split).plan
    need = plan.workspace_bytes(passes_of(of(batch))[which][1])
    for images in range(1, 17):
        known = plan.workspace_bytes(passes_of(of(images))[which][1])
        assert known <= evaluated(need, images) <= known + 16 * images


def evaluated(number, batch):
    return number if isinstance(number, int) else int(number._evaluate({"b": batch}))


@pytest.mark.parametrize("which, x, w, why", [
    ("fprop", (2, 9, 9, 16), (3, 3, 16, 12), "parts of no whole vectors of 8 channels"),
    ("dgrad", (2, 9, 9, 16), (3, 3, 16, 12), "parts of no whole vectors of 8 channels"),
    ("wgrad", (2, 9, 9, 16), (3, 3, 16, 12), "parts of no whole vectors of 8 channels"),
    ("fprop", (2, 9, 9, 6), (3, 3, 6, 16), "pixels are no whole vectors of 4 channels"),
])  # fmt: skip
def test_what_is_refused(which, x, w, why):
    choice = choice_of(which, at("highest", x, w))
    assert choice.plan is None and why in choice.unsupported_reason()


@pytest.mark.parametrize("batch, is_supported", [(1, True), (2, False)])
def test_parts_are_contiguous_in_memory(batch, is_supported):
    """Not with images between pixels. One image alone has none between."""
    specs = ("NHWC", "HWIO", "HWNC")
    conv = lambda x, w, **more: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=specs, precision="highest", **more)  # fmt: skip
    problem = problem_of(conv, (batch, 20, 20, 64), W)
    assert (choice_of("wgrad", problem).plan is not None) == is_supported


@each_pass
def test_other_channels_fill_vectors(which):
    """Of the filter in another order, or of the other operand."""
    kind, problem = passes_of(at("highest", (8, 40, 40, 128), (3, 3, 128, 100)))[which]
    plan = choose("cuda", kind, problem).plan
    assert plan.family == "wgmma" and tile_of(plan).bf16x6
    assert plan.transform[0] == KMajorFilter()
    assert (SwappedOperands() in plan.transform) == (which == "wgrad")


@every_tile
def test_steps_have_whole_multiplications(tile):
    """16 or 32 channels of K: a plan of 40 channels costs two or three steps more than one of 32, not a part of one."""
    cost = lambda channels: choice_of("fprop", at("highest", (32, 20, 20, channels), (3, 3, channels, 128)), tile).cost
    assert cost(32) < cost(40) <= cost(48) < cost(80)
