"""float8 by wgmma: a source of e5m2, errors of long sums, and what the public functions make of it."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

import jaxconv
from cases.convolution import channels_last_convolution
from cases.convolutions import convolutions, problem
from cases.epilogue import ended, operands_of
from cases.exact import exact
from cases.float8 import FLOAT8
from cases.problems import passes_of, problem_of
from cases.programs import results_and_kernels
from cases.reference import assert_same
from cases.tiles import constraint, transform_of
from jaxconv import ffi
from jaxconv.activations import LeakyRelu, activation_of
from jaxconv.epilogue import Epilogue
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.problem.product import EpilogueKind

pytestmark = pytest.mark.gpu
E4M3, E5M2 = FLOAT8
TILES = [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if tile.has_float8_conv]
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)
every_pass = pytest.mark.parametrize("which, lhs_dtype", list(itertools.product(("fprop", "dgrad"), FLOAT8)))
RESULTS = ("float32", "bfloat16", "float16")


def planned(of_convolution, which, tile, split, lhs_dtype, out_dtype, epilogue_kind=EpilogueKind.NONE):
    """A pass of a convolution's problem with a filter of e4m3, and its plan or None."""
    kind, of_pass = passes_of(of_convolution)[which]
    dtypes = {f"{role}_dtype": np.dtype(dtype)
              for role, dtype in (("lhs", lhs_dtype), ("rhs", E4M3), ("out", out_dtype))}  # fmt: skip
    of_pass = dataclasses.replace(of_pass, **dtypes)
    asked = constraint("wgmma", tile, transform_of("wgmma", tile, "float8_e4m3fn_to_float32", which), split=split)
    return of_pass, choose("cuda", kind, of_pass, asked, ffi.device("cuda"), epilogue_kind).plan


@every_pass
@every_tile
def test_exact(tile, which, lhs_dtype):
    """Small integers, with and without split-K, with each type of results."""
    operands, expected = exact()
    calls, arrays, results = [], [], []
    for number, name in enumerate(sorted(convolutions())):
        of_convolution = problem(name, "float8_e4m3fn_to_float32")
        for split in (1, 3):
            out_dtype = RESULTS[(number + split) % len(RESULTS)]
            of_pass, plan = planned(of_convolution, which, tile, split, lhs_dtype, out_dtype)
            if plan is None:
                continue
            (x, w, g), (y, dx, _) = operands[name], expected[name]
            lhs, result = (x, y) if which == "fprop" else (g, dx)
            if np.abs(lhs).max() > (16 if lhs_dtype == E4M3 else 8) or np.abs(w).max() > 16:
                continue  # not all integers are numbers of the type from here on
            calls.append(ffi.convolution(plan, of_pass))
            arrays.append((lhs.astype(lhs_dtype), w.astype(E4M3)))
            results.append(np.asarray(result).astype(of_pass.out_dtype))
    assert len(calls) > 20
    program = jax.jit(lambda arrays: [call(*of) for call, of in zip(calls, arrays, strict=True)])
    assert_same(program(arrays), results)


ENDS = {
    "numbers": (("scale", "bias"), "relu", EpilogueKind.PLAIN),
    "residual": (("scale", "bias", "residual", "residual_scale"), LeakyRelu(0.25), EpilogueKind.RESIDUAL),
}


# Kernels add residuals to results that TMA stores. With split-K, another kernel adds them.
EVERY_END = [(of, "numbers", 1) for of in (*RESULTS, *FLOAT8)] + [
    ("bfloat16", "residual", 1), (E4M3, "residual", 1), ("float16", "residual", 3), (E5M2, "residual", 3),
]  # fmt: skip


@pytest.mark.parametrize("out_dtype, ends, split", EVERY_END)
@every_tile
def test_exact_epilogues_of_e5m2(tile, out_dtype, ends, split):
    """Whole sums, of small integers. Other tests have those of e4m3."""
    operands, expected = exact()
    names, activation, epilogue_kind = ENDS[ends]
    names = (*names, "out_scale") if out_dtype in FLOAT8 else names
    calls, arrays, results = [], [], []
    for name in sorted(convolutions()):
        of_pass, plan = planned(
            problem(name, "float8_e4m3fn_to_float32"), "fprop", tile, split, E5M2, out_dtype, epilogue_kind
        )
        (x, w, _), (y, *_) = operands[name], expected[name]
        if plan is None or np.abs(x).max() > 8 or np.abs(w).max() > 16:
            continue
        of_channels = operands_of(of_pass, "float32", names)
        calls.append(ffi.convolution(plan, of_pass, Epilogue(names, activation_of(activation))))
        arrays.append((x.astype(E5M2), w.astype(E4M3), *(of_channels[of] for of in names)))
        results.append(ended(of_pass, y, of_channels, activation))
    assert len(calls) > 10
    program = jax.jit(lambda arrays: [call(*of) for call, of in zip(calls, arrays, strict=True)])
    assert_same(program(arrays), results)


# Errors, in the sums of products' magnitudes. Sums of a data gradient are those of a forward pass by a filter that lies
# otherwise.

planned_and_by_every_tile = pytest.mark.parametrize("tile", [None, *TILES], ids=lambda tile: str(tile or "as planned"))


def taps_of(tile):
    """Halo tiles are for several. Of one tap, a sum of 128 products is a single step."""
    return 3 if tile and tile.halo else 1


@functools.cache
def numbers(channels, taps, spread, lhs_dtype):
    """spread: factors of 2 between the largest and others."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape) * 2.0 ** -rng.integers(0, spread + 1, shape)
    return normal(256, channels).astype(lhs_dtype), normal(taps, channels, 128).astype(E4M3)


@functools.cache
def sums(channels, taps, spread, lhs_dtype):
    """Those of the numbers, and of their magnitudes."""
    wide = [a.astype("float64") for a in numbers(channels, taps, spread, lhs_dtype)]
    return [by_numpy(*of) for of in (wide, map(np.abs, wide))]


def by_numpy(x, w):
    """A forward pass."""
    around = np.pad(x, ((len(w) // 2, len(w) // 2), (0, 0)))
    return sum(around[tap : tap + len(x)] @ w[tap] for tap in range(len(w)))


def by_tile(tile, which, operands):
    """The same of several, as the planner splits them, whole and split, in one program."""
    calls, arrays = [], []
    for x, w in operands:
        taps, channels, outs = w.shape
        ends = (channels, outs) if which == "fprop" else (outs, channels)
        convolution = channels_last_convolution((1, len(x), ends[0]), (taps, *ends))
        of_convolution = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, E4M3, "float32")
        plans = [planned(of_convolution, which, tile, split, x.dtype, "float32") for split in (None, 1, 3)]
        calls.append([ffi.convolution(plan, of_pass) for of_pass, plan in plans])
        arrays.append((x[None], w if which == "fprop" else w[::-1].mT))
    program = lambda arrays: [[call(*of) for call in each] for each, of in zip(calls, arrays, strict=True)]
    results, kernels = results_and_kernels(program, arrays)
    # simt's float32 would be better.
    assert any("WgmmaKernel" in name for name in kernels) and not any("SimtKernel" in name for name in kernels)
    return [np.concatenate(each).astype("float64") for each in results]


@every_pass
@planned_and_by_every_tile
def test_errors_do_not_grow_with_the_sum(tile, which, lhs_dtype):
    """Those of one step of K are the largest: steps are added in float32."""
    every = [(channels, taps_of(tile), spread, lhs_dtype) for channels in (128, 4608, 36864) for spread in (0, 4)]
    for of, y in zip(every, by_tile(tile, which, [numbers(*of) for of in every]), strict=True):
        exact, magnitudes = sums(*of)
        assert np.max(np.abs(y - exact) / magnitudes) <= 2.0**-10, of


@every_pass
@planned_and_by_every_tile
def test_numbers_just_below_what_is_cut_off(tile, which, lhs_dtype):
    """The worst sum: one product of each step is 1, and all others are too small to be added to it."""
    below = {E4M3: 1.875, E5M2: 1.75}[lhs_dtype]
    x, w = np.full((64, 128), below * 2.0**-6, lhs_dtype), np.full((taps_of(tile), 128, 64), 2.0**-8, E4M3)
    x[:, 0], w[:, 0] = 1, 1
    exact = by_numpy(*(a.astype("float64") for a in (x, w)))
    (y,) = by_tile(tile, which, [(x, w)])
    assert np.all(np.abs(y - exact) <= 2.0**-6 * exact)


def test_not_finite():
    """An infinity of e5m2 and a NaN reach the results that see them, and no others."""
    x, w = np.ones((1, 8, 8, 32), E5M2), np.ones((3, 3, 32, 32), E4M3)
    x[0, 0, 0, 3], x[0, 7, 7, 5] = np.inf, np.nan
    y = np.array(jaxconv.conv2d(x, w, out_dtype="float32", implementation="wgmma"))[..., 0]
    assert np.all(np.isposinf(y[0, :2, :2])) and np.all(np.isnan(y[0, 6:, 6:]))
    y[0, :2, :2] = y[0, 6:, 6:] = 0
    assert np.all(np.isfinite(y))


def test_gradients_of_a_float8_cotangent_run_here():
    """A data gradient of e5m2 by filters of e4m3 is multiplied as it is."""
    x, w = (np.ones(shape, E4M3) for shape in ((2, 16, 16, 64), (3, 3, 64, 64)))
    g = np.ones((2, 16, 16, 64), E5M2)
    conv = lambda x: jaxconv.conv2d(x, w, out_dtype=E5M2, implementation="cuda")
    _, kernels = results_and_kernels(lambda g: jax.vjp(conv, x)[1](g)[0], g)
    assert any("WgmmaKernel" in name and "e5m2" in name for name in kernels)
