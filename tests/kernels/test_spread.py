"""One infinity reaches as many results as docs/numerics.md lists, of its own image alone."""

import json

import jax
import pytest

from cases.numerics_page import PAGE
from cases.reference import HOST
from cases.spread import LAYERS, TABLE, measure, rows

RECORDED = json.loads(TABLE.read_text())


def check(layer):
    found = measure(layer)
    assert found == RECORDED[str(layer)]
    assert found and not any(of_others for _, _, of_others in found.values())


@pytest.mark.parametrize("layer", LAYERS["cpu"], ids=str)
def test_on_a_host(layer):
    with jax.default_device(HOST):
        check(layer)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", LAYERS["cuda"], ids=str)
def test_on_a_gpu(layer):
    check(layer)


def test_the_page_has_the_table():
    page = PAGE.read_text()
    for row in rows(RECORDED):
        assert all(cell in page for cell in row)
