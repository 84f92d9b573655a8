"""Runs the tests of this folder on the host, wherever JAX would."""

import jax
import pytest

from cases.reference import HOST


@pytest.fixture(autouse=True)
def on_the_host():
    with jax.default_device(HOST):
        yield
