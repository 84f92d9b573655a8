"""Which programs have kernels that read rows of neighbours where they lie. They are lowered for a GPU, and not run."""

import re
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.programs import exported
from jaxconv.lowering import decide_apart
from jaxconv.planner.choose import Times
from jaxconv.planner.plan import Constraint, ConvPlan
from jaxconv.sharding.block import apart_on_one_device
from jaxconv.traced import trace
from jaxconv.transforms import ChannelsLast

CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")
BOTH = ["rows_before rows_after"]


pytestmark = pytest.mark.usefixtures("cuda_kernels")


def operands_of(function, *operands):
    """Those that the custom calls of a program for a GPU name."""
    text = jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r'operands = "([^"]*)"', text)


def on_two_devices(lhs, rhs, dtype="bfloat16", axis=1, numbers=CHANNELS_LAST, **arguments):
    """The same of a convolution on an explicit mesh, whose lhs is split along an axis."""
    mesh = AbstractMesh((2,), ("a",), axis_types=(AxisType.Explicit,))
    split = NamedSharding(mesh, P(*("a" if i == axis else None for i in range(len(lhs)))))
    x = jax.ShapeDtypeStruct(lhs, dtype, sharding=split)
    w = jax.ShapeDtypeStruct(rhs, dtype, sharding=NamedSharding(mesh, P()))
    arguments = dict(window_strides=(1, 1), padding="SAME", implementation="cuda") | arguments
    conv = lambda x, w: jaxconv.conv_general_dilated(x, w, dimension_numbers=numbers, **arguments)
    with jax.sharding.use_abstract_mesh(mesh):
        return operands_of(conv, x, w)


@pytest.mark.parametrize("arguments, expected", [
    (dict(), BOTH), (dict(dtype="float16"), BOTH), (dict(padding=((2, 0), (1, 1))), ["rows_before"]),
    (dict(padding=((0, 2), (1, 1))), ["rows_after"]), (dict(dtype="float32"), [""]), (dict(axis=2), [""]),
    (dict(lhs_dilation=(2, 1), padding=((1, 2), (1, 1))), [""]), (dict(implementation="mma"), [""]),
])  # fmt: skip
def test_sharded_images(arguments, expected):
    assert on_two_devices((2, 64, 64, 64), (3, 3, 64, 64), **arguments) == expected


def test_other_layouts():
    """Where columns are outside of rows, the rows of an array with fewer of them lie otherwise."""
    assert on_two_devices((32, 24, 4096, 8), (3, 3, 8, 8), axis=2, numbers=("NWHC", "HWIO", "NWHC")) == [""]


def periodic(x, w, implementation=None):
    return jaxconv.conv2d(x, w, padding=["CIRCULAR", (1, 1)], implementation=implementation)


# Of smaller ones, the planner expects a copy with the rows to be faster.
IMAGE = jax.ShapeDtypeStruct((2, 64, 128, 64), "bfloat16"), jax.ShapeDtypeStruct((3, 3, 64, 64), "bfloat16")


def test_periodic_images():
    assert operands_of(lambda x, w: periodic(x, w, "cuda"), *IMAGE) == BOTH


def test_an_export_may_run_on_another_gpu():
    program = exported(periodic, *IMAGE, platforms=["cuda"])
    assert re.findall(r'operands = "([^"]*)"', program.mlir_module()) == [""]


def apart_of_image():
    (equation,) = trace(periodic, *IMAGE).equations
    return apart_on_one_device(equation.params["problem"])


def test_a_transform_that_is_asked_for():
    assert decide_apart("cuda", apart_of_image(), Constraint("cuda", transform=())) is not None
    assert decide_apart("cuda", apart_of_image(), Constraint("cuda", transform=(ChannelsLast(),))) is None


def test_what_was_measured_is_taken():
    found = decide_apart("cuda", apart_of_image(), None)
    measured = found.choice.__class__(found.plan, 1.0, tuple, Times(1e6, 5.0))
    tuning = SimpleNamespace(choice=lambda *problem: measured)
    assert decide_apart("cuda", apart_of_image(), None, tuning) is None


def test_the_plan_names_its_rows():
    plan = decide_apart("cuda", apart_of_image(), None).plan
    assert isinstance(plan, ConvPlan) and "rows before 1, rows after 1" in str(plan)
    assert (plan.constraint.rows_before, plan.constraint.rows_after) == (1, 1)
