"""How far one infinity reaches in each family: what docs/numerics.md lists, and test_spread.py holds the kernels to.

`python -m cases.spread`, in tests/, measures the default platform's families, and rewrites spread.json and the page's
table.
"""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
from tabulate import tabulate

import jaxconv
from cases.numerics_page import write_table
from cases.reference import channels_last, run_on_host

TABLE = Path(__file__).with_name("spread.json")
OPERANDS = {"fprop": "xw", "dgrad": "gw", "wgrad": "xg"}
COLUMNS = [(which, operand) for which, operands in OPERANDS.items() for operand in operands]


@dataclass(frozen=True)
class Layer:
    """A convolution of 3 images, channels last, for a family."""

    name: str
    family: str
    lhs: tuple  # without images
    rhs: tuple
    dtype: str = "bfloat16"
    params: dict = field(default_factory=dict, hash=False)

    def __str__(self):
        return f"{self.family}-{self.name}".replace(" ", "_")

    def conv(self, function, **more):
        rank = len(self.rhs) - 2
        params = dict(window_strides=(1,) * rank, padding="SAME", dimension_numbers=channels_last(rank),
                      feature_group_count=self.lhs[-1] // self.rhs[-2])  # fmt: skip
        return functools.partial(function, **params | self.params, **more)

    def operands(self):
        """Ones."""
        lhs = (3, *self.lhs)
        x, w = (jax.ShapeDtypeStruct(shape, np.float32) for shape in (lhs, self.rhs))
        y = jax.eval_shape(self.conv(jax.lax.conv_general_dilated), x, w)
        return {"x": np.ones(lhs, self.dtype), "w": np.ones(self.rhs, self.dtype), "g": np.ones(y.shape, self.dtype)}


BY_TWO = dict(window_strides=(2, 2))
LAYERS = {
    "cpu": [
        Layer("dense 3x3", "gemm", (9, 9, 16), (3, 3, 16, 16), "float32"),
        Layer("3x3, groups of 4", "gemm", (9, 9, 16), (3, 3, 4, 16), "float32"),
        Layer("3x3 to 3 channels", "gemm", (9, 9, 16), (3, 3, 16, 3), "float32"),
        Layer("7x7", "depthwise", (9, 9, 16), (7, 7, 1, 16), "float32"),
    ],
    "cuda": [
        Layer("dense 3x3", "simt", (9, 9, 16), (3, 3, 16, 16), "float32"),
        Layer("3x3, groups of 4", "simt", (9, 9, 16), (3, 3, 4, 16), "float32"),
        Layer("dense 3x3", "im2col", (9, 9, 16), (3, 3, 16, 16), "float32"),
        Layer("dense 3x3", "mma", (9, 9, 16), (3, 3, 16, 16)),
        Layer("dense 3x3, float32", "mma", (9, 9, 16), (3, 3, 16, 16), "float32"),
        Layer("3x3, groups of 4", "mma", (9, 9, 32), (3, 3, 4, 32)),
        Layer("3x3, groups of 4, float32", "mma", (9, 9, 32), (3, 3, 4, 32), "float32"),
        Layer("depthwise 31x31", "mma", (40, 40, 16), (31, 31, 1, 16)),
        Layer("stem 7x7 by 2 of 3 channels", "mma", (20, 20, 3), (7, 7, 3, 64), "bfloat16", BY_TWO),
        Layer("dense 3x3", "wgmma", (9, 9, 64), (3, 3, 64, 64)),
        Layer("3x3, 12 to 20 channels", "wgmma", (9, 9, 12), (3, 3, 12, 20)),
        Layer("3x3, groups of 4", "direct", (9, 9, 32), (3, 3, 4, 32)),
        Layer("3x3, groups of 16", "direct", (9, 9, 64), (3, 3, 16, 64)),
        Layer("stem 7x7 by 2 of 3 channels", "direct", (20, 24, 3), (7, 7, 3, 64), "bfloat16", BY_TWO),
        Layer("3x3 to 3 channels", "direct", (9, 9, 64), (3, 3, 64, 3)),
        Layer("3x3", "depthwise", (20, 20, 16), (3, 3, 1, 16)),
        Layer("7x7 of small images", "depthwise", (7, 7, 64), (7, 7, 1, 64)),
        Layer("31x31", "depthwise", (40, 40, 16), (31, 31, 1, 16)),
        Layer("5x51", "depthwise", (30, 60, 16), (5, 51, 1, 16)),
        Layer("7x7, float32", "depthwise", (20, 20, 16), (7, 7, 1, 16), "float32"),
        Layer("3x3 by 2", "depthwise", (20, 20, 16), (3, 3, 1, 16), "bfloat16", BY_TWO),
        Layer("3x3, dilated by 2", "depthwise", (20, 20, 16), (3, 3, 1, 16), "bfloat16", dict(rhs_dilation=(2, 2))),
        Layer("3x3, 2 results a channel", "depthwise", (20, 20, 16), (3, 3, 1, 32)),
        Layer("volume 3x3x3", "depthwise", (6, 12, 12, 16), (3, 3, 3, 1, 16)),
    ],
}


def passes(conv, x, w):
    """Each pass as a function of its two operands, which are of the types of x and w."""
    return {
        "fprop": conv,
        "dgrad": lambda g, w: jax.linear_transpose(lambda x: conv(x, w), x)(g)[0],
        "wgrad": lambda x, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0],
    }


def measure(layer):
    """For each pass that the family takes and each of its operands, in the middle of which, or in the first tap of a
    filter, an infinity is: how many results are not finite in lax, how many of its finite ones are not in ours, and how
    many of these are of other images.
    """
    operands, found = layer.operands(), {}
    ours = passes(layer.conv(jaxconv.conv_general_dilated, implementation=layer.family), operands["x"], operands["w"])
    theirs = passes(layer.conv(jax.lax.conv_general_dilated), *(operands[o].astype(np.float32) for o in "xw"))
    for which, operand in COLUMNS:
        spoilt = {name: operands[name].copy() for name in OPERANDS[which]}
        middle = tuple(size // 2 for size in spoilt[operand].shape)
        spoilt[operand][(0,) * (len(middle) - 2) + middle[-2:] if operand == "w" else middle] = np.inf
        try:
            actual = np.asarray(jax.jit(ours[which])(*spoilt.values())).astype(np.float32)
        except NotImplementedError:
            continue
        expected = np.asarray(run_on_host(theirs[which], *(a.astype(np.float32) for a in spoilt.values())))
        more = np.isfinite(expected) & ~np.isfinite(actual)
        others = np.delete(more, 1, axis=0) if which != "wgrad" and operand != "w" else more[:0]
        found[f"{which} {operand}"] = [int((~np.isfinite(expected)).sum()), int(more.sum()), int(others.sum())]
    return found


def rows(table):
    for platform, layers in LAYERS.items():
        for layer in layers:
            cells = [table.get(str(layer), {}).get(f"{which} {operand}") for which, operand in COLUMNS]
            yield [platform, layer.family, layer.name, *("" if c is None else f"{c[0]} + {c[1]}" for c in cells)]


def main():
    platform = {"cpu": "cpu", "gpu": "cuda"}[jax.default_backend()]
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for layer in LAYERS[platform]:
        table[str(layer)] = measure(layer)
        print(layer, table[str(layer)])
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    headers = ["", "family", "layer", *(f"{which}, {operand}" for which, operand in COLUMNS)]
    write_table("cases.spread", tabulate(list(rows(table)), headers, tablefmt="github"))


if __name__ == "__main__":
    main()
