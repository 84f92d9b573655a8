"""`install` on eight host devices: lax's functions, split as our own are: with lax's values and collectives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.meshes import LAYOUTS, ONE_AXIS, PASSES, TWO_AXES, collectives, compiled, mesh, place, weight_gradient
from cases.reference import assert_same, cotangent, custom_calls, pullback
from cases.small import Case
from jaxconv import lowering
from jaxconv.planner.choose import Choice
from jaxconv.planner.plan import Lax

CASES = {
    "dense": Case("dense", (8, 4, 3, 8), (3, 3, 8, 16)),
    "strided": Case("strided", (8, 5, 4, 8), (3, 3, 8, 8), {"window_strides": (2, 2)}),
    "depthwise": Case("depthwise", (8, 4, 3, 16), (3, 3, 1, 16), {"feature_group_count": 16}),
}
BATCH, CHANNELS = P("a"), P(None, None, None, "a")

pytestmark = pytest.mark.usefixtures("on_the_host", "uninstalled")


def operands_of(case):
    return *case.operands(), cotangent(case.lax(), *case.operands())


@pytest.mark.parametrize("of_conv, like", PASSES, ids=["forward", "data_gradient", "weight_gradient"])
@pytest.mark.parametrize("layout", ["batch", "in_channels", "out_channels", "batch_and_out_channels"])
@pytest.mark.parametrize("case", [CASES["dense"], CASES["strided"]], ids=str)
def test_partitions_as_lax_does(case, layout, of_conv, like):
    make_mesh, *specs = LAYOUTS[layout]
    placed = place(make_mesh(), operands_of(case), specs)
    out_sharding = placed[like].sharding
    expected, lax_hlo = compiled(of_conv(case.lax()), placed, out_sharding)
    jaxconv.install("cpu")
    actual, hlo = compiled(of_conv(case.lax()), placed, out_sharding)
    assert_same(actual, expected)
    assert collectives(hlo) == collectives(lax_hlo)
    assert custom_calls(hlo) == {"wgrad" if of_conv is weight_gradient else "conv": 1}


@pytest.mark.parametrize("of_conv, like", PASSES, ids=["forward", "data_gradient", "weight_gradient"])
@pytest.mark.parametrize("spec", [BATCH, CHANNELS], ids=["batch", "channels"])
def test_depthwise(spec, of_conv, like):
    case = CASES["depthwise"]
    placed = place(ONE_AXIS(), operands_of(case), (spec, P() if spec is BATCH else CHANNELS, spec))
    expected, _ = compiled(of_conv(case.lax()), placed, placed[like].sharding)
    jaxconv.install("cpu")
    actual, hlo = compiled(of_conv(case.lax()), placed, placed[like].sharding)
    assert_same(actual, expected)
    assert sum(custom_calls(hlo).values()) == 1 and not collectives(hlo)["all-gather"]


@pytest.mark.parametrize("of_conv, like", PASSES, ids=["forward", "data_gradient", "weight_gradient"])
def test_where_the_plan_of_a_shard_is_lax(of_conv, like, monkeypatch):
    case = CASES["strided"]
    placed = place(ONE_AXIS(), operands_of(case), (BATCH, P(), BATCH))
    expected, lax_hlo = compiled(of_conv(case.lax()), placed, placed[like].sharding)
    monkeypatch.setattr(lowering, "decide", lambda *_: Choice(Lax(), 0.0, lambda: ()))
    jaxconv.install()
    actual, hlo = compiled(of_conv(case.lax()), placed, placed[like].sharding)
    assert_same(actual, expected)
    assert collectives(hlo) == collectives(lax_hlo) and not custom_calls(hlo)


def test_what_no_kernel_takes_is_split_by_lax():
    case = CASES["dense"]
    x, w = (a.astype("uint8") for a in case.operands())
    placed = place(ONE_AXIS(), (x, w), (BATCH, P()))
    expected, lax_hlo = compiled(case.lax(), placed)
    jaxconv.install("cpu")
    with pytest.raises(jaxconv.FallbackWarning):
        compiled(case.lax(), placed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxconv.fallback, "warn", lambda *_: None)
        actual, hlo = compiled(case.lax(), placed)
    assert_same(actual, expected, 1e-6)
    assert collectives(hlo) == collectives(lax_hlo)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma):
    """Data parallel: the gradient of the replicated filter is summed."""
    case, one = CASES["dense"], ONE_AXIS()
    placed = place(one, operands_of(case), (BATCH, P(), BATCH))

    def step(x, w, g):
        loss = lambda x, w: jnp.sum(case.lax()(x, w) * g)
        dx, dw = jax.grad(loss, argnums=(0, 1))(x, w)
        return dx, dw if check_vma else jax.lax.psum(dw, "a")

    sharded = jax.shard_map(step, mesh=one, in_specs=(BATCH, P(), BATCH), out_specs=(BATCH, P()), check_vma=check_vma)
    expected, _ = compiled(sharded, placed)
    jaxconv.install("cpu")
    actual, hlo = compiled(sharded, placed)
    assert_same(actual, expected)
    assert custom_calls(hlo) == {"conv": 1, "wgrad": 1}


@pytest.mark.parametrize("spec", [BATCH, P()], ids=["batch", "replicated"])
def test_explicit_mesh(spec):
    case, explicit = CASES["strided"], mesh(kind=AxisType.Explicit)
    with jax.set_mesh(explicit):
        placed = place(explicit, operands_of(case), (spec, P(), spec))
        pullback = lambda x, w, g: jax.vjp(functools.partial(case.lax(), out_sharding=spec), x, w)[1](g)
        expected, _ = compiled(pullback, placed)
        jaxconv.install("cpu")
        actual, hlo = compiled(pullback, placed)
    assert_same(actual, expected)
    assert custom_calls(hlo) == {"conv": 1, "wgrad": 1}
    assert not collectives(hlo)["all-gather"]


# Programs that JAX refuses if a primitive needs devices.


def test_abstract_mesh():
    case, operands = CASES["dense"], operands_of(CASES["dense"])
    abstract = AbstractMesh((8,), ("a",), axis_types=(AxisType.Auto,))
    specs = (BATCH, P(), BATCH)
    shardings = [NamedSharding(abstract, spec) for spec in specs]
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in zip(operands, shardings)]
    expected = pullback(case.lax())(*operands)
    jaxconv.install("cpu")
    program = jax.jit(pullback(case.lax())).trace(*types).lower(lowering_platforms=("cpu",))
    program = program.compile(device_assignment=tuple(jax.devices("cpu")))
    assert_same(program(*place(ONE_AXIS(), operands, specs)), expected)
    assert custom_calls(program.as_text()) == {"conv": 2, "wgrad": 1}


def test_two_meshes():
    """The first convolution is split over one, the second over the other."""
    case = Case("square", (8, 4, 3, 8), (3, 3, 8, 8))
    one, two = ONE_AXIS(), TWO_AXES()
    out_sharding = NamedSharding(two, P("a", None, None, "b"))

    def twice(x, w):
        return case.lax()(jax.lax.with_sharding_constraint(case.lax()(x, w), out_sharding), w)

    placed = place(one, case.operands(), (BATCH, P()))
    expected, _ = compiled(twice, placed, out_sharding)
    jaxconv.install("cpu")
    actual, hlo = compiled(twice, placed, out_sharding)
    assert_same(actual, expected)
    assert custom_calls(hlo) == {"conv": 2} and not collectives(hlo)["all-gather"]


@pytest.mark.usefixtures("partitioner")
def test_two_meshes_without_common_axes():
    """XLA shows shardings that no one mesh has. What has no name is gathered."""
    case = Case("square", (6, 6, 3, 6), (3, 3, 6, 6))
    one, two = (Mesh(np.reshape(jax.devices("cpu")[:6], shape), ("a", "b")) for shape in ((2, 3), (3, 2)))
    x, w = case.operands()
    expected, outputs = case.lax()(x, w), P(None, None, None, "a")
    jaxconv.install("cpu")
    placed = *place(one, [x], [BATCH]), *place(two, [w], [outputs])
    actual, hlo = compiled(case.lax(), placed, NamedSharding(two, outputs))
    assert_same(actual, expected)
    assert custom_calls(hlo) == {"conv": 1}
