"""Errors of float32 at HIGHEST on several kinds of data, against float64. As a program: the table of docs/numerics.md,
measured on a GPU."""

import functools

import jax
import numpy as np
from tabulate import tabulate

import jaxconv
from cases.numerics_page import write_table
from cases.reference import lax_channels_last, pullback, run

PASSES = ("fprop", "dgrad", "wgrad")
LAYERS = {
    "3x3, 256 channels": ((4, 28, 28, 256), (3, 3, 256, 256)),
    "1x1, 64 to 256": ((8, 28, 28, 64), (1, 1, 64, 256)),
    "1x1, 1024 to 256": ((2, 28, 28, 1024), (1, 1, 1024, 256)),
}
DATA = {
    "Gaussian": lambda rng, shape: rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6, shape),
    "positive": lambda rng, shape: rng.uniform(0, 1, shape),
}
UNIT = 2.0**-24


@functools.cache
def exact(layer, data):
    """Operands, and each pass of them and of their magnitudes, in float64."""
    rng, (x_shape, w_shape) = np.random.default_rng(0), LAYERS[layer]
    shapes = x_shape, w_shape, (*x_shape[:3], w_shape[3])
    operands = [DATA[data](rng, shape).astype("float32") for shape in shapes]
    with jax.enable_x64(True):
        of = lambda arrays: [np.asarray(a) for a in run(pullback(lax_channels_last), *arrays)]
        wide = [a.astype("float64") for a in operands]
        return operands, of(wide), of(map(np.abs, wide))


def errors(conv, layer, data):
    """Of each pass the largest and the root mean square, in UNIT of the sum of the products' magnitudes."""
    operands, results, sizes = exact(layer, data)
    actual = run(pullback(functools.partial(conv, precision="highest")), *operands)
    found = {}
    for which, a, result, size in zip(PASSES, actual, results, sizes, strict=True):
        relative = (np.asarray(a, np.float64) - result) / size / UNIT
        found[which] = np.max(np.abs(relative)), np.sqrt(np.mean(relative**2))
    return found


def main():
    ours = {name: functools.partial(jaxconv.conv2d, implementation=name) for name in ("simt", "wgmma")}
    rows = []
    for layer in LAYERS:
        for data in DATA:
            for name, conv in ({"lax": lax_channels_last} | ours).items():
                found = errors(conv, layer, data)
                rows.append([layer, data, name, *(f"{most:.2f}, {rms:.2f}" for most, rms in found.values())])
    text = tabulate(rows, ["layer", "data", "", *PASSES], tablefmt="github")
    print(text)
    write_table("cases.errors", text)


if __name__ == "__main__":
    main()
