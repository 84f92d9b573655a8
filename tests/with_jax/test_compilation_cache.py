"""JAX's persistent compilation cache and convolutions that XLA's partitioner splits, in two processes."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
from jax import lax

from cases.reference import integers, run_on_host

# Convolutions of equal types: arguments, what of the package or the planning device is another, and the kind of mesh.
PLAIN = {"window_strides": (1,), "padding": ((1, 1),), "implementation": "cpu"}
CONVOLUTIONS = {
    "plain": (PLAIN, {}),
    "padding": (PLAIN | {"padding": ((0, 2),)}, {}),
    "strides": (PLAIN | {"window_strides": (2,), "padding": ((5, 4),)}, {}),
    "dilation": (PLAIN | {"rhs_dilation": (2,), "padding": ((2, 2),)}, {}),
    "implementation": (PLAIN | {"implementation": "gemm"}, {}),
    "relu": (PLAIN | {"activation": "relu"}, {}),
    "relu6": (PLAIN | {"activation": "relu6"}, {}),
    "version": (PLAIN, {"jaxconv.sharding.cache_key.package": "a later version"}),
    "device": (PLAIN, {"jaxconv.ffi.device": "another GPU"}),
}
EXPLICIT = (PLAIN, {}, "Explicit")
X, W = integers((8, 8, 3)), integers((3, 3, 4))

PROCESS = """
import contextlib, json, sys
from unittest import mock
import jax, jaxconv, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

folder, flag, convolutions = sys.argv[1], *map(json.loads, sys.argv[2:])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", flag)
operands = np.load(folder + "/operands.npz")
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
jax.config.update("jax_compilation_cache_dir", folder + "/cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

def answer(arguments, replaced, kind="Auto"):
    mesh = jax.make_mesh((4,), ("a",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    x = jax.device_put(operands["x"], NamedSharding(mesh, P("a")))
    w = jax.device_put(operands["w"], NamedSharding(mesh, P()))
    function = jaxconv.fused_conv_general_dilated if "activation" in arguments else jaxconv.conv_general_dilated
    conv = lambda x, w: function(x, w, dimension_numbers=("NWC", "WIO", "NWC"), **arguments)
    events.clear()
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch(name, return_value=value))
        y = jax.jit(conv)(x, w)
    return events.count("/jax/compilation_cache/cache_hits"), np.asarray(y).tolist()

print(json.dumps({name: answer(*convolution) for name, convolution in convolutions.items()}))
"""


def in_a_process(folder, convolutions, flag):
    """Each convolution's hits of the cache and its result, in a process with four devices of the host."""
    np.savez(folder / "operands", x=X, w=W)
    arguments = [str(folder), *map(json.dumps, (flag, convolutions))]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"  # the last one counts
    environment = os.environ | {"XLA_FLAGS": flags}
    run = subprocess.run(
        [sys.executable, "-c", PROCESS, *arguments], check=True, cwd=folder, env=environment, stdout=subprocess.PIPE
    )
    return json.loads(run.stdout)


def entries(folder):
    return len(list((folder / "cache").glob("*-cache")))


def expected(implementation, activation=None, **arguments):
    conv = functools.partial(lax.conv_general_dilated, dimension_numbers=("NWC", "WIO", "NWC"), **arguments)
    activate = getattr(jax.nn, activation) if activation else lambda y: y
    return run_on_host(lambda x, w: activate(conv(x, w)), X, W)


def test_another_process_hits_for_the_same_convolution_alone(tmp_path):
    """With JAX's flag. What differs in anything has an entry of its own, and its own numbers."""
    in_a_process(tmp_path, {"plain": CONVOLUTIONS["plain"]}, flag=True)
    before = entries(tmp_path)
    answers = in_a_process(tmp_path, CONVOLUTIONS, flag=True)
    for name, (hits, y) in answers.items():
        np.testing.assert_array_equal(np.array(y, np.float32), expected(**CONVOLUTIONS[name][0]), err_msg=name)
        assert hits == (name == "plain"), name
    assert entries(tmp_path) == before + len(CONVOLUTIONS) - 1


def test_only_explicit_meshes_share_without_the_flag(tmp_path):
    for name, expected_hits in (("plain", 0), ("padding", 1)):
        answers = in_a_process(tmp_path, {name: CONVOLUTIONS[name], "explicit": EXPLICIT}, flag=False)
        for convolution, (arguments, *_) in {name: CONVOLUTIONS[name], "explicit": EXPLICIT}.items():
            y = np.array(answers[convolution][1], np.float32)
            np.testing.assert_array_equal(y, expected(**arguments), err_msg=convolution)
        assert (answers[name][0], answers["explicit"][0]) == (0, expected_hits)
