"""Every tile of CUDA families under compute-sanitizer: `make` stores compiled programs, `run` loads and runs them.

Under the sanitizer XLA's compilation is not reliable, and slow. docs/performance has the commands.
"""

import argparse
import functools
import itertools
import pickle
from pathlib import Path

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from cases import bias, blocks, epilogue, neighbours
from cases.convolution import channels_last_convolution
from cases.convolutions import TINY, convolutions
from cases.exact import alone, cases_of, exact_in, results_of
from cases.plans import PARTIAL
from cases.reference import assert_same, pullback, run_on_host
from cases.tiles import (
    ENDED_DTYPES,
    EVERY_TILE,
    FORWARD_ALONE,
    PASSES,
    WITH_SUMS,
    constraint,
    dtypes_of,
    has_pass,
    result_of,
    transforms_of,
)
from jaxconv.activations import LeakyRelu
from jaxconv.planner.families import FAMILIES

MOST = 6  # cases of a program
# Weight gradients of dozens of steps, some of which are left out, of one residue class and of four; and of groups.
OF_STEPS = ["taps_that_tiles_do_not_see", "doubled_windows_seen_by_few", "windows_of_groups"]
# A weight gradient of so many tiles that clusters ask for the next one, by any tile in two slices.
OF_MANY = channels_last_convolution((1, 16, 16, 704), (3, 3, 704, 1024))
# One that clips, one that bends, and one that kernels call a function for; of each, how many cases.
ACTIVATIONS = {"relu": ("relu", MOST), "leaky_relu": (LeakyRelu(0.25), 2), "silu": ("silu", 2)}


def make(folder: Path, families: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (family, tile) in EVERY_TILE.items():
        for dtype in dtypes_of(family, tile) if family in families else ():
            if (family, tile) in WITH_SUMS.values():
                store(folder / f"{name}-{dtype}", dtype, *plain(family, tile, dtype))
            if family == "wgmma" and dtype in ("bfloat16", "float16") and has_pass(tile, "wgrad", dtype):
                store(folder / f"{name}-{dtype}-many", dtype, *many(tile, dtype))
            if (family, tile, dtype) in bias.SUMMING:
                store(folder / f"{name}-{dtype}-bias", dtype, *with_bias(family, tile, dtype))
            for ended_dtype in ENDED_DTYPES.get(dtype, [dtype] if has_pass(tile, "fprop") else []):
                for ending in ACTIVATIONS:
                    path = folder / f"{name}-{ended_dtype}-{ending}"
                    store(path, ended_dtype, *ended(family, tile, ended_dtype, ending))
        if family in families and (family, tile) in neighbours.TILES:
            store(folder / f"{name}-bfloat16-rows", "bfloat16", *neighbours.calls_of(family, tile)[:3])
        if family in families and (family, tile) in blocks.TILES.values():
            store(folder / f"{name}-int8-nchw32", "int8", *in_blocks(family, tile))


def plain(family, tile, dtype):
    """A function of arrays, these, and its results."""
    passes = ("fprop",) if dtype in FORWARD_ALONE else ("wgrad", "fprop", "dgrad")
    names = TINY[family][:5] if family in PARTIAL else list(convolutions())[:2]
    cases = cases_of(family, tile, names, passes, (1, 2), dtype=dtype)[:MOST]
    if family == "wgmma" and dtype not in FORWARD_ALONE:
        cases += cases_of(family, tile, OF_STEPS, ("wgrad",), (1, 4), dtype=dtype)
    operands, expected = exact_in(dtype, {case for case, *_ in cases})
    return alone(cases, dtype), operands, results_of(cases, expected)


def many(tile, dtype):
    """The same of OF_MANY."""
    asked = constraint("wgmma", tile, (), split=2)
    x, w, g = OF_MANY.operands(dtype)
    expected = run_on_host(pullback(OF_MANY.lax()), *(a.astype("float32") for a in (x, w, g)))[2]
    return (
        lambda arrays: [PASSES["wgrad"](OF_MANY.ours(asked))(*arrays)],
        (x, w, g),
        [np.asarray(expected).astype(dtype)],
    )


def with_bias(family, tile, dtype):
    """The gradients of a filter and a bias, whole and in four slices: of the first that the tile takes."""
    asked = [constraint(family, tile, (), split=split, or_lax=True) for split in (1, 4)]
    case = next(case for case in bias.CASES[family].values() if all(case.is_one_kernel(one, dtype) for one in asked))
    operands = x, w, _, g = case.operands(dtype)
    wide = [np.asarray(a).astype("float32") for a in (x, w, g)]
    of_filter = run_on_host(pullback(functools.partial(case.conv, implementation="xla")), *wide)[2].astype(dtype)
    expected = of_filter, wide[2].sum(tuple(range(g.ndim - 1)))
    return lambda arrays: [case.gradients(one, *arrays) for one in asked], operands, [expected, expected]


def ended(family, tile, dtype, ending):
    """The same with every operand of an epilogue and an activation, and how exact it is."""
    activation, most = ACTIVATIONS[ending]
    every = TINY[family] if family in PARTIAL else list(convolutions())[:6]
    cases = [(name, "fprop", constraint(family, tile, transform))
             for name in every for transform in transforms_of(family, tile, dtype, "fprop")]  # fmt: skip
    out_scale = ("out_scale",) if np.dtype(result_of(dtype)).itemsize == 1 else ()
    names = ("scale", "bias", "residual", "residual_scale", *out_scale)
    rtol = epilogue.RTOL_OF_SMOOTH[np.dtype(result_of(dtype)).itemsize] if ending == "silu" else 0.0
    supported = epilogue.supported("cuda", cases, dtype)[:most]
    return *epilogue.program("cuda", supported, dtype, names, activation), rtol


def in_blocks(family, tile):
    """Images of NCHW32, with an epilogue. Without a residual there are other stores."""
    of = lambda names: blocks.calls_of(family, tile, blocks.filter_of(family), names, activation="relu")
    kinds = blocks.EVERY, blocks.WITHOUT_RESIDUAL
    return blocks.program([call for names in kinds for call in itertools.islice(of(names), MOST // 2)])


def store(path: Path, dtype: str, function, operands, expected, rtol: float = 0.0) -> None:
    if not expected:
        return
    with jax.enable_x64(dtype == "float64"):
        program = jax.jit(function).lower(operands).compile()
        results = jax.device_get(program(operands))
    assert_same(results, expected, rtol)
    path.write_bytes(pickle.dumps((serialize(program), operands, results)))
    print("made", path.name, flush=True)


def run(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        program, operands, expected = pickle.loads(path.read_bytes())
        with jax.enable_x64("float64" in path.name):
            loaded = deserialize_and_load(*program, execution_devices=jax.devices()[:1])
            assert_same(loaded(operands), expected)
        print("ran", path.name, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m cases.sanitized", description=__doc__)
    parser.add_argument("step", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--families", nargs="+", choices=FAMILIES["cuda"], default=list(FAMILIES["cuda"]))
    options = parser.parse_args()
    make(options.folder, options.families) if options.step == "make" else run(options.folder)
