"""Results are written everywhere, whatever was in their memory and in the workspace."""

import jax
import numpy as np
import pytest

from cases.exact import alone, cases_of, exact, exact_in, pulled_back, results_of, rounded
from cases.for_depthwise import CHANNELS
from cases.reference import assert_same
from cases.tiles import constraint, dtype_of, every_tile, every_tile_for_int8, every_tile_of_convs

pytestmark = pytest.mark.gpu


def poison(*likes):
    """Leaves NaNs, or large integers, where the next arrays will be."""
    likes = (*likes, jax.ShapeDtypeStruct((2**24,), np.float32))
    arrays = [jax.device_put(np.full(a.shape, 2**30 if a.dtype == np.int32 else np.nan, a.dtype)) for a in likes]
    jax.block_until_ready(arrays)
    for array in arrays:
        array.delete()


SPECIAL = ["nothing_seen", "no_channels", "many_classes", "many_groups", "odd_channels", "negative_padding"]


@pytest.mark.parametrize("split", [1, 5])
@every_tile
def test_results_are_written_everywhere(family, tile, split):
    """Whatever was in the memory of results and the workspace."""
    dtypes = [dtype_of(family, tile)] * 3
    operands, expected = (rounded({name: of[name] for name in SPECIAL}, *dtypes) for of in exact())
    ours = lambda convolution: convolution.ours(constraint(family, tile, split=split))
    program = jax.jit(pulled_back(ours)).lower(operands).compile()
    for _ in range(3):
        poison(*jax.tree.leaves(expected))
        assert_same(program(operands), expected)


@pytest.mark.parametrize("split", [1, 5])
@every_tile_for_int8
def test_results_of_int8_are_written_everywhere(family, tile, split):
    operands, expected = exact_in("int8_to_int32", SPECIAL)
    asked = [(name, "fprop", constraint(family, tile, split=split)) for name in SPECIAL]
    expected = results_of(asked, expected)
    program = jax.jit(alone(asked, "int8_to_int32")).lower(operands).compile()
    for _ in range(3):
        poison(*expected)
        assert_same(program(operands), expected)


UNEVEN = {
    "direct": ["pieces_unseen", "columns_unseen", "holes_between_windows", "groups_of_12", "thrice_as_many", "doubled",
               "odd_vectors"],
    "depthwise": CHANNELS,
    "gather": CHANNELS,
    "wgmma": ["windows_unseen", "pieces_unseen", "odd_points_by_2", "points_by_2", "line_by_8", "even_volume_by_2",
              "volume_by_2", "windows_apart", "line_by_4_of_2_pixels", "padded_widely", "three_tiles_of_rows",
              "channels_136_to_8", "channels_64_to_328", "half_is_left", "unseen_taps_of_a_cropped_line",
              "fewer_results_than_classes", "halo_tiles_of_a_row", "halo_tiles_of_a_volume"],
}  # fmt: skip


@every_tile_of_convs
def test_results_are_written_everywhere_where_supported(family, tile):
    """Also those that no tap reaches, and slices without output tiles."""
    cases, dtype = cases_of(family, tile, UNEVEN[family], splits=(1, 5, 8, 40)), dtype_of(family, tile)
    operands, expected = exact_in(dtype, {name for name, *_ in cases})
    expected = results_of(cases, expected)
    program = jax.jit(alone(cases, dtype)).lower(operands).compile()
    for _ in range(3):
        poison(*expected)
        assert_same(program(operands), expected)
