"""The GPUs that are planned for, by model.

A plan depends only on the model of a device. Clocks differ between devices of one model, and all processes of one
program must choose the same kernels.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxconv.compiled import planning

DATA = Path(__file__).parent / "device_data"

Costs = Mapping[str, float]  # numbers by name

OWN_COSTS = "device"  # of a file: the section that is of no kernel family
# By file: the device's own costs, those of its kernel families, and those of lax.
COSTS: dict[str, dict[str, Costs]] = {
    file.stem: json.loads(file.read_text()) for file in DATA.glob("*.json") if file.stem != "models"
}


@dataclasses.dataclass(frozen=True)
class Device:
    """The properties of a GPU that a plan depends on.

    clock_hz: the highest clock of the multiprocessors. bandwidth: of the memory, in bytes/s, by its clock and width.
    l2_bytes: of the L2 cache. shared_bytes: the most shared memory of a thread block. wgmma: whether there are kernels
    with this instruction. costs: the file in device_data/ with what was fitted to measurements, of this model or of
    another. Clocks and bytes scale with the numbers above. Seconds stay. is_fitted: whether the file is of this model.
    """

    multiprocessors: int
    clock_hz: float
    bandwidth: float
    l2_bytes: int
    shared_bytes: int
    wgmma: bool
    costs: str = "h200"
    is_fitted: bool = False

    @property
    def own_costs(self) -> Costs:
        """Those that are of no family: rates in a clock, what launches take, and the copies that XLA makes."""
        return COSTS[self.costs][OWN_COSTS]


_NUMBERS = json.loads((DATA / "models.json").read_text())
# By `jax.Device.device_kind`: the numbers of NVIDIA's data sheets, and of an H200 those that its driver reports.
MODELS = {kind: Device(**numbers) for kind, numbers in _NUMBERS["models"].items()}
# Of GPUs that are not there, by compute capability: what few of them lack. Those of 8.0, 9.0 and 10.0 are for data
# centers: with stacked memory, and more shared memory. 8.7 is Jetson Orin, which reads the memory of its host.
UNLISTED = _NUMBERS["unlisted"]
TYPICAL_DEVICE = MODELS["NVIDIA H200"]  # for planning without a GPU


def planned_for(gpus: Sequence[Any], wgmma: bool = True) -> Device:
    """A device with the least of each number among the GPUs; without GPUs, a typical one.

    Its costs are those of one of these models, the same one in all processes. They are fitted to it if the device is
    that model.

    gpus: the `jax.Device`s of all processes. wgmma: whether this installation has kernels with this instruction.
    """
    devices = [_device_of(gpu) for gpu in gpus] or [TYPICAL_DEVICE]
    names = ("multiprocessors", "clock_hz", "bandwidth", "l2_bytes", "shared_bytes", "wgmma")
    numbers = {name: min(getattr(each, name) for each in devices) for name in names}
    least = dataclasses.replace(min(devices, key=lambda each: each.costs), **numbers)
    return dataclasses.replace(least, wgmma=wgmma and least.wgmma, is_fitted=least.is_fitted and least in devices)


def unsupported_reason(gpu: Any) -> str | None:
    """Why a GPU is too old for the kernels; None if it is not."""
    if capability_of(gpu) >= planning.OLDEST_CAPABILITY:
        return None
    oldest = ".".join(map(str, planning.OLDEST_CAPABILITY))
    return f"{gpu.device_kind} has compute capability {gpu.compute_capability}, the kernels need {oldest}"


def capability_of(gpu: Any) -> tuple[int, ...]:
    return tuple(map(int, gpu.compute_capability.split(".")))


def _device_of(gpu: Any) -> Device:
    """By its model. If that is not listed: by its compute capability and its number of multiprocessors."""
    if gpu.device_kind in MODELS:
        return MODELS[gpu.device_kind]
    numbers = UNLISTED.get(gpu.compute_capability, UNLISTED["other"])
    together = {name: gpu.core_count * number for name, number in numbers["each_multiprocessor"].items()}
    return Device(gpu.core_count, **numbers["device"], **together)
