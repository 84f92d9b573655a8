"""Eight host devices: values, and the collectives that XLA puts in, against lax's own convolution."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.meshes import LAYOUTS, ONE_AXIS, PASSES, TWO_AXES, collectives, compiled, exchanged, mesh, place
from cases.parts import diagonal
from cases.reference import assert_same, cotangent, custom_calls, integers, pullback, run_on_host
from cases.small import ENTRIES, Case, named

pytestmark = pytest.mark.usefixtures("on_the_host")  # GPU machines simulate the eight devices too

DENSE = Case("dense", (8, 4, 3, 8), (3, 3, 8, 16))
STRIDED = Case("strided", (8, 5, 4, 8), (3, 3, 8, 8), {"window_strides": (2, 2)})
CAUSAL = Case("causal", (8, 6, 8), (3, 8, 8), {"padding": ((2, 0),)})
GROUPED = Case("grouped", (8, 4, 3, 16), (3, 3, 2, 16), {"feature_group_count": 8})
DEPTHWISE = Case("depthwise", (8, 4, 3, 16), (3, 3, 1, 16), {"feature_group_count": 16})
MULTIPLIER = Case("multiplier", (8, 4, 3, 3), (3, 3, 1, 6), {"feature_group_count": 3})
FEW_GROUPS = Case("few_groups", (8, 4, 3, 16), (3, 3, 8, 16), {"feature_group_count": 2})
SPATIAL = Case("spatial", (2, 8, 4, 3), (3, 3, 3, 4))


@pytest.mark.parametrize(
    "layout, of_conv, like, case, entry",
    diagonal(list(LAYOUTS), PASSES, [(DENSE, "front_door"), (STRIDED, "general")]),
)
def test_partitions_as_lax_does(layout, of_conv, like, case, entry):
    """Each pass keeps shardings and reduces where lax does, with the same collectives."""
    make_mesh, *specs = LAYOUTS[layout]
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    placed = place(make_mesh(), operands, specs)
    out_sharding = placed[like].sharding
    actual, hlo = compiled(of_conv(getattr(case, entry)("cpu")), placed, out_sharding)
    expected, lax_hlo = compiled(of_conv(case.lax()), placed, out_sharding)
    assert_same(actual, expected)
    assert collectives(hlo) == collectives(lax_hlo)
    assert sum(custom_calls(hlo).values()) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_result_lies_as_laxs_does(layout):
    """Where no sharding is given, the forward result is sharded as lax's is."""
    make_mesh, *specs = LAYOUTS[layout]
    placed = place(make_mesh(), DENSE.operands(), specs[:2])
    ours, hlo = compiled(DENSE.front_door("cpu"), placed)
    theirs, lax_hlo = compiled(DENSE.lax(), placed)
    assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)
    assert collectives(hlo) == collectives(lax_hlo)


# Where x and the filters of two layers lie.
TRAINING = {
    "data_parallel": (ONE_AXIS, P("a"), P(), P()),
    "tensor_parallel": (ONE_AXIS, P(), P(None, None, None, "a"), P(None, None, "a")),
    "both": (TWO_AXES, P("a"), P(None, None, None, "b"), P(None, None, "b")),
}


@pytest.mark.parametrize("layout, entry", diagonal(list(TRAINING), ENTRIES))
def test_training_step(layout, entry):
    """Two layers; in tensor parallelism, the second sums over what the first has split."""
    make_mesh, *specs = TRAINING[layout]
    case = Case("square", (8, 4, 3, 8), (3, 3, 8, 8))
    x, w = case.operands()
    placed = place(make_mesh(), (x, w, integers(w.shape, seed=5)), specs)

    def step(conv):
        loss = lambda x, v, w: jnp.sum(conv(jnp.maximum(conv(x, v), 0), w))
        return jax.value_and_grad(loss, argnums=(1, 2))

    actual, hlo = compiled(step(getattr(case, entry)("cpu")), placed)
    expected, lax_hlo = compiled(step(case.lax()), placed)
    assert_same(actual, expected)
    assert collectives(hlo) == collectives(lax_hlo)


CHANNELS = P(None, None, None, "a")
# Groups: a shard holds whole groups, or the channels are gathered.
OTHERS = {
    "grouped_batch": (GROUPED, P("a"), P()),
    "grouped_channels": (GROUPED, CHANNELS, CHANNELS),
    "depthwise_batch": (DEPTHWISE, P("a"), P()),
    "depthwise_channels": (DEPTHWISE, CHANNELS, CHANNELS),
    "depthwise_only_x": (DEPTHWISE, CHANNELS, P()),
    "depthwise_only_w": (DEPTHWISE, P(), CHANNELS),
    "multiplier_batch": (MULTIPLIER, P("a"), P()),
    "few_groups_channels": (FEW_GROUPS, CHANNELS, CHANNELS),
    "few_groups_in_channels": (FEW_GROUPS, CHANNELS, P(None, None, "a")),
    "spatial": (SPATIAL, P(None, "a"), P()),
    "only_x_channels": (DENSE, CHANNELS, P()),
    "only_w_in_channels": (DENSE, P(), P(None, None, "a")),
    "batch_and_w_on_one_axis": (DENSE, P("a"), CHANNELS),
    "batch_and_w_in_channels_on_one_axis": (DENSE, P("a"), P(None, None, "a")),
    "taps": (Case("taps", (2, 9, 4, 3), (8, 3, 3, 4)), P(), P("a")),
    "causal_batch": (CAUSAL, P("a"), P()),
}


@pytest.mark.parametrize("case, x_spec, w_spec, entry", diagonal(list(OTHERS.values()), ENTRIES), ids=str)
def test_any_sharding_is_right(case, x_spec, w_spec, entry):
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    placed = place(ONE_AXIS(), operands, (x_spec, w_spec, P()))
    actual, hlo = compiled(pullback(getattr(case, entry)("cpu")), placed)
    assert_same(actual, run_on_host(pullback(case.lax()), *operands))
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}


@pytest.mark.parametrize("case", [GROUPED, DEPTHWISE], ids=str)
def test_whole_groups_stay_where_they_are(case):
    """Sharded groups need no communication in any pass."""
    specs = (CHANNELS, CHANNELS, CHANNELS)
    operands = place(ONE_AXIS(), (*case.operands(), cotangent(case.lax(), *case.operands())), specs)
    actual, hlo = compiled(pullback(case.front_door("cpu")), operands, operands[0].sharding)
    assert collectives(hlo) == {}
    assert_same(actual, run_on_host(pullback(case.lax()), *operands))


def test_batch_groups_with_sharded_batch():
    case = Case("batch_groups", (16, 4, 3, 8), (3, 3, 8, 16), {"batch_group_count": 8})
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    for specs in [(P("a"), P(), P()), (P("a"), P(None, None, None, "a"), P()), (P(), P(None, None, "a"), P())]:
        actual, _ = compiled(pullback(case.general("cpu")), place(ONE_AXIS(), operands, specs))
        assert_same(actual, run_on_host(pullback(case.lax()), *operands))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_sharded_operands(axes):
    """The mapped axis is sharded, and stays so under vmap."""
    x, w = named("dense").operands()
    operands = [a if axis is None else jnp.stack([(i - 3) * a for i in range(8)]) for a, axis in zip((x, w), axes)]
    g = cotangent(named("dense").lax(), x, w)
    specs = [P() if axis is None else P("a") for axis in axes]
    step = lambda conv: jax.vmap(pullback(conv), in_axes=(*axes, None))
    actual, _ = compiled(step(named("dense").general("cpu")), place(ONE_AXIS(), (*operands, g), (*specs, P())))
    assert_same(actual, run_on_host(step(named("dense").lax()), *operands, g))


@pytest.mark.parametrize("members, axes", [(4, "a"), (8, ("a", "b")), (8, ("b", "a"))], ids=str)
def test_ensemble_needs_no_communication(members, axes):
    """Members over one of two mesh axes, or over both."""
    x, w = integers((members, 2, 4, 3, 4)), integers((members, 3, 3, 4, 5))
    g = cotangent(jax.vmap(DENSE.lax()), x, w)
    step = lambda conv: pullback(jax.vmap(conv))
    actual, hlo = compiled(step(DENSE.general("cpu")), place(TWO_AXES(), (x, w, g), (P(axes),) * 3))
    assert_same(actual, run_on_host(step(DENSE.lax()), x, w, g))
    assert collectives(hlo) == {}
    assert all(a.sharding.spec == P(axes) for a in actual)


@pytest.mark.parametrize("axes", [("a", "b"), ("b", "a")], ids=str)
@pytest.mark.parametrize("groups", [2, 4])
def test_fewer_groups_than_devices(groups, axes):
    """Some orders of mesh axes split groups by a part of one."""
    case = Case("groups", (2, 4, 3, 16), (3, 3, 16 // groups, 16), {"feature_group_count": groups})
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    actual, _ = compiled(pullback(case.general("cpu")), place(TWO_AXES(), operands, (P(None, None, None, axes),) * 3))
    assert_same(actual, run_on_host(pullback(case.lax()), *operands))


@pytest.mark.parametrize("x_spec", [P(), CHANNELS], ids=["whole", "channels"])
def test_few_groups_gather_no_more_than_lax_does(x_spec):
    """The filter's outputs are split over more devices than there are groups."""
    case = Case("groups", (4, 6, 6, 8), (3, 3, 4, 16), {"feature_group_count": 2})
    placed = place(ONE_AXIS(), case.operands(), (x_spec, CHANNELS))
    programs = (compiled(conv, placed)[1] for conv in (case.general("cpu"), case.lax()))
    gathered, by_lax = (sum(exchanged(hlo).get("all-gather", [])) for hlo in programs)
    assert gathered <= by_lax


# Inside shard_map: (mesh, specs of x, w and y, the axes whose partial results are summed).
MANUAL = {
    "batch": (ONE_AXIS, P("a"), P(), P("a"), ()),
    "in_channels": (ONE_AXIS, P(None, None, None, "a"), P(None, None, "a"), P(), ("a",)),
    "out_channels": (ONE_AXIS, P(), P(None, None, None, "a"), P(None, None, None, "a"), ()),
    "batch_and_out_channels": (TWO_AXES, P("a"), P(None, None, None, "b"), P("a", None, None, "b"), ()),
    "batch_and_in_channels": (TWO_AXES, P("a", None, None, "b"), P(None, None, "b"), P("a"), ("b",)),
}


@pytest.mark.parametrize("layout, check_vma, entry", diagonal(list(MANUAL), [True, False], ENTRIES))
def test_gradient_through_shard_map(layout, check_vma, entry):
    make_mesh, x_spec, w_spec, y_spec, summed = MANUAL[layout]
    x, w = DENSE.operands()
    g = cotangent(DENSE.lax(), x, w)

    def step(conv):
        local = lambda x, w: jax.lax.psum(conv(x, w), summed) if summed else conv(x, w)
        whole = jax.shard_map(local, mesh=make_mesh(), in_specs=(x_spec, w_spec), out_specs=y_spec, check_vma=check_vma)
        return pullback(whole)

    actual, hlo = compiled(step(getattr(DENSE, entry)("cpu")), (x, w, g))
    expected, lax_hlo = compiled(step(DENSE.lax()), (x, w, g))
    assert_same(actual, expected)
    assert_same(expected, run_on_host(pullback(DENSE.lax()), x, w, g))
    assert collectives(hlo) == collectives(lax_hlo)
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_inside_shard_map(check_vma, entry):
    """With checks, the gradient of a replicated filter is summed over the devices for us, without them it is local."""
    x, w = DENSE.operands()

    def step(conv):
        gradients = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=(0, 1))
        local = lambda x, w: tuple(gradients(x, w)) if check_vma else tuple(g[None] for g in gradients(x, w))
        out_specs = (P("a"), P()) if check_vma else (P("a"), P("a"))
        return jax.shard_map(local, mesh=ONE_AXIS(), in_specs=(P("a"), P()), out_specs=out_specs, check_vma=check_vma)

    actual, hlo = compiled(step(getattr(DENSE, entry)("cpu")), (x, w))
    expected, lax_hlo = compiled(step(DENSE.lax()), (x, w))
    assert_same(actual, expected)
    assert collectives(hlo) == collectives(lax_hlo)
    whole = jax.grad(lambda w: jnp.sum(DENSE.lax()(x, w) ** 2))(w)
    assert_same(actual[1] if check_vma else jnp.sum(actual[1], 0), whole)


@pytest.mark.parametrize("check_vma", [True, False])
def test_higher_order_inside_shard_map(check_vma):
    """Hessian-vector products of a replicated filter, and forward mode."""
    x, w = DENSE.operands()

    def step(conv):
        def local(x, w):
            gradient = jax.grad(lambda w: jnp.sum(conv(x, w) ** 3))
            y, tangent = jax.jvp(conv, (x, w), (x, w))
            products = jax.jvp(gradient, (w,), (w,))
            return y, tangent, *(products if check_vma else jax.lax.psum(products, "a"))

        return jax.shard_map(
            local, mesh=ONE_AXIS(), in_specs=(P("a"), P()), out_specs=(P("a"), P("a"), P(), P()), check_vma=check_vma
        )

    actual, _ = compiled(step(DENSE.general("cpu")), (x, w))
    expected, _ = compiled(step(DENSE.lax()), (x, w))
    assert_same(actual, expected, 1e-6)


@pytest.mark.parametrize("axes, check_vma", diagonal([((0, None),), ((None, 0),), ((0, 0),)], [True, False]), ids=str)
def test_vmap_inside_shard_map(axes, check_vma):
    case = named("dense")
    x, w = case.operands()
    x, w = [a if axis is None else jnp.stack([a, 1 - a]) for a, axis in zip((x, w), axes)]
    x = jnp.concatenate([x] * 4, axis=1 if axes[0] == 0 else 0)
    x_spec = P(None, "a") if axes[0] == 0 else P("a")

    def step(conv):
        def local(x, w):
            mapped = jax.vmap(conv, in_axes=axes)
            return jax.value_and_grad(lambda w: jax.lax.psum(jnp.sum(mapped(x, w) ** 2), "a"))(w)

        return jax.shard_map(local, mesh=ONE_AXIS(), in_specs=(x_spec, P()), out_specs=P(), check_vma=check_vma)

    actual, _ = compiled(step(case.general("cpu")), (x, w))
    expected, _ = compiled(step(case.lax()), (x, w))
    assert_same(actual, expected)


PARTLY = {"batch": P("a"), "in_channels": P("a", None, None, "b"), "rows": P("a", "b")}


@pytest.mark.parametrize("layout, check_vma, entry", diagonal(list(PARTLY), [True, False], ENTRIES))
def test_partly_manual_shard_map(layout, check_vma, entry):
    """One mesh axis is manual, the other is XLA's to partition: with the same collectives as lax's."""
    b_spec = PARTLY[layout]
    x, w = DENSE.operands()
    two_axes = TWO_AXES()
    g = cotangent(DENSE.lax(), x, w)

    def step(conv):
        return pullback(
            jax.shard_map(
                conv, mesh=two_axes, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}, check_vma=check_vma
            )
        )

    operands = place(two_axes, (x, w, g), (b_spec, P(), P("a")))
    actual, hlo = compiled(step(getattr(DENSE, entry)("cpu")), operands)
    _, lax_hlo = compiled(step(DENSE.lax()), operands)
    assert_same(actual, run_on_host(pullback(DENSE.lax()), x, w, g))
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1}
    assert collectives(hlo) == collectives(lax_hlo)


@pytest.mark.parametrize("manual", ["a", "b", "c"])
def test_partly_manual_shard_map_of_three_axes(manual):
    """Any one axis is manual; rows and channels are split over the other two."""
    case = Case("three_axes", (4, 8, 3, 4), (3, 3, 4, 6))
    on = mesh((2, 2, 2), ("a", "b", "c"))
    first, second = (axis for axis in ("a", "b", "c") if axis != manual)
    spec = P(manual, first, None, second)
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))

    def step(conv):
        own = P(manual)
        return pullback(
            jax.shard_map(conv, mesh=on, in_specs=(own, P()), out_specs=own, axis_names={manual}, check_vma=True)
        )

    placed = place(on, operands, (spec, P(None, None, second), P(manual, first)))
    for index, expected in enumerate(run_on_host(pullback(case.lax()), *operands)):
        actual, hlo = compiled(lambda *args: step(case.general("cpu"))(*args)[index], placed)
        assert_same(actual, expected)
        assert "all-gather" not in collectives(hlo)


def explicit_cases():
    one = lambda *spec: (P(*spec), P(), None)
    return {
        "batch": one("a"),
        "replicated": one(),
        "out_sharding": (P(None, None, None, "a"), P(None, None, "a"), P("a")),
        "out_sharding_channels": (P("a"), P(None, None, None, "b"), P("a", None, None, "b")),
    }


@pytest.mark.parametrize("x_spec, w_spec, out", explicit_cases().values(), ids=explicit_cases())
def test_explicit_sharding(x_spec, w_spec, out):
    """Shardings in types: the result's, and those of the gradients."""
    explicit = mesh((4, 2), ("a", "b"), AxisType.Explicit)
    x, w = DENSE.operands()

    def outcome(conv):
        types = []

        def step(x, w):
            y, vjp = jax.vjp(lambda x, w: conv(x, w, out_sharding=out), x, w)
            results = y, *vjp(y)
            types.extend(jax.typeof(r).sharding.spec for r in results)
            return results

        with jax.set_mesh(explicit):
            return jax.jit(step)(*place(explicit, (x, w), (x_spec, w_spec))), types

    actual, types = outcome(DENSE.general("cpu"))
    expected, lax_types = outcome(DENSE.lax())
    assert types == lax_types
    assert_same(actual, expected)


def test_explicit_sharding_that_needs_a_decision():
    """Where lax asks for `out_sharding`, so do we."""
    explicit = mesh((8,), ("a",), AxisType.Explicit)
    with jax.set_mesh(explicit):
        operands = place(explicit, DENSE.operands(), (P(None, None, None, "a"), P(None, None, "a")))
        errors = []
        for conv in (DENSE.lax(), DENSE.general("cpu"), DENSE.front_door("cpu")):
            with pytest.raises(Exception, match="out_sharding") as error:
                jax.jit(conv)(*operands)
            errors.append(error.type)
    assert len(set(errors)) == 1


def test_conv_transpose_with_sharded_batch():
    x, w = integers((8, 4, 3, 2)), integers((3, 3, 2, 5))
    placed = place(ONE_AXIS(), (x, w), (P("a"), P()))
    ours = lambda x, w: jaxconv.conv_transpose(x, w, (2, 2), "SAME", implementation="cpu")
    actual, hlo = compiled(ours, placed)
    assert_same(actual, jax.lax.conv_transpose(x, w, (2, 2), "SAME"))
    assert collectives(hlo) == {}


def test_part_of_a_mesh_axis():
    """Images that a part of a mesh axis splits, which no partition spec can say, are gathered and right."""
    x, w = place(ONE_AXIS(), DENSE.operands(), (P("a"), P()))

    def step(conv):
        return pullback(lambda x, w: conv(jnp.moveaxis(x.reshape(2, 4, *x.shape[1:]), 1, 0).reshape(x.shape), w))

    g = cotangent(DENSE.lax(), x, w)
    actual = jax.jit(step(DENSE.front_door("cpu")))(x, w, g)
    assert_same(actual, run_on_host(step(DENSE.lax()), *jax.device_get((x, w, g))))


# Where XLA's partitioner cannot ask for our kernels, lax answers, and says so.

SQUARE = Case("square", (8, 8, 8, 8), (3, 3, 8, 8))


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("of_x", [P("a"), P(None, "a"), P(None, None, None, "a")], ids=["batch", "rows", "channels"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_64_bits_of_one_thread(dtype, of_x):
    """XLA partitions in threads that have 32 bits."""
    with jax.enable_x64(True):
        operands = [0.1 * array.astype(dtype) for array in SQUARE.operands()]
        x, w = place(ONE_AXIS(), operands, (of_x, P()))
        with pytest.warns(jaxconv.FallbackWarning, match="jax.enable_x64"):
            y = jax.jit(SQUARE.general(None))(x, w)
        assert y.dtype == dtype
        np.testing.assert_allclose(y, SQUARE.lax()(*operands), rtol=1e-12, atol=1e-14)
        with pytest.raises(NotImplementedError, match='jax.config.update."jax_enable_x64", True'):
            jax.jit(SQUARE.general("cpu"))(x, w)


@pytest.mark.usefixtures("partitioner", "warned_anew")
def test_shard_map_over_some_axes():
    x, w = place(TWO_AXES(), SQUARE.operands(), (P("a", "b"), P()))
    convolve = jax.shard_map(
        SQUARE.general(None), mesh=TWO_AXES(), in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}
    )
    has_shardy = jax.config.jax_use_shardy_partitioner
    with contextlib.nullcontext() if has_shardy else pytest.warns(jaxconv.FallbackWarning, match="without Shardy"):
        actual, hlo = compiled(convolve, (x, w))
    assert_same(actual, SQUARE.lax()(x, w))
    assert custom_calls(hlo) == ({"conv": 1} if has_shardy else {})
