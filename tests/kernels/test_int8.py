"""int8 by every CUDA tile that gives sums: operands of the whole range, and sums that do not fit 32 bits.

Those of direct and depthwise are in test_bytes of each. Their filters fit into shared memory, so no sum is so long.
"""

import functools
from typing import NamedTuple

import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.for_wgmma import WINDOWS
from cases.int8 import CASES, DENSE, PASSES, exact, passes, whole_range, wrapped
from cases.plans import PARTIAL
from cases.programs import results_and_kernels
from cases.reference import assert_same
from cases.tiles import EVERY_TILE, constraint, dtypes_of, settings_of, splits_of, transforms_of
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.problem import ConvProblem

pytestmark = pytest.mark.gpu
SUMS = "int8_to_int32"
TILES = {name: (family, tile) for name, (family, tile) in EVERY_TILE.items()
         if family not in ("direct", "depthwise") and SUMS in dtypes_of(family, tile)}  # fmt: skip
FAMILIES = list(dict.fromkeys(family for family, _ in TILES.values()))
OF_WINDOWS = [
    "tiny_windows_of_bytes", "tiny_doubled_windows_of_bytes", "channels_32_to_96", "channels_64_to_336",
    "windows_of_16_groups", "groups_as_columns", "points_of_groups_as_columns", "odd_groups_as_columns_by_two",
]  # fmt: skip


class Known(NamedTuple):
    """A pass, its operands and its sums."""

    name: str
    which: str
    kind: str
    problem: ConvProblem
    operands: tuple
    sums: np.ndarray


@functools.cache
def of_whole_range():
    every, known = CASES | DENSE | {name: WINDOWS[name] for name in OF_WINDOWS}, []
    for name, convolution in every.items():
        arrays, expected = exact(convolution)
        for which, of_pass in passes(convolution).items():
            operands = tuple(arrays[i] for i in PASSES[which])
            known.append(Known(name, which, *of_pass, operands, expected[which]))
    return known


@functools.cache
def of_so_many_products(length):
    """Of -128 times the factors of each column: first -128, the same but for one zero, and 127.

    They are in a window for a forward pass, and at all positions for a weight gradient.
    """
    factors = whole_range((length, 32), 0)
    factors[:, :3], factors[-1, 1] = (-128, -128, 127), 0
    sums = wrapped(-128 * factors.astype("int64").sum(0))
    window = channels_last_convolution((1, 14, length // 2), (2, length // 2, 32), padding="VALID")
    positions = channels_last_convolution((1, length, 16), (1, 16, 32))
    known = []
    for which, convolution, shape in ("fprop", window, (1, 13, 32)), ("wgrad", positions, (1, 16, 32)):
        x, other = np.full(convolution.lhs, -128, "int8"), window.rhs if which == "fprop" else (1, length, 32)
        operands = x, factors.reshape(other)
        known.append(Known(f"{length}", which, *passes(convolution)[which], operands, np.broadcast_to(sums, shape)))
    return known


def plans_of(family, tile, of):
    """Whole and split, of filters in each order."""
    is_partial = family in PARTIAL
    splits = [dict(split=n) for n in splits_of(family, tile, of.which)] if is_partial else settings_of(family, tile)[:4]
    for transform in transforms_of(family, tile, SUMS, of.which):
        for settings in splits:
            asked = constraint(family, tile, transform, **settings)
            plan = choose("cuda", of.kind, of.problem, asked, ffi.device("cuda")).plan
            if plan is not None:
                yield plan


def check(known, tiles):
    """By a family's tiles that take them, all in one program. Returns what was known, and the plan, of each result."""
    calls = [(number, plan) for number, of in enumerate(known) for tile in tiles for plan in plans_of(*tile, of)]
    convolutions = [ffi.convolution(plan, known[number].problem) for number, plan in calls]

    def program(operands):
        return [conv(*operands[number]) for conv, (number, _) in zip(convolutions, calls, strict=True)]

    results, kernels = results_and_kernels(program, [of.operands for of in known])
    if tiles[0][0] == "wgmma":  # simt stands in where TMA has no maps of the operands
        assert any("Wgmma" in name for name in kernels) and not any("SimtKernel" in name for name in kernels)
    checked = [(known[number], plan) for number, plan in calls]
    for (of, plan), actual in zip(checked, results, strict=True):
        name = f"{of.name} {of.which} {plan}"
        assert_same({name: actual}, {name: of.sums})
    return checked


def are_split(checked):
    return {plan.settings["split"] > 1 for _, plan in checked}


@pytest.mark.parametrize("family, tile", TILES.values(), ids=TILES)
def test_operands_of_the_whole_range(family, tile):
    checked = check(of_whole_range(), [(family, tile)])
    assert are_split(checked) == {False, True}
    assert {plan.tile for _, plan in checked} == {tile.name}
    assert len({of.name for of, _ in checked if of.which == "fprop"}) >= 8


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_wrap(family):
    """131,071 of the largest products are the last that fit."""
    fits, one_more = 2**31 - 2**14, -(2**31)
    known = of_so_many_products(131_072)
    assert [*known[0].sums[0, 0, :2]] == [one_more, fits]
    tiles = [of for of in TILES.values() if of[0] == family]
    checked = check([*known, *of_so_many_products(140_000)], tiles)
    assert are_split(checked) == {False, True}
    assert {plan.tile for _, plan in checked} == {tile.name for _, tile in tiles}
