"""float8 by wgmma: a source of e5m2, errors of long sums, and what the public functions make of it."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxconv
from cases.convolutions import convolutions, problem
from cases.exact import exact
from cases.float8 import FLOAT8
from cases.problems import passes_of
from cases.reference import assert_same
from cases.tiles import constraint, transform_of
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
E4M3, E5M2 = FLOAT8
TILES = [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if tile.has_float8_conv]
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)
RESULTS = ("float32", "bfloat16", "float16")


def planned(name, which, tile, split, lhs_dtype, out_dtype):
    """A pass of a convolution with a filter of e4m3, and its plan or None."""
    kind, of_pass = passes_of(problem(name, "float8_e4m3fn_to_float32"))[which]
    dtypes = {f"{role}_dtype": np.dtype(dtype)
              for role, dtype in (("lhs", lhs_dtype), ("rhs", E4M3), ("out", out_dtype))}  # fmt: skip
    of_pass = dataclasses.replace(of_pass, **dtypes)
    asked = constraint("wgmma", tile, transform_of("wgmma", tile, "float8_e4m3fn_to_float32", which), split=split)
    return of_pass, choose("cuda", kind, of_pass, asked, ffi.device("cuda")).plan


@pytest.mark.parametrize("which, lhs_dtype", [("fprop", E4M3), ("fprop", E5M2), ("dgrad", E4M3), ("dgrad", E5M2)])
@every_tile
def test_exact(tile, which, lhs_dtype):
    """Small integers, with and without split-K, with each type of results."""
    operands, expected = exact()
    calls, arrays, results = [], [], []
    for number, name in enumerate(sorted(convolutions())):
        for split in (1, 3):
            of_pass, plan = planned(name, which, tile, split, lhs_dtype, RESULTS[(number + split) % len(RESULTS)])
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


def relative_errors(k, spread, seed=0):
    """Of sums of k products, over the sums of their magnitudes. spread: factors of 2 between the largest and others."""
    rng = np.random.default_rng(seed)
    numbers = lambda *shape: (rng.normal(size=shape) * 2.0 ** -rng.integers(0, spread + 1, shape)).astype(E4M3)
    x, w = numbers(1, 256, k), numbers(1, k, 128)
    wide = [a.astype("float64") for a in (x, w)]
    y = jaxconv.conv1d(x, w, out_dtype="float32", implementation="wgmma")
    exact, magnitudes = wide[0][0] @ wide[1][0], np.abs(wide[0][0]) @ np.abs(wide[1][0])
    return np.abs(np.asarray(y[0], "float64") - exact) / magnitudes


@pytest.mark.parametrize("spread", [0, 4])
@pytest.mark.parametrize("k", [128, 4608, 36864])
def test_errors_do_not_grow_with_the_sum(k, spread):
    """Those of one step of K are the largest: steps are added in float32."""
    assert relative_errors(k, spread).max() <= 2.0**-10


def test_numbers_just_below_what_is_cut_off():
    """The worst sum: one product is 1, and all others of its step are too small to be added to it."""
    x, w = np.full((1, 64, 128), 1.875 * 2.0**-6, E4M3), np.full((1, 128, 64), 2.0**-8, E4M3)
    x[..., 0], w[:, 0] = 1, 1
    y = np.asarray(jaxconv.conv1d(x, w, out_dtype="float32", implementation="wgmma"))
    exact = 1 + 127 * 1.875 * 2.0**-14
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
    from jax.experimental.mosaic.gpu import profiler

    x, w = (np.ones(shape, E4M3) for shape in ((2, 16, 16, 64), (3, 3, 64, 64)))
    g = np.ones((2, 16, 16, 64), E5M2)
    conv = lambda x: jaxconv.conv2d(x, w, out_dtype=E5M2, implementation="cuda")
    program = jax.jit(lambda g: jax.vjp(conv, x)[1](g)[0]).lower(g).compile()
    _, kernels = profiler.measure(program, aggregate=False)(g)
    assert any("WgmmaKernel" in name and "e5m2" in name for name, _ in kernels)
