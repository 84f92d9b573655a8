"""Bad input: the exception that lax raises, while tracing, and a message that names the argument and what was given."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.reference import channels_last, exception_of, integers
from cases.small import ENTRIES, named

OTHER = {"cpu": "cuda", "cuda": "cpu"}


def axes(of_output):
    return lax.ConvDimensionNumbers((0, 1, 2, 3), (0, 1, 2, 3), of_output)


# What conv_general_dilated is given, other than x (2, 4, 6, 6), w (4, 4, 3, 3), strides (1, 1) and SAME; the message.
GENERAL = {
    "ranks_differ": (dict(w=(4, 4, 3)), r"lhs and rhs.*4.*3"),
    "rank_too_low": (dict(x=(2,), w=(4,)), r""),
    "channels_differ": (dict(x=(2, 5, 6, 6)), r"feature.*5.*4"),
    "no_groups": (dict(feature_group_count=0), r"feature_group_count.*0"),
    "negative_groups": (dict(feature_group_count=-1), r"feature_group_count.*-1"),
    "array_of_groups": (dict(feature_group_count=np.array(2)), r"feature_group_count.*2"),
    "groups_do_not_divide_lhs": (dict(feature_group_count=3), r"feature_group_count.*3.*4"),
    "groups_do_not_divide_rhs": (
        dict(x=(2, 6, 6, 6), w=(4, 2, 3, 3), feature_group_count=3), r"feature_group_count.*4.*3"
    ),
    "rhs_has_all_channels": (dict(w=(4, 4, 3, 3), feature_group_count=2), r"feature_group_count.*4 // 2 != 4"),
    "no_batch_groups": (dict(batch_group_count=0), r"batch_group_count.*0"),
    "negative_batch_groups": (dict(batch_group_count=-2), r"batch_group_count.*-2"),
    "batch_groups_do_not_divide_lhs": (dict(batch_group_count=4), r"batch_group_count.*4.*2"),
    "batch_groups_do_not_divide_rhs": (dict(x=(3, 4, 6, 6), batch_group_count=3), r"batch_group_count.*4.*3"),
    "both_groups": (
        dict(w=(4, 2, 3, 3), batch_group_count=2, feature_group_count=2),
        r"batch_group_count=2.*feature_group_count=2",
    ),
    "two_layouts": (dict(dimension_numbers=("NCHW", "OIHW")), r"dimension_numbers.*2"),
    "layout_of_three_letters": (dict(dimension_numbers=("NCHW", "OIHW", "NCH")), r"dimension_numbers\[2\].*3"),
    "layout_without_channels": (dict(dimension_numbers=("NXHW", "OIHW", "NCHW")), r"dimension_numbers\[0\].*NXHW"),
    "layout_with_another_dimension": (dict(dimension_numbers=("NCHW", "OIHW", "NCHZ")), r"dimension_numbers.*NCHZ"),
    "layout_with_one_twice": (dict(dimension_numbers=("NCHW", "OIHH", "NCHW")), r"dimension_numbers\[1\].*OIHH"),
    "layout_string": (dict(dimension_numbers="NCHW"), r"dimension_numbers.*str"),
    "layout_numbers": (dict(dimension_numbers=(1, 2, 3)), r"dimension_numbers.*int"),
    "layout_of_tuples": (dict(dimension_numbers=((0, 1, 2, 3),) * 3), r"dimension_numbers.*tuple"),
    "axis_twice": (dict(dimension_numbers=axes((0, 1, 2, 2))), r"dimension_numbers.*\(0, 1, 2, 2\)"),
    "negative_axis": (dict(dimension_numbers=axes((0, 1, 2, -1))), r"dimension_numbers.*\(0, 1, 2, -1\)"),
    "axis_missing": (dict(dimension_numbers=axes((0, 1, 2))), r"dimension_numbers.*\(0, 1, 2\)"),
    "axes_in_lists": (dict(dimension_numbers=axes([0, 1, 2, 3])), r"dimension_numbers.*\[0, 1, 2, 3\]"),
    "strides_of_0": (dict(window_strides=(0, 1)), r"window_strides.*\(0, 1\)"),
    "strides_of_0_valid": (dict(window_strides=(1, 0), padding="VALID"), r"window_strides.*\(1, 0\)"),
    "strides_of_0_explicit": (dict(window_strides=(0, 0), padding=[(0, 0)] * 2), r"window_strides.*\(0, 0\)"),
    "negative_strides": (dict(window_strides=(-1, 1)), r"window_strides.*\(-1, 1\)"),
    "one_stride": (dict(window_strides=(1,)), r"window_strides.*1"),
    "three_strides": (dict(window_strides=(1, 1, 1), padding="VALID"), r"window_strides.*(3|\(1, 1, 1\))"),
    "fractional_strides": (dict(window_strides=(1.5, 1)), r""),
    "set_of_strides": (dict(window_strides={1, 2}), r"window_strides.*\{1, 2\}"),
    "lhs_dilation_of_0": (dict(lhs_dilation=(0, 1), padding=[(0, 0)] * 2), r"dilation.*\(0, 1\)"),
    "negative_lhs_dilation": (dict(lhs_dilation=(1, -2), padding=[(0, 0)] * 2), r"dilation.*\(1, -2\)"),
    "one_lhs_dilation": (dict(lhs_dilation=(2,), padding=[(0, 0)] * 2), r"lhs_dilation.*\(2,\)"),
    "three_rhs_dilations": (dict(rhs_dilation=(2, 1, 1), padding=[(0, 0)] * 2), r"rhs_dilation.*\(2, 1, 1\)"),
    "rhs_dilation_of_0": (dict(rhs_dilation=(0, 1)), r"dilation.*\(0, 1\)"),
    "negative_rhs_dilation": (dict(rhs_dilation=(1, -2)), r"dilation.*\(1, -2\)"),
    "string_padding_of_holes": (dict(lhs_dilation=(2, 2)), r"[Pp]adding"),
    "unknown_padding": (dict(padding="FULL"), r"padding.*SAME.*FULL"),
    "one_padding": (dict(padding=[(0, 0)]), r"pad.*2.*1"),
    "three_paddings": (dict(padding=[(0, 0)] * 3), r"pad.*2.*3"),
    "flat_padding": (dict(padding=[1, 1]), r"padding.*[\[(]1, 1"),
    "padding_of_three_sides": (dict(padding=[(0, 0, 0), (0, 0)]), r"padding.*\(0, 0, 0\)"),
    "fractional_padding": (dict(padding=[(0.5, 0), (0, 0)]), r"padding.*0\.5"),
    "padding_none": (dict(padding=None), r"padding.*None"),
    "padding_takes_more_than_there_is": (dict(padding=[(-4, -4), (0, 0)]), r"padding.*-4"),
    "mixed_dtypes": (dict(dtypes=("float32", "bfloat16")), r"dtypes.*float32.*bfloat16"),
    "mixed_kinds": (dict(dtypes=("int32", "float32")), r"dtypes.*int32.*float32"),
    "narrower_result": (dict(preferred_element_type="bfloat16"), r"preferred_element_type"),
    "integral_result": (dict(preferred_element_type="int32"), r"preferred_element_type"),
    "unknown_result": (dict(preferred_element_type="float33"), r"float33"),
    "unknown_precision": (dict(precision="exact"), r"[Pp]recision"),
    "two_algorithms": (dict(precision=("F32_F32_F32",) * 2), r"^precision must be one algorithm.*F32_F32_F32"),
    "three_precisions": (dict(precision=("highest",) * 3), r"[Pp]recision"),
}  # fmt: skip

CONV2D = {
    "x_of_rank_3": (dict(x=(6, 6, 4)), r"\bx\b.*\(6, 6, 4\)"),
    "x_of_rank_5": (dict(x=(2, 2, 6, 6, 4)), r"\bx\b.*\(2, 2, 6, 6, 4\)"),
    "w_of_rank_3": (dict(w=(3, 4, 4)), r"\bw\b.*\(3, 4, 4\)"),
    "channels_differ": (dict(x=(2, 6, 6, 5)), r"feature.*5.*4|channels.*5.*4"),
    "no_groups": (dict(feature_group_count=0), r"feature_group_count.*0"),
    "groups_do_not_divide": (dict(feature_group_count=3), r"feature_group_count.*3"),
    "strides_of_0": (dict(window_strides=0), r"window_strides.*0"),
    "negative_strides": (dict(window_strides=(1, -1)), r"window_strides.*-1"),
    "three_strides": (dict(window_strides=(1, 1, 1)), r"window_strides.*\(1, 1, 1\)"),
    "rhs_dilation_of_0": (dict(rhs_dilation=0), r"dilation.*0"),
    "lhs_dilation_of_0": (dict(lhs_dilation=0, padding=((0, 0), (0, 0))), r"dilation.*0"),
    "string_padding_of_holes": (dict(lhs_dilation=2), r"[Pp]adding"),
    "unknown_padding": (dict(padding="FULL"), r"padding.*SAME.*FULL"),
    "one_padding": (dict(padding=((1, 1),)), r"pad"),
    "mixed_dtypes": (dict(dtypes=("float32", "float16")), r"^x and w must be of one dtype, .*float32 and float16$"),
    "narrower_result": (dict(preferred_element_type="float16"), r"preferred_element_type"),
    "unknown_precision": (dict(precision="exact"), r"[Pp]recision"),
}

TRANSPOSE = {
    "ranks_differ": (dict(w=(3, 3, 4)), r""),
    "channels_differ": (dict(x=(2, 6, 6, 5)), r"feature.*5.*4"),
    "strides_of_0": (dict(strides=(0, 2)), r"(strides|dilation).*\(0, 2\)"),
    "negative_strides": (dict(strides=(2, -1)), r"(strides|dilation).*\(2, -1\)"),
    "one_stride": (dict(strides=(2,)), r"strides.*\(2,\)"),
    "three_strides": (dict(strides=(2, 2, 2)), r"strides.*\(2, 2, 2\)"),
    "one_rhs_dilation": (dict(rhs_dilation=(2,)), r"rhs_dilation.*\(2,\)"),
    "unknown_padding": (dict(padding="FULL"), r"[Pp]adding"),
    "string_padding_of_holes": (dict(padding="SAME_LOWER"), r"[Pp]adding"),
    "unknown_layout": (dict(dimension_numbers=("NHWC", "HWIO", "NHWX")), r"dimension_numbers.*NHWX"),
    "rhs_dilation_of_0": (dict(rhs_dilation=(0, 1)), r"dilation.*\(0, 1\)"),
    "mixed_dtypes": (dict(dtypes=("float32", "float16")), r"dtypes.*float32.*float16"),
}


def lax_conv2d(x, w, *, window_strides=1, lhs_dilation=1, rhs_dilation=1, padding="SAME", **others):
    two = lambda value: (value,) * 2 if isinstance(value, int) else value
    return lax.conv_general_dilated(
        x, w, two(window_strides), padding, two(lhs_dilation), two(rhs_dilation), channels_last(2), **others
    )


# The function of lax and ours, and what both are given unless a row of the table says otherwise.
FUNCTIONS = {
    "conv_general_dilated": (
        lax.conv_general_dilated, GENERAL,
        dict(x=(2, 4, 6, 6), w=(4, 4, 3, 3), window_strides=(1, 1), padding="SAME"),
    ),
    "conv2d": (lax_conv2d, CONV2D, dict(x=(2, 6, 6, 4), w=(3, 3, 4, 4))),
    "conv_transpose": (
        lax.conv_transpose, TRANSPOSE, dict(x=(2, 6, 6, 4), w=(3, 3, 4, 4), strides=(2, 2), padding="SAME")
    ),
}  # fmt: skip
ROWS = [(function, row) for function, (_, table, _) in FUNCTIONS.items() for row in table]


def traced(function, x, w, dtypes=("float32", "float32"), **params):
    operands = (jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip((x, w), dtypes, strict=True))
    return jax.jit(functools.partial(function, **params)).trace(*operands)


def refusal(function, given):
    """The exception while tracing or, where that finds nothing, while lowering."""
    return exception_of(traced, function, **given) or exception_of(traced(function, **given).lower)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize("named", [False, True], ids=["default", "named"])
@pytest.mark.parametrize("function, row", ROWS)
def test_refused_as_lax_refuses(function, row, named, implementation):
    theirs, table, defaults = FUNCTIONS[function]
    ours = functools.partial(getattr(jaxconv, function), implementation=implementation if named else None)
    arguments, message = table[row]
    expected = refusal(theirs, defaults | arguments)
    assert expected is not None, "lax takes it"
    actual = exception_of(traced, ours, **(defaults | arguments))
    assert type(actual) is type(expected), f"{actual!r}, but lax: {expected!r}"
    assert re.search(message, str(actual), re.DOTALL), actual


# What lax has no counterpart of: the arguments of conv2d, the exception, its message.
PERIODIC = {
    "one_stride": (dict(window_strides=(2,)), ValueError, "window_strides must have an entry for each of 2"),
    "strides_of_0": (dict(window_strides=0), ValueError, "window_strides must be positive integers, got (0, 0)"),
    "one_lhs_dilation": (dict(lhs_dilation=(1,)), ValueError, "lhs_dilation must have an entry for each of 2"),
    "rhs_dilation_of_0": (dict(rhs_dilation=(0, 1)), TypeError, "rhs_dilation must be positive integers, got (0, 1)"),
    "one_dimension": (dict(padding=["CIRCULAR"]), ValueError, "padding must have an entry for each of 2"),
    "three_dimensions": (dict(padding=("CIRCULAR", (1, 1), (7, 7))), ValueError, "padding must have an entry for each"),
    "no_pair": (dict(padding=("CIRCULAR", 1)), ValueError, "padding must be a string or a sequence of (low, high)"),
}


@pytest.mark.parametrize("given, type_, text", PERIODIC.values(), ids=PERIODIC)
def test_periodic_images(given, type_, text):
    conv = functools.partial(jaxconv.conv2d, **dict(padding="CIRCULAR") | given)
    error = exception_of(traced, conv, (2, 6, 6, 4), (3, 3, 4, 4))
    assert type(error) is type_ and text in str(error), error


@pytest.mark.parametrize("name", ["window_strides", "lhs_dilation", "rhs_dilation"])
def test_a_fraction_for_all_dimensions(name):
    error = exception_of(traced, functools.partial(jaxconv.conv2d, **{name: 2.0}), (2, 6, 6, 4), (3, 3, 4, 4))
    assert type(error) is TypeError and f"{name} must be an integer or a sequence of integers, got 2.0" in str(error)


@pytest.mark.parametrize("entry", [*FUNCTIONS, "conv1d", "conv3d"])
@pytest.mark.parametrize("unknown", ["gpu", "", "CUDA", "wgmmma", 1])
def test_unknown_implementation(entry, unknown):
    rank = {"conv1d": 1, "conv3d": 3}.get(entry, 2)
    x, w = jnp.ones((1, *[4] * rank, 2)), jnp.ones((*[3] * rank, 2, 2))
    given = {
        "conv_general_dilated": dict(
            window_strides=(1, 1), padding="SAME", dimension_numbers=channels_last(2)
        ),
        "conv_transpose": dict(strides=(1, 1), padding="SAME"),
    }.get(entry, {})  # fmt: skip
    with pytest.raises(ValueError, match="implementation") as error:
        getattr(jaxconv, entry)(x, w, **given, implementation=unknown)
    for word in ("None", "cuda", "cpu", "xla", repr(unknown)):
        assert word in str(error.value)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("gradient", [False, True])
def test_implementation_of_another_platform(entry, gradient, implementation):
    """What depends on the platform is refused at lowering, whichever platform the program is lowered for."""
    case = named("dense")
    x, w = case.operands()

    def lower(name, platform):
        conv = getattr(case, entry)(name)
        function = jax.grad(lambda w: jnp.sum(conv(x, w))) if gradient else functools.partial(conv, x)
        return jax.jit(function).trace(w).lower(lowering_platforms=(platform,))

    with pytest.raises(NotImplementedError, match=f"implementation.*{OTHER[implementation]}"):
        lower(OTHER[implementation], implementation)
    with pytest.raises(NotImplementedError, match=f"implementation.*{implementation}"):
        lower(implementation, "tpu")


UNSUPPORTED = {
    "bool": dict(dtype="bool"),
    "uint8": dict(dtype="uint8"),
    "int16": dict(dtype="int16"),
    "float8": dict(dtype="float8_e4m3b11fnuz"),
    "four_dimensions": dict(x=(1, 2, 3, 3, 3, 3), w=(2, 2, 2, 2, 2, 2), window_strides=(1,) * 4),
}


@pytest.mark.parametrize("given", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_named_implementation_that_cannot(given, implementation):
    """Refused while tracing: it does not depend on the platform."""
    given = dict(x=(1, 2, 4, 4), w=(2, 2, 3, 3), window_strides=(1, 1), padding="SAME") | given
    dtype = given.pop("dtype", "float32")
    conv = functools.partial(jaxconv.conv_general_dilated, implementation=implementation)
    with pytest.raises(NotImplementedError, match=f"implementation.*{implementation}"):
        traced(conv, **given, dtypes=(dtype, dtype))


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(0, 0), (0, 0)]])
def test_filter_without_taps(padding, implementation):
    """lax is late to refuse it."""
    given = dict(x=(2, 4, 6, 6), w=(4, 4, 0, 3), window_strides=(1, 1), padding=padding)
    expected = refusal(lax.conv_general_dilated, given)
    for name in (None, implementation):
        actual = refusal(functools.partial(jaxconv.conv_general_dilated, implementation=name), given)
        assert type(actual) is type(expected) is ValueError, actual


def test_refused_without_tracing():
    """Eager calls are refused alike."""
    x, w = integers((2, 4, 6, 6)), integers((4, 4, 3, 3))
    with pytest.raises(ValueError, match="window_strides"):
        jaxconv.conv_general_dilated(x, w, (0, 1), "SAME")
    with pytest.raises(TypeError, match="dtypes"):
        jaxconv.conv_general_dilated(x, w.astype(np.float16), (1, 1), "SAME")


NO_ARRAYS = {
    "big_endian": lambda x: x.astype(">f4"),
    "masked": lambda x: np.ma.array(x, mask=True),
    "objects": lambda x: x.astype(object),
    "list": lambda x: x.tolist(),
    "none": lambda x: None,
}


@pytest.mark.parametrize("place", ["lhs", "rhs"])
@pytest.mark.parametrize("name", NO_ARRAYS)
def test_what_is_no_array_of_jax(name, place):
    """A program that was compiled for an array does not read it as one."""
    arrays = dict(lhs=integers((2, 4, 6, 6)), rhs=integers((4, 4, 3, 3)))
    jaxconv.conv_general_dilated(*arrays.values(), (1, 1), "SAME")
    arrays[place] = NO_ARRAYS[name](arrays[place])
    expected = exception_of(lax.conv_general_dilated, *arrays.values(), (1, 1), "SAME")
    actual = exception_of(jaxconv.conv_general_dilated, *arrays.values(), (1, 1), "SAME")
    assert type(actual) is type(expected)
    assert str(actual).startswith(f"{place} must be an array")


@pytest.mark.parametrize("operand", ["bias", "residual"])
@pytest.mark.parametrize("name", ["big_endian", "masked"])
def test_epilogue_of_no_array_of_jax(name, operand):
    x, w, given = (
        integers((2, 6, 6, 4)),
        integers((3, 3, 4, 4)),
        integers((2, 6, 6, 4) if operand == "residual" else (4,)),
    )
    jaxconv.conv2d(x, w, **{operand: given})
    error = exception_of(functools.partial(jaxconv.conv2d, **{operand: NO_ARRAYS[name](given)}), x, w)
    assert str(error).startswith(f"{operand} must be an array")


def test_groups_that_are_traced():
    x, w = integers((2, 6, 6, 4)), integers((3, 3, 4, 4))
    conv = lambda groups: jaxconv.conv2d(x, w, feature_group_count=groups)
    with pytest.raises(TypeError, match="feature_group_count must be"):
        jax.jit(conv)(1)


def test_an_activation_in_a_list():
    """Before an eager call looks for its program, by what can be hashed."""
    x, w = integers((2, 6, 6, 4)), integers((3, 3, 4, 4))
    with pytest.raises(ValueError, match="activation must be None, one of"):
        jaxconv.conv2d(x, w, activation=["relu"])
