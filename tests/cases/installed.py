"""Programs of lax's convolutions on our kernels."""

import jaxconv
from cases.reference import assert_same, compiled, custom_calls, opcodes, run_on_host

ALL_PASSES = {"conv": 2, "wgrad": 1}


def calls_of_installed(function, args, implementation, rtol=0.0):
    """How many calls of each kind a program has after `install`: no other convolution is left, and values are lax's."""
    expected = run_on_host(function, *args)
    jaxconv.install(implementation)
    program = compiled(function, *args)
    hlo = program.as_text()
    assert "convolution" not in opcodes(hlo) and "__cudnn" not in hlo
    assert_same(program(*args), expected, rtol)
    return custom_calls(hlo)
