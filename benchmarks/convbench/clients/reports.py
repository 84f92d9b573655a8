"""What users reported of lax's convolutions, in the issues of JAX, as small programs. Sizes are theirs, but for one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, lax


class Report(NamedTuple):
    """What was reported, a program that shows it, and the types of its arrays."""

    what: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]

    @property
    def dtype(self) -> str:
        """Of all its arrays."""
        return jax.tree.leaves(self.operands)[0].dtype.name


def types(dtype: str, *shapes: tuple[int, ...]) -> tuple[ShapeDtypeStruct, ...]:
    return tuple(ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes)


def transposed_volume_gradient(w: Array, x: Array) -> Array:
    """Of equinox's layer with stride 2, padding 1 and output padding 1: the filter's, of the mean."""

    def loss(w: Array) -> Array:
        layout = ("NCDHW", "OIDHW", "NCDHW")
        y = lax.conv_general_dilated(x, w, (1, 1, 1), ((1, 2),) * 3, (2, 2, 2), dimension_numbers=layout)
        return y.astype(jnp.float32).mean()

    return jax.grad(loss)(w)


def filter_bank(x: Array, w: Array) -> Array:
    return lax.conv_transpose(x, w, (256,), "VALID", dimension_numbers=("NCW", "IOW", "NCW"))


def dilated_depthwise(x: Array, w: Array) -> Array:
    layout = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, w, (1,), "SAME", None, (64,), layout, feature_group_count=x.shape[-1])


def depthwise_stack_gradients(filters: list[Array], x: Array, target: Array) -> list[Array]:
    def loss(filters: list[Array]) -> Array:
        y, layout = x, ("NCW", "IOW", "NCW")
        for w in filters:
            y = lax.conv_general_dilated(y, w, (1,), "SAME", None, None, layout, feature_group_count=x.shape[1])
        return jnp.abs(y - target).mean()

    return jax.grad(loss)(filters)


def dilated_sequence(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (2,), "SAME", None, (2,), ("NCH", "OIH", "NCH"))


def patch_gradients(x: Array, w: Array) -> tuple[Array, Array]:
    """Those of the images, too."""

    def loss(x: Array, w: Array) -> Array:
        y = lax.conv_general_dilated(x, w, (16, 16), "VALID", None, None, ("NHWC", "HWIO", "NHWC"))
        return jnp.square(y).mean()

    return jax.grad(loss, (0, 1))(x, w)


def large_transposed(x: Array, w: Array) -> Array:
    return lax.conv_transpose(x, w, (16, 16), "SAME")


REPORTS = {
    "jax#31662": Report(
        "gradient of a 3-D transposed convolution, 64 channels to 1: tens of times slower than PyTorch",
        transposed_volume_gradient,
        types("bfloat16", (1, 64, 3, 3, 3), (1, 64, 64, 64, 32)),
    ),
    # The code was not at hand: the sizes are not its own, but those of a filter bank for speech.
    "jax#23783": Report(
        "1-D transposed convolution: hundreds of times slower than PyTorch",
        filter_bank,
        types("float32", (16, 512, 256), (512, 1, 1024)),
    ),
    # Of the tables, one of the larger sizes.
    "jax#26266": Report(
        "depthwise convolution with a dilated window: slower than a dense one",
        dilated_depthwise,
        types("float32", (32, 1024, 256), (7, 1, 256)),
    ),
    "jax#13800": Report(
        "gradients of 12 depthwise layers, 512 channels: as slow as dense ones",
        depthwise_stack_gradients,
        (list(types("float32", *[(1, 512, 5)] * 12)), *types("float32", (32, 512, 1024), (32, 512, 1024))),
    ),
    "jax#37922": Report(
        "1-D convolution in bfloat16, strided and dilated: refused, the autotuner finds no kernel",
        dilated_sequence,
        types("bfloat16", (2, 4, 16), (16, 4, 3)),
    ),
    "jax#23085": Report(
        "gradients of a 16x16 patch embedding, the images' too: minutes of autotuning",
        patch_gradients,
        types("float32", (1, 224, 224, 3), (16, 16, 3, 768)),
    ),
    "jax#17464": Report(
        "transposed convolution with a window of 32x32 and stride 16: minutes of compiling",
        large_transposed,
        types("float32", (1, 8, 8, 128), (32, 32, 128, 32)),
    ),
}
