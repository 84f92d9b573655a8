"""Every argument of the public functions, against lax: values and both transposes, dtypes, shapes, signatures."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.parts import diagonal
from cases.reference import assert_same, cotangent, integers, lax_channels_last, pullback, run, run_on_host


def check(ours, theirs, x, w):
    """The same value and the same two gradients."""
    g = cotangent(theirs, x, w)
    assert_same(run(pullback(ours), x, w, g), run_on_host(pullback(theirs), x, w, g))


# conv1d, conv2d, conv3d.


def wrapped(x, w, *, dims=None, window_strides=1, rhs_dilation=1):
    """A circular convolution, by lax: in the dimensions `dims`, and without padding in the others."""
    reach = [(size - 1) * rhs_dilation for size in w.shape[: x.ndim - 2]]
    sides = [(r // 2, r - r // 2) if dims is None or i in dims else (0, 0) for i, r in enumerate(reach)]
    x = jnp.pad(x, ((0, 0), *sides, (0, 0)), "wrap")
    return lax_channels_last(x, w, window_strides=window_strides, rhs_dilation=rhs_dilation, padding="VALID")


CIRCULAR = {
    "plain": {},
    "stride_that_divides": dict(window_strides=2),
    "stride_that_does_not": dict(window_strides=5),
    "dilated": dict(rhs_dilation=2),
    "longer_than_the_image": dict(rhs_dilation=7),
}


@pytest.mark.parametrize("row, rank", diagonal(list(CIRCULAR), [1, 2, 3]))
def test_circular(row, rank, implementation):
    x, w = integers((2, *(6, 4, 8)[:rank], 3)), integers((*(3, 2, 4)[:rank], 3, 4))
    conv = getattr(jaxconv, f"conv{rank}d")
    for named in (implementation, "xla"):
        ours = functools.partial(conv, padding="CIRCULAR", **CIRCULAR[row], implementation=named)
        check(ours, functools.partial(wrapped, **CIRCULAR[row]), x, w)


def test_circular_in_one_dimension(implementation):
    x, w = integers((2, 6, 8, 3)), integers((3, 4, 3, 4))
    ours = functools.partial(jaxconv.conv2d, padding=((0, 0), "circular"), implementation=implementation)
    check(ours, functools.partial(wrapped, dims=(1,)), x, w)
    mapped = jax.vmap(ours, (0, None))(jnp.stack([x, 1 - x]), w)
    assert_same(mapped[1], run_on_host(functools.partial(wrapped, dims=(1,)), 1 - x, w))


def test_circular_images_have_no_holes():
    with pytest.raises(ValueError, match="lhs_dilation.*CIRCULAR"):
        jaxconv.conv1d(integers((2, 6, 3)), integers((3, 3, 4)), padding="CIRCULAR", lhs_dilation=2)


FRONT_DOORS = {
    "defaults": {},
    "int_strides": dict(window_strides=2),
    "int_rhs_dilation": dict(rhs_dilation=2),
    "int_padding": dict(padding=2),
    "int_lhs_dilation": dict(lhs_dilation=2, padding="PAIRS"),
    "tuples": dict(window_strides="TUPLE", rhs_dilation="TUPLE", lhs_dilation="TUPLE", padding="PAIRS"),
    "lists": dict(window_strides=[2], rhs_dilation=[2], padding=[[1, 2]]),
    "numpy_integers": dict(window_strides=np.int64(2), rhs_dilation=np.array([2])),
    "valid": dict(padding="VALID"),
    "same_lower": dict(padding="SAME_LOWER", window_strides=2),
    "lower_case": dict(padding="same"),
    "negative_padding": dict(padding=[(-1, 1)]),
    "groups": dict(feature_group_count=2),
    "precision": dict(precision="highest"),
    "precisions": dict(precision=("highest", "default")),
}


def for_rank(value, rank):
    """A row's argument in as many dimensions as the function has."""
    if isinstance(value, str) and value in ("TUPLE", "PAIRS"):
        return {"TUPLE": (2, 1, 3), "PAIRS": ((1, 2), (0, 1), (2, 0))}[value][:rank]
    if isinstance(value, np.ndarray):
        return np.repeat(value, rank)
    return value * rank if isinstance(value, list) else value


@pytest.mark.parametrize("row, rank", diagonal(list(FRONT_DOORS), [1, 2, 3]))
def test_front_door(row, rank, implementation):
    given = {name: for_rank(value, rank) for name, value in FRONT_DOORS[row].items()}
    x = integers((2, *(6, 5, 4)[:rank], 4))
    w = integers((*(3, 2, 3)[:rank], 4 // given.get("feature_group_count", 1), 6))
    ours = functools.partial(getattr(jaxconv, f"conv{rank}d"), **given, implementation=implementation)
    given = {name: v.tolist() if isinstance(v, np.integer | np.ndarray) else v for name, v in given.items()}
    check(ours, functools.partial(lax_channels_last, **given), x, w)


def test_front_doors_take_keywords_only():
    defaults = dict(
        window_strides=1, padding="SAME", lhs_dilation=1, rhs_dilation=1, feature_group_count=1, precision=None,
        preferred_element_type=None, out_sharding=None, implementation=None, scale=None, bias=None, residual=None,
        residual_scale=None, activation=None, out_dtype=None, out_scale=None,
    )  # fmt: skip
    for conv in (jaxconv.conv1d, jaxconv.conv2d, jaxconv.conv3d):
        parameters = inspect.signature(conv).parameters
        more = dict(layout="NHWC") if conv is jaxconv.conv2d else {}
        assert list(parameters) == ["x", "w", *defaults, *more]
        keywords = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        assert keywords == defaults | more


@pytest.mark.parametrize("name", ["conv_general_dilated", "conv_transpose"])
def test_signature_is_laxs(name):
    theirs = list(inspect.signature(getattr(lax, name)).parameters.values())
    ours = list(inspect.signature(getattr(jaxconv, name)).parameters.values())
    facts = lambda parameters: [(p.name, p.kind, p.default) for p in parameters]
    assert facts(ours[: len(theirs)]) == facts(theirs)
    assert facts(ours[len(theirs) :]) == [("implementation", inspect.Parameter.KEYWORD_ONLY, None)]


def test_public_names():
    names = {"FallbackWarning", "conv1d", "conv2d", "conv3d", "conv_general_dilated", "conv_transpose",
             "prepare_filter", "PreparedFilter", "to_nchw32", "from_nchw32"}  # fmt: skip
    assert names <= set(jaxconv.__all__)
    for name in names:
        assert getattr(jaxconv, name).__doc__


# conv_general_dilated: layouts.

LAYOUTS = [
    None,
    ("NCHW", "OIHW", "NCHW"),
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "HWIO", "NHWC"),
    ("NHWC", "OIHW", "NCHW"),
    ("HWNC", "IOHW", "CHWN"),
    ("CHWN", "IHWO", "CNHW"),
    ("NHWC", "WHIO", "NHWC"),  # strides, padding and dilations follow the filter's order
    ("NWHC", "HOWI", "NHCW"),
    ["NXYC", "XYIO", "NYXC"],
    lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 3, 2)),
]
SIZES = {"N": 2, "C": 4, "H": 6, "W": 5, "X": 6, "Y": 5}
FILTER_SIZES = {"I": 2, "O": 6, "H": 3, "W": 2, "X": 3, "Y": 2}


def layout_shapes(layout):
    if layout is None:
        return (2, 4, 6, 5), (6, 2, 3, 2)
    if isinstance(layout, lax.ConvDimensionNumbers):
        lhs, rhs = np.empty(4, int), np.empty(4, int)
        lhs[list(layout.lhs_spec)], rhs[list(layout.rhs_spec)] = (2, 4, 6, 5), (6, 2, 3, 2)
        return lhs, rhs
    return [SIZES[d] for d in layout[0]], [FILTER_SIZES[d] for d in layout[1]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_dimension_numbers(layout, implementation):
    lhs, rhs = layout_shapes(layout)
    params = dict(
        window_strides=(2, 1), padding=((1, 2), (0, 1)), lhs_dilation=(1, 2), rhs_dilation=(2, 1),
        dimension_numbers=layout, feature_group_count=2,
    )  # fmt: skip
    ours = functools.partial(jaxconv.conv_general_dilated, **params, implementation=implementation)
    check(ours, functools.partial(lax.conv_general_dilated, **params), integers(lhs), integers(rhs, seed=1))


OTHER_RANKS = {
    "0": ((3, 4), (4, 5), ("NC", "IO", "NC")),
    "0_default": ((3, 4), (5, 4), None),
    "1": ((2, 4, 7), (6, 4, 3), ("NCW", "OIW", "NCW")),
    "1_last": ((2, 7, 4), (3, 4, 6), ("NWC", "WIO", "NWC")),
    "3": ((2, 3, 4, 3, 4), (6, 3, 2, 3, 2), ("NCDHW", "OIDHW", "NCDHW")),
    "3_mixed": ((2, 3, 4, 3, 4), (2, 6, 4, 3, 2), ("NDHWC", "DOIHW", "NWCHD")),
}


@pytest.mark.parametrize("lhs, rhs, layout", OTHER_RANKS.values(), ids=OTHER_RANKS)
def test_dimension_numbers_of_other_ranks(lhs, rhs, layout, implementation):
    rank = len(lhs) - 2
    params = dict(window_strides=(1, 2, 1)[:rank], padding="SAME", dimension_numbers=layout)
    ours = functools.partial(jaxconv.conv_general_dilated, **params, implementation=implementation)
    check(ours, functools.partial(lax.conv_general_dilated, **params), integers(lhs), integers(rhs, seed=1))


# conv_general_dilated: the other arguments, on x (4, 4, 6, 5) and w (6, 4, 3, 2) unless the row has its own.

ARGUMENTS = {
    "same": dict(padding="SAME"),
    "same_strided": dict(padding="SAME", window_strides=(2, 3)),
    "same_lower": dict(padding="SAME_LOWER", window_strides=(2, 3), rhs_dilation=(2, 1)),
    "valid": dict(padding="VALID", window_strides=[1, 2]),
    "explicit": dict(padding=[(2, 0), (0, 3)]),
    "padding_of_arrays": dict(padding=np.array([[2, 0], [0, 3]])),
    "padding_beyond_the_filter": dict(padding=((5, 4), (6, 3))),
    "negative_padding": dict(padding=((-2, 1), (1, -3))),
    "padding_that_leaves_nothing": dict(padding=((-3, -3), (0, 0))),
    "negative_padding_of_holes": dict(padding=((-2, -1), (-1, 0)), lhs_dilation=(2, 3)),
    "strides_beyond_the_input": dict(padding="VALID", window_strides=(9, 7)),
    "numpy_strides": dict(window_strides=np.array([2, 1]), rhs_dilation=(np.int32(1), np.int64(2))),
    "lhs_dilation": dict(lhs_dilation=(3, 2), padding=((2, 2), (1, 1))),
    "rhs_dilation": dict(rhs_dilation=(2, 4)),
    "filter_beyond_the_input": dict(rhs_dilation=(4, 1), padding="VALID"),
    "common_divisor": dict(window_strides=(4, 6), lhs_dilation=(6, 4), padding=((3, 1), (2, 5))),
    "all": dict(window_strides=(2, 3), lhs_dilation=(3, 2), rhs_dilation=(2, 3), padding=((3, -1), (-2, 4))),
    "groups": dict(w=(6, 2, 3, 2), feature_group_count=2),
    "depthwise": dict(w=(8, 1, 3, 2), feature_group_count=4),
    "batch_groups": dict(batch_group_count=2),
    "batch_groups_of_one": dict(
        w=(8, 4, 3, 2), batch_group_count=4, window_strides=(2, 1), lhs_dilation=(1, 2), padding=((1, 1), (0, 1))
    ),
    "one_tap": dict(w=(6, 4, 1, 1)),
    "no_images": dict(x=(0, 4, 6, 5)),
    "no_in_channels": dict(x=(4, 0, 6, 5), w=(6, 0, 3, 2)),
    "no_in_channels_groups": dict(x=(4, 0, 6, 5), w=(6, 0, 3, 2), feature_group_count=2),
    "no_out_channels": dict(w=(0, 4, 3, 2)),
    "no_pixels": dict(x=(4, 4, 0, 5)),
    "no_pixels_valid": dict(x=(4, 4, 6, 0), padding="VALID"),
    "no_pixels_but_padding": dict(x=(4, 4, 0, 5), padding=((3, 2), (0, 0))),
    "no_images_batch_groups": dict(x=(0, 4, 6, 5), batch_group_count=2),
}  # fmt: skip


@pytest.mark.parametrize("row", ARGUMENTS)
def test_arguments(row, implementation):
    params = dict(window_strides=(1, 1), padding="SAME") | ARGUMENTS[row]
    x, w = integers(params.pop("x", (4, 4, 6, 5))), integers(params.pop("w", (6, 4, 3, 2)), seed=1)
    ours = functools.partial(jaxconv.conv_general_dilated, **params, implementation=implementation)
    check(ours, functools.partial(lax.conv_general_dilated, **params), x, w)


PRECISIONS = [
    None, "default", "high", "highest", "float32", "tensorfloat32", "bfloat16", "bfloat16_3x", "fastest",
    lax.Precision.DEFAULT, lax.Precision.HIGHEST, (lax.Precision.HIGH, lax.Precision.HIGHEST), ("default", "highest"),
]  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_precision(precision, implementation):
    """Every value is taken, and integers this small are exact at each."""
    x, w = integers((2, 5, 4, 3)), integers((3, 2, 3, 4))
    ours = functools.partial(jaxconv.conv2d, precision=precision, implementation=implementation)
    check(ours, functools.partial(lax_channels_last, precision=precision), x, w)


@pytest.mark.parametrize("precision", ["default", "high", "highest", "bfloat16", "tensorfloat32", "float32"])
def test_default_matmul_precision(precision, implementation):
    x, w = integers((2, 5, 4, 3)), integers((3, 2, 3, 4))
    with jax.default_matmul_precision(precision):
        check(functools.partial(jaxconv.conv2d, implementation=implementation), lax_channels_last, x, w)


# dtypes: (operands', preferred_element_type)
NATIVE_DTYPES = [
    ("float32", None), ("float64", None), ("bfloat16", None), ("float16", None), ("float32", "float32"),
    ("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("bfloat16", "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize("dtype, preferred, groups", diagonal(NATIVE_DTYPES, [1, 2, 4]))
def test_dtypes(dtype, preferred, groups, implementation, x64):
    """Results have lax's dtypes, and so have gradients."""
    x, w = integers((2, 5, 4, 4), dtype), integers((3, 2, 4 // groups, 4), dtype, 1)
    params = dict(preferred_element_type=preferred, feature_group_count=groups)
    ours = functools.partial(jaxconv.conv2d, **params, implementation=implementation)
    check(ours, functools.partial(lax_channels_last, **params), x, w)


@pytest.mark.parametrize("bound", [2, 127])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_int8_to_int32(groups, bound, implementation):
    x, w = integers((2, 5, 4, 4), "int8", bound=bound), integers((3, 2, 4 // groups, 4), "int8", 1, bound)
    params = dict(preferred_element_type="int32", feature_group_count=groups)
    ours = run(functools.partial(jaxconv.conv2d, **params, implementation=implementation), x, w)
    assert_same(ours, run_on_host(functools.partial(lax_channels_last, **params), x, w))


@pytest.mark.filterwarnings("ignore::jaxconv.FallbackWarning", "ignore:Explicitly requested dtype:UserWarning")
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "int32", "complex64", "bool"])
@pytest.mark.parametrize("preferred", [None, "float32", "float64", "int32", "uint32", "int16", "complex64", "bfloat16"])
def test_result_types_are_laxs(dtype, preferred, enabled):
    """For every pair of dtypes: the type of the result, or of the exception."""
    x, w = jax.ShapeDtypeStruct((1, 2, 3), dtype), jax.ShapeDtypeStruct((2, 2, 2), dtype)

    def outcome(conv):
        try:
            y = jax.eval_shape(lambda x, w: conv(x, w, (1,), "VALID", preferred_element_type=preferred), x, w)
            return y.shape, y.dtype, y.weak_type
        except Exception as error:
            return type(error)

    with jax.enable_x64(enabled):
        assert outcome(jaxconv.conv_general_dilated) == outcome(lax.conv_general_dilated)


@pytest.mark.parametrize("weak", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_weak_types_are_laxs(weak):
    x, w = (jnp.broadcast_to(jnp.asarray(1.0) if is_weak else jnp.float32(1), (2, 2, 3)) for is_weak in weak)
    assert (x.weak_type, w.weak_type) == weak
    ours, theirs = (
        jax.eval_shape(lambda x, w: f(x, w, (1,), "SAME"), x, w)
        for f in (jaxconv.conv_general_dilated, lax.conv_general_dilated)
    )
    assert (ours.shape, ours.dtype, ours.weak_type) == (theirs.shape, theirs.dtype, theirs.weak_type)


def test_numpy_arrays_as_operands(implementation):
    """NumPy's float64 becomes what JAX makes of it, in one operand or both."""
    x, w = integers((2, 5, 4, 3), "float64"), integers((3, 2, 3, 4), "float64")
    for a, b in [(x, w), (jnp.asarray(x), w), (x, jnp.asarray(w))]:
        actual = jaxconv.conv2d(a, b, implementation=implementation)
        assert actual.dtype == jnp.float32
        assert_same(actual, run_on_host(lax_channels_last, a, b))


def test_positional_arguments(implementation):
    x, w = integers((4, 4, 6, 5)), integers((6, 2, 3, 2))
    arguments = (
        (2, 1), [(1, 0), (0, 1)], (1, 2), (2, 1), ("NCHW", "OIHW", "NHWC"), 2, 1, "highest", jnp.float32, None
    )  # fmt: skip
    ours = lambda x, w: jaxconv.conv_general_dilated(x, w, *arguments, implementation=implementation)
    check(ours, lambda x, w: lax.conv_general_dilated(x, w, *arguments), x, w)


# conv_transpose.

TRANSPOSED = {
    "same": dict(padding="SAME"),
    "valid": dict(padding="VALID"),
    "explicit": dict(padding=((2, 1), (0, 2))),
    "negative_padding": dict(padding=((-1, 1), (0, -1))),
    "strides_of_1": dict(strides=(1, 1), padding="SAME_LOWER"),
    "strides_beyond_the_filter": dict(strides=(4, 5), padding="SAME"),
    "dilated_same": dict(rhs_dilation=(2, 3), padding="SAME"),
    "dilated_valid": dict(rhs_dilation=(3, 1), padding="VALID"),
    "transpose_kernel": dict(padding="SAME", transpose_kernel=True, w=(3, 2, 5, 3)),
    "transpose_kernel_explicit": dict(
        padding=((2, 1), (0, 2)), transpose_kernel=True, w=(3, 2, 5, 3), rhs_dilation=(1, 2)
    ),
    "consistent_same": dict(padding="SAME", use_consistent_padding=True),
    "consistent_explicit": dict(padding=((1, 0), (0, 1)), use_consistent_padding=True),
    "consistent_dilated": dict(padding=((2, 1), (1, 1)), use_consistent_padding=True, rhs_dilation=(2, 1)),
    "channels_first": dict(padding="SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"), x=(2, 3, 4, 5), w=(5, 3, 3, 2)),
    "mixed_layouts": dict(padding="SAME", dimension_numbers=("NHWC", "OIHW", "CHWN"), w=(5, 3, 3, 2)),
    "channels_first_transposed": dict(
        padding="VALID", dimension_numbers=("NCHW", "OIHW", "NHWC"), x=(2, 3, 4, 5), w=(3, 5, 3, 2),
        transpose_kernel=True,
    ),
    "precision": dict(padding="SAME", precision="highest"),
    "wider_result": dict(padding="SAME", preferred_element_type="float32", dtype="bfloat16"),
    "lists": dict(strides=[2, 1], padding=[[1, 1], [2, 0]], rhs_dilation=[1, 2]),
    "0_dimensions": dict(strides=(), padding="SAME", x=(2, 3), w=(3, 5)),
    "1_dimension": dict(strides=(3,), padding="SAME", x=(2, 4, 3), w=(5, 3, 4)),
    "3_dimensions": dict(strides=(2, 1, 3), padding="VALID", x=(1, 3, 2, 2, 3), w=(2, 3, 2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("row", TRANSPOSED)
def test_conv_transpose(row, implementation):
    params = dict(strides=(2, 3)) | TRANSPOSED[row]
    dtype = params.pop("dtype", "float32")
    x, w = integers(params.pop("x", (2, 4, 5, 3)), dtype), integers(params.pop("w", (3, 2, 3, 5)), dtype, 1)
    ours = functools.partial(jaxconv.conv_transpose, **params, implementation=implementation)
    check(ours, functools.partial(lax.conv_transpose, **params), x, w)


def test_conv_transpose_of_four_dimensions():
    """lax has no default layout for it, and neither have we."""
    x, w = jnp.ones((1, 2, 2, 2, 2, 1)), jnp.ones((1, 1, 1, 1, 1, 1))
    for function in (lax.conv_transpose, jaxconv.conv_transpose):
        with pytest.raises(ValueError, match="4"):
            function(x, w, (1,) * 4, "SAME")


def test_transposed_kernel_keeps_the_wide_sum(implementation):
    """int8 operands of a reversed problem are summed and returned in int32."""
    x, w = np.full((1, 4, 4, 8), 100, np.int8), np.full((3, 3, 8, 8), 100, np.int8)
    arguments = ((2, 2), "SAME", None, None, True, None, jnp.int32)
    actual = jaxconv.conv_transpose(x, w, *arguments, implementation=implementation)
    assert_same(actual, run_on_host(lambda x, w: lax.conv_transpose(x, w, *arguments), x, w))
