"""Sharded images over the devices of two processes: the halos cross from one to the other."""

import subprocess
import sys

from cases.processes import free_port

PROCESS = """
import sys
import jax, jaxconv, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

port, process = map(int, sys.argv[1:])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
x = np.arange(2 * 16 * 3 * 2, dtype=np.float32).reshape(2, 16, 3, 2) % 5 - 2
w = np.arange(3 * 3 * 2 * 4, dtype=np.float32).reshape(3, 3, 2, 4) % 7 - 3

def step(conv, x, w):
    loss = lambda x, w: (conv(x, w) ** 2).sum()
    return conv(x, w), *jax.grad(loss, argnums=(0, 1))(x, w)

ours = lambda x, w: jaxconv.conv2d(x, w, implementation="cpu")
theirs = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
with jax.default_device(jax.local_devices()[0]):
    expected = jax.device_get(jax.jit(step, static_argnums=0)(theirs, x, w))
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4,), ("a",), axis_types=(kind,))
    rows = NamedSharding(mesh, P(None, "a"))
    placed = jax.make_array_from_callback(x.shape, rows, lambda index: x[index])
    whole = jax.make_array_from_callback(w.shape, NamedSharding(mesh, P()), lambda index: w)
    with jax.set_mesh(mesh):
        program = jax.jit(step, static_argnums=0).lower(ours, placed, whole).compile()
    assert "all-gather" not in program.as_text()
    for result, right in zip(program(placed, whole), expected, strict=True):
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, right[shard.index])
    print(kind.name, "right")
"""


def run_both(tmp_path):
    port = str(free_port())
    commands = [[sys.executable, "-c", PROCESS, port, str(process)] for process in range(2)]
    processes = [
        subprocess.Popen(c, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands
    ]
    try:
        return [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_processes(tmp_path, monkeypatch):
    """Under either kind of mesh: most of the time is that of their start."""
    monkeypatch.delenv("XLA_FLAGS")  # the processes say how many devices they have
    for out, error in run_both(tmp_path):
        assert out.endswith("Auto right\nExplicit right\n"), error
