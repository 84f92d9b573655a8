"""Convolutions of NCHW32 images of int8, beside NHWC by lax. Operands are small integers and powers of two."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

import jaxconv
from cases.reference import integers, run_on_host
from cases.tiles import EVERY_TILE, constraint, dtypes_of
from jaxconv.explain import lines

LAYOUT = "NCHW32"
EVERY = ("scale", "bias", "residual", "residual_scale", "out_scale")
WITHOUT_RESIDUAL = ("scale", "bias", "out_scale")
FILTERS = {
    "as_it_is": lambda w: w,
    "prepared": jaxconv.prepare_filter,
    "prepared_for_it": functools.partial(jaxconv.prepare_filter, layout=LAYOUT),
}


@dataclasses.dataclass(frozen=True)
class Images:
    """lhs: NHWC. rhs: HWIO."""

    lhs: tuple
    rhs: tuple
    params: dict = dataclasses.field(default_factory=dict, hash=False)

    def conv(self, **more):
        return functools.partial(jaxconv.conv2d, **self.params, **more)

    def arrays(self, names=EVERY):
        """x, w and operands of an epilogue, as of NHWC. Each channel's numbers differ from the next one's."""
        x, w = integers(self.lhs, "int8", 0, 3), integers(self.rhs, "int8", 1, 3)
        y = run_on_host(self.conv(preferred_element_type="int32", implementation="xla"), x, w)
        channel = np.arange(self.rhs[-1])
        values = {
            "scale": 2.0 ** (channel % 3 - 3) * np.where(channel % 5 == 2, -1, 1),
            "bias": (channel * 7 + 25) % 31 - 15.0,
            "residual": integers(y.shape, "int8", 2, 100),
            "residual_scale": np.full((), -0.5),
            "out_scale": 2.0 ** -(channel % 4),
        }
        return x, w, {name: values[name].astype("int8" if name == "residual" else "float32") for name in names}

    def expected(self, x, w, operands, **more):
        """By lax, of NHWC."""
        conv = self.conv(implementation="xla", **dict(out_dtype="int8") | more)
        return run_on_host(lambda x, w, operands: conv(x, w, **operands), x, w, operands)


def in_blocks(operands):
    """The operands of an epilogue as NCHW32 has them."""
    return {name: to_blocks(a) if name == "residual" else a for name, a in operands.items()}


def to_blocks(x):
    """`to_nchw32` by numpy."""
    x = np.asarray(x)
    blocks = [x[..., first : first + 32] for first in range(0, x.shape[-1], 32)]
    return jnp.asarray(np.stack(blocks, 1))


CASES = {
    "dense": Images((2, 9, 8, 64), (3, 3, 64, 96)),
    "pointwise": Images((2, 7, 5, 96), (1, 1, 96, 64)),
    "one_block": Images((3, 6, 7, 32), (3, 2, 32, 32)),
    "matrix": Images((1, 9, 10, 32), (1, 1, 32, 160)),
    "strided": Images((2, 11, 13, 64), (3, 3, 64, 160), dict(window_strides=(2, 3))),
    "strided_pointwise": Images((2, 8, 8, 64), (1, 1, 64, 128), dict(window_strides=2, padding="VALID")),
    "dilated": Images((1, 13, 12, 32), (3, 3, 32, 64), dict(rhs_dilation=(2, 3), padding=((3, 1), (2, 4)))),
    "cropped": Images((2, 9, 9, 64), (2, 3, 64, 64), dict(padding=((-1, 2), (0, -2)))),
    "large_window": Images((1, 16, 17, 32), (7, 7, 32, 64), dict(padding=3, window_strides=2)),
    "many_planes": Images((1, 6, 6, 512), (3, 3, 512, 288)),
    "most_planes": Images((2, 5, 5, 1088), (1, 1, 1088, 64)),
    "many_positions": Images((3, 33, 31, 64), (3, 3, 64, 128), dict(padding="SAME_LOWER")),
}


# The CUDA tiles that take them.
TILES = {name: (family, tile) for name, (family, tile) in EVERY_TILE.items()
         if family not in ("im2col", "direct") and "int8_to_int32" in dtypes_of(family, tile)}  # fmt: skip


def filter_of(family):
    return FILTERS["prepared_for_it" if family == "wgmma" else "prepared"]


def splits_of(family, tile):
    return (1, 2, 8) if family == "wgmma" and tile.cluster_split else (1, 3)


def calls_of(family, tile, prepare, names, **more):
    """`(name, function, its arguments, result)` of those that a tile takes, each in all its splits, on a GPU."""
    for name, case in CASES.items():
        for split in splits_of(family, tile):
            asked = constraint(family, tile, split=split)
            conv = case.conv(layout=LAYOUT, out_dtype="int8", implementation=asked, **more)
            x, w, operands = case.arrays(names)
            given = to_blocks(x), prepare(w), in_blocks(operands)
            call = lambda x, w, operands, conv=conv: conv(x, w, **operands)
            (line,) = lines(call, *given)
            if line.startswith("fprop with its epilogue"):
                yield f"{name} {split}", call, given, to_blocks(case.expected(x, w, operands, **more))


def program(calls):
    """Calls as one function of arrays, these, and its results."""
    _, functions, arrays, expected = zip(*calls, strict=True)
    return lambda arrays: [f(*of) for f, of in zip(functions, arrays, strict=True)], list(arrays), list(expected)
