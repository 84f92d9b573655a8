"""ConvProblem's algebra and the offset tables, exactly, without a kernel."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxconv.problem import ConvProblem, Member, Spec
from jaxconv.problem.conv_problem import dilate
from jaxconv.problem.offsets import SPATIAL, fits_int32, offset_tables

F32 = np.dtype("float32")


def forward_problem(in_spatial, kernel, strides, padding, lhs_dilation, rhs_dilation) -> ConvProblem:
    """A channels-last problem with 2 images, 3 input and 5 output channels."""
    n = len(kernel)
    dims = zip(in_spatial, kernel, strides, padding, lhs_dilation, rhs_dilation, strict=True)
    out_spatial = tuple(max(0, (dilate(i, d) + lo + hi - dilate(k, r)) // s + 1) for i, k, s, (lo, hi), d, r in dims)
    spatial = tuple(range(1, n + 1))
    return ConvProblem(
        lhs_shape=(2, *in_spatial, 3),
        rhs_shape=(*kernel, 3, 5),
        out_shape=(2, *out_spatial, 5),
        lhs_spec=Spec(0, n + 1, spatial),
        rhs_spec=Spec(n + 1, n, tuple(range(n))),
        out_spec=Spec(0, n + 1, spatial),
        window_strides=strides,
        pad_low=tuple(lo for lo, _ in padding),
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        groups=1,
        member=Member(1, 3, 5),
        lhs_batch_grouped=False,
        out_batch_grouped=False,
        reverse=False,
        lhs_dtype=F32,
        rhs_dtype=F32,
        out_dtype=F32,
        precision=None,
    )


@st.composite
def problems(draw) -> ConvProblem:
    n = draw(st.integers(1, 3))

    def each(values):
        return tuple(draw(values) for _ in range(n))

    kernel, rhs_dilation = each(st.integers(1, 4)), each(st.integers(1, 3))
    in_spatial, lhs_dilation = each(st.integers(1, 6)), each(st.integers(1, 4))
    low = [draw(st.integers(-min(2, i), 4)) for i in in_spatial]
    high = [draw(st.integers(-min(2, i + lo), 4)) for i, lo in zip(in_spatial, low, strict=True)]
    return forward_problem(
        in_spatial, kernel, each(st.integers(1, 4)), tuple(zip(low, high, strict=True)), lhs_dilation, rhs_dilation
    )


def seen_by_definition(problem: ConvProblem) -> set:
    """All (output position, tap, input position) of the convolution, straight from its definition."""
    seen = set()
    for out in itertools.product(*map(range, problem.out_spatial)):
        for tap in itertools.product(*map(range, problem.kernel)):
            source = []
            for axis in range(len(tap)):
                coord = problem.kernel[axis] - 1 - tap[axis] if problem.reverse else tap[axis]
                at = (
                    out[axis] * problem.window_strides[axis]
                    + coord * problem.rhs_dilation[axis]
                    - problem.pad_low[axis]
                )
                index, hole = divmod(at, problem.lhs_dilation[axis])
                if hole or not 0 <= index < problem.in_spatial[axis]:
                    break
                source.append(index)
            else:
                seen.add((out, tap, tuple(source)))
    return seen


def seen_by_tables(problem: ConvProblem) -> set:
    """The same, as a kernel walks the tables; a triple met twice is an error."""
    n = len(problem.kernel)
    taps, classes = offset_tables(problem)
    period = [d // np.gcd(s, d) for s, d in zip(problem.window_strides, problem.lhs_dilation, strict=True)]
    step = [s // np.gcd(s, d) for s, d in zip(problem.window_strides, problem.lhs_dilation, strict=True)]
    row = np.array([np.prod(problem.lhs_shape[a + 1 :]) for a in problem.lhs_spec.spatial])
    seen = set()
    for first, count, *rest in classes:
        phase, positions = rest[:SPATIAL][-n:], rest[SPATIAL:]
        assert all(p == 1 for p in positions[: SPATIAL - n]) or 0 in positions
        for q in itertools.product(*map(range, positions[-n:] if 0 not in positions else [0])):
            out = tuple(int(p + i * d) for p, i, d in zip(phase, q, period, strict=True))
            base = [i * s for i, s in zip(q, step, strict=True)]
            for src_delta, filter_delta, *shift in taps[first : first + count]:
                tap = np.unravel_index(filter_delta // (3 * 5), problem.kernel)
                source = tuple(int(b + s) for b, s in zip(base, shift[-n:], strict=True))
                assert src_delta == np.dot(shift[-n:], row)
                if all(0 <= i < size for i, size in zip(source, problem.in_spatial, strict=True)):
                    triple = (out, tuple(map(int, tap)), source)
                    assert triple not in seen
                    seen.add(triple)
    return seen


@settings(max_examples=150)
@given(problems())
def test_tables_walk_the_convolution_as_defined(problem):
    assert seen_by_tables(problem) == seen_by_definition(problem)


@settings(max_examples=100)
@given(problems())
def test_every_tap_has_one_row(problem):
    (*taps, end), classes = offset_tables(problem)
    assert sorted(tap[1] // (3 * 5) for tap in taps) == list(range(np.prod(problem.kernel)))
    assert set(end.tolist()) == {-1}
    assert classes[:, 1].sum() == len(taps)
    np.testing.assert_array_equal(classes[:, 0], np.cumsum(classes[:, 1]) - classes[:, 1])


@settings(max_examples=100)
@given(problems())
def test_no_table_is_of_equal_numbers(problem):
    assert all(np.ptp(table) > 0 for table in offset_tables(problem))


@settings(max_examples=100)
@given(problems())
def test_dgrad_sees_the_same_products(problem):
    """The data gradient's (input, tap, output) triples are the convolution's, read the other way."""
    mirrored = {(source, tap, out) for out, tap, source in seen_by_definition(problem)}
    assert seen_by_definition(problem.dgrad()) == mirrored


@settings(max_examples=100)
@given(problems())
def test_dgrad_is_an_involution(problem):
    assert problem.dgrad().dgrad() == problem


@settings(max_examples=100)
@given(problems())
def test_padding_implies_the_output(problem):
    if 0 in problem.out_spatial:
        return
    implied = forward_problem(
        problem.in_spatial, problem.kernel, problem.window_strides, problem.padding, problem.lhs_dilation,
        problem.rhs_dilation,
    )  # fmt: skip
    assert implied == problem


def test_residue_classes_skip_the_zeros_of_a_dilated_input():
    """A 4x4 filter over an input dilated by 2 sees 2x2 taps at every position, not 16."""
    problem = forward_problem((8, 8), (4, 4), (1, 1), ((2, 2), (2, 2)), (2, 2), (1, 1))
    _, classes = offset_tables(problem)
    assert classes.shape == (4, 8)
    assert set(classes[:, 1]) == {4}


def test_classes_of_a_long_window():
    """Each tap has a class of its own. The tables are as long as the window, not as its square."""
    taps, classes = offset_tables(forward_problem((3,), (2**16,), (1,), ((2**16 - 1,) * 2,), (2**16,), (1,)))
    assert (taps[:-1, 0] >= 0).all() and len(taps) - 1 == len(classes) == 2**16
    assert set(classes[:, 1]) == {1}


def test_tables_are_made_once_a_problem():
    problem = forward_problem((8,), (3,), (1,), ((1, 1),), (1,), (1,))
    assert offset_tables(problem) is offset_tables(problem.dgrad().dgrad())


@pytest.mark.parametrize(("width", "fits"), [(2**20, True), (2**29, False)])
def test_offsets_past_32_bits_are_noticed(width, fits):
    problem = forward_problem((width, 8), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    tall = forward_problem((8, width), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    assert fits_int32(problem)
    assert fits_int32(tall) == fits


@pytest.mark.parametrize(("padding", "fits"), [(2**29, True), (2**30, False), (2**32, False)])
def test_coordinates_past_30_bits_are_noticed(padding, fits):
    """Of the last of few outputs."""
    problem = forward_problem((2,), (1,), (2**12,), ((0, padding),), (1,), (1,))
    assert fits_int32(problem) == fits_int32(problem.dgrad()) == fits


def test_a_problem_is_the_same_in_another_process():
    """Its hash is not taken along, as strings have others there."""
    problem = forward_problem((4, 5), (3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1), (1, 1))
    hash(problem)
    copied = pickle.loads(pickle.dumps(problem))
    assert copied == problem
    assert "_hash" in vars(problem) and "_hash" not in vars(copied)
