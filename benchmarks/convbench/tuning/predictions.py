"""What the planner says of measured rows, with costs on trial: by the cost functions of the families themselves."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

import jax
import numpy as np

import jaxconv
from convbench.cases import Case
from convbench.programs import problem_of, program
from convbench.rows import grouped
from convbench.selection import cases_of, refuse_unknown
from convbench.tuning.candidates import transform_text
from jaxconv.planner.candidate import Asked, Candidate
from jaxconv.planner.choose import Version, options, version_of
from jaxconv.planner.devices import COSTS, Costs, Device
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import ANY
from jaxconv.problem.product import Product

LAYER = "case", "pass", "dtype", "precision"  # the fields of a row that say what a kernel is chosen for
_TRIALS = count()


def layer_of(row: dict) -> tuple[str, ...]:
    return tuple(row[field] for field in LAYER)


@dataclass(frozen=True)
class Measured:
    """A row with a time, and what the planner is asked for it."""

    row: dict
    version: Version

    def candidate(self, device: Device) -> Candidate:
        asked = Asked(self.row["settings"], self.row["tile"], is_named=True)
        (candidate,) = FAMILIES["cuda"][self.row["family"]].candidates(self.version.product, device, asked)
        return candidate

    def seconds(self, device: Device) -> float:
        return self.candidate(device).seconds + self.version.conversion_seconds(device)


def measured(rows: Iterable[dict], cases: Iterable[Case], device: Device) -> list[Measured]:
    """The rows with a time, without those of candidates that the planner does not have any more.

    Raises:
      SystemExit: a row is of an unknown case or family.
    """
    rows = list(rows)
    by_name = cases_of(rows, cases)
    refuse_unknown({row["family"] for row in rows}, FAMILIES["cuda"])
    found = []
    for (case, which, dtype, precision), of_one in grouped(rows, *LAYER).items():
        versions = _versions(by_name[case], which, dtype, precision, device)
        known = (row for row in of_one if row["us"] and (row["family"], row["transform"]) in versions)
        found += [Measured(row, versions[row["family"], row["transform"]]) for row in known]
    return [each for each in found if each.candidate(device).reason is None]


def log_seconds(rows: Collection[Measured], device: Device) -> np.ndarray:
    """Logarithms of the predicted seconds."""
    return np.log([each.seconds(device) for each in rows])


@contextmanager
def trial(device: Device, changed: Mapping[str, Costs]) -> Iterator[Device]:
    """The device, with other costs in some sections. The planner knows costs by the name of their file."""
    name = f"trial {next(_TRIALS)}"  # never the same: the planner keeps what it has made of a device
    COSTS[name] = {**COSTS[device.costs], **changed}
    try:
        yield replace(device, costs=name)
    finally:
        del COSTS[name]


def _versions(case: Case, which: str, dtype: str, precision: str, device: Device) -> dict[tuple[str, str], Version]:
    """By family and transform's text."""
    with jax.enable_x64(dtype == "float64"):
        product = Product(*problem_of(program(case, which, dtype, precision, jaxconv.conv_general_dilated)))
    versions = {}
    for option in options("cuda", product, ANY, device):
        place = option.family, transform_text(option.transform)
        if option.candidate.reason is None and place not in versions:
            versions[place] = version_of(option.transform, product)
    return versions
