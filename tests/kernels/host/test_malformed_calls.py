"""Calls of the host's handlers that no planner makes: a clear error or right results, never a crash."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.problems import passes_of, problem_of
from cases.reference import assert_same, exception_of, run_on_host
from jaxconv import ffi
from jaxconv.problem.offsets import offset_tables
from jaxconv.problem.product import OPERANDS, RESULT

FAMILIES = ("gemm", "depthwise")  # both kernels are right for any problem
CONVOLUTION = channels_last_convolution(
    (2, 7, 6, 4), (3, 2, 2, 6), window_strides=(1, 2), lhs_dilation=(2, 3), padding=((1, 2), (0, 1)),
    feature_group_count=2,
)  # fmt: skip
OUT_OF_REACH = channels_last_convolution(  # the table of classes has a row of taps that no position sees
    (2, 3, 5, 3), (4, 2, 3, 5), window_strides=(6, 1), lhs_dilation=(4, 1), padding=((0, 0), (0, 0)))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Call:
    """A custom call. Operands are a source, a filter or a gradient, and the tables of taps and of classes."""

    kind: str
    operands: tuple
    result: Any
    attributes: dict

    @classmethod
    def of(cls, which, family="gemm", convolution=CONVOLUTION, dtype="float32"):
        problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, dtype)
        kind, problem = passes_of(problem)[which]
        x, w, g = convolution.operands(dtype)
        operands = {"fprop": (x, w), "dgrad": (g, w), "wgrad": (x, g)}[which]
        role = RESULT[kind]
        result = jax.ShapeDtypeStruct(getattr(problem, f"{role}_shape"), getattr(problem, f"{role}_dtype"))
        attributes = ffi._attributes(problem) | {"family": family}
        assert len(OPERANDS[kind]) == len(operands)
        return cls(kind, (*operands, *offset_tables(problem)), result, attributes)

    def __call__(self, *operands):
        call = jax.ffi.ffi_call(f"jaxconv_{self.kind}", self.result)
        return call(*(operands or self.operands), **self.attributes)

    def having(self, **attributes):
        return dataclasses.replace(self, attributes=self.attributes | attributes)

    def taking(self, *places):
        """Its operands in another order."""
        return dataclasses.replace(self, operands=tuple(self.operands[i] for i in places))

    def with_operand(self, place, change):
        operands = list(self.operands)
        operands[place] = change(np.array(operands[place]))
        return dataclasses.replace(self, operands=tuple(operands))

    def as_result(self, **of_result):
        was = dict(shape=self.result.shape, dtype=self.result.dtype)
        return dataclasses.replace(self, result=jax.ShapeDtypeStruct(**was | of_result))


TAPS, CLASSES = 2, 3


def entry(row, column, value):
    """A table with one other entry, or with a row's entries changed by a function of them."""

    def change(table):
        table[row, column] = value(table[row, column]) if callable(value) else value
        return table

    return change


def swapped_rows(table):
    table[[0, 1]] = table[[1, 0]]
    return table


def axes(*of):
    return np.array(of, np.int64)


ORDER = {
    "source_and_filter": ((1, 0, 2, 3), ""),
    "tables": ((0, 1, 3, 2), "the offset tables are not those of this problem"),
    "tables_first": ((2, 3, 0, 1), ""),
    "reversed": ((3, 2, 1, 0), ""),
    "taps_for_filter": ((0, 2, 2, 3), "ranks differ"),
    "classes_twice": ((0, 1, 3, 3), "the offset tables are not those of this problem"),
    "three": ((0, 1, 2), "Wrong number of arguments"),
    "none": ((), "Wrong number of arguments"),
    "two_more": ((0, 1, 2, 3, 0, 0), "there are operands that no attribute names"),
}
ATTRIBUTES = {
    "spec_twice": (dict(src_spec=axes(0, 0, 1, 2)), "a spec must name each axis of its array once"),
    "spec_negative": (dict(filter_spec=axes(-1, 2, 0, 1)), "a spec must name each axis of its array once"),
    "spec_beyond": (dict(dst_spec=axes(0, 4, 1, 2)), "a spec must name each axis of its array once"),
    "spec_huge": (dict(dst_spec=axes(0, 2**40, 1, 2)), "a spec must name each axis of its array once"),
    "spec_short": (dict(src_spec=axes(0, 3, 1)), "a spec must name each axis of its array once"),
    "spec_empty": (dict(filter_spec=axes()), "a spec must name each axis of its array once"),
    "spec_long": (dict(dst_spec=axes(0, 3, 1, 2, 4)), "a spec must name each axis of its array once"),
    "operand_missing": (dict(operands="scale"), "the scale is missing"),
    "activation_unknown": (dict(activation="relu"), "there is no activation relu"),
    "two_numbers": (dict(activation_numbers=np.zeros(2)), "an activation has 3 numbers"),
    "strides_zero": (dict(window_strides=axes(0, 1)), "must be positive"),
    "strides_negative": (dict(window_strides=axes(1, -2)), "must be positive"),
    "strides_huge": (dict(window_strides=axes(2**63 - 1, 1)), ""),
    "strides_least": (dict(window_strides=axes(-(2**63), 1)), "must be positive"),
    "strides_short": (dict(window_strides=axes(1)), "an entry for each spatial dimension"),
    "dilation_zero": (dict(lhs_dilation=axes(1, 0)), "must be positive"),
    "dilation_negative": (dict(lhs_dilation=axes(-1, 1)), "must be positive"),
    "dilation_huge": (dict(lhs_dilation=axes(2**63 - 1, 2**62 + 1)), ""),
    "dilation_long": (dict(lhs_dilation=axes(1, 1, 1)), "an entry for each spatial dimension"),
    "other_strides": (dict(window_strides=axes(2, 3)), "the table of classes has"),
    "groups_zero": (dict(groups=np.int64(0)), "groups must be positive"),
    "groups_negative": (dict(groups=np.int64(-2)), "groups must be positive"),
    "groups_of_none": (dict(groups=np.int64(3)), "groups do not divide the batch or channels"),
    "groups_huge": (dict(groups=np.int64(2**62)), "groups do not divide the batch or channels"),
    "batch_grouped": (dict(src_batch_grouped=np.bool_(True)), "the batches of source and destination differ"),
    "in_grouped": (dict(filter_in_grouped=np.bool_(True)), "the filter's channels do not match"),
    "blocks_of_an_image": (dict(dst_in_blocks=np.bool_(True)), "blocks of channels are 32 of one group's volume"),
    "family_unknown": (dict(family="wgmma"), "the host has no such kernel family"),
    "family_without_name": (dict(family=""), "the host has no such kernel family"),
    "format_of_before": (dict(format=np.int64(1)), "its format is 1, this version reads"),
    "family_of_a_float": (dict(family=np.float32(0.5)), ""),
}
MOST, LEAST = 2**31 - 1, -(2**31)
TABLES = {
    "taps_short": (TAPS, lambda table: table[:-1], "the offset tables are not those of this problem"),
    "taps_long": (TAPS, lambda table: np.repeat(table, 2, 0), "the offset tables are not those of this problem"),
    "taps_narrow": (TAPS, lambda table: table[:, :4], "the offset tables are not those of this problem"),
    "taps_flat": (TAPS, np.ravel, "the offset tables are not those of this problem"),
    "taps_of_floats": (TAPS, lambda table: table.astype(np.float32), "the offset tables must be int32"),
    "taps_unsigned": (TAPS, lambda table: table.astype(np.uint32), "the offset tables must be int32"),
    "source_beyond": (TAPS, entry(0, 0, 10**6), "a tap's offset in the source"),
    "source_before": (TAPS, entry(0, 0, LEAST), "a tap's offset in the source"),
    "source_of_another": (TAPS, entry(1, 0, lambda delta: delta + 1), "a tap's offset in the source"),
    "shift_alone": (TAPS, entry(0, 4, lambda shift: shift + 1), "a tap's offset in the source"),
    "shift_beyond": (TAPS, entry(0, 2, MOST), "a tap is too far away"),
    "shift_before": (TAPS, entry(0, 2, LEAST), "a tap is too far away"),
    "filter_beyond": (TAPS, entry(0, 1, 72), "a tap's offset in the filter"),
    "filter_far": (TAPS, entry(0, 1, MOST), "a tap's offset in the filter"),
    "filter_before": (TAPS, entry(0, 1, -1), "a tap's offset in the filter"),
    "filter_of_a_channel": (TAPS, entry(0, 1, lambda delta: delta + 1), "a tap's offset in the filter"),
    "filter_twice": (TAPS, entry(slice(None), 1, 0), "two taps have one offset in the filter"),
    "classes_short": (CLASSES, lambda table: table[:-1], "the table of classes"),
    "classes_none": (CLASSES, lambda table: table[:0], "the table of classes"),
    "classes_long": (CLASSES, lambda table: np.repeat(table, 3, 0), "the table of classes"),
    "classes_narrow": (CLASSES, lambda table: table[:, :7], "the offset tables are not those of this problem"),
    "classes_of_floats": (CLASSES, lambda table: table.astype(np.float32), "the offset tables must be int32"),
    "first_tap_negative": (CLASSES, entry(0, 0, -1), "the classes do not hold each tap once"),
    "first_tap_beyond": (CLASSES, entry(1, 0, 6), "the classes do not hold each tap once"),
    "tap_count_beyond": (CLASSES, entry(-1, 1, lambda count: count + 1), "the classes do not hold each tap once"),
    "tap_count_negative": (CLASSES, entry(0, 1, -1), "the classes do not hold each tap once"),
    "tap_count_most": (CLASSES, entry(0, 1, MOST), "the classes do not hold each tap once"),
    "taps_in_none": (CLASSES, entry(slice(None), slice(0, 2), 0), "the classes do not hold each tap once"),
    "phase_beyond": (CLASSES, entry(0, 3, 5), "the classes do not hold each position once"),
    "phase_negative": (CLASSES, entry(0, 4, -1), "the classes do not hold each position once"),
    "count_beyond": (CLASSES, entry(0, 6, 100), "the classes do not hold each position once"),
    "count_most": (CLASSES, entry(0, slice(5, 8), MOST), "the classes do not hold each position once"),
    "count_negative": (CLASSES, entry(0, 7, -3), "the classes do not hold each position once"),
    "count_zero": (CLASSES, entry(0, 7, 0), "the classes do not hold each position once"),
    "classes_swapped": (CLASSES, swapped_rows, "the classes do not hold each"),
}
EVERY_PASS = pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def error_of(call, *operands):
    """Which is a ValueError where JAX did not wait for the call."""
    error = exception_of(lambda: jax.block_until_ready(call(*operands)))
    assert error is None or isinstance(error, jax.errors.JaxRuntimeError | ValueError), error
    return str(error)


def refuse(call, message):
    error = error_of(call)
    assert "INVALID_ARGUMENT" in error
    assert message in error


@EVERY_FAMILY
@EVERY_PASS
def test_the_call_itself(which, family):
    """Of which the others are changed copies."""
    gradients = {"fprop": lambda x, w: CONVOLUTION.lax()(x, w),
                 "dgrad": lambda g, w: jax.vjp(lambda x: CONVOLUTION.lax()(x, w), CONVOLUTION.operands()[0])[1](g)[0],
                 "wgrad": lambda x, g: jax.vjp(lambda w: CONVOLUTION.lax()(x, w), CONVOLUTION.operands()[1])[1](g)[0],
                 }  # fmt: skip
    call = Call.of(which, family)
    assert_same(call(), run_on_host(gradients[which], *call.operands[:2]))


@pytest.mark.parametrize("order, message", ORDER.values(), ids=ORDER)
@EVERY_PASS
def test_operands_in_another_order(which, order, message):
    call = Call.of(which).taking(*order)
    refuse(lambda: jax.ffi.ffi_call(f"jaxconv_{call.kind}", call.result)(*call.operands, **call.attributes), message)


@pytest.mark.parametrize("shape", [(), (3,), (2, 7), (2, 7, 6), (2, 7, 6, 4, 1), (2, 7, 6, 4, 1, 1)], ids=str)
@pytest.mark.parametrize("place", [0, 1, "result"])
@EVERY_PASS
def test_other_ranks(which, place, shape):
    call = Call.of(which)
    zeros = np.zeros(shape, np.float32)
    refuse(call.as_result(shape=shape) if place == "result" else call.with_operand(place, lambda _: zeros), "")


@pytest.mark.parametrize("attributes, message", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes(attributes, message):
    refuse(Call.of("fprop").having(**attributes), message)


@pytest.mark.parametrize("place, change, message", TABLES.values(), ids=TABLES)
@EVERY_PASS
def test_tables(which, place, change, message):
    refuse(Call.of(which).with_operand(place, change), message)


@EVERY_FAMILY
@EVERY_PASS
def test_random_tables(which, family):
    """One entry of a table is another number."""
    rng = np.random.default_rng(0)
    for convolution in CONVOLUTION, OUT_OF_REACH:
        call = Call.of(which, family, convolution)
        run = jax.jit(lambda *operands: call(*operands))
        expected = np.asarray(run(*call.operands))
        for _ in range(100):
            place = rng.choice([TAPS, CLASSES])
            table = call.operands[place]
            value = rng.choice([rng.integers(-3, 12), rng.integers(-1000, 1000), rng.integers(LEAST, MOST)])
            where = tuple(rng.integers(table.shape))
            changed = call.with_operand(place, entry(*where, value))
            error = error_of(run, *changed.operands)
            is_no_tap = place == TAPS and where[0] == len(table) - 1
            if is_no_tap or value == table[where]:
                assert_same(np.asarray(run(*changed.operands)), expected)
            else:  # dimensions of one element have no stride, so any shift is that of its offset
                assert "INVALID_ARGUMENT" in error or (place == TAPS and where[1] == 2)


@EVERY_FAMILY
@EVERY_PASS
def test_taps_of_a_class_in_another_order(which, family):
    """Nothing is wrong with that."""
    call = Call.of(which, family, channels_last_convolution((2, 7, 6, 4), (3, 2, 4, 6)))
    assert_same(call.with_operand(TAPS, lambda table: np.append(table[-2::-1], table[-1:], axis=0))(), call())


@pytest.mark.parametrize("dtypes, message", [
    (("int8", "float32", "float32"), "there are no kernels for these dtypes"),
    (("float32", "int32", "float32"), "there are no kernels for these dtypes"),
    (("float32", "float32", "int32"), "there are no kernels for these dtypes"),
    (("int8", "int8", "float64"), "there are no kernels for these dtypes"),
    (("int32", "int32", "float32"), "there are no kernels for these dtypes"),
    (("uint8", "uint8", "int32"), "dtypes are float32"), (("bool", "bool", "float32"), "dtypes are float32"),
    (("complex64", "complex64", "complex64"), "dtypes are float32"),
    (("float8_e4m3fn", "float8_e4m3fn", "float64"), "there are no kernels for these dtypes"),
    (("float8_e5m2", "int8", "float32"), "there are no kernels for these dtypes"),
    (("bfloat16", "float32", "float16"), "there are no kernels for these dtypes"),
    (("float16", "bfloat16", "float64"), "there are no kernels for these dtypes"),
    (("bfloat16", "float16", "bfloat16"), "there are no kernels for these dtypes"),
    (("float32", "float8_e4m3b11fnuz", "float32"), "dtypes are float32"),
])  # fmt: skip
@EVERY_PASS
def test_dtypes_refused(which, dtypes, message):
    a, b, result = dtypes
    call = Call.of(which).with_operand(0, lambda array: array.astype(a)).with_operand(1, lambda array: array.astype(b))
    refuse(call.as_result(dtype=np.dtype(result)), message)


@pytest.mark.parametrize("dtypes", [
    ("bfloat16", "float32", "float32"), ("float32", "float16", "float16"), ("float64", "float32", "float32"),
    ("int32", "int8", "int32"),
], ids=str)  # fmt: skip
@EVERY_FAMILY
@EVERY_PASS
def test_dtypes_mixed(which, family, dtypes):
    a, b, result = dtypes
    with jax.enable_x64(True):
        call = Call.of(which, family)
        expected = np.asarray(call()).astype(result)
        call = call.with_operand(0, lambda array: array.astype(a)).with_operand(1, lambda array: array.astype(b))
        assert_same(call.as_result(dtype=np.dtype(result))(), expected)


def test_weight_gradients_of_integers_are_sums():
    call = Call.of("wgrad").with_operand(0, lambda a: a.astype("int8")).with_operand(1, lambda a: a.astype("int8"))
    for result in ("int8", "float32", "bfloat16"):
        refuse(call.as_result(dtype=np.dtype(result)), "there are no kernels for these dtypes")


def test_wgrad_has_no_epilogue():
    call = Call.of("wgrad")
    bias = np.zeros(6, np.float32)
    with_bias = dataclasses.replace(call, operands=(*call.operands, bias)).having(operands="bias")
    refuse(with_bias, "a wgrad has no epilogue")
    refuse(call.having(activation="sigmoid"), "a wgrad has no epilogue")


@EVERY_FAMILY
def test_channels_in_blocks(family):
    """Only results of 32 channels for each plane of a volume, and only forward."""

    def call(which, outputs=32):
        convolution = channels_last_convolution((2, 1, 4, 5, 3), (1, 3, 3, 3, outputs))
        return Call.of(which, family, convolution).having(dst_in_blocks=np.bool_(True))

    both = call("fprop", 64)
    results = np.asarray(both.as_result(shape=(2, 2, 4, 5, 32))())
    for block in range(2):
        one = call("fprop").with_operand(1, lambda _, block=block: both.operands[1][..., 32 * block :][..., :32])
        assert_same(one.with_operand(0, lambda _: both.operands[0])(), results[:, block : block + 1])
    refuse(call("wgrad"), "a wgrad has no channels in blocks")
    refuse(call("fprop", 16), "blocks of channels are 32")
    refuse(call("fprop", 64).as_result(shape=(2, 3, 4, 5, 32)), "the filter's channels do not match")


@EVERY_PASS
def test_missing_attributes(which):
    call = Call.of(which)
    for name in call.attributes:
        others = {other: value for other, value in call.attributes.items() if other != name}
        refuse(dataclasses.replace(call, attributes=others), "Wrong number of attributes")


def test_errors_say_which_convolution():
    convolution = "jaxconv: convolution of source (2, 7, 6, 4) spec (0, 3, 1, 2), filter (3, 2, 2, 6)"
    refuse(Call.of("fprop").having(family="simt"), convolution)


def test_empty_gradient_of_a_huge_size():
    """The products of its sizes do not fit 32 bits."""
    call = Call.of("wgrad", convolution=channels_last_convolution((1, 3, 3, 1), (1, 1, 1, 1)))
    call = call.with_operand(0, lambda _: np.zeros((0, 3, 3, 1), np.float32))
    call = call.with_operand(1, lambda _: np.zeros((0, 2**30, 2**28, 1), np.float32))
    refuse(call, "the classes do not hold each position once")
