"""Runs the tests of this folder on the host, wherever JAX would."""

import pytest


@pytest.fixture(autouse=True)
def everything_on_the_host(on_the_host):
    pass
