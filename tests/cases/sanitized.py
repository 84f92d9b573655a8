"""Every tile of CUDA families under compute-sanitizer: `make` stores compiled programs, `run` loads and runs them.

Under the sanitizer XLA's compilation is not reliable, and slow. docs/performance has the commands.
"""

import argparse
import pickle
from pathlib import Path

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import jaxconv  # noqa: F401  (it registers the handlers that stored programs call)
from cases.convolutions import TINY, convolutions
from cases.exact import alone, cases_of, exact_in, results_of
from cases.plans import PARTIAL
from cases.reference import assert_same
from cases.tiles import EVERY_TILE, FORWARD_ALONE, dtypes_of
from jaxconv.planner.families import FAMILIES

MOST = 6  # cases of a program


def make(folder: Path, families: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (family, tile) in EVERY_TILE.items():
        for dtype in dtypes_of(family, tile) if family in families else ():
            passes = ("fprop",) if dtype in FORWARD_ALONE else ("wgrad", "fprop", "dgrad")
            names = TINY[family][:4] if family in PARTIAL else list(convolutions())[:2]
            cases = cases_of(family, tile, names, passes, (1, 2), dtype=dtype)[:MOST]
            if not cases:
                continue
            operands, expected = exact_in(dtype, {case for case, *_ in cases})
            with jax.enable_x64(dtype == "float64"):
                program = jax.jit(alone(cases, dtype)).lower(operands).compile()
                results = jax.device_get(program(operands))
            assert_same(results, results_of(cases, expected))
            (folder / f"{name}-{dtype}").write_bytes(pickle.dumps((serialize(program), operands, results)))
            print("made", name, dtype, flush=True)


def run(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        program, operands, expected = pickle.loads(path.read_bytes())
        with jax.enable_x64(path.name.endswith("float64")):
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
