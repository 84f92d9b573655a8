"""The benchmark of folded normalisation: its sides compute the same layer, its network is ResNet-50 in each type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases.parts import name
from convbench import folded
from convbench.command import main
from convbench.folded import (
    BYTES,
    HALF,
    Side,
    folded_by_lax,
    folded_by_us,
    logits,
    measure,
    operands,
    program,
    table,
    written,
)

ROW = {"ms": 2.0, "compile_s": 1.0, "error": None, "images": 2}


@pytest.mark.parametrize("with_residual, relu", [(True, True), (False, True), (True, False)])
def test_sides_are_the_same(with_residual, relu):
    rng = np.random.default_rng(0)
    x, w, residual = (
        jnp.asarray(rng.integers(-3, 4, shape), HALF) for shape in ((2, 6, 6, 8), (3, 3, 8, 16), (2, 3, 3, 16))
    )
    scale, bias = 2.0 ** rng.integers(-2, 2, 16).astype("float32"), rng.integers(-5, 6, 16).astype("float32")
    rest = (2, residual if with_residual else None, relu)
    ours = folded_by_us(x, (w, scale, bias), *rest, implementation=None).astype("float32")
    assert np.ptp(ours) > 0
    for y in (written(x, (w, scale, bias), *rest), folded_by_lax(x, ((w * scale).astype(HALF), scale, bias), *rest)):
        np.testing.assert_allclose(y.astype("float32"), ours, rtol=0.02, atol=0.5)  # they round more often


def test_bytes_of_a_layer():
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-30, 31, shape).astype("int8") for shape in ((2, 5, 5, 16), (1, 1, 16, 16)))
    scale, bias, residual = np.full(16, 2.0**-5, "float32"), np.arange(16, dtype="float32"), x - 3
    y = folded_by_us(jnp.asarray(x), (w, scale, bias), 1, residual, True, implementation=None)
    sums = np.einsum("nhwi,io->nhwo", x.astype("float32"), w[0, 0].astype("float32"))
    np.testing.assert_array_equal(y, np.clip(np.rint(np.maximum(sums * scale + bias + residual, 0)), -128, 127))


SIDES = [(written, HALF), (folded_by_lax, HALF), *((folded_by_us, dtype) for dtype in (HALF, *BYTES))]


@pytest.mark.parametrize("layer, dtype", SIDES, ids=name)
def test_the_network(layer, dtype):
    network = program(layer, dtype, 2)
    assert jax.eval_shape(network.function, *network.operands) == jax.ShapeDtypeStruct((2, 1000), jnp.bfloat16)
    assert len(network.operands) == 1 + 3 * 53 + 2


def test_results_stay_about_as_large(monkeypatch):
    """Of two blocks, on small images."""
    monkeypatch.setattr("convbench.resnet50.STAGES", ((2, 16),))
    x, *leaves = operands(folded_by_lax, HALF, 1)
    tree = jax.tree.structure(jax.eval_shape(lambda: folded._arrays(folded_by_lax, HALF, 1)[1]))
    result = jax.jit(lambda x, leaves: logits(folded_by_lax, jax.tree.unflatten(tree, leaves), x))(
        x[:, :32, :32], leaves
    )
    assert 0.1 < float(result.std(dtype=jnp.float32)) < 100


def test_a_failure_is_a_row():
    row = measure(Side("jaxconv", folded_by_us), 2, 0.0)
    assert "cuda" in row["error"] and row["ms"] is None and row["lax_error"] is None


def test_table():
    rows = [{"side": "lax", "dtype": HALF} | ROW | {"ms": 6.0}, {"side": "jaxconv", "dtype": "int8"} | ROW]
    assert "3" in table(rows).splitlines()[-1].split()


def test_without_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no GPU"):
        main(["folded", "--out", str(tmp_path / "rows.json")])
