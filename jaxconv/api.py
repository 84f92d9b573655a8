"""The public functions: from arguments to a problem, and to the primitive that computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding

from jaxconv import blocks, eager, epilogue, fallback, primitives
from jaxconv.activations import Activation
from jaxconv.arguments import (
    Arguments,
    as_array,
    check_length,
    circular_dimensions,
    normalised,
    of_dimensions,
    read,
    repeated,
)
from jaxconv.filters import PreparedFilter, array_and_axes, array_and_axes_of_volumes, check_arrays
from jaxconv.fused.call import Call
from jaxconv.fused.gradient import fused_conv
from jaxconv.planner.plan import Implementation, check_implementation
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem import ConvProblem, of_lax
from jaxconv.problem.algorithms import precision_of_lax
from jaxconv.problem.wider import is_of_two_float8

LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
OF_DIMENSIONS = ("window_strides", "lhs_dilation", "rhs_dilation")
Ints = int | Sequence[int]
Pairs = Sequence[tuple[int, int]]
Padding = str | Pairs
Numbers = Array | float


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    implementation: str | None = None,
) -> Array:
    """A drop-in for `jax.lax.conv_general_dilated`: the same arguments, results, transforms and exceptions.

    Native kernels take float32, float64, bfloat16, float16, float8_e4m3fn, float8_e5m2, complex64, complex128, and int8
    with results of int32 and int8, in up to 3 spatial dimensions. lax takes the rest.

    Args:
      lhs: input with n spatial dimensions; by default (batch, in channels, spatial...).
      rhs: filter of the same dtype; by default (out channels, in channels / groups, spatial...).
      window_strides: n positive integers.
      padding: "SAME", "SAME_LOWER", "VALID", or n (low, high) pairs, which may be negative.
      lhs_dilation: n positive integers, or None for ones.
      rhs_dilation: n positive integers, or None for ones.
      dimension_numbers: None, a `jax.lax.ConvDimensionNumbers`, or three strings such as ("NHWC", "HWIO", "NHWC").
      feature_group_count: number of groups of the channels.
      batch_group_count: number of groups of the lhs's batch.
      precision: as in lax. On a GPU, DEFAULT and HIGH multiply float32 as tf32. HIGHEST has float32's accuracy: on
        Hopper dense layers are multiplied on tensor cores, as sums of three bfloat16 in six products, and all others
        on CUDA cores. A `jax.lax.DotAlgorithmPreset` names how float32 is multiplied: docs/numerics.md has a table of
        the seven that are taken, with the error of each. Another one is a ValueError. implementation="mma" does HIGHEST
        with two tf32 numbers for each float32, in three passes: a product has a relative error of at most 3 * 2^-22.
        There an infinity gives NaN. The host's kernels compute in float32 or wider at every precision.
      preferred_element_type: dtype of the result and of the accumulation.
      out_sharding: as in lax, for explicit sharding.
      implementation: what computes the convolution and its gradients.

        - None: a native kernel if there is one, else lax, with one `FallbackWarning` for each reason. On a GPU also
          lax, without a warning, where it is expected to be clearly faster. XLA autotunes it: it may give other bits
          in another run.
        - "cuda", "cpu": a native kernel of that platform in every pass, or an error.
        - "simt", "im2col", "mma", "direct", "depthwise", "gather", "wgmma" on a GPU; "gemm", "depthwise" on a host:
          this kernel family in every pass, or an error.
        - "xla": lax itself.

        Where a file of measured plans is loaded (`load_tuning`), None takes the fastest measured plan, or lax. A
        platform or a family takes its own fastest measured plan. What the file does not have is estimated.

        On a GPU, tensor cores take narrow groups and few channels in packs. So an infinity or a NaN may make NaNs of
        results in neighbouring groups or columns that do not depend on it. These are of the same image and of the same
        member of a vmap.

    Returns:
      The convolution, with lax's result shape and dtype.

    Raises:
      TypeError, ValueError: where lax raises them. An unknown implementation is a ValueError.
      NotImplementedError: the named implementation cannot do this convolution. It is raised while tracing, or while
        lowering if the reason depends on the platform.
    """
    return _convolve(lax.conv_general_dilated, _bind, **locals())


def fused_conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    scale: Numbers | None = None,
    bias: Numbers | None = None,
    residual: Array | None = None,
    residual_scale: Numbers | None = None,
    activation: str | Activation | None = None,
    out_dtype: Any = None,
    out_scale: Numbers | None = None,
    implementation: str | None = None,
) -> Array:
    """`conv_general_dilated` that ends with an epilogue, where a kernel has it without another pass over the output.

    It computes ::

        out_scale * activation(scale * conv(lhs, rhs) + bias + residual_scale * residual)

    in float32 from the complete sums, in float64 if those are float64, and rounds once. With none of these arguments
    the convolution is as it is without an epilogue. It has the derivatives of `conv2d`: no forward mode at the top
    level. For relu and leaky_relu they need the result alone. For other activations, and for a quantised result, they
    need the activation's input: in a call that is differentiated the kernel computes that, and XLA applies the
    activation. It is rounded to out_dtype, unless that is quantised.

    Args:
      lhs, rhs: as in `conv_general_dilated`; with an epilogue not complex, nor integers but int8. One may be
        float8_e4m3fn and the other float8_e5m2: such have an out_dtype.
      window_strides, ... out_sharding: as in `conv_general_dilated`.
      scale, bias: float32, one number for each output channel of all groups, or one for all. With float64 sums also
        float64. These are of float64 operands, and of float32 ones with an out_dtype of float64.
      residual: an array of the output's shape, of any floating dtype or int8.
      residual_scale: a float32 number.
      activation: "relu", "relu6", "leaky_relu" (of slope 0.01), "gelu" (the tanh form), "silu", "hard_swish"; or
        `jaxconv.activations.Clip(low, high)` or `LeakyRelu(slope)`.
      out_dtype: of the result: float32, float64, bfloat16, float16, int8, float8_e4m3fn or float8_e5m2. Default: that
        of the convolution without epilogue, and float32 for int8 operands. `preferred_element_type` is another name, as
        far as lax allows it. The last three are quantised: rounded to nearest even, and to the largest finite number
        beyond it. A NaN stays NaN in float8, and is 0 as int8. An int8 result has no derivative; the rounding to float8
        has that of identity.
      out_scale: as scale, for a quantised result.
      implementation: as in `conv_general_dilated`. What a kernel cannot end with, XLA computes from the sums: where
        devices add up their parts of the sums; on a GPU int8 results of floats, those of float8 that Hopper's
        `wgmma` does not compute, and a residual with numbers that the result's dtype lacks.

    Returns:
      The result, of the convolution's shape and of out_dtype.

    Raises:
      TypeError: as `conv_general_dilated`, and where a dtype or a shape does not fit.
      ValueError: as `conv_general_dilated`, and for an unknown activation, a residual_scale without residual, an
        out_scale without a quantised out_dtype, or two different result dtypes.
      NotImplementedError: as `conv_general_dilated`.
    """
    arguments = locals()
    check_arrays(lhs=lhs, rhs=rhs)
    return _fused_or_plain(("lhs", "rhs"), **arguments)


def conv_transpose(
    lhs: Array,
    rhs: Array,
    strides: Sequence[int],
    padding: Padding,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
    *,
    implementation: str | None = None,
) -> Array:
    """A drop-in for `jax.lax.conv_transpose`: a convolution with fractional strides.

    It multiplies no zeros of the dilated input. With `transpose_kernel` it does not transpose the filter in memory.

    Args:
      lhs: input with n spatial dimensions; by default (batch, spatial..., in channels).
      rhs: filter of the same dtype; by default (spatial..., in channels, out channels).
      strides: n positive integers.
      padding: "SAME", "VALID", or n (low, high) pairs.
      rhs_dilation, dimension_numbers, transpose_kernel, precision, preferred_element_type, use_consistent_padding: as
        in lax.
      implementation: as in `conv_general_dilated`.

    Returns:
      The transposed convolution, with lax's result shape and dtype.

    Raises:
      TypeError, ValueError, NotImplementedError: as `conv_general_dilated`.
    """
    return _convolve(lax.conv_transpose, _bind_transposed if transpose_kernel else _bind, **locals())


def conv1d(
    x: Array,
    w: Array | PreparedFilter,
    *,
    window_strides: Ints = 1,
    padding: int | Padding = "SAME",
    lhs_dilation: Ints = 1,
    rhs_dilation: Ints = 1,
    feature_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: str | None = None,
    scale: Numbers | None = None,
    bias: Numbers | None = None,
    residual: Array | None = None,
    residual_scale: Numbers | None = None,
    activation: str | Activation | None = None,
    out_dtype: Any = None,
    out_scale: Numbers | None = None,
) -> Array:
    """`conv2d` of one spatial dimension: x (batch, width, channels), w (width, in channels / groups, out channels)."""
    return _conv(1, **locals())


def conv2d(
    x: Array,
    w: Array | PreparedFilter,
    *,
    window_strides: Ints = 1,
    padding: int | Padding = "SAME",
    lhs_dilation: Ints = 1,
    rhs_dilation: Ints = 1,
    feature_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: str | None = None,
    scale: Numbers | None = None,
    bias: Numbers | None = None,
    residual: Array | None = None,
    residual_scale: Numbers | None = None,
    activation: str | Activation | None = None,
    out_dtype: Any = None,
    out_scale: Numbers | None = None,
    layout: str = "NHWC",
) -> Array:
    """A convolution of channels-last images, with its derivatives as a `jax.custom_vjp`.

    It has reverse-mode derivatives of every order, and forward mode over reverse. It has no forward mode at the top
    level (jvp, jacfwd, jet), because custom_vjp has none: use `conv_general_dilated` for that.

    Args:
      x: images (batch, height, width, in channels), of a dtype as in `conv_general_dilated`.
      w: filter (height, width, in channels / feature_group_count, out channels), of x's dtype; of float8 also of the
        other one, with an out_dtype. Or such a filter from `prepare_filter`.
      window_strides: an integer, or one for each spatial dimension. Both dilations likewise.
      padding: "SAME", "SAME_LOWER", "VALID", an integer for all sides, or (low, high) pairs, which may be negative.
        "CIRCULAR", also in the place of a pair: the dimension is periodic, and padded with its other end, as in flax.
      lhs_dilation: dilation of x. It must be 1 if padding is a string, as in lax.
      rhs_dilation: dilation of w.
      feature_group_count: number of groups of the channels.
      precision: as in lax.
      preferred_element_type: dtype of the result and of the accumulation.
      out_sharding: as in lax, for explicit sharding. None with layout "NCHW32".
      implementation: as in `conv_general_dilated`.
      scale, bias, residual, residual_scale, activation, out_dtype, out_scale: a fused epilogue, as in
        `fused_conv_general_dilated`. With none of them the convolution is as it is without.
      layout: of x, residual and result. "NCHW32" is for int8 operands: (batch, channels / 32, height, width, 32), as
        `to_nchw32` makes it. w stays as it is. There are no groups and no lhs_dilation. Kernels read it as it lies, and
        write it so, if an epilogue ends in int8 and its residual is int8. Other results XLA converts.

    Returns:
      Images (batch, height, width, out channels), or as layout says, with lax's result shape and dtype.

    Raises:
      TypeError, ValueError, NotImplementedError: as `conv_general_dilated`.
    """
    arguments = locals()
    if (layout := arguments.pop("layout")) == blocks.NAME:
        if arguments.pop("out_sharding") is not None:
            raise ValueError(f"out_sharding must be None with layout {layout!r}, got {out_sharding!r}")
        return _conv_in_blocks(**arguments)
    if layout != "NHWC":
        raise ValueError(f'layout must be "NHWC" or "{blocks.NAME}", got {layout!r}')
    return _conv(2, **arguments)


def conv3d(
    x: Array,
    w: Array | PreparedFilter,
    *,
    window_strides: Ints = 1,
    padding: int | Padding = "SAME",
    lhs_dilation: Ints = 1,
    rhs_dilation: Ints = 1,
    feature_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: str | None = None,
    scale: Numbers | None = None,
    bias: Numbers | None = None,
    residual: Array | None = None,
    residual_scale: Numbers | None = None,
    activation: str | Activation | None = None,
    out_dtype: Any = None,
    out_scale: Numbers | None = None,
) -> Array:
    """`conv2d` of three spatial dimensions.

    x (batch, depth, height, width, channels), w (depth, height, width, in channels / groups, out channels).
    """
    return _conv(3, **locals())


def _conv(rank: int, x: Array, w: Array | PreparedFilter, **arguments: Any) -> Array:
    lhs_layout, rhs_layout, out_layout = LAYOUTS[rank]
    check_arrays(x=x)
    w, rhs_layout = array_and_axes(w, rhs_layout)
    check_arrays(w=w)
    for name, array, layout in (("x", x, lhs_layout), ("w", w, rhs_layout)):
        if array.ndim != rank + 2:
            raise TypeError(f"conv{rank}d: {name} must have {rank + 2} dimensions, {layout}, got shape {array.shape}")
    arguments |= _of_each_dimension(rank, arguments)
    return _conv_of(x, w, dimension_numbers=(lhs_layout, rhs_layout, out_layout), **arguments)


def _conv_in_blocks(x: Array, w: Array | PreparedFilter, **arguments: Any) -> Array:
    """conv2d of NCHW32."""
    arguments |= _of_each_dimension(2, arguments)
    arguments |= _checked(2, arguments)
    check_arrays(x=x)
    w, axes = array_and_axes_of_volumes(w)
    check_arrays(w=w)
    read = {name: arguments[name] for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")}
    volumes = blocks.of_volumes(x, w, axes, **read, groups=arguments["feature_group_count"])
    return _conv_of(x, w, in_blocks=True, **arguments | volumes._asdict())


def _of_each_dimension(rank: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that may be one integer for all dimensions, with an entry for each."""
    given = {name: repeated(name, arguments[name], rank) for name in OF_DIMENSIONS}
    if isinstance(arguments["padding"], int | np.integer):
        given["padding"] = ((arguments["padding"],) * 2,) * rank
    return given


def _checked(rank: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of each dimension that are used before all are checked."""
    return {name: of_dimensions(name, arguments[name], rank) for name in OF_DIMENSIONS}


def _conv_of(x: Array, w: Array, *, in_blocks: bool = False, **arguments: Any) -> Array:
    """in_blocks: whether the residual and the result have their channels in blocks, see `jaxconv.blocks`."""
    periodic = ()
    if circular := circular_dimensions(arguments["padding"], x.ndim - 2):
        arguments |= _checked(x.ndim - 2, arguments)
        if not isinstance(arguments["padding"], str):
            check_length("padding", arguments["padding"], x.ndim - 2)
        _, (_, _, *window), _ = lax.conv_dimension_numbers(x.shape, w.shape, arguments["dimension_numbers"])
        kernel = [w.shape[axis] for axis in window]
        x, arguments["padding"], periodic = _padded_with_other_ends(circular, x, kernel, **arguments)
    return _fused_or_plain(("x", "w"), x, w, periodic=periodic, in_blocks=in_blocks, **arguments)


def _padded_with_other_ends(
    circular: tuple[int, ...],
    x: Array,
    kernel: Sequence[int],
    *,
    padding: Sequence[Any],
    window_strides: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    **_: Any,
) -> tuple[Array, Pairs, tuple[int, ...]]:
    """x, the padding, and the dimensions that are periodic with it.

    These are such whose size the stride divides. Along the others the image is copied with its padding.
    """
    reach = [(size - 1) * dilation for size, dilation in zip(kernel, rhs_dilation, strict=True)]
    pads = [((reach[i] // 2, reach[i] - reach[i] // 2) if i in circular else padding[i]) for i in range(x.ndim - 2)]
    if any(lhs_dilation[i] != 1 for i in circular):
        raise ValueError(f'lhs_dilation must be 1 where padding is "CIRCULAR", got {lhs_dilation}')
    periodic = tuple(i for i in circular if x.shape[i + 1] % window_strides[i] == 0)
    return *_wrapped(x, pads, [i for i in circular if i not in periodic]), periodic


def _wrapped(x: Array, padding: Pairs, dims: Sequence[int]) -> tuple[Array, Pairs]:
    """x with its padding in some dimensions, and the padding of the others."""
    sides = [padding[i - 1] if i - 1 in dims else (0, 0) for i in range(x.ndim)]
    return jnp.pad(x, sides, "wrap"), [(0, 0) if i in dims else pair for i, pair in enumerate(padding)]


# From arguments to what answers them.


def _fused_or_plain(
    names: tuple[str, str], lhs: Array, rhs: Array, *, in_blocks: bool = False, **arguments: Any
) -> Array:
    """The convolution with an epilogue, if there is an argument of one, else without. names: those of lhs and rhs."""
    given = {name: arguments.pop(name) for name in epilogue.ARGUMENTS}
    is_fused = any(value is not None for value in given.values())
    epilogue.check_operands(names, lhs, rhs, is_fused)
    if is_fused or is_of_two_float8(lhs.dtype, rhs.dtype):
        return _convolve_fused(lhs, rhs, given, in_blocks=in_blocks, **arguments)
    y = _convolve(lax.conv_general_dilated, _bind_front, lhs, rhs, **arguments)
    return blocks.to_blocks(y) if in_blocks else y


def _convolve(
    lax_function: Callable[..., Array],
    bind: Callable[..., Any],
    lhs: Array,
    rhs: Array,
    implementation: Implementation,
    periodic: tuple[int, ...] = (),
    **arguments: Any,
) -> Array:
    """What lax's function would return, by `bind`, or by lax's function if no native kernel may take it.

    periodic: dimensions that are periodic, where lax would have no padding.
    """
    check_implementation(implementation, "xla")
    check_arrays(lhs=lhs, rhs=rhs)
    return _answer(lax_function, bind, implementation, periodic, normalised(lhs, rhs, arguments), lhs, rhs)


@eager.compiled(static=5)
def _answer(
    lax_function: Callable[..., Array],
    bind: Callable[..., Any],
    implementation: Implementation,
    periodic: tuple[int, ...],
    arguments: Arguments,
    lhs: Array,
    rhs: Array,
) -> Array:
    problem, sharding = read(lax_function, lhs, rhs, arguments)
    if implementation == "xla":
        return _answer_of_lax(lax_function, lhs, rhs, periodic, **dict(arguments))
    if (reason := unsupported_reason(problem)) is not None:
        hint = _hint_of_out_dtype(problem) if bind is _bind_front else ""
        fallback.warn_or_raise(f"{reason}{hint}", implementation, problem)
        return _answer_of_lax(lax_function, lhs, rhs, periodic, **dict(arguments))
    lhs, rhs = primitives.promote(as_array(lhs), as_array(rhs))
    return bind(lhs, rhs, replace(problem, periodic=periodic), implementation, sharding)


def _hint_of_out_dtype(problem: ConvProblem) -> str:
    """What a reason ends with, if kernels have such a result of int8 by an epilogue, from exact sums.

    A result of float64 would be float32 before. Of other operands sums would be narrower.
    """
    is_exact = problem.lhs_dtype == epilogue.INT8 and problem.out_dtype != "float64"
    if not is_exact or problem.out_dtype not in epilogue.RESULTS:
        return ""
    if unsupported_reason(epilogue.Epilogue(out_dtype=problem.out_dtype).of_sums(problem)) is not None:
        return ""
    return f' (kernels have it by out_dtype="{problem.out_dtype.name}")'


def _answer_of_lax(
    lax_function: Callable[..., Array],
    lhs: Array,
    rhs: Array,
    periodic: tuple[int, ...],
    *,
    padding: Sequence[Any],
    precision: Any,
    **arguments: Any,
) -> Array:
    if periodic:
        lhs, padding = _wrapped(lhs, padding, periodic)
    precision = precision_of_lax(precision)
    return fallback.by_lax(lax_function)(lhs, rhs, padding=padding, precision=precision, **arguments)


def _convolve_fused(
    lhs: Array,
    rhs: Array,
    given: dict[str, Any],
    implementation: Implementation,
    periodic: tuple[int, ...] = (),
    in_blocks: bool = False,
    **arguments: Any,
) -> Array:
    """The convolution with the epilogue of the arguments `given`, by kernels or by lax."""
    check_implementation(implementation, "xla")
    epilogue.check_given(given)
    activation, out_dtype = given.pop("activation"), given.pop("out_dtype")
    checked = normalised(lhs, rhs, arguments)
    return _answer_fused(implementation, periodic, in_blocks, checked, activation, out_dtype, lhs, rhs, given)


@eager.compiled(static=6)
def _answer_fused(
    implementation: Implementation,
    periodic: tuple[int, ...],
    in_blocks: bool,
    arguments: Arguments,
    activation: str | Activation | None,
    out_dtype: Any,
    lhs: Array,
    rhs: Array,
    given: dict[str, Any],
) -> Array:
    problem, sharding = _read(lhs, rhs, arguments)
    preferred = dict(arguments)["preferred_element_type"]
    end, operands = epilogue.read(problem, preferred, activation, out_dtype, in_blocks, **given)
    problem = replace(problem, out_dtype=problem.rhs_dtype, periodic=periodic)
    call = Call(problem, end, implementation, sharding)
    if implementation != "xla" and (reason := unsupported_reason(call.of_sums)) is not None:
        fallback.warn_or_raise(reason, implementation, call.of_sums)
        call = call._replace(implementation="xla")
    lhs, rhs, *arrays = primitives.promote(as_array(lhs), as_array(rhs), *operands.values())
    named = call.named(arrays) if in_blocks else call.placed(call.named(arrays))
    y: Array = fused_conv(call, lhs, rhs, named)
    return blocks.to_blocks(y) if in_blocks and not end.in_blocks else y


def _read(lhs: Array, rhs: Array, arguments: Arguments) -> tuple[ConvProblem, NamedSharding]:
    """`read`, also of two float8 types. lax takes one type: all but that is the same."""
    if not is_of_two_float8(lhs.dtype, rhs.dtype):
        return read(lax.conv_general_dilated, lhs, rhs, arguments)
    problem, sharding = read(lax.conv_general_dilated, lhs, rhs.astype(lhs.dtype), arguments)
    return replace(problem, rhs_dtype=rhs.dtype), sharding


# The ways to bind a problem.


def _bind(
    lhs: Array, rhs: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    if of_lax.are_summed_wide(problem) and (gradient := of_lax.weight_gradient(problem)) is not None:
        return primitives.wgrad(lhs, rhs, gradient, implementation, sharding)
    return primitives.conv(lhs, rhs, problem, implementation, sharding)


def _bind_transposed(
    lhs: Array, rhs: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    """With `transpose_kernel` lax reverses the filter and swaps its channels. Here the problem says both."""
    problem = replace(problem, rhs_shape=rhs.shape, rhs_spec=problem.rhs_spec.swapped(), reverse=True)
    return primitives.conv(lhs, rhs, problem, implementation, sharding)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _bind_front(
    x: Array, w: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    return primitives.conv(x, w, problem, implementation, sharding)


def _front_fwd(
    x: Array, w: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> tuple[Array, tuple[Array, Array]]:
    return primitives.conv(x, w, problem, implementation, sharding), (x, w)


def _front_bwd(
    problem: ConvProblem,
    implementation: Implementation,
    sharding: NamedSharding,
    residuals: tuple[Array, Array],
    g: Array,
) -> tuple[Array, Array]:
    x, w = residuals
    dx = primitives.conv(g, w, problem.dgrad(), implementation, jax.typeof(x).sharding)
    dw = primitives.wgrad(x, g, problem, implementation, jax.typeof(w).sharding)
    return dx, dw


_bind_front.defvjp(_front_fwd, _front_bwd)
