"""The costs of a family that say best what was measured.

They are fitted by the logarithms of predicted / measured. The unknowns are logarithms, too: of what the numbers are
multiplied by, so that all stay positive.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from convbench.tuning.predictions import Costs, Measured, log_seconds, trial
from jaxconv.planner.devices import COSTS, Device

STEP = 0.02  # for derivatives: of a number's logarithm, to either side. Costs that round to whole CTAs need it large
REACH = np.log(2)  # a number that changes nothing when it is doubled or halved is not determined
PULL = 0.05  # doubling a number costs as much as a row that is wrong by 0.05 * log(2)
OUTLIER = 0.1  # errors beyond it count linearly, not squared
# Clusters that a GPU holds. The planner chose the measured splits by these numbers: the rows cannot correct them.
FIXED = {"cluster_held", "large_cluster_held"}


def fit(family: str, rows: Sequence[Measured], device: Device) -> dict[str, float]:
    """The family's numbers by name: three digits of each that the rows determine. The others, and FIXED, stay.

    rows: of the family.
    """
    return _Fit(family, rows, device).solved()


class _Fit:
    def __init__(self, family: str, rows: Sequence[Measured], device: Device) -> None:
        self.family, self.rows, self.device = family, rows, device
        self.start: Costs = COSTS[device.costs][family]
        self.measured = np.log([1e-6 * each.row["us"] for each in rows])
        reached = {name: self._reached(name) for name, value in self.start.items() if value > 0 and name not in FIXED}
        self.reached = {name: places for name, places in reached.items() if places.size}

    def solved(self) -> dict[str, float]:
        if not self.reached:
            return dict(self.start)
        found = least_squares(
            self._errors,
            np.zeros(len(self.reached)),
            self._derivatives,  # pyright: ignore[reportArgumentType] (SciPy has no types: one is guessed from a default)
            loss="soft_l1",
            f_scale=OUTLIER,
        )
        costs = self._costs(found.x)
        rounded = {name: float(f"{cost:.3g}") for name, cost in costs.items()}
        return dict(self.start) | {name: cost for name, cost in rounded.items() if cost != self.start[name]}

    def _reached(self, name: str) -> np.ndarray:
        """Places of the rows whose prediction depends on a number."""
        every = range(len(self.rows))
        less, more = (self._predicted({name: self.start[name] * np.exp(by)}, every) for by in (-REACH, REACH))
        return np.flatnonzero(less != more)

    def _costs(self, logs: np.ndarray) -> dict[str, float]:
        return {name: self.start[name] * np.exp(log) for name, log in zip(self.reached, logs)}

    def _predicted(self, changed: Costs, places: Sequence[int] | np.ndarray) -> np.ndarray:
        with trial(self.device, {self.family: {**self.start, **changed}}) as device:
            return log_seconds([self.rows[place] for place in places], device)

    def _errors(self, logs: np.ndarray) -> np.ndarray:
        """Of each row, then the pull of each number to where it was."""
        return np.append(self._predicted(self._costs(logs), range(len(self.rows))) - self.measured, PULL * logs)

    def _derivatives(self, logs: np.ndarray) -> np.ndarray:
        of_rows = np.zeros((len(self.rows), len(logs)))
        for column, places in enumerate(self.reached.values()):
            step = np.zeros(len(logs))
            step[column] = STEP
            less, more = (self._predicted(self._costs(at), places) for at in (logs - step, logs + step))
            of_rows[places, column] = (more - less) / (2 * STEP)
        return np.vstack([of_rows, PULL * np.eye(len(logs))])
