"""What a compiled program holds: our custom calls, as many as needed, and nothing around them."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jaxconv
from cases.parts import diagonal
from cases.programs import CALLS_ALONE, exported
from cases.reference import cotangent, custom_calls, integers, opcodes, pullback
from cases.small import BY_ENTRY, ENTRIES, GENERAL, Case, named


def programs(function, *args):
    """The text of `function` as JAX hands it to XLA, and as XLA compiled it."""
    lowered = jax.jit(function).lower(*args)
    return lowered.as_text(), lowered.compile().as_text()


def pulled_back(conv, argnums):
    """The gradients alone, for a cotangent that is given."""

    def gradients(x, w, g):
        _, vjp = jax.vjp(conv, x, w)
        return [vjp(g)[i] for i in argnums]

    return gradients


PASSES = {
    "forward": (lambda conv: lambda x, w, g: conv(x, w), {"conv": 1}),
    "forward_and_both_gradients": (pullback, {"conv": 2, "wgrad": 1}),
    "data_gradient": (lambda conv: pulled_back(conv, [0]), {"conv": 1}),
    "weight_gradient": (lambda conv: pulled_back(conv, [1]), {"wgrad": 1}),
}


@pytest.mark.parametrize("case, entry, which", diagonal(BY_ENTRY, list(PASSES)), ids=str)
def test_channels_last_needs_only_our_calls(case, entry, which, implementation):
    """No convolution, and no transpose, pad, reverse or copy around ours."""
    of_conv, expected = PASSES[which]
    x, w = case.operands()
    stablehlo, hlo = programs(of_conv(getattr(case, entry)(implementation)), x, w, cotangent(case.lax(), x, w))
    assert "stablehlo.convolution" not in stablehlo
    assert custom_calls(stablehlo) == expected
    assert custom_calls(hlo) == expected
    assert set(opcodes(hlo)) <= CALLS_ALONE


@pytest.mark.parametrize("kernel", [(1,), (1, 1), (1, 1, 1)], ids=str)
def test_a_window_of_one_pixel_needs_only_our_calls(kernel, implementation):
    """Its only tap has the offset 0. XLA would fill a table of zeros by a kernel, in each call."""
    case = Case("pixel", (2, *range(4, 4 + len(kernel)), 3), (*kernel, 3, 5))
    x, w = case.operands()
    _, hlo = programs(pullback(case.front_door(implementation)), x, w, cotangent(case.lax(), x, w))
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}
    assert set(opcodes(hlo)) <= CALLS_ALONE


@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC"), ("NHWC", "OHWI", "NCHW")])
def test_any_layout_needs_only_our_calls(layout, implementation):
    """Layouts are strides to the kernels."""
    sizes = {"N": 2, "C": 3, "H": 5, "W": 4, "I": 3, "O": 6}
    x = integers([sizes[d] for d in layout[0]])
    w = integers([{**sizes, "H": 3, "W": 2}[d] for d in layout[1]])
    conv = functools.partial(
        jaxconv.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=layout,
        implementation=implementation,
    )  # fmt: skip
    _, hlo = programs(pullback(conv), x, w, cotangent(conv, x, w))
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}
    assert set(opcodes(hlo)) <= CALLS_ALONE


@pytest.mark.parametrize("argnums, expected", [
    ((0, 1), {"conv": 2, "wgrad": 1}), (1, {"conv": 1, "wgrad": 1}), (0, {"conv": 2})
])  # fmt: skip
@pytest.mark.parametrize("entry", ENTRIES)
def test_training_step(entry, argnums, expected, implementation):
    case = named("dense")
    conv = getattr(case, entry)(implementation)
    step = jax.value_and_grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=argnums)
    stablehlo, hlo = programs(step, *case.operands())
    assert custom_calls(stablehlo) == expected
    assert custom_calls(hlo) == expected
    assert not {"convolution", "transpose", "pad", "reverse"} & set(opcodes(hlo))


MAPPED = {
    "x": (0, None),
    "w": (None, 0),
    "both": (0, 0),
}


@pytest.mark.parametrize("case, axes", diagonal(GENERAL, [(axes,) for axes in MAPPED.values()]), ids=str)
def test_vmap_folds(case, axes, implementation):
    """A mapped convolution is one call, and so is each of its gradients: never a loop."""
    x, w = case.operands()
    mapped = jax.vmap(pullback(case.general(implementation)), in_axes=(*axes, None))
    operands = [a if axis is None else jnp.stack([a, a, a]) for a, axis in zip((x, w), axes, strict=True)]
    _, hlo = programs(mapped, *operands, cotangent(case.lax(), x, w))
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}
    assert not {"convolution", "while", "pad", "reverse"} & set(opcodes(hlo))


def test_per_example_gradients_are_one_call(implementation):
    case = named("dense")
    conv = case.front_door(implementation)
    x, w = case.operands()
    gradients = jax.vmap(jax.grad(lambda x, w: jnp.sum(conv(x[None], w) ** 2), argnums=1), in_axes=(0, None))
    _, hlo = programs(gradients, x, w)
    assert custom_calls(hlo) == {"conv": 1, "wgrad": 1}
    assert "while" not in opcodes(hlo)


def test_remat_recomputes_only_the_forward(implementation):
    case = named("dense")
    conv = case.front_door(implementation)
    step = jax.value_and_grad(jax.checkpoint(lambda x, w: jnp.sum(jnp.sin(conv(x, w)))), argnums=(0, 1))
    stablehlo, _ = programs(step, *case.operands())
    assert custom_calls(stablehlo) == {"conv": 3, "wgrad": 1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_no_conversions(dtype, implementation, x64):
    """Kernels read and write the dtypes of the operands, in every pass."""
    case = named("dense")
    x, w = case.operands(dtype)
    _, hlo = programs(pullback(case.front_door(implementation)), x, w, cotangent(case.lax(), x, w))
    assert set(opcodes(hlo)) <= CALLS_ALONE


def test_a_named_implementation_lasts_through_gradients():
    """implementation="xla" is XLA's own convolution in every pass."""
    case = named("dense")
    x, w = case.operands()
    for entry in ENTRIES:
        conv = getattr(case, entry)("xla")
        stablehlo, hlo = programs(pullback(conv), x, w, cotangent(conv, x, w))
        assert stablehlo.count("stablehlo.convolution") == 3
        assert not custom_calls(stablehlo) and not custom_calls(hlo)


LAYERS = jax.ShapeDtypeStruct((32, 14, 14, 256), np.float32), [jax.ShapeDtypeStruct((3, 3, 256, 256), np.float32)] * 3


def gradients_of_layers(x, weights):
    """Of three layers, with what a network has between them."""

    def loss(weights):
        y = x
        for w in weights:
            y = y + jax.nn.relu(jaxconv.conv2d(y, w, implementation="cuda") - y.mean((0, 1, 2)))
        return (y**2).sum()

    return jax.grad(loss)(weights)


def test_transposed_operands_are_of_arrays_in_row_major_order(without_tuning, cuda_kernels):
    """But exported programs have custom calls of ours alone."""
    traced = jax.jit(gradients_of_layers).trace(*LAYERS)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@LayoutConstraint") == custom_calls(text)["wgrad"] == 3
    assert "@LayoutConstraint" not in exported(gradients_of_layers, *LAYERS, platforms=["cuda"]).mlir_module()


@pytest.mark.gpu
def test_xla_transposes_no_more_than_it_is_told_to():
    """Else it would compute what is between the layers in the order of the transposed operands, and back."""
    stablehlo, hlo = programs(gradients_of_layers, *LAYERS)
    assert opcodes(hlo)["transpose"] <= stablehlo.count("stablehlo.transpose")
