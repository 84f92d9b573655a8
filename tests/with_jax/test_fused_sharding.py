"""Convolutions with an epilogue over several devices, against lax's on one."""

import jax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from cases.fused import channels_last_fused, cotangent, pullback
from cases.meshes import ONE_AXIS, TWO_AXES, collectives, compiled, mesh, place
from cases.reference import assert_same, custom_calls, run_on_host

WIDE = channels_last_fused((8, 8, 6, 8), (3, 3, 8, 16))
# x, w, scale and bias, residual.
LAYOUTS = {
    "batch": (ONE_AXIS, P("a"), P(), P(), P("a")),
    "in_channels": (ONE_AXIS, P(None, None, None, "a"), P(None, None, "a"), P(), P()),
    "rows": (ONE_AXIS, P(None, "a"), P(), P(), P(None, "a")),
    "batch_and_out_channels": (TWO_AXES, P("a"), P(None, None, None, "b"), P("b"), P("a", None, None, "b")),
    "batch_and_in_channels": (TWO_AXES, P("a", None, None, "b"), P(None, None, "b"), P(), P("a")),
}


@pytest.fixture
def operands():
    arrays = WIDE.arrays()
    g = cotangent(WIDE, arrays)
    return arrays, g, run_on_host(pullback(WIDE.theirs()), arrays, g)


def placed(on, arrays, x, w, channels, residual):
    return place(on, arrays, (x, w, channels, channels, residual, P()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharded(layout, operands, on_the_host):
    """The epilogue comes after the sum over devices."""
    arrays, g, expected = operands
    make_mesh, *specs = LAYOUTS[layout]
    step = lambda *arrays: pullback(WIDE.ours("cpu"))(arrays, g)
    actual, hlo = compiled(step, placed(make_mesh(), arrays, *specs))
    assert_same(actual, expected)
    assert "all-gather" not in collectives(hlo)


def test_explicit_mesh(operands, on_the_host):
    arrays, g, expected = operands
    on = mesh(kind=AxisType.Explicit)
    with jax.set_mesh(on):
        sharded = placed(on, arrays, *LAYOUTS["batch"][1:])
        (g,) = place(on, (g,), (P("a"),))
        actual = jax.jit(pullback(WIDE.ours("cpu")))(sharded, g)
        assert jax.typeof(actual[0]).sharding.spec[0] == "a"
    assert_same(actual, expected)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("manual", [{"a", "b"}, {"a"}], ids=["all", "partly"])
def test_shard_map(manual, check_vma, operands, on_the_host):
    """Gradients of replicated operands are sums over the devices. Inside, one device's part is one call."""
    arrays, g, expected = operands
    spec = P("a")
    in_specs = (spec, P(), P(), P(), spec, P())
    on = TWO_AXES()
    mapped = jax.shard_map(
        WIDE.ours("cpu"), mesh=on, in_specs=in_specs, out_specs=spec, axis_names=manual, check_vma=check_vma
    )  # fmt: skip
    actual, hlo = compiled(lambda *arrays: pullback(mapped)(arrays, g), place(on, arrays, in_specs))
    assert_same(actual, expected)
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}
