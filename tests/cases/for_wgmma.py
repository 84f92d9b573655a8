"""Convolutions that wgmma is for, and what the hardware asks of its tiles."""

from cases.convolution import Convolution, channels_last_convolution
from jaxconv.planner.devices import TYPICAL_DEVICE


def of_windows():
    """Pixels that TMA reads in its im2col mode, for wgmma, and its edges: of maps' ranks, steps, classes and tiles.

    Results of residue classes that are equally large are stored by TMA, others from registers.
    """
    last = channels_last_convolution
    strided = lambda lhs, rhs, *strides, **more: last(lhs, rhs, window_strides=strides, **more)
    dilated = lambda lhs, rhs, *dilation, **more: last(lhs, rhs, rhs_dilation=dilation, **more)
    spread = lambda lhs, rhs, *dilation, **more: last(lhs, rhs, lhs_dilation=dilation, **more)
    # One for each path, each rank and each way of storing.
    yield "tiny_windows", last((1, 4, 5, 8), (2, 3, 8, 16))
    yield "tiny_windows_of_a_line", last((2, 7, 16), (3, 16, 8))
    yield "tiny_windows_of_a_volume", last((1, 2, 3, 4, 8), (2, 2, 2, 8, 8))
    yield "tiny_windows_by_two", strided((1, 4, 6, 8), (3, 3, 8, 16), 2, 2)
    yield "tiny_odd_windows_by_two", strided((1, 3, 5, 8), (3, 3, 8, 16), 2, 2)
    yield "tiny_doubled_windows", spread((1, 3, 4, 8), (4, 4, 8, 72), 2, 2, padding=((2, 2), (2, 2)))
    yield "tiny_windows_without_taps", strided((1, 4, 4, 8), (1, 1, 8, 16), 2, 2)
    yield "tiny_points", last((2, 3, 3, 8), (1, 1, 8, 16))
    yield "tiny_windows_of_bytes", last((1, 4, 5, 16), (2, 3, 16, 32))
    yield "tiny_doubled_windows_of_bytes", spread((1, 3, 4, 16), (4, 4, 16, 80), 2, 2, padding=((2, 2), (2, 2)))
    # Ranks: leading dimensions of one pixel are left out.
    yield "line", last((2, 50, 40), (3, 40, 72))
    yield "image_of_a_row", last((2, 1, 50, 16), (1, 5, 16, 24))
    yield "volume_of_a_row", last((2, 1, 1, 31, 16), (1, 1, 3, 16, 24))
    yield "volume_of_a_layer", last((2, 1, 9, 12, 16), (1, 3, 2, 16, 24))
    yield "window_beyond_a_row", last((2, 1, 20, 16), (3, 3, 16, 24))
    yield "volume", last((2, 5, 6, 7, 40), (3, 2, 3, 40, 24))
    yield "columns", last((2, 33, 1, 16), (5, 1, 16, 24))
    # Steps and residue classes: data gradients have those of the strides.
    for step in range(2, 9):
        yield f"line_by_{step}", strided((2, 61, 8), (5, 8, 16), step)
    yield "even_line_by_3", strided((2, 60, 16), (4, 16, 8), 3)
    yield "even_line_by_8", strided((2, 64, 16), (9, 16, 8), 8)
    yield "line_by_4_of_2_pixels", strided((2, 2, 16), (3, 16, 8), 4)
    yield "image_by_3_and_2", strided((2, 23, 19, 16), (3, 5, 16, 24), 3, 2)
    yield "image_by_8_and_1", strided((2, 33, 9, 16), (9, 2, 16, 8), 8, 1)
    yield "even_image_by_2", strided((2, 14, 12, 72), (3, 3, 72, 136), 2, 2)
    yield "volume_by_2", strided((1, 6, 7, 9, 16), (3, 3, 3, 16, 24), 2, 2, 2)
    yield "even_volume_by_2", strided((2, 4, 6, 8, 16), (3, 2, 3, 16, 72), 2, 2, 2)
    yield "volume_by_1_2_3", strided((1, 4, 6, 9, 8), (2, 3, 3, 8, 16), 1, 2, 3)
    yield "volume_by_2_in_depth", strided((2, 7, 6, 9, 72), (4, 3, 3, 72, 16), 2, 1, 1)
    yield "points_by_2", strided((2, 10, 12, 40), (1, 1, 40, 64), 2, 2)
    yield "odd_points_by_2", strided((2, 9, 11, 40), (1, 1, 40, 64), 2, 2)
    yield "points_by_2_of_many_tiles", strided((9, 28, 28, 136), (1, 1, 136, 72), 2, 2)
    yield "pairs_by_2", strided((5, 12, 24, 40), (1, 2, 40, 64), 2, 2)
    yield "volume_of_points_by_2", strided((2, 4, 6, 12, 16), (1, 1, 1, 16, 72), 2, 2, 2)
    yield "windows_apart", strided((2, 20, 21, 24), (2, 3, 24, 16), 4, 2, padding="VALID")
    yield "windows_apart_in_a_line", strided((3, 40, 40), (3, 40, 16), 7, padding="VALID")
    yield "doubled_windows", spread((2, 9, 8, 24), (4, 4, 24, 40), 2, 2, padding=((2, 2), (2, 2)))
    yield "oddly_doubled_windows", spread((2, 9, 8, 72), (3, 3, 72, 40), 2, 2, padding=((1, 1), (1, 1)))
    yield "tripled_windows_of_a_line", spread((2, 17, 16), (7, 16, 136), 3, padding=((2, 4),))
    yield "eight_times_as_long", spread((2, 9, 16), (11, 16, 24), 8, padding=((5, 12),))
    yield "doubled_volume", spread((1, 3, 4, 5, 16), (3, 4, 2, 16, 24), 2, 2, 2, padding=((1, 2), (2, 2), (0, 1)))
    yield "two_thirds", spread((2, 13, 12, 24), (4, 3, 24, 16), 2, 3, padding=((2, 1), (3, 2)), window_strides=(3, 2))
    yield "half_is_left", spread((2, 13, 12, 24), (3, 4, 24, 16), 2, 4, padding=((2, 1), (3, 2)), window_strides=(4, 2))
    cropped = {"padding": ((-8, -7),), "window_strides": (2,)}
    yield "unseen_taps_of_a_cropped_line", spread((2, 21, 16), (5, 16, 24), 2, **cropped)
    yield "fewer_results_than_classes", spread((2, 3, 16), (5, 16, 8), 4, padding=((-3, 0),))
    # Windows' corners and taps.
    yield "dilated_image", dilated((2, 14, 21, 40), (3, 3, 40, 24), 2, 5)
    yield "dilated_volume", dilated((1, 5, 9, 12, 8), (3, 2, 3, 8, 16), 1, 3, 5)
    yield "far_taps_of_an_image", dilated((1, 3, 60, 8), (2, 3, 8, 16), 2, 100)
    yield "far_taps_of_a_line", dilated((2, 700, 24), (3, 24, 16), 300)
    yield "causal_line", dilated((2, 90, 40), (3, 40, 40), 16, padding=((32, 0),))
    yield "taps_that_tiles_do_not_see", dilated((3, 33, 33, 72), (3, 3, 72, 136), 18, 18)
    yield "rows_of_taps_that_tiles_do_not_see", dilated((9, 40, 20, 24), (5, 3, 24, 16), 12, 1)
    yield "doubled_windows_seen_by_few", spread((3, 9, 60, 24), (4, 4, 24, 40), 2, 2, padding=((10, 10), (2, 2)))
    yield "dilated_by_strides", dilated((2, 21, 22, 16), (3, 3, 16, 24), 3, 2, window_strides=(2, 3))
    yield "padded_unevenly", last((2, 9, 10, 16), (3, 2, 16, 24), padding=((0, 3), (5, 1)))
    yield "cropped_windows", last((2, 12, 13, 16), (3, 3, 16, 24), padding=((-2, 1), (-1, -3)))
    yield "cropped_line_by_3", strided((2, 40, 16), (4, 16, 24), 3, padding=((-5, -2),))
    yield "padded_widely", last((2, 5, 6, 16), (3, 3, 16, 24), padding=((20, 31), (9, 17)))
    yield "padded_line", last((2, 20, 8), (3, 8, 16), padding=((400, 300),))
    yield "larger_than_the_image", last((2, 3, 4, 16), (7, 9, 16, 24))
    yield "larger_than_the_volume", last((1, 2, 3, 2, 8), (5, 4, 5, 8, 16))
    yield "windows_unseen", strided((2, 3, 3, 8), (2, 2, 8, 16), 4, 2, padding=((9, 9), (9, 9)), rhs_dilation=(3, 3))
    # Channels: whole and begun K blocks of 64, columns of one tile and more, whole and not.
    for ins, outs in [
        (8, 200),
        (32, 96),
        (40, 136),
        (64, 64),
        (72, 40),
        (96, 24),
        (104, 16),
        (136, 8),
        (200, 72),
        (64, 328),
        (64, 336),
        (128, 520),
    ]:
        yield f"channels_{ins}_to_{outs}", last((2, 7, 9, ins), (2, 3, ins, outs))
    # Matrices of pixels: rows of begun tiles, of more tiles than blocks are there at once, and one row.
    yield "points_of_many_channels", last((2, 5, 7, 520), (1, 1, 520, 264))
    yield "points_of_begun_tiles", last((3, 11, 13, 72), (1, 1, 72, 136))
    yield "points_of_a_line", last((2, 700, 24), (1, 24, 40))
    yield "points_of_a_volume", last((2, 3, 5, 7, 40), (1, 1, 1, 40, 24))
    yield "many_points", last((5, 6133, 8), (1, 8, 72))
    yield "one_point", last((1, 1, 1, 72), (1, 1, 72, 136))
    yield "padded_points", last((2, 5, 7, 24), (1, 1, 24, 16), padding=((0, 1), (2, 0)))
    # Rows: even and odd numbers of tiles, more than blocks are there at once, and images of less than a tile.
    yield "three_tiles_of_rows", last((3, 10, 10, 16), (3, 3, 16, 24))
    yield "five_tiles_of_rows", last((2, 30, 10, 72), (2, 2, 72, 72))
    yield "many_tiles_of_rows", last((7, 6113, 8), (3, 8, 72))
    yield "many_tiles_of_classes", strided((3, 101, 119, 16), (3, 3, 16, 8), 2, 2)
    yield "many_small_images", last((301, 3, 2, 16), (2, 2, 16, 24))
    # Halo tiles: whole and begun ones of 8 x 8 positions or 64 of a line, several planes and K blocks, the largest.
    yield "halo_tiles_of_an_image", last((2, 17, 26, 136), (3, 3, 136, 200))
    yield "halo_tiles_of_a_line", last((3, 200, 72), (41, 72, 40))
    yield "halo_tiles_of_a_volume", last((2, 3, 10, 9, 72), (3, 3, 3, 72, 136))
    yield "halo_tiles_of_a_row", last((2, 1, 130, 24), (1, 7, 24, 16))
    yield "halo_tiles_of_a_row_in_rows", last((2, 9, 20, 16), (1, 6, 16, 24))
    yield "halo_tiles_of_a_dilated_line", dilated((2, 200, 24), (5, 24, 72), 7)
    yield "halo_tiles_of_a_column", last((2, 20, 9, 16), (6, 1, 16, 24))
    yield "halo_tiles_of_many_taps", last((1, 5, 9, 9, 8), (7, 3, 3, 8, 16))
    yield "dilated_units", dilated((1, 19, 9, 16), (2, 2, 16, 24), 3, 1)
    yield "padded_units", last((2, 9, 15, 16), (3, 2, 16, 24), padding=((-2, 4), (11, -3)))
    yield "many_units", last((20, 63, 58, 8), (3, 3, 8, 72))
    # Of lines that are whole vectors, or eights, as weight gradients of float32 take them: boxes of 32 channels, also
    # one alone and none of the image, positions behind an image whose windows see its pixels, taps that a row lacks.
    yield "lines_of_vectors", last((2, 17, 28, 96), (3, 3, 96, 72))
    yield "lines_of_vectors_within", last((2, 11, 22, 24), (3, 3, 24, 40), padding="VALID")
    yield "lines_of_vectors_beyond", last((2, 9, 10, 16), (3, 3, 16, 24), padding=((12, 9), (11, 13)))
    yield "lines_of_vectors_of_4x2", last((3, 10, 12, 136), (4, 2, 136, 64))
    yield "lines_of_vectors_dilated", dilated((2, 9, 12, 40), (2, 2, 40, 24), 1, 3)
    yield "lines_of_vectors_of_a_volume", last((2, 3, 10, 12, 72), (3, 3, 3, 72, 136))
    yield "line_of_eights", last((2, 136, 40), (7, 40, 24))
    yield "line_of_eights_within", last((2, 1, 94, 16), (1, 7, 16, 72), padding="VALID")
    yield "line_of_eights_of_a_volume", last((2, 3, 1, 72, 100), (3, 1, 4, 100, 24))
    # Of windows several pixels apart, a plane for each row and column of a step, of other steps than others.
    yield "halo_tiles_by_2", strided((2, 35, 52, 136), (3, 3, 136, 200), 2, 2)
    yield "halo_tiles_by_1_and_2", strided((2, 17, 40, 72), (3, 3, 72, 40), 1, 2)
    yield "halo_tiles_by_2_and_1", strided((2, 36, 17, 24), (4, 2, 24, 16), 2, 1)
    yield "halo_tiles_by_3", strided((2, 40, 50, 24), (4, 5, 24, 16), 3, 3)
    yield "halo_tiles_by_8", strided((1, 70, 150, 16), (9, 9, 16, 24), 8, 8)
    yield "halo_tiles_of_a_line_by_2", strided((3, 401, 72), (3, 72, 136), 2)
    yield "halo_tiles_of_a_line_by_3", strided((2, 600, 16), (8, 16, 24), 3)
    yield "halo_tiles_of_a_row_by_2", strided((2, 1, 270, 24), (1, 7, 24, 16), 1, 2)
    yield "halo_tiles_of_a_volume_by_2", strided((2, 5, 19, 18, 72), (3, 3, 3, 72, 136), 2, 2, 2)
    yield "halo_tiles_of_a_volume_by_3_1_2", strided((1, 7, 9, 22, 24), (2, 3, 4, 24, 16), 3, 1, 2)
    yield "halo_tiles_of_many_taps_by_2", strided((1, 7, 18, 20, 16), (4, 4, 4, 16, 72), 2, 2, 2)
    yield "dilated_halo_tiles_by_2", dilated((2, 33, 40, 72), (3, 2, 72, 24), 3, 3, window_strides=(2, 2))
    yield "padded_halo_tiles_by_2", strided((2, 29, 35, 16), (3, 4, 16, 24), 2, 2, padding=((-2, 4), (11, -3)))
    yield "halo_tiles_beyond_an_image", strided((2, 9, 5, 16), (3, 3, 16, 24), 2, 2, padding=((15, 9), (7, 14)))
    by_twos = {"window_strides": (2, 2), "padding": ((2, 1), (1, 2))}
    yield "doubled_halo_tiles_by_2", spread((2, 9, 10, 16), (5, 5, 16, 24), 2, 2, **by_twos)
    by_fours = {"window_strides": (4, 4), "padding": ((3, 3), (2, 3))}
    yield "doubled_halo_tiles_by_4", spread((2, 20, 21, 16), (7, 6, 16, 24), 2, 2, **by_fours)
    yield "many_halo_tiles_by_2", strided((20, 125, 116, 8), (3, 3, 8, 72), 2, 2)
    # Its data gradient has tiles of equally large classes for several rounds of all clusters.
    yield "many_tiles_of_equal_classes", strided((20, 126, 116, 8), (3, 3, 8, 72), 2, 2)
    yield "no_images_of_windows", last((0, 5, 6, 8), (3, 3, 8, 16))
    # Groups, each a launch: of windows, points, halo tiles, residue classes, and the most. Or they are on the batch.
    of_groups = lambda lhs, rhs, groups, **more: last(lhs, rhs, feature_group_count=groups, **more)
    yield "windows_of_groups", of_groups((2, 7, 9, 48), (2, 3, 16, 72), 3)
    yield "points_of_groups", of_groups((3, 11, 13, 144), (1, 1, 72, 48), 2)
    yield "halo_tiles_of_groups", of_groups((2, 17, 26, 272), (3, 3, 136, 400), 2)
    yield "halo_tiles_of_groups_of_a_line", of_groups((3, 200, 64), (41, 16, 96), 4)
    yield "windows_of_groups_by_two", of_groups((2, 9, 12, 48), (3, 3, 24, 32), 2, window_strides=(2, 2))
    yield "odd_windows_of_groups_by_two", of_groups((2, 9, 11, 48), (3, 3, 24, 32), 2, window_strides=(2, 2))
    yield "windows_of_16_groups", of_groups((1, 4, 5, 256), (3, 3, 16, 256), 16)
    yield "tiny_windows_of_groups_of_bytes", of_groups((1, 4, 5, 32), (2, 3, 16, 64), 2)
    yield "lines_of_vectors_of_groups", of_groups((2, 9, 12, 80), (3, 3, 40, 48), 2)
    yield "windows_of_groups_of_images", last((6, 7, 9, 16), (2, 3, 16, 72), batch_group_count=3)
    # Groups that are columns of one product where tiles end with a group. Other tiles launch each group.
    yield "groups_as_columns", of_groups((2, 7, 9, 192), (2, 3, 64, 384), 3)
    yield "points_of_groups_as_columns", of_groups((3, 11, 13, 192), (1, 1, 96, 384), 2)
    yield "halo_tiles_of_groups_as_columns", of_groups((2, 17, 26, 128), (3, 3, 64, 512), 2)
    yield "lines_of_vectors_of_groups_as_columns", of_groups((2, 9, 20, 192), (3, 3, 96, 128), 2)
    yield "groups_as_columns_by_two", of_groups((2, 10, 12, 128), (3, 3, 64, 128), 2, window_strides=(2, 2))
    yield "odd_groups_as_columns_by_two", of_groups((2, 9, 11, 128), (3, 3, 64, 128), 2, window_strides=(2, 2))
    yield "20_groups_as_columns", of_groups((1, 4, 5, 1280), (3, 3, 64, 1280), 20)
    # Filters and activations that lie otherwise.
    sizes = {"N": 3, "C": 40, "H": 9, "W": 8, "I": 40, "O": 72}
    window = sizes | {"H": 3, "W": 2}
    for lhs, rhs, out in [("NHWC", "OHWI", "NHWC"), ("NHWC", "IHWO", "NHWC"), ("NHWC", "HWOI", "NHWC"),
                          ("HWNC", "HWIO", "HWNC"), ("WNHC", "OHWI", "HNWC"), ("HNWC", "IHWO", "WHNC")]:  # fmt: skip
        params = dict(window_strides=(2, 1), padding="SAME", dimension_numbers=(lhs, rhs, out))
        shapes = tuple(sizes[d] for d in lhs), tuple(window[d] for d in rhs)
        yield f"windows_{lhs}_{rhs}_{out}", Convolution(*shapes, params)


WINDOWS = dict(of_windows())


def check_multiplications(tile):
    """M of wgmma is 64 in each warp group, and N eight to 256; of halo tiles also several of three taps' 64 channels.

    The sums leave registers to all else. Where a warp group's rows, or columns, are shares of a tile, they are whole.
    """
    m, n = (tile.cols, tile.rows) if tile.swap_ab else (tile.rows, tile.cols)
    warpgroups = tile.warpgroups
    assert m % (64 if tile.swap_ab else 64 * warpgroups) == 0 or tile.halo
    assert n % 8 == 0 and (n <= 256 or (tile.halo and n % (3 * 64) == 0))
    assert tile.row_blocks * tile.col_blocks <= 8 and tile.cluster_split <= 8  # a cluster's, on every device
    registers = {(2, 1): 232, (2, 2): 96, (1, 2): 204, (3, 1): 160}[warpgroups, tile.ctas_per_sm]
    assert tile.rows * tile.cols // (128 * warpgroups) < registers - 20


def check_shared_memory(tile, shared):
    """Swizzled rows of operands begin at multiples of 1024 bytes, and blocks that run at once fit: each takes 1 KiB
    more of the 228 that a multiprocessor has. Operands of all stages are in it, of K of 128 bytes."""
    assert shared % 1024 == 0 and shared <= TYPICAL_DEVICE.shared_bytes
    assert tile.ctas_per_sm * (shared + 1024) <= 228 * 1024
    assert shared > tile.stages * (tile.cols + (0 if tile.halo else tile.rows)) * 128
