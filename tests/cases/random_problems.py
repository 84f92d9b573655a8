"""Problems for hypothesis: of any kind, and of those that direct and depthwise are for."""

from hypothesis import strategies as st

from cases.problems import each_channel, halves, layer

DTYPES = [("float32", None), ("float64", None), ("bfloat16", None), ("float16", None), ("bfloat16", "float32"),
          ("float16", "float32"), ("float32", "float64"), ("int8", "int32")]  # fmt: skip


def laid_out(spec, first, second, spatial):
    """The shape whose axes `spec` are (first, second, *spatial)."""
    sizes = dict(zip(spec, (first, second, *spatial), strict=True))
    return tuple(sizes[axis] for axis in range(len(spec)))


SIZES = st.sampled_from([1, 2, 3, 5, 8, 17, 33, 64, 129, 512, 4096])


@st.composite
def problems(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups = draw(st.sampled_from([1, 1, 2, 3, 64]))
    by_batch = groups > 1 and draw(st.booleans())
    in_channels, out_channels = draw(SIZES), draw(SIZES)
    lhs = (
        draw(SIZES) * (groups if by_batch else 1), *each(st.sampled_from([1, 2, 7, 14, 56, 224])),
        in_channels * (1 if by_batch else groups),
    )  # fmt: skip
    params = dict(
        window_strides=each(st.integers(1, 4)), lhs_dilation=each(st.integers(1, 3)),
        rhs_dilation=each(st.integers(1, 3)), padding=each(st.tuples(st.integers(-1, 8), st.integers(0, 8))),
        batch_group_count=groups if by_batch else 1, feature_group_count=1 if by_batch else groups,
    )  # fmt: skip
    rhs = (*each(st.sampled_from([1, 2, 3, 7, 31])), in_channels, out_channels * groups)
    return layer(lhs, rhs, *draw(st.sampled_from(DTYPES)), **params)


# (groups, input and output channels of each), of whole 16-byte vectors.
CHANNELS = [
    (groups, ins, outs) for groups in (1, 2, 3, 4, 8, 16, 40) for ins in (1, 3, 4, 8, 12, 16, 24, 32, 48, 64)
    for outs in (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64) if groups * ins % 8 == groups * outs % 8 == 0
]  # fmt: skip


@st.composite
def problems_of_vectors(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups, ins, outs = draw(st.sampled_from(CHANNELS))
    if groups == 1 and draw(st.booleans()):  # rows of few channels, for packed K
        ins = draw(st.integers(1, 13))
    elif groups == 1 and draw(st.booleans()):  # outputs of few channels
        outs = draw(st.integers(1, 5) | st.just(40))
    elif groups == 1:
        ins, outs = draw(st.sampled_from([ins, 3 * ins])), draw(st.sampled_from([outs, 9 * outs]))
    params = dict(
        window_strides=each(st.integers(1, 4)), lhs_dilation=each(st.sampled_from([1, 1, 2, 3])),
        rhs_dilation=each(st.integers(1, 3)), padding=each(st.tuples(st.integers(-1, 8), st.integers(0, 8))),
    )  # fmt: skip
    lhs = (draw(st.integers(1, 3)), *each(st.integers(1, 60) | st.just(8)), groups * ins)
    return halves(lhs, (*each(st.integers(1, 5)), ins, groups * outs), feature_group_count=groups, **params)


@st.composite
def problems_of_channels(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    strides = st.sampled_from([1, 1, 2, 3, 4])
    params = dict(
        window_strides=each(strides), lhs_dilation=each(strides), rhs_dilation=each(st.integers(1, 3)),
        padding=each(st.tuples(st.integers(-1, 8), st.integers(0, 8))),
    )  # fmt: skip
    channels = st.sampled_from([8, 16, 24, 40, 64, 144])
    lhs = (draw(st.integers(1, 20)), *each(st.integers(1, 200)), draw(channels))
    kernel = each(st.sampled_from([1, 2, 3, 4, 5, 7, 13, 31, *([51] if rank < 3 else [])]))
    return each_channel(lhs, kernel, draw(st.sampled_from(["bfloat16", "float32"])), **params)
