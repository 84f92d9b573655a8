"""The files that keep the costs of GPUs, and the record of what they were fitted to."""

import json
from collections.abc import Mapping
from pathlib import Path

from convbench.tuning.predictions import Costs
from jaxconv.planner import devices

DEVICE_DATA = devices.DATA
BENCHMARKS = Path(__file__).parent.parent.parent
FITS = BENCHMARKS / "fits"  # {section: {"date": ..., "passes": {pass: quality}}}; lax has "kinds": {kind: error}


def owner(name: str) -> str:
    """The GPU that a file of costs is of: the first of the models that use it."""
    return next(kind for kind, device in devices.MODELS.items() if device.costs == name)


def write(name: str, costs: Mapping[str, Costs], records: Mapping[str, dict]) -> None:
    """Replaces the numbers and the records of some sections."""
    _update(DEVICE_DATA / f"{name}.json", costs)
    FITS.mkdir(exist_ok=True)
    _update(FITS / f"{name}.json", records)


def record(name: str, section: str) -> dict:
    """What a section of a file of costs was fitted to, if it was."""
    return _read(FITS / f"{name}.json").get(section, {})


def _read(path: Path) -> dict[str, dict]:
    return json.loads(path.read_text()) if path.exists() else {}


def _update(path: Path, sections: Mapping[str, Mapping]) -> None:
    path.write_text(json.dumps({**_read(path), **sections}, indent=1) + "\n")
