"""Calls outside of every trace.

There the Python between a call and its kernel takes longer than a small convolution. So a signature becomes a program,
which `jax.jit` finds in C++ by its static arguments and by the types of its arrays. Under a trace the function is
called as it is: jaxprs would have a call around each convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax

from jaxconv import fallback
from jaxconv._jax_private import trace_state_clean

Function = Callable[..., jax.Array]


def compiled(static: int) -> Callable[[Function], Function]:
    """A decorator: outside of every trace, the function is compiled.

    static: how many arguments come first that are hashable. The others hold arrays.
    """

    def decorated(function: Function) -> Function:
        # A program that was compiled with a warning must not answer when the warning is an error.
        @partial(jax.jit, static_argnums=range(1 + static))
        def convolution(warnings_are_errors: bool, *arguments: Any) -> jax.Array:
            return function(*arguments)

        @wraps(function)
        def call(*arguments: Any) -> jax.Array:
            if trace_state_clean():
                return convolution(fallback.warnings_are_errors(), *arguments)
            return function(*arguments)

        return call

    return decorated
