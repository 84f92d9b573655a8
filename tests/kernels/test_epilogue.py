"""The epilogue of every CUDA tile, a bias: bit-equal to lax's results with it for small integers."""

import functools

import jax
import numpy as np
import pytest

from cases.convolutions import OF_PARTIAL, OWN, convolutions, problem
from cases.epilogue import check, operands_of, taken, with_epilogue
from cases.plans import PARTIAL
from cases.problems import passes_of
from cases.tiles import DTYPES, EVERY_TILE, constraint, dtypes_of, has_pass, settings_of, splits_of
from jaxconv import ffi
from jaxconv.epilogue import Epilogue
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint, ConvPlan

pytestmark = pytest.mark.gpu
CONVS = ("fprop", "dgrad")
EVERY = {f"{name}-{dtype}": (family, tile, dtype)
         for name, (family, tile) in EVERY_TILE.items() for dtype in dtypes_of(family, tile)
         if has_pass(tile, "fprop")}  # fmt: skip


EACH = pytest.mark.parametrize("family, tile, dtype", EVERY.values(), ids=EVERY)


def cases_of(family, tile, dtype):
    """Also where no tap reaches, where nothing is summed, and behind split-K, where another kernel ends the sums."""
    passes = CONVS if DTYPES[dtype] == dtype.partition("_")[0] else ("fprop",)
    if family in PARTIAL:
        splits = splits_of(family, tile, "fprop")[:3] if family == "wgmma" else (None,)
        names, settings = OWN[family], [dict(split=split) for split in splits]
    else:
        names, settings = set(convolutions()) - set(OF_PARTIAL), settings_of(family, tile)[:3]
    cases = [(name, which, constraint(family, tile, **of)) for of in settings for name in sorted(names)
             for which in passes]  # fmt: skip
    return taken("cuda", cases, dtype, start=list(EVERY_TILE.values()).index((family, tile)))


@EACH
def test_bias_of_every_tile(family, tile, dtype):
    check("cuda", cases_of(family, tile, dtype), dtype, ("bias",))


@pytest.mark.parametrize("family, name", [
    ("mma", "many_of_all"), ("wgmma", "many_of_all"), ("direct", "groups_of_16"), ("depthwise", "depthwise_5x5"),
])  # fmt: skip
def test_operands_that_are_not_aligned(monkeypatch, family, name):
    """Another kernel takes them, and ends with the epilogue as well."""
    monkeypatch.setattr(ConvPlan, "takes_aligned", False)
    kind, of_pass = passes_of(problem(name))["fprop"]
    plan = choose("cuda", kind, of_pass, Constraint("cuda", family, transform=()), ffi.device("cuda")).plan
    x, w, _ = (a.astype("bfloat16") for a in convolutions()[name].operands())
    convolve = ffi.convolution(plan, of_pass, Epilogue(("bias",)))
    operands = list(operands_of(of_pass, "float32", ("bias",)).values())
    apart = jax.jit(lambda flat, w, *operands: convolve(flat[1:].reshape(x.shape), w, *operands))
    shifted = np.concatenate([np.zeros(1, x.dtype), x.ravel()])
    np.testing.assert_array_equal(apart(shifted, w, *operands), jax.jit(convolve)(x, w, *operands))


@pytest.mark.parametrize("operands, message", [
    (dict(bias=np.zeros(4, "float32")), "the bias has 4 numbers for 200 output channels"),
    (dict(scale=np.zeros(200, "bfloat16")), "the scale must be float32, as the sums are"),
    (dict(residual=np.zeros((3, 23, 21, 200), "float32")), "the residual must be bfloat16, as the result is"),
    (dict(scale=np.zeros(200, "float32")), "the kernels' epilogue is a bias alone"),
    (dict(bias=np.zeros((), "float32")), "the kernels' bias has a number for each output channel"),
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(operands, message):
    kind, of_pass = passes_of(problem("many_of_all"))["fprop"]
    x, w, _ = (a.astype("bfloat16") for a in convolutions()["many_of_all"].operands())
    conv = functools.partial(with_epilogue, "cuda", of_pass, constraint("mma"), operands=operands)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
        jax.block_until_ready(jax.jit(conv)(x, w))
