"""The example of sharded volumes: a training step is that of one device, and a device holds a part of the memory."""

import jax
import numpy as np
import pytest

from cases.files import EXAMPLES, module_at
from cases.meshes import exchanged
from cases.reference import HOST


@pytest.fixture(scope="module")
def example():
    module = module_at(EXAMPLES / "sharded_volume.py")
    module.CHANNELS = (2, 4)
    return module


def test_a_step_is_that_of_one_device(example, capsys):
    on = example.mesh_of(jax.devices("cpu"), batch=2)
    assert on.shape == {"batch": 2, "depth": 4}
    with jax.default_device(HOST):
        params, batch = example.initial_params(jax.random.key(0)), example.random_batch(0, batch=2, size=16)
    step = jax.jit(jax.value_and_grad(example.loss_of))
    split, whole = example.shardings(on)
    alone = step.lower(*jax.device_put((params, batch), HOST)).compile()
    together = step.lower(jax.device_put(params, whole), jax.device_put(batch, split)).compile()
    expected = alone(*jax.device_put((params, batch), HOST))
    actual = together(jax.device_put(params, whole), jax.device_put(batch, split))
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
    assert "all-gather" not in exchanged(together.as_text())
    memory = [program.memory_analysis().temp_size_in_bytes for program in (alone, together)]
    print(f"temporary memory of a step: {memory[0]} bytes alone, {memory[1]} a device of eight")
    assert memory[1] < memory[0] / 3


@pytest.mark.full
def test_command(example, tmp_path, capsys):
    figure = tmp_path / "figure.png"
    example.main(["--size", "16", "--steps", "2", "--out", str(figure)])
    assert figure.stat().st_size > 10_000
    assert "collective-permute" in capsys.readouterr().out
