"""Convolutions that depthwise is for, and what its tiles read."""

from cases.convolution import Convolution
from cases.convolution import depthwise_convolution as each


def of_channels():
    """Each channel on its own: windows, strides, rows and images that depthwise is for, and its edges.

    There is a tiny one for each of its tiles.
    """
    twice = dict(lhs_dilation=(2, 2))
    yield "tiny_line", each((2, 11, 8), (3,))
    yield "tiny_31", each((1, 20, 8), (31,))
    yield "tiny_3x3", each((1, 4, 9, 8), (3, 3))
    yield "tiny_5x5", each((1, 6, 9, 8), (5, 5))
    yield "tiny_7x7", each((1, 8, 9, 8), (7, 7))
    yield "tiny_9x19", each((1, 11, 10, 8), (9, 19))
    yield "tiny_line_of_50", each((1, 20, 8), (50,))
    yield "tiny_volume", each((1, 2, 3, 9, 8), (3, 3, 3))
    yield "tiny_5x2x8", each((1, 3, 4, 9, 8), (5, 2, 8))
    yield "tiny_strided_3x3", each((1, 7, 9, 8), (3, 3), window_strides=(2, 2))
    yield "tiny_strided_5x5", each((1, 7, 9, 8), (5, 5), window_strides=(2, 2))
    yield "tiny_dilated_3x3", each((1, 7, 9, 8), (3, 3), rhs_dilation=(3, 2))
    yield "tiny_doubled_3x3", each((1, 4, 5, 8), (3, 3), **twice, padding=((1, 2), (1, 2)))
    yield "tiny_doubled_5x5", each((1, 4, 5, 8), (5, 5), **twice, padding=((2, 3), (2, 3)))
    yield "tiny_tma_tiles", each((2, 3, 5, 32), (3, 3))
    yield "tiny_line_of_bytes", each((2, 11, 16), (3,))
    yield "tiny_volume_of_bytes", each((1, 2, 3, 9, 16), (3, 3, 3))
    yield "tiny_strided_bytes", each((1, 7, 9, 16), (3, 3), window_strides=(2, 2))
    yield "tiny_doubled_bytes", each((1, 4, 5, 16), (3, 3), **twice, padding=((1, 2), (1, 2)))
    yield "tma_tiles_of_7", each((19, 7, 7, 64), (7, 7))
    yield "tma_tiles_of_14", each((9, 14, 14, 120), (5, 9))
    yield "tma_tiles_of_31", each((5, 9, 30, 32), (7, 3), padding=((0, 3), (-1, 4)))
    yield "tma_tiles_of_60", each((3, 40, 60, 32), (7, 7))
    yield "tma_tiles_of_a_line", each((33, 14, 64), (5,))
    yield (
        "tma_tiles_of_images_inside",
        Convolution(
            (7, 6, 20, 64),
            (5, 5, 1, 64),
            dict(
                window_strides=(1, 1),
                padding="SAME",
                dimension_numbers=("HWNC", "HWIO", "HWNC"),
                feature_group_count=64,
            ),
        ),
    )
    yield "tma_tiles_of_13", each((9, 13, 13, 96), (7, 8))
    yield "tma_tiles_of_8", each((17, 8, 8, 64), (5, 8))
    yield "tma_tiles_of_6_to_7", each((33, 5, 6, 120), (6, 3), padding=((0, 3), (-1, 4)))
    yield "tma_tiles_of_8_to_3", each((5, 9, 8, 64), (3, 6), padding="VALID")
    yield "tall_tma_tiles", each((3, 41, 5, 32), (7, 7))
    yield "low_tma_tiles", each((18, 4, 3, 96), (7, 7), padding=((9, 0), (3, 3)))
    yield "lower_tma_tiles", each((18, 2, 3, 32), (7, 7))
    yield "tma_tiles_of_a_short_line", each((40, 7, 64), (5,))
    yield (
        "tma_tiles_of_small_images_inside",
        Convolution(
            (7, 6, 20, 64),
            (5, 7, 1, 64),
            dict(
                window_strides=(1, 1),
                padding="SAME",
                dimension_numbers=("WHNC", "HWIO", "HWNC"),
                feature_group_count=64,
            ),
        ),
    )
    yield "depthwise_5x5", each((3, 17, 19, 40), (5, 5))
    yield "depthwise_7x7", each((2, 30, 29, 16), (7, 7))
    yield "whole_pieces_of_float32", each((2, 9, 10, 12), (3, 3))
    yield "small_images", each((19, 7, 7, 40), (7, 7))
    yield "tall_image", each((1, 150, 12, 24), (3, 3))
    yield "wide_rows", each((1, 6, 150, 24), (3, 3))
    yield "even_window", each((2, 10, 11, 16), (4, 6))
    yield "dilated_window", each((2, 14, 21, 24), (3, 3), rhs_dilation=(2, 3))
    yield "far_taps", each((3, 13, 17, 40), (3, 3), rhs_dilation=(12, 16))
    yield "dilated_columns", each((2, 9, 40, 24), (1, 5), rhs_dilation=(1, 6))
    yield "dilated_7x7", each((2, 20, 23, 16), (7, 7), rhs_dilation=(3, 3))
    yield "dilated_parts", each((2, 21, 40, 8), (9, 13), rhs_dilation=(3, 4))
    yield "dilated_rows_of_strided_columns", each((2, 14, 21, 16), (3, 3), rhs_dilation=(3, 2), window_strides=(1, 2))
    yield "cropped", each((2, 9, 12, 16), (3, 3), padding=((-1, 2), (1, -2)))
    yield "window_31x31", each((2, 34, 27, 24), (31, 31), padding=((15, 15), (15, 15)))
    yield "window_13x21", each((1, 24, 30, 40), (13, 21))
    yield "window_31", each((3, 100, 144), (31,))
    yield "window_5x51", each((2, 9, 60, 24), (5, 51))
    yield "window_20x100", each((1, 30, 110, 8), (20, 100), padding=((10, 9), (50, 49)))
    yield "window_63", each((3, 150, 40), (63,), padding=((62, 0),))
    yield "spread_taps", each((3, 150, 40), (5,), rhs_dilation=(20,))
    yield "joined_wide_rows", each((3, 5, 130, 64), (1, 70))
    yield "volume_3x3x3", each((2, 4, 9, 30, 40), (3, 3, 3))
    yield "volume_5x3x7", each((2, 5, 7, 9, 16), (5, 3, 7))
    yield "volume_7x9x8", each((1, 4, 12, 17, 40), (7, 9, 8))
    yield "small_volumes", each((5, 3, 7, 7, 24), (3, 3, 3))
    yield "flat_windows", each((2, 3, 9, 12, 16), (1, 3, 3))
    yield "deep_windows", each((2, 7, 5, 12, 16), (3, 1, 1))
    yield "strided_depths", each((2, 7, 6, 9, 16), (3, 3, 3), window_strides=(2, 1, 1))
    yield "doubled_depths", each((2, 4, 6, 9, 16), (4, 3, 3), lhs_dilation=(2, 1, 1), padding=((2, 2), (1, 1), (1, 1)))
    yield "volume_of_far_taps", each((2, 8, 9, 12, 24), (3, 3, 3), rhs_dilation=(2, 1, 2))
    yield "cropped_volume", each((2, 6, 9, 12, 16), (3, 3, 3), padding=((-1, 0), (2, -1), (-1, 3)))
    yield "depths_unseen", each((2, 2, 6, 9, 16), (7, 3, 3))
    yield "results_of_no_depth", each((2, 2, 6, 9, 16), (3, 3, 3), padding=((9, 0), (1, 1), (1, 9)))
    yield "causal_depthwise", each((2, 300, 64), (4,), padding=((3, 0),))
    yield "joined_lines", each((5, 150, 32), (4,), padding=((3, 0),))
    yield "joined_rows", each((3, 5, 130, 64), (1, 9))
    yield "short_lines", each((9, 20, 24), (4,))
    yield "strided_depthwise", each((2, 17, 19, 144), (3, 3), window_strides=(2, 2))
    yield "strided_7x7", each((2, 15, 17, 24), (7, 7), window_strides=(2, 2))
    yield "strided_rows", each((2, 9, 12, 8), (3, 3), window_strides=(2, 1))
    yield "strided_columns", each((2, 9, 40, 16), (3, 3), window_strides=(1, 3))
    yield "strided_line", each((3, 41, 40), (5,), window_strides=(2,))
    yield "holes", each((2, 9, 11, 24), (1, 1), window_strides=(2, 2))
    yield "doubled_3x3", each((2, 9, 8, 40), (3, 3), **twice, padding=((1, 2), (1, 2)))
    yield "doubled_4x4", each((2, 9, 8, 40), (4, 4), **twice, padding=((2, 2), (2, 2)))
    yield "doubled_7x7", each((2, 9, 8, 16), (7, 7), **twice, padding=((3, 4), (3, 4)))
    yield "four_times_as_wide", each((2, 5, 9, 16), (3, 5), lhs_dilation=(1, 4), padding=((1, 1), (2, 4)))
    yield "eight_times_as_wide", each((2, 5, 9, 16), (3, 9), lhs_dilation=(1, 8), padding=((1, 1), (2, 4)))
    yield "two_thirds_as_wide", each((2, 5, 31, 8), (3, 4), lhs_dilation=(1, 2), padding=((1, 1), (2, 2)),
                                     window_strides=(1, 3))  # fmt: skip
    times = lambda many, lhs, kernel, **more: each(lhs, kernel, many, **more)
    yield "two_for_each", times(2, (3, 9, 30, 8), (3, 5))
    yield "three_for_each", times(3, (2, 12, 13, 12), (7, 7))
    yield "two_for_each_of_a_volume", times(2, (2, 4, 6, 9, 8), (3, 2, 3))
    yield "two_for_each_by_two", times(2, (2, 13, 12, 8), (5, 5), window_strides=(2, 2))
    yield "strided_31x31", each((1, 36, 40, 8), (31, 31), window_strides=(2, 2))
    yield "strided_by_three", each((2, 14, 16, 16), (5, 4), window_strides=(3, 3))
    yield "strided_volume", each((2, 5, 9, 12, 16), (3, 3, 3), window_strides=(2, 2, 2))
    yield "thrice_as_wide", each((2, 5, 9, 16), (4, 5), lhs_dilation=(2, 3), padding=((2, 2), (2, 4)))
    yield "four_for_each_of_a_line", times(4, (3, 50, 16), (7,), padding=((6, 0),))
    yield "three_channels", each((2, 20, 21, 3), (5, 5))
    yield "taps_unseen", each((2, 2, 3, 16), (7, 7))
    yield "results_unseen", each((2, 3, 4, 8), (3, 3), padding=((6, 0), (0, 9)))
    layout = dict(dimension_numbers=("NCHW", "OIHW", "NCHW"), window_strides=(1, 1), padding="SAME")
    yield "channels_first", Convolution((2, 20, 9, 12), (20, 1, 3, 3), layout | dict(feature_group_count=20))
    layout = dict(dimension_numbers=("HNWC", "OIHW", "WHNC"), window_strides=(1, 1), padding="SAME")
    yield "images_inside", Convolution((9, 3, 12, 16), (16, 1, 3, 3), layout | dict(feature_group_count=16))
    layout = dict(dimension_numbers=("HDNWC", "OIDHW", "WNHDC"), window_strides=(1, 1, 1), padding="SAME")
    yield "volumes_inside", Convolution((9, 4, 3, 12, 16), (16, 1, 3, 5, 3), layout | dict(feature_group_count=16))


CHANNELS = dict(of_channels())


def pixels_of(tile):
    """Source pixels that a strip of eight outputs reads."""
    return (8 // tile.period - 1) * tile.step + tile.width if tile.on_cuda_cores else tile.blocks * 16
