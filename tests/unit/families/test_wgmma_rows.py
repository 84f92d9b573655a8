"""Rows of neighbours in im2col mode: plans that are accepted, by a model of TMA and of the kernel's arithmetic."""

import dataclasses
import itertools
import random

import numpy as np
import pytest

from cases.parts import parts
from cases.problems import layer
from jaxconv.planner.choose import options
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint
from jaxconv.problem.offsets import in_three, offset_tables
from jaxconv.problem.product import Product

TILES = {tile.name: tile for tile in FAMILIES["cuda"]["wgmma"].tiles}
CORNERS = {3: 2**15, 4: 2**7, 5: 2**4}  # by rank: the end of those that TMA has
IMAGE = -1


@dataclasses.dataclass
class Map:
    """What TMA reads: windows of a corner, so many a step apart, in an array of a size."""

    corner: list[int]
    count: list[int]
    size: list[int]

    def check(self, step, dims, end):
        for d in dims:
            upper = self.corner[d] + (self.count[d] - 1) * step[d] - (self.size[d] - 1)
            assert self.count[d] > 0 and -end <= self.corner[d] < end and -end <= upper < end

    def windows(self, first, image, step, number):
        """The corners and images of the windows that follow one, which must be the map's."""
        divided = [divmod(first[d] - self.corner[d], step[d]) for d in range(3)]
        assert all(rest == 0 and 0 <= k < n for (k, rest), n in zip(divided, self.count, strict=True))
        line = np.ravel_multi_index([k for k, _ in divided], self.count) + np.arange(number)
        images, inside = np.divmod(line, np.prod(self.count))
        at = np.stack(np.unravel_index(inside, self.count), -1)
        return np.array(self.corner) + at * step, images + image


class Model:
    """A kernel with its settings."""

    def __init__(self, problem, candidate):
        settings, self.tile = candidate.settings, TILES[candidate.tile]
        self.batch = problem.lhs_shape[0]
        self.src, self.dst = in_three(problem.in_spatial), in_three(problem.out_spatial)
        self.step = np.array(in_three(problem.window_strides))
        self.shifts = offset_tables(problem).taps[:-1, 2:].astype(int)
        rank = settings["rank"]
        self.dim, self.end = 5 - rank, CORNERS[rank]
        self.corner = [settings[f"corner_{d}"] for d in "dhw"]
        ways = [(settings["taps_before"], settings["rows_before"], settings["rows_before"]),
                (settings["taps_after"], settings["rows_after"], -self.src[self.dim])]  # fmt: skip
        (self.taps, self.rows, self.shift) = zip(*(ways[::-1] if settings["taps_reversed"] else ways), strict=True)
        self.maps = {IMAGE: Map(self.corner, list(self.dst), list(self.src))} | {
            i: self.map_of_rows(i) for i in range(2) if self.taps[i]
        }
        for of in self.maps.values():
            of.check(self.step, range(self.dim, 3), self.end)

    def map_of_rows(self, i):
        corner, count, size = list(self.corner), list(self.dst), list(self.src)
        step, first = int(self.step[self.dim]), self.corner[self.dim] + self.shift[i]
        last = min(first + (self.dst[self.dim] - 1) * step, self.end - 1 + self.rows[i] - 1)
        size[self.dim] = self.rows[i]
        corner[self.dim] = first + -(-max(0, -self.end - first) // step) * step
        count[self.dim] = (last - corner[self.dim]) // step + 1
        return Map(corner, count, size)

    def tap_coords(self):
        """(tap, whose rows it sees) of each step, in their order."""
        taps = range(len(self.shifts))
        first, last = (
            [(tap, i) for tap in of] for i, of in enumerate((taps[: self.taps[0]], taps[len(taps) - self.taps[1] :]))
        )
        return [*first, *((tap, IMAGE) for tap in taps), *last]

    def positions(self, rows):
        images, inside = np.divmod(rows, np.prod(self.dst))
        return images, np.stack(np.unravel_index(inside, self.dst), -1)

    def seen(self, at, tap, whose):
        """The pixels that windows at positions see through a tap, and whether there are such."""
        pixels, size = at * self.step + self.shifts[tap], np.array(self.src)
        if whose != IMAGE:
            pixels[:, self.dim] += self.shift[whose]
            size[self.dim] = self.rows[whose]
        return pixels, ((pixels >= 0) & (pixels < size)).all(-1)

    def check(self):
        rows = self.batch * int(np.prod(self.dst))
        of_cluster = self.tile.rows * self.tile.row_blocks
        for first in range(0, rows, of_cluster):
            self.check_cluster(first, min(first + of_cluster, rows))

    def check_cluster(self, first, end):
        images, at = self.positions(np.arange(first, end))
        steps = self.tap_coords()
        sees = lambda step: self.seen(at, *step)[1].any()
        if images[0] == images[-1]:
            steps = list(itertools.dropwhile(lambda s: not sees(s), steps))
            steps = list(itertools.dropwhile(lambda s: not sees(s), steps[::-1]))[::-1]
        for step in steps:
            for begin in range(
                first, first + self.tile.rows * self.tile.row_blocks, self.tile.rows // self.tile.col_blocks
            ):
                self.check_copy(begin, end, *step)

    def check_copy(self, begin, end, tap, whose):
        number = self.tile.rows // self.tile.col_blocks
        (image,), (at,) = self.positions(np.arange(begin, begin + 1))
        corner = at * self.step + self.corner
        if whose != IMAGE and image < self.batch:
            corner[self.dim] += self.shift[whose]
        elif whose != IMAGE:
            near = 0 if self.shift[whose] > 0 else (self.dst[self.dim] - 1) * self.step[self.dim]
            corner[self.dim] = self.corner[self.dim] + near + self.shift[whose]
        windows, images = self.maps[whose].windows(corner, image, self.step, number)
        pixels = windows + self.shifts[tap] - self.corner
        are_there = ((pixels >= 0) & (pixels < self.maps[whose].size)).all(-1) & (images < self.batch)
        valid = np.arange(begin, begin + number) < end
        expected, seen = self.seen(self.positions(np.arange(begin, begin + number))[1], tap, whose)
        np.testing.assert_array_equal(are_there[valid], seen[valid])
        np.testing.assert_array_equal(pixels[valid & seen], expected[valid & seen])


def accepted(problem, before, after):
    asked = Constraint("cuda", "wgmma", rows_before=before, rows_after=after, transform=())
    for option in options("cuda", Product("conv", problem), asked, TYPICAL_DEVICE):
        if option.candidate.reason is None and not TILES[option.candidate.tile].halo:
            yield option.candidate


def problem_of(image, window, low, out_rows, batch=1, dilation=1, stride=1):
    """The first dimension has this low padding, and so many positions."""
    rank, reach = len(image), (window[0] - 1) * dilation
    steps, spread = (stride,) + (1,) * (rank - 1), (dilation,) + (1,) * (rank - 1)
    padding = ((reach, reach + stride), *((k // 2, k - 1 - k // 2) for k in window[1:]))
    p = layer(
        (batch, *image, 16), (*window, 16, 16), "bfloat16", window_strides=steps, rhs_dilation=spread, padding=padding
    )
    return dataclasses.replace(p, out_shape=(batch, out_rows, *p.out_shape[2:]), pad_low=(low, *p.pad_low[1:]))


@parts(6)
def test_random_rows(part):
    rng, checked = random.Random(part), 0
    while checked < 60:
        rank = rng.choice((1, 2, 2, 3))
        first = rng.choice({1: (5, 64, 1000, 5000), 2: (7, 31, 100, 200, 300), 3: (3, 12, 20, 33)}[rank])
        image = (first, *(rng.choice((1, 2, 4, 9, 24)) for _ in range(rank - 1)))
        window = tuple(rng.choice((1, 2, 3, 3, 5)) for _ in range(rank))
        batch, dilation, stride = rng.choice((1, 1, 2, 5)), rng.choice((1, 1, 2, 9, 30)), rng.choice((1, 1, 2))
        reach = (window[0] - 1) * dilation
        low = rng.choice((0, reach // 2, reach))
        out_rows = -(-first // stride)
        before, after = low, (out_rows - 1) * stride + reach - low - first + 1
        if batch * np.prod(image) > 12000 or max(before, after) > first or max(before, after) < 1 or after < 0:
            continue
        problem = problem_of(image, window, low, out_rows, batch, dilation, stride)
        for candidate in itertools.islice(accepted(problem, before, after), rng.randrange(4), None, 5):
            Model(problem, candidate).check()
            checked += 1


@pytest.mark.parametrize("image, window, dilation", [
    ((300, 3), (3, 3), 50), ((400, 2), (3, 3), 50), ((300, 2), (5, 3), 50), ((32, 4, 4), (9, 3, 3), 3),
    ((32, 5, 4), (9, 3, 3), 2), ((30, 3), (3, 3), 4), ((5000,), (3,), 100),
])  # fmt: skip
@pytest.mark.parametrize("is_causal", [False, True])
def test_windows_that_look_one_way(image, window, dilation, is_causal):
    """Where a tile that sees rows may begin far before them, TMA has no corner for it: the plan is refused."""
    reach = (window[0] - 1) * dilation
    problem = problem_of(image, window, reach if is_causal else 0, image[0], dilation=dilation)
    for candidate in accepted(problem, *((reach, 0) if is_causal else (0, reach))):
        Model(problem, candidate).check()


def test_windows_near_their_rows_are_accepted():
    problem = problem_of((1000, 16), (3, 3), 1, 1000)
    assert len(list(accepted(problem, 1, 1))) > 8
    assert not list(accepted(problem_of((300, 2), (5, 3), 0, 300, dilation=50), 0, 200))
