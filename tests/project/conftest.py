"""Fixtures of the tests that fit the planner's costs."""

import pytest

from convbench.tuning import data_files


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Copies of the files that --write changes."""
    costs = tmp_path / "device_data" / "h200.json"
    costs.parent.mkdir()
    costs.write_text((data_files.DEVICE_DATA / "h200.json").read_text())
    monkeypatch.setattr(data_files, "DEVICE_DATA", costs.parent)
    monkeypatch.setattr(data_files, "FITS", tmp_path / "fits")
    return costs
