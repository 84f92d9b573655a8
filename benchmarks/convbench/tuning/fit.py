"""The costs that say best what was measured: of a family, or of the device and of all families that share them.

They are fitted by the logarithms of predicted / measured. The unknowns are logarithms, too: of what the numbers are
multiplied by, so that all stay positive.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from convbench.tuning.predictions import Measured, log_seconds, trial
from jaxconv.planner.devices import COSTS, Device

STEP = 0.02  # for derivatives: of a number's logarithm, to either side. Costs that round to whole CTAs need it large
REACH = np.log(2)  # a number that changes nothing when it is doubled or halved is not determined
PULL = 0.05  # doubling a number costs as much as a row that is wrong by 0.05 * log(2)
OUTLIER = 0.1  # errors beyond it count linearly, not squared
# The rows cannot correct these. The planner chose the measured splits by the clusters that a GPU holds. The share of L2
# is a limit: a small change of it changes no prediction. Rates in a clock are the hardware's: efficiencies are of them.
RATES = {"float32_fmas_per_clock", "other_fmas_per_clock", "tensor_core_bytes_per_clock", "shared_bytes_per_clock"}
FIXED = {"cluster_held", "large_cluster_held", "l2_share", *RATES}

Name = tuple[str, str]  # of a number: its section of the data file, which is a family or the device, and its own


def fit(sections: Sequence[str], rows: Sequence[Measured], device: Device) -> dict[str, dict[str, float]]:
    """The numbers of some sections of the data file, fitted together: three digits of each that the rows determine. The
    others, and FIXED, stay.

    rows: of all families among the sections.
    """
    return _Fit(sections, rows, device).solved()


class _Fit:
    def __init__(self, sections: Sequence[str], rows: Sequence[Measured], device: Device) -> None:
        self.rows, self.device = rows, device
        self.before = {section: COSTS[device.costs][section] for section in sections}
        self.start = {(section, name): value for section, of in self.before.items() for name, value in of.items()}
        self.measured = np.log([1e-6 * each.row["us"] for each in rows])
        free = (name for name, value in self.start.items() if value > 0 and name[1] not in FIXED)
        self.reached = {name: places for name in free if (places := self._reached(name)).size}

    def solved(self) -> dict[str, dict[str, float]]:
        if not self.reached:
            return self._changed({})
        found = least_squares(
            self._errors,
            np.zeros(len(self.reached)),
            self._derivatives,  # pyright: ignore[reportArgumentType] (SciPy has no types: one is guessed from a default)
            loss="soft_l1",
            f_scale=OUTLIER,
        )
        return self._changed({name: float(f"{cost:.3g}") for name, cost in self._costs(found.x).items()})

    def _reached(self, name: Name) -> np.ndarray:
        """Places of the rows whose prediction depends on a number."""
        every = range(len(self.rows))
        less, more = (self._predicted({name: self.start[name] * np.exp(by)}, every) for by in (-REACH, REACH))
        return np.flatnonzero(less != more)

    def _costs(self, logs: np.ndarray) -> dict[Name, float]:
        return {name: self.start[name] * np.exp(log) for name, log in zip(self.reached, logs)}

    def _changed(self, costs: Mapping[Name, float]) -> dict[str, dict[str, float]]:
        """The sections with other values of some numbers."""
        return {
            section: {name: costs.get((section, name), value) for name, value in of.items()}
            for section, of in self.before.items()
        }

    def _predicted(self, costs: Mapping[Name, float], places: Sequence[int] | np.ndarray) -> np.ndarray:
        with trial(self.device, self._changed(costs)) as device:
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
