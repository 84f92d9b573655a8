"""int8 in JAX programs: every pass, also gradients that a program writes as lax would, and what surrounds them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import export, lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxconv
from cases import fused
from cases.convolution import channels_last_convolution, ours
from cases.int8 import CASES, exact, gradients, operands, whole_range
from cases.meshes import LAYOUTS, OF_ONE_AXIS, collectives, compiled, mesh, place
from cases.programs import CALLS_ALONE, exported
from cases.reference import HOST, assert_same, custom_calls, exception_of, opcodes, run, run_on_host
from jaxconv.explain import lines

EACH = pytest.mark.parametrize("name", CASES)
SUMS = dict(preferred_element_type="int32")


def calls_of_a_gradient(implementation):
    """A GPU takes whichever is faster."""
    return [{"wgrad": 1}, {"conv": 1}] if implementation == "cuda" else [{"wgrad": 1}]


@EACH
def test_every_pass(name, implementation):
    """A weight gradient is planned as one: its window is no filter of image size."""
    case = CASES[name]
    (x, w, g), expected = exact(case)
    of_x, of_w = gradients(case, ours(implementation))
    assert_same(run(case.ours(implementation, "int32"), x, w), expected["fprop"])
    assert_same(run(of_x, g, w), expected["dgrad"])
    assert_same(run(of_w, x, g), expected["wgrad"])
    assert custom_calls(jax.jit(of_w).lower(x, g).as_text()) in calls_of_a_gradient(implementation)
    (line,) = lines(of_w, x, g)
    assert line.startswith("wgrad int8")


@EACH
def test_every_pass_with_install(name, implementation, uninstalled):
    case = CASES[name]
    (x, w, g), expected = exact(case)
    jaxconv.install(implementation)
    of_x, of_w = gradients(case, lax.conv_general_dilated)
    assert_same(run(functools.partial(case.lax(), **SUMS), x, w), expected["fprop"])
    assert_same(run(of_x, g, w), expected["dgrad"])
    assert_same(run(of_w, x, g), expected["wgrad"])
    assert custom_calls(jax.jit(of_w).lower(x, g).as_text()) in calls_of_a_gradient(implementation)


def sizes(least, most):
    return st.integers(least, most)


@st.composite
def convolutions(draw):
    """Of any kind, with results."""
    rank = draw(sizes(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups, by_batch = draw(st.sampled_from([(1, False), (1, False), (2, False), (3, False), (2, True)]))
    ins, outs = draw(sizes(1, 9)), draw(sizes(1, 9)) * groups
    lhs = draw(sizes(1, 3)) * (groups if by_batch else 1), *each(sizes(1, 8 - rank)), ins * (1 if by_batch else groups)
    count = "batch_group_count" if by_batch else "feature_group_count"
    return channels_last_convolution(
        lhs, (*each(sizes(1, 3)), ins, outs), window_strides=each(sizes(1, 3)), lhs_dilation=each(sizes(1, 2)),
        rhs_dilation=each(sizes(1, 2)), padding=each(st.tuples(sizes(2, 4), sizes(2, 4))), **{count: groups},
    )  # fmt: skip


@settings(max_examples=6, database=None, print_blob=True, phases=[Phase.generate],
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
@given(drawn=st.lists(convolutions(), min_size=8, max_size=8))
def test_random_convolutions(drawn, implementation):
    """Many in one program."""
    known = [exact(case) for case in drawn]

    def every(arrays):
        results = []
        for case, (x, w, g) in zip(drawn, arrays, strict=True):
            of_x, of_w = gradients(case, ours(implementation))
            y = case.ours(implementation, "int32")(x, w)
            results.append({"fprop": y, "dgrad": of_x(g, w), "wgrad": of_w(x, g)})
        return results

    assert_same(run(every, [arrays for arrays, _ in known]), [expected for _, expected in known])


# What lax has.


@EACH
def test_results_of_int8_wrap(name, implementation):
    """As those of lax on the host."""
    case = CASES[name]
    (x, w, _), expected = exact(case)
    conv = case.ours(implementation)
    assert_same(run(conv, x, w), expected["fprop"].astype("int8"))
    assert_same(expected["fprop"].astype("int8"), run_on_host(case.lax(), x, w))
    assert custom_calls(jax.jit(conv).lower(x, w).as_text()) == {"conv": 1}
    (line,) = lines(conv, x, w)
    assert line.startswith("fprop int8") and "not lax" not in line


def test_results_of_int8_wrap_with_install(implementation, uninstalled):
    case = CASES["dense"]
    (x, w, g), expected = exact(case)
    of_result = lambda conv: lambda *arrays, **params: conv(*arrays, **params | {"preferred_element_type": None})
    jaxconv.install(implementation)
    _, of_w = gradients(case, of_result(lax.conv_general_dilated))
    assert_same(run(case.lax(), x, w), expected["fprop"].astype("int8"))
    assert_same(run(of_w, x, g), expected["wgrad"].astype("int8"))
    assert custom_calls(jax.jit(case.lax()).lower(x, w).as_text()) == {"conv": 1}


def test_no_derivatives(implementation):
    """As in lax: tangents are of float0."""
    case = CASES["dense"]
    x, w, _ = operands(case)
    zeros = [np.zeros(a.shape, jax.dtypes.float0) for a in (x, w)]
    with jax.default_device(HOST):  # lax has no such convolution on a GPU
        of_lax = jax.jvp(functools.partial(case.lax(), **SUMS), (x, w), tuple(zeros))
    conv = case.ours(implementation, "int32")
    for y, dy in (of_lax, jax.jvp(conv, (x, w), tuple(zeros))):
        assert (y.dtype, dy.dtype) == ("int32", jax.dtypes.float0)
    assert type(exception_of(jax.grad(lambda x: conv(x, w).sum()), x)) is TypeError


@pytest.mark.parametrize("preferred", ["uint8", "uint32"])
def test_refused_as_lax_refuses(preferred):
    case = CASES["dense"]
    x, w, _ = operands(case)
    theirs = exception_of(functools.partial(case.lax(), preferred_element_type=preferred), x, w)
    ours = exception_of(case.ours("cpu", preferred), x, w)
    assert type(ours) is type(theirs) and "preferred_element_type" in str(ours)


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_left_to_lax_is_native_by_out_dtype(dtype, implementation):
    """As the warning and the error say."""
    case = CASES["dense"]
    (x, w, _), expected = exact(case)
    conv, reason = jaxconv.conv2d, f'dtype int8 with result {dtype} (kernels have it by out_dtype="{dtype}")'
    with pytest.warns(jaxconv.FallbackWarning) as caught:
        jax.eval_shape(functools.partial(conv, preferred_element_type=dtype), x, w)
    assert f"answers: {reason}. " in str(caught.pop().message)
    error = exception_of(functools.partial(conv, preferred_element_type=dtype, implementation=implementation), x, w)
    assert type(error) is NotImplementedError and f"{reason}. " in str(error)
    y = run(functools.partial(conv, out_dtype=dtype, implementation=implementation), x, w)
    assert_same(y, expected["fprop"].astype("float32").astype(dtype))


@pytest.mark.parametrize(
    "function, dtype", [("conv_general_dilated", "float32"), ("fused_conv_general_dilated", "int16")]
)
def test_where_out_dtype_is_no_way(function, dtype):
    """There is no such argument, or no such result."""
    x, w = np.ones((1, 2, 3, 3), "int8"), np.ones((2, 2, 1, 1), "int8")
    arguments = dict(window_strides=(1, 1), padding="SAME", preferred_element_type=dtype, implementation="cpu")
    error = exception_of(functools.partial(getattr(jaxconv, function), **arguments), x, w)
    assert type(error) is NotImplementedError and f"dtype int8 with result {dtype}. " in str(error)


def test_out_dtype_is_no_way_to_float64(x64):
    """An epilogue of int8 is computed in float32."""
    x, w = np.ones((1, 2, 3, 3), "int8"), np.ones((2, 2, 3, 1), "int8")
    wide = functools.partial(jaxconv.conv2d, preferred_element_type="float64", implementation="cpu")
    assert "dtype int8 with result float64. " in str(exception_of(wide, x, w))


# What surrounds them.


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("name", ["dense", "grouped", "batch_groups"])
def test_vmap(name, axes, implementation):
    case, members = CASES[name], 3
    stack = lambda a, axis: a if axis is None else np.stack([np.roll(a, i) for i in range(members)])
    x, w, g = operands(case)
    of_x, of_w = gradients(case, ours(implementation))
    for conv, a, b in [(case.ours(implementation, "int32"), x, w), (of_x, g, w), (of_w, x, g)]:
        many = [stack(a, axes[0]), stack(b, axes[1])]
        one = lambda i: [array if axis is None else array[i] for array, axis in zip(many, axes, strict=True)]
        expected = np.stack([np.asarray(run(conv, *one(i))) for i in range(members)])
        assert_same(run(jax.vmap(conv, axes), *many), expected)


SHARDED = channels_last_convolution((8, 4, 3, 8), (3, 3, 8, 16))


def check_sharded(layout, on, **result):
    """A weight gradient sums over images, which devices add up."""
    (x, w, g), expected = exact(SHARDED)
    of_w = gradients(SHARDED, functools.partial(ours("cpu"), **result))[1]
    with jax.default_device(HOST), jax.set_mesh(on):
        arrays = dict(zip("xwg", place(on, (x, w, g), LAYOUTS[layout][1:]), strict=True))
        y, _ = compiled(SHARDED.ours("cpu", "int32"), [arrays["x"], arrays["w"]])
        dw, text = compiled(of_w, [arrays["x"], arrays["g"]])
    assert_same((y, dw), (expected["fprop"], expected["wgrad"]))
    assert custom_calls(text)["wgrad"] == 1
    assert collectives(text) == ({"all-reduce": 1} if layout == "batch" else {})


@pytest.mark.parametrize("layout", OF_ONE_AXIS)
def test_sharded(layout):
    check_sharded(layout, mesh())


def test_sharded_in_types():
    """lax asks for the sharding of such a result."""
    check_sharded("batch", mesh(kind=AxisType.Explicit), out_sharding=P())


def test_export_with_any_batch(implementation):
    conv = CASES["dense"].ours(implementation, "int32")
    (batch,) = export.symbolic_shape("b")
    types = [jax.ShapeDtypeStruct((batch, 5, 4, 6), "int8"), jax.ShapeDtypeStruct((3, 2, 6, 8), "int8")]
    program = export.deserialize(exported(conv, *types).serialize())
    for images in (1, 5):
        x, w = whole_range((images, 5, 4, 6), 0), whole_range((3, 2, 6, 8), 1)
        assert_same(program.call(x, w), run(conv, x, w))


# With an epilogue, on the host.


@pytest.mark.parametrize("out_dtype", ["int8", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["dense", "grouped", "depthwise", "channels_first"])
def test_one_call_has_all_of_it(name, out_dtype):
    """From int8 to int8, say: nothing wider is written."""
    case = fused.CASES[name]
    with jax.default_device(HOST):
        arrays = case.arrays("int8", out_dtype, bound=40)
        more = dict(out_scale=0.125) if out_dtype == "int8" else {}
        conv = case.ours("cpu", out_dtype=out_dtype, **more)
        hlo = jax.jit(conv).lower(*arrays).compile().as_text()
        assert custom_calls(hlo) == {"conv": 1} and set(opcodes(hlo)) <= CALLS_ALONE
        assert_same(run(conv, *arrays), run(case.ours("xla", out_dtype=out_dtype, **more), *arrays))
        (line,) = lines(conv, *arrays)
        assert line.startswith("fprop with its epilogue int8") and f"-> {out_dtype}" in line


def test_vmap_stays_fused():
    case = fused.CASES["grouped"]
    with jax.default_device(HOST):
        x, w, *others = case.arrays("int8", "int8", bound=40)
        x, residual = (np.stack([a, a[::-1]]) for a in (x, others[2]))
        axes = (0, None, None, None, 0, None)
        arrays = x, w, *others[:2], residual, *others[3:]
        ours, theirs = (jax.vmap(case.ours(by, out_dtype="int8"), axes) for by in ("cpu", "xla"))
        assert custom_calls(jax.jit(ours).lower(*arrays).as_text()) == {"conv": 1}
        assert_same(run(ours, *arrays), run(theirs, *arrays))


def test_largest_sums_through_an_epilogue():
    """Sums of 2^24 and more are rounded once, before the scale."""
    x, w = jnp.full((1, 2, 4099), -128, "int8"), whole_range((1, 4099, 5), 3) | np.int8(-128)
    scale = jnp.float32(3e-7)
    ours = jax.jit(lambda x, w: jaxconv.conv1d(x, w, scale=scale, implementation="cpu"))
    with jax.default_device(HOST):
        sums = np.einsum("nwc,ck->nwk", np.asarray(x, "int64"), w[0].astype("int64"))
        assert np.all(sums > 2**24)
        assert_same(ours(x, w), sums.astype("float32") * np.float32(3e-7))
