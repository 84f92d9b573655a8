"""Kernels inside of programs: exported with any batch, and recorded into CUDA graphs."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxconv
from cases.convolution import Convolution
from cases.convolutions import TINY, convolutions
from cases.exact import alone, cases_of, exact_in, pulled_back, results_of, rounded
from cases.plans import PARTIAL
from cases.programs import exported
from cases.reference import assert_same, pullback, run_on_host
from cases.small import named
from cases.tiles import (
    FAMILY_TYPES,
    FLOAT_TILES,
    PASSES,
    constraint,
    dtype_of,
    dtypes_of,
    every_partial_tile,
    every_tile,
    is_for_highest,
    kernels_of,
    settings_of,
    splits_of,
)
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["dense", "strided", "grouped", "causal", "odd_channels"])
@every_tile
def test_exported_with_any_batch(family, tile, name):
    convolution, conv = convolutions()[name], convolutions()[name].ours(constraint(family, tile))
    (batch,) = export.symbolic_shape("b")
    dtype = dtype_of(family, tile)
    x, w, g = convolution.operands(dtype)
    types = [jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype) for a in (x, g)]
    program = exported(pullback(conv), types[0], w, types[1])
    program = export.deserialize(program.serialize())
    for images in (1, 5):
        resized = dataclasses.replace(convolution, lhs=(images, *convolution.lhs[1:]))
        operands = resized.operands()
        expected = run_on_host(pullback(resized.lax()), *operands)
        actual = program.call(*(a.astype(dtype) for a in operands))
        assert_same(actual, tuple(a.astype(dtype) for a in expected))


ALONE = {
    "direct": [
        "depthwise_5x5",
        "strided_depthwise",
        "causal_depthwise",
        "rn50_56_1x1s2_256_512",
        "groups_of_4",
        "strided_groups",
        "packed_stem",
        "doubled_rows",
        "doubled_groups",
        "image_stem",
        "latents",
        "odd_stem",
        "to_an_image",
        "doubled_to_an_image",
    ],
    "depthwise": [
        *TINY["depthwise"],
        "small_images",
        "tma_tiles_of_7",
        "short_lines",
        "causal_depthwise",
        "joined_rows",
    ],
    "wgmma": [
        *TINY["wgmma"],
        "even_image_by_2",
        "volume_by_2",
        "far_taps_of_a_line",
        "channels_136_to_8",
        "windows_NHWC_OHWI_NHWC",
        "many_small_images",
        "five_tiles_of_rows",
    ],
}


@every_partial_tile
def test_exported_with_any_batch_where_supported(family, tile):
    """The plan is made for another batch."""
    cases, dtype = cases_of(family, tile, ALONE[family]), dtype_of(family, tile)
    names = {name for name, *_ in cases}
    assert {which for _, which, _ in cases} == {which for _, which in kernels_of(family, tile)}
    (batch,) = export.symbolic_shape("b")

    def types(name):
        x, w, g = (jax.ShapeDtypeStruct(a.shape, dtype) for a in convolutions()[name].operands())
        return x.update(shape=(batch, *x.shape[1:])), w, g.update(shape=(batch, *g.shape[1:]))

    program = exported(alone(cases, dtype), {name: types(name) for name in names})
    program = export.deserialize(program.serialize())

    def resized(name, images):
        convolution = convolutions()[name]
        return dataclasses.replace(convolution, lhs=(images, *convolution.lhs[1:]))

    for images in (1, 5):
        operands = {name: resized(name, images).operands() for name in names}
        expected = run_on_host(pulled_back(Convolution.lax), operands)
        actual = program.call(rounded(operands, *3 * [dtype]))
        assert_same(actual, results_of(cases, rounded(expected, *3 * [dtype])))


@pytest.mark.parametrize("family, dtype", [of for of in FAMILY_TYPES if of[0] in PARTIAL])
def test_command_buffers_where_supported(family, dtype):
    """Every tile and pass, as below."""
    tiles = [tile for tile in FAMILIES["cuda"][family].tiles if dtype in dtypes_of(family, tile)]
    of_pass = lambda tile, which: cases_of(family, tile, ALONE[family], (which,), splits_of(family, tile, which),
                                           dtype=dtype)  # fmt: skip
    cases = [case for tile in tiles for which in PASSES for case in of_pass(tile, which)]
    operands, expected = exact_in(dtype, ALONE[family])
    program = jax.jit(lambda operands, sign: [sign * a for a in alone(cases, dtype)(operands)])
    for repeat in range(6):
        sign = np.asarray((-1) ** repeat, dtype)
        assert_same(program(operands, sign), [sign * a for a in results_of(cases, expected)])


def test_command_buffers():
    """A program of every tile, again and again: XLA records its calls into a CUDA graph and replays them."""
    layer = named("odd_channels")
    x, w = layer.operands()

    def network(x, w):
        ys = {}
        for name, (family, tile) in FLOAT_TILES.items():
            for settings in settings_of(family, tile):
                asked = constraint(family, tile, **settings)
                precision = "highest" if is_for_highest(asked) else None
                conv = functools.partial(layer.general(asked), precision=precision)
                operands = [a.astype(dtype_of(family, tile)) for a in (x, w)]
                results = pullback(conv)(*operands, jnp.sign(conv(*operands)))
                ys[name, str(settings)] = tuple(a.astype(x.dtype) for a in results)
        return list(ys.values())

    conv = layer.lax()
    expected = [run_on_host(lambda x, w: pullback(conv)(x, w, jnp.sign(conv(x, w))), a * x, w) for a in (1, -1)]
    program = jax.jit(network)
    for repeat in range(6):
        for result in program((-1) ** repeat * x, w):
            assert_same(result, expected[repeat % 2])


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_bias_is_summed_where_the_activation_is_derived(activation):
    """In one pass over the cotangent: the bias's gradient reads nothing else."""
    x, g = (jax.ShapeDtypeStruct((64, 56, 56, 64), "bfloat16") for _ in range(2))
    w, bias = jax.ShapeDtypeStruct((3, 3, 64, 64), "bfloat16"), jax.ShapeDtypeStruct((64,), "float32")

    def gradients(x, w, bias, g):
        conv = lambda x, w, bias: jaxconv.conv2d(x, w, bias=bias, activation=activation, implementation="cuda")
        return jax.vjp(conv, x, w, bias)[1](g)

    text = jax.jit(gradients).lower(x, w, bias, g).compile().as_text()
    entry = text[text.index("\nENTRY") :]
    (cotangent,) = re.findall(r"(%g[\w.]*) = bf16\[[\d,]*\]\S* parameter", entry)
    (reader,) = re.findall(rf"^.* = (.*\(.*{re.escape(cotangent)}\b.*)$", entry, re.MULTILINE)
    result = reader.partition(" fusion(")[0]
    # XLA stores the activation's cotangent in either dtype.
    assert re.search(r"(bf16|f32)\[64,56,56,64\]", result) and re.search(r"f32\[(\d+,)?64\]", result)
