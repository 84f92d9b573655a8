"""Fixtures of the tests that measure, and that fit the planner's costs."""

import jax
import pytest

from cases.machines import MACHINE
from convbench import machine
from convbench.tuning import data_files


@pytest.fixture
def an_h200(monkeypatch):
    """A machine that seems to have one."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(machine, "describe", lambda: MACHINE)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Copies of the files that --write changes."""
    costs = tmp_path / "device_data" / "h200.json"
    costs.parent.mkdir()
    costs.write_text((data_files.DEVICE_DATA / "h200.json").read_text())
    monkeypatch.setattr(data_files, "DEVICE_DATA", costs.parent)
    monkeypatch.setattr(data_files, "FITS", tmp_path / "fits")
    return costs
