"""Rows of neighbours, which lie in arrays of their own."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxconv
from cases.neighbours import CASES, TILES, calls_of, case_of, expected_of, planned
from cases.problems import layer
from cases.reference import assert_same, integers, lax_channels_last, pullback, run_on_host
from cases.tiles import name_of
from jaxconv import ffi
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family, tile", TILES, ids=[name_of(*of) for of in TILES])
def test_exact(family, tile):
    program, arrays, results, supported = calls_of(family, tile)
    if family == "wgmma":
        assert len(supported) > (10 if tile.halo else 15), supported
    assert_same(jax.jit(program)(arrays), results)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned(name, dtype):
    apart, (x, w, rows), expected = case_of(name, dtype)
    assert_same(jax.jit(ffi.convolution(planned(apart, name), apart))(x, w, *rows), expected)


@pytest.mark.parametrize("name", ["image", "line", "volume"])
def test_data_gradient(name):
    """A filter that is read backwards: the table's first taps see the rows after the image."""
    lhs, rhs, before, after = CASES[name]
    joined = layer(lhs, rhs, "bfloat16", padding="SAME").dgrad()
    joined = dataclasses.replace(
        joined,
        pad_low=(0, *joined.pad_low[1:]),
        out_shape=(lhs[0], lhs[1] - before - after, *joined.out_shape[2:]),
    )
    g, w = integers(joined.lhs_shape, "bfloat16", 0), integers(rhs, "bfloat16", 1)
    rows = lhs[1] - before - after
    shape = (lhs[0], rows, *joined.lhs_shape[2:])
    apart = dataclasses.replace(joined, lhs_shape=shape, pad_low=(before, *joined.pad_low[1:]))
    operands = g[:, before : before + rows], w, g[:, :before], g[:, before + rows :]
    expected = expected_of(joined, g, w)
    for family, tile in TILES:
        if plan := planned(apart, name, family, tile):
            assert_same(jax.jit(ffi.convolution(plan, apart))(*operands), expected)


def test_others_refuse():
    apart, _, _ = case_of("image")
    for family in set(FAMILIES["cuda"]) - {family for family, _ in TILES}:
        assert planned(apart, "image", family) is None


def test_more_rows_than_the_image_has():
    name = "four_rows_of_windows_of_nine"
    apart, _, _ = case_of(name)
    assert planned(apart, name) is not None
    fewer = dataclasses.replace(apart, lhs_shape=(4, 2, 20, 16), out_shape=(4, 2, 20, 24))
    assert planned(fewer, name) is None


def test_rows_that_the_settings_do_not_tell_of():
    apart, (x, w, rows), _ = case_of("image")
    call = ffi.convolution(planned(apart, "image"), apart)
    with pytest.raises(Exception, match="the neighbours' rows are not those of the settings"):
        jax.block_until_ready(jax.jit(call)(x, w, rows[0], np.concatenate([rows[1]] * 2, axis=1)))


def wrapped(x, w):
    """What the public functions compute of a periodic first dimension, by lax."""
    x = jnp.pad(x.astype("float32"), ((0, 0), (1, 1), (0, 0), (0, 0)), mode="wrap")
    return lax_channels_last(x, w.astype("float32"), padding=((0, 0), (1, 1)))


def test_periodic_images_are_not_copied():
    x, w = integers((2, 64, 128, 64), "bfloat16", 0), integers((3, 3, 64, 64), "bfloat16", 1)
    conv = jax.jit(lambda x, w: jaxconv.conv2d(x, w, padding=["CIRCULAR", (1, 1)], implementation="cuda"))
    program = conv.lower(x, w).compile()
    assert "rows_before rows_after" in program.as_text()
    assert_same(program(x, w), run_on_host(wrapped, x, w).astype("bfloat16"))


@pytest.mark.skipif(len(jax.local_devices()) < 2, reason="there is one GPU")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_two_devices(kind):
    """Their forward passes and data gradients read the neighbours' rows where they arrive."""
    devices = jax.local_devices()[:2]
    on = jax.make_mesh((2,), ("a",), axis_types=(kind,), devices=devices)
    # Of smaller ones, the planner expects a copy with the rows to be faster.
    x, w = integers((2, 128, 128, 64), "bfloat16", 0), integers((3, 3, 64, 64), "bfloat16", 1)
    g = integers((2, 128, 128, 64), "bfloat16", 2)

    def passes(conv, x, w, g):
        return pullback(conv)(x, w, g)[:2]

    ours = partial(passes, partial(jaxconv.conv2d, implementation="cuda"))
    by_rows = NamedSharding(on, PartitionSpec(None, "a"))
    operands = [jax.device_put(a, s) for a, s in ((x, by_rows), (w, NamedSharding(on, PartitionSpec())), (g, by_rows))]
    with jax.set_mesh(on):
        program = jax.jit(ours).lower(*operands).compile()
        results = jax.device_get(program(*operands))
    assert program.as_text().count("rows_before rows_after") == 2
    wide = [a.astype("float32") for a in (x, w, g)]
    for actual, expected in zip(results, run_on_host(partial(passes, lax_channels_last), *wide), strict=True):
        assert_same(actual, expected.astype("bfloat16"))
