"""Programs exported with a symbolic batch, and reloaded, run with any batch."""

import functools
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.meshes import mesh, place
from cases.parts import every_other
from cases.programs import exported
from cases.reference import assert_same, cotangent, custom_calls, integers, pullback, run_on_host
from cases.small import BY_ENTRIES_IN_TURNS, ENTRIES, Case, named


def with_any_batch(conv, case, vjp_order=0):
    """`conv` with a batch of any size, through its serialized form."""
    (batch,) = export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((batch, *case.lhs[1:]), np.float32)
    w = jax.ShapeDtypeStruct(case.rhs, np.float32)
    program = exported(conv, x, w)
    return export.deserialize(program.serialize(vjp_order=vjp_order))


@pytest.mark.parametrize("case, entry", every_other(BY_ENTRIES_IN_TURNS), ids=str)
def test_forward_and_gradient_with_any_batch(case, entry, implementation):
    program = with_any_batch(getattr(case, entry)(implementation), case, vjp_order=1)
    gradient = program.vjp()
    assert custom_calls(program.mlir_module()) == {"conv": 1}
    assert custom_calls(gradient.mlir_module())["wgrad"] == 1
    assert "stablehlo.convolution" not in program.mlir_module() + gradient.mlir_module()
    for batch in (1, 2, 5):
        x, w = integers((batch, *case.lhs[1:])), integers(case.rhs)
        g = cotangent(case.lax(), x, w)
        y, dx, dw = run_on_host(pullback(case.lax()), x, w, g)
        assert_same(program.call(x, w), y)
        assert_same(gradient.call(x, w, g), (dx, dw))


@pytest.mark.parametrize("entry", ENTRIES)
def test_exported_train_step(entry, implementation):
    """A value and gradients as one exported program."""
    case = named("strided")
    step = lambda conv: lambda x, w: jax.value_and_grad(lambda x, w: (conv(x, w) ** 2).sum(), argnums=(0, 1))(x, w)
    program = with_any_batch(step(getattr(case, entry)(implementation)), case)
    for batch in (1, 4):
        x, w = integers((batch, *case.lhs[1:])), integers(case.rhs)
        assert_same(program.call(x, w), run_on_host(step(case.lax()), x, w))


def test_vmap_inside_of_a_program(implementation):
    """The mapped axis has a symbolic size and folds into the batch."""
    case = named("dense")
    one_by_one = lambda conv: lambda x, w: jax.vmap(lambda x: conv(x[None], w)[0])(x)
    program = with_any_batch(one_by_one(case.general(implementation)), case)
    x, w = integers((3, *case.lhs[1:])), integers(case.rhs)
    assert_same(program.call(x, w), run_on_host(case.lax(), x, w))


def test_reload_in_another_process(implementation, tmp_path):
    case = named("grouped")
    x, w = case.operands()
    program = with_any_batch(case.front_door(implementation), case)
    (tmp_path / "program").write_bytes(program.serialize())
    np.savez(tmp_path / "operands", x=x, w=w)
    reload = """
import sys, numpy as np, jaxconv
from jax import export
folder = sys.argv[1]
operands = np.load(folder + "/operands.npz")
program = export.deserialize(bytearray(open(folder + "/program", "rb").read()))
np.save(folder + "/y", program.call(operands["x"], operands["w"]))
"""
    subprocess.run([sys.executable, "-c", reload, str(tmp_path)], check=True, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), run_on_host(case.lax(), x, w))


def test_symbolic_spatial_size(implementation):
    """What no native kernel takes is refused by name, and answered by lax otherwise."""
    height = export.symbolic_shape("h")[0]
    x = jax.ShapeDtypeStruct((2, height, 4, 3), np.float32)
    w = jax.ShapeDtypeStruct((3, 3, 3, 4), np.float32)
    named_conv, conv = (functools.partial(named("dense").general(i), padding="VALID") for i in (implementation, None))
    with pytest.raises(NotImplementedError):
        export.export(jax.jit(named_conv))(x, w)
    with pytest.warns(UserWarning, match="symbolic"):
        program = export.export(jax.jit(conv))(x, w)
    x, w = integers((2, 6, 4, 3)), integers((3, 3, 3, 4))
    assert_same(program.call(x, w), run_on_host(functools.partial(named("dense").lax(), padding="VALID"), x, w))


@pytest.mark.parametrize("padding", ["VALID", ((1, 1), (1, 1)), ((0, 3), (2, 0))], ids=str)
@pytest.mark.usefixtures("warned_anew")
def test_symbolic_spatial_size_with_an_epilogue(padding):
    """lax computes the sums. Of a stride, its padding is a number."""
    conv = functools.partial(jaxconv.conv2d, window_strides=2, padding=padding)
    ended = lambda x, w: conv(x, w, bias=1.0, activation="relu")
    shapes = [
        jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, *export.symbolic_shape("h"), 6, 3), (3, 3, 3, 4))
    ]
    with pytest.warns(UserWarning, match="symbolic"):
        program = export.export(jax.jit(ended))(*shapes)
    for height in (7, 8):
        x, w = integers((2, height, 6, 3)), integers((3, 3, 3, 4))
        assert_same(program.call(x, w), jax.nn.relu(conv(x, w, implementation="xla") + 1))


@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=["images", "rows"])
def test_several_devices_of_an_explicit_mesh(spec):
    """The program has no pointer of this process, and reloaded it exchanges rows."""
    case = Case("eight_rows", (8, 8, 4, 3), (3, 3, 3, 4))
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    explicit = mesh(kind=AxisType.Explicit)
    with jax.set_mesh(explicit):
        placed = place(explicit, operands, (spec, P(), spec))
        program = exported(pullback(case.general("cpu")), *placed, platforms=["cpu"])
        assert custom_calls(program.mlir_module()) == {"conv": 2, "wgrad": 1}
        program = export.deserialize(program.serialize())
        assert_same(program.call(*placed), run_on_host(pullback(case.lax()), *operands))


def test_several_devices_under_shard_map():
    case = Case("eight_images", (8, 4, 4, 3), (3, 3, 3, 4))
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    step = pullback(
        jax.shard_map(case.general("cpu"), mesh=mesh(), in_specs=(P("a"), P()), out_specs=P("a"), check_vma=True)
    )
    placed = place(mesh(), operands, (P("a"), P(), P("a")))
    program = exported(step, *placed, platforms=["cpu"])
    assert custom_calls(program.mlir_module()) == {"conv": 2, "wgrad": 1}
    program = export.deserialize(program.serialize())
    assert_same(program.call(*placed), run_on_host(pullback(case.lax()), *operands))


def test_several_devices_of_an_automatic_mesh_go_to_lax():
    case = Case("eight_rows", (8, 8, 4, 3), (3, 3, 3, 4))
    placed = place(mesh(), case.operands(), (P(None, "a"), P()))
    with pytest.warns(UserWarning, match="export for several devices"):
        program = export.export(jax.jit(case.general(None)), platforms=["cpu"])(*placed)
    assert_same(export.deserialize(program.serialize()).call(*placed), run_on_host(case.lax(), *case.operands()))
