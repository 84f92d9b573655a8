"""What `precision` asks: how float32 is multiplied on a GPU. The host's kernels compute in float32 at any."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from jaxconv.compiled import planning

Float32 = planning.Float32
Preset = lax.DotAlgorithmPreset


OF_PRESET = {
    Preset.BF16_BF16_F32: Float32.BF16,
    Preset.TF32_TF32_F32: Float32.TF32,
    Preset.BF16_BF16_F32_X3: Float32.BF16X6,
    Preset.TF32_TF32_F32_X3: Float32.BF16X6,
    Preset.BF16_BF16_F32_X6: Float32.BF16X6,
    Preset.BF16_BF16_F32_X9: Float32.FLOAT32,
    Preset.F32_F32_F32: Float32.FLOAT32,
}


# Of float8, as it is. They are none for float32.
OF_FLOAT8 = frozenset(preset for preset in Preset if preset.name.startswith("ANY_F8_ANY_F8_"))


def names_algorithm(precision: Any) -> bool:
    """Whether it is an algorithm. lax takes one for a convolution, and computes as at DEFAULT."""
    return isinstance(precision, lax.DotAlgorithm | Preset) and precision is not Preset.DEFAULT


def check_pair(precision: Any) -> None:
    """TypeError, as from lax, which names no argument, for a pair with the name of an algorithm."""
    of_pair = precision if isinstance(precision, tuple | list) else ()
    if any(isinstance(name, str) and name != "DEFAULT" and name in Preset.__members__ for name in of_pair):
        raise TypeError(
            f"precision must be one algorithm, or a pair of lax.Precision or their names, got {precision!r}"
        )


def precision_of_lax(precision: Any) -> Any:
    """At which lax is no less exact. precision: lax's argument, which may be a name, or None for the context's."""
    context = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    asked = context if precision is None else precision
    named = Preset.__members__.get(asked) if isinstance(asked, str) else asked
    return (lax.Precision.HIGHEST, lax.Precision.HIGHEST) if names_algorithm(named) else precision


def unsupported_reason(precision: Any) -> str | None:
    """Why float32 is not multiplied so."""
    if not names_algorithm(precision) or precision in OF_PRESET:
        return None
    names = ", ".join(preset.name for preset in OF_PRESET)
    return f"float32 is multiplied by one of the algorithms {names}, not by {precision}"


def allows_float8(precision: Any) -> bool:
    """Whether float8 may be multiplied as it is. Precisions above the default are for wider types."""
    is_default = float32_of(precision) in (Float32.BF16, Float32.TF32)
    return is_default or (isinstance(precision, Preset) and precision in OF_FLOAT8)


def float32_of(precision: Any) -> Float32:
    """Of an algorithm that is none for float32, operands have other types: then it does not matter."""
    if names_algorithm(precision):
        return OF_PRESET.get(precision, Float32.FLOAT32)
    is_highest = lax.Precision.HIGHEST in (precision if isinstance(precision, tuple) else (precision,))
    return Float32.BF16X6 if is_highest else Float32.TF32


def text_of(precision: Any) -> str:
    """What the text of a problem of float32 ends with, if that is not the default."""
    if names_algorithm(precision):
        return f", algorithm {getattr(precision, 'name', precision)}"
    return ", precision HIGHEST" if float32_of(precision) is Float32.BF16X6 else ""
