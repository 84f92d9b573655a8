"""What happens to the complete sums of a convolution before they are stored.

    out_scale * activation(scale * sums + bias + residual_scale * residual)

It is computed in float32, or in float64 for sums of float64, and rounded once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxconv import blocks
from jaxconv.activations import Activation, Clip, activation_of
from jaxconv.arguments import as_array, check_array
from jaxconv.compiled import planning
from jaxconv.problem import ConvProblem
from jaxconv.problem.wider import FLOAT8, is_of_two_float8

# The operands, in the order of primitives' and custom calls' arguments. Those that are absent are left out.
EPILOGUE_OPERANDS = ("scale", "bias", "residual", "residual_scale", "out_scale")
PER_CHANNEL = ("scale", "bias", "out_scale")
LIKE_RESULT = ("residual",)  # arrays of the result's shape, which lie as it does. The others are numbers
ARGUMENTS = (*EPILOGUE_OPERANDS, "activation", "out_dtype")

RESULTS = tuple(map(jnp.dtype, ("float32", "float64", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")))
QUANTISED = tuple(dtype for dtype in RESULTS if planning.is_quantised(dtype.name))
RESULT_NAMES = ", ".join(dtype.name for dtype in RESULTS)
INT8, FLOAT32 = np.dtype("int8"), np.dtype("float32")


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """Which operands there are, of `EPILOGUE_OPERANDS` and in their order, and what is known of the rest.

    in_blocks: the result and the residual have their channels in blocks, where the sums are a volume of depth 1. Only
      an int8 result, which has no derivative.
    """

    operands: tuple[str, ...] = ()
    activation: Activation | None = None
    out_dtype: np.dtype = FLOAT32
    in_blocks: bool = False

    @property
    def is_quantised(self) -> bool:
        return self.out_dtype in QUANTISED

    @property
    def keeps_sums(self) -> bool:
        """Whether the derivative needs what the activation is applied to, because the result does not tell."""
        if self.is_quantised:
            return self.activation is not None or "out_scale" in self.operands
        return not (self.activation is None or self.activation.derivative_from_result(self.out_dtype))

    @property
    def for_kernels(self) -> Epilogue:
        """The same as something that is to be done: without an epilogue kernels round float8 as XLA converts."""
        if self.out_dtype not in FLOAT8 or self.operands or self.activation:
            return self
        return dataclasses.replace(self, activation=Clip(-self.largest, self.largest))

    @property
    def largest(self) -> float:
        """The largest number of a float result."""
        return float(jnp.finfo(self.out_dtype).max)

    def before_activation(self, problem: ConvProblem) -> Epilogue:
        """What comes before the activation, as exact as the result; for a quantised result it is not rounded."""
        operands = tuple(name for name in self.operands if name != "out_scale")
        return Epilogue(operands, None, self.number_dtype(problem) if self.is_quantised else self.out_dtype)

    def sums_dtype(self, problem: ConvProblem) -> np.dtype:
        """The dtype of the sums before the epilogue. XLA may compute the epilogue, also for results that kernels do not
        have.
        """
        return jnp.dtype(planning.sum_type(problem.rhs_dtype.name, self.out_dtype.name))

    def number_dtype(self, problem: ConvProblem) -> np.dtype:
        """That the epilogue is computed in."""
        return jnp.dtype(planning.epilogue_type(problem.rhs_dtype.name, self.out_dtype.name))

    def apply(self, problem: ConvProblem, sums: Array, operands: Mapping[str, Array]) -> Array:
        """The result. problem: of the sums, whatever its dtypes."""
        if self.in_blocks and "residual" in operands:
            operands = {**operands, "residual": blocks.from_blocks(operands["residual"])}
        z = self.linear(problem, sums, operands)
        y = self.rounded(self.activated(problem, z, operands.get("out_scale")))
        return blocks.to_blocks(y) if self.in_blocks else y

    def named(self, operands: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.operands, operands, strict=True))

    def of_sums(self, problem: ConvProblem) -> ConvProblem:
        """The problem with the sums as its result."""
        return dataclasses.replace(problem, out_dtype=self.sums_dtype(problem), out_in_blocks=False)

    def ended(self, problem: ConvProblem) -> ConvProblem:
        """The problem with the result that the epilogue gives it."""
        return dataclasses.replace(problem, out_dtype=self.out_dtype, out_in_blocks=self.in_blocks)

    def linear(self, problem: ConvProblem, sums: Array, operands: Mapping[str, Array]) -> Array:
        """What the activation is applied to."""
        dtype = self.number_dtype(problem)
        z = sums.astype(dtype)
        if "scale" in operands:
            z = of_channels(problem, operands["scale"].astype(dtype)) * z
        if "bias" in operands:
            z = z + of_channels(problem, operands["bias"].astype(dtype))
        if "residual" in operands:
            residual = operands["residual"].astype(dtype)
            z = z + (operands["residual_scale"].astype(dtype) * residual if "residual_scale" in operands else residual)
        return z

    def activated(self, problem: ConvProblem, z: Array, out_scale: Array | None) -> Array:
        """What is rounded."""
        z = z.astype(self.number_dtype(problem))
        y = z if self.activation is None else self.activation(z)
        return y if out_scale is None else of_channels(problem, out_scale.astype(y.dtype)) * y

    def rounded(self, y: Array) -> Array:
        """In the result's dtype: to nearest even; quantised ones end at the largest number. As int8, NaN is 0."""
        if self.out_dtype == INT8:
            whole = jnp.clip(jnp.round(y), -128, 127)
            return jnp.where(jnp.isnan(y), 0, whole).astype(INT8)
        if self.is_quantised:
            y = jnp.clip(y, -self.largest, self.largest)
        return y.astype(self.out_dtype)


NOTHING = Epilogue()


def of_channels(problem: ConvProblem, numbers: Array) -> Array:
    """One number, or one for each output channel of all groups, in a shape that broadcasts to the output's."""
    if numbers.ndim == 0:
        return numbers
    p = problem
    table = jnp.expand_dims(numbers, 0)
    if p.out_batch_grouped:  # the images of a group have its channels
        images = p.out_shape[p.out_spec.first]
        table = numbers.reshape(p.groups, 1, p.out_channels)
        table = jnp.broadcast_to(table, (p.groups, images // p.groups, p.out_channels)).reshape(images, p.out_channels)
    table = jnp.expand_dims(table, tuple(range(2, len(p.out_shape))))
    return jnp.transpose(table, sorted(range(table.ndim), key=lambda axis: p.out_spec.axes[axis]))


# From arguments.


def check_operands(names: tuple[str, str], lhs: Array, rhs: Array, is_fused: bool) -> None:
    """Raises TypeError for dtypes of a convolution's operands that are not for each other, as lax does, or not for an
    epilogue.

    names: of the operands. is_fused: whether there is an epilogue.
    """
    if lhs.dtype == rhs.dtype and (not is_fused or _may_end(rhs.dtype)):
        return
    both, (a, b) = " and ".join(names), (jax.typeof(array).dtype for array in (lhs, rhs))
    if a != b and not is_of_two_float8(a, b):
        float8 = " and ".join(sorted(dtype.name for dtype in FLOAT8))
        raise TypeError(f"{both} must be of one dtype, or of {float8} with an out_dtype, got {a.name} and {b.name}")
    if is_fused and not _may_end(b):
        raise TypeError(f"{both} of a convolution with an epilogue must be of a floating dtype or int8, got {b.name}")


def _may_end(dtype: np.dtype) -> bool:
    """Whether a convolution of such operands may have an epilogue."""
    return dtype == INT8 or jnp.issubdtype(dtype, jnp.floating)


def check_given(given: dict[str, Any]) -> None:
    """Before `read`, where numbers may be traced, which an error cannot show, and a list could not be hashed.

    Python's integers become floats: JAX's have 32 bits."""
    activation_of(given["activation"])
    if given["residual_scale"] is not None and given["residual"] is None:
        raise ValueError(f"residual_scale is for a residual, and residual is None; got {given['residual_scale']!r}")
    for name in EPILOGUE_OPERANDS:
        given[name] = _checked(name, given[name])
    try:
        jnp.dtype(given["out_dtype"])
    except TypeError as error:
        raise TypeError(f"out_dtype must be one of {RESULT_NAMES}, got {given['out_dtype']!r}") from error


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{name} must be within the range of floats, got {value}") from error
    dtype = getattr(value, "dtype", None)
    is_number = value is None or isinstance(value, bool | float | complex | list | tuple)
    if not is_number and (dtype is None or jnp.issubdtype(dtype, jax.dtypes.extended)):
        raise TypeError(f"{name} must be an array or a number, got {value!r}")
    check_array(name, value)
    return value


def read(
    problem: ConvProblem, preferred: Any, activation: Any, out_dtype: Any, in_blocks: bool = False, **operands: Any
) -> tuple[Epilogue, dict[str, Array]]:
    """The epilogue of a convolution, and its operands that are given.

    problem: with the result that lax has. preferred: lax's `preferred_element_type`. in_blocks: the residual has its
    channels in blocks, and so has the result, if an epilogue can have it so. operands: by `EPILOGUE_OPERANDS`; those
    that are not given are None.
    """
    given = {name: operands[name] for name in EPILOGUE_OPERANDS if operands[name] is not None}
    result = _result(problem, preferred, out_dtype)
    epilogue = Epilogue(tuple(given), activation_of(activation), result, in_blocks and result == INT8)
    if "out_scale" in given and not epilogue.is_quantised:
        names = ", ".join(dtype.name for dtype in QUANTISED)
        raise ValueError(f"out_scale is for an out_dtype of {names}, got out_dtype {epilogue.out_dtype.name}")
    dtype = epilogue.number_dtype(problem)
    channels = (problem.groups * problem.out_channels,)
    arrays = {}
    for name, value in given.items():
        if name in LIKE_RESULT:
            residual = _residual(dataclasses.replace(problem, out_in_blocks=in_blocks), value)
            arrays[name] = blocks.from_blocks(residual) if in_blocks and not epilogue.in_blocks else residual
        else:
            shapes = ((), channels) if name in PER_CHANNEL else ((),)
            arrays[name] = _numbers(name, value, dtype, shapes)
    return epilogue, arrays


def _result(problem: ConvProblem, preferred: Any, out_dtype: Any) -> np.dtype:
    """The result's dtype. Without any argument it is lax's, but sums of int8 become float32."""
    if preferred is None and out_dtype is None and is_of_two_float8(problem.lhs_dtype, problem.rhs_dtype):
        both = f"{problem.lhs_dtype.name} and {problem.rhs_dtype.name}"
        raise TypeError(f"out_dtype must be one of {RESULT_NAMES} for operands of {both}, got None")
    default = FLOAT32 if problem.rhs_dtype == INT8 else problem.out_dtype
    asked = None if out_dtype is None else _canonical(out_dtype)
    name, dtype = ("out_dtype", asked) if preferred is None else ("preferred_element_type", problem.out_dtype)
    dtype = default if dtype is None else dtype
    if None not in (preferred, asked) and dtype != asked:
        raise ValueError(
            f"preferred_element_type and out_dtype are both the result's dtype, got {jnp.dtype(preferred).name} and "
            f"{jnp.dtype(out_dtype).name}"
        )
    if dtype not in RESULTS:
        name = "out_dtype (by default lax's result)" if preferred is None and out_dtype is None else name
        raise TypeError(f"{name} of a convolution with an epilogue must be one of {RESULT_NAMES}, got {dtype.name}")
    return dtype


def _canonical(out_dtype: Any) -> np.dtype:
    """The dtype as JAX has it: without x64, float64 is float32, with the warning of a `preferred_element_type`."""
    canonical = jax.dtypes.canonicalize_dtype(out_dtype)
    if canonical == jnp.dtype(out_dtype) or canonical not in RESULTS:
        return canonical
    of_lax = partial(lax.conv_general_dilated, window_strides=(), padding=(), preferred_element_type=out_dtype)
    return jax.eval_shape(of_lax, *[jax.ShapeDtypeStruct((1, 1), FLOAT32)] * 2).dtype


def _numbers(name: str, value: Any, dtype: np.dtype, shapes: tuple[tuple[int, ...], ...]) -> Array:
    """A scale or a bias, of the dtype that the epilogue is computed in, or of float32."""
    array = as_array(value)
    is_real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    if array.weak_type and is_real:  # a Python number
        array = array.astype(dtype)
    if array.dtype not in (FLOAT32, dtype):
        allowed = FLOAT32.name if dtype == FLOAT32 else f"{FLOAT32.name} or {dtype.name}"
        raise TypeError(f"{name} must be {allowed}, got {array.dtype.name}")
    if array.shape not in shapes:
        allowed = " or ".join(map(str, shapes))
        of_channels = ", one number for each output channel" if len(shapes) > 1 else ""
        raise TypeError(f"{name} must have shape {allowed}{of_channels}, got shape {array.shape}")
    return array


def _residual(problem: ConvProblem, value: Any) -> Array:
    array = as_array(value)
    if array.dtype != INT8 and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"residual must be of a floating dtype or int8, got {array.dtype.name}")
    if array.shape != problem.stored_shape("out"):
        raise TypeError(f"residual must have the output's shape {problem.stored_shape('out')}, got shape {array.shape}")
    return array
