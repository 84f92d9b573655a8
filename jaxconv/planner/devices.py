"""The GPUs that are planned for, by model.

A plan depends only on the model of a device. Clocks differ between devices of one model, and all processes of one
program must choose the same kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

OLDEST_CAPABILITY = (8, 0)  # the kernels are compiled for this one and later ones


@dataclasses.dataclass(frozen=True)
class Device:
    """The properties of a GPU that a plan depends on.

    clock_hz: the highest clock of the multiprocessors. bandwidth: of the memory, in bytes/s, by its clock and width.
    shared_bytes: the most shared memory of a thread block. wgmma: whether there are kernels with this instruction.
    costs: the file in device_data/ with what was fitted to measurements, of this model or of another. Clocks and bytes
    scale with the numbers above. Seconds stay. is_fitted: whether the file is of this model.
    """

    multiprocessors: int
    clock_hz: float
    bandwidth: float
    shared_bytes: int
    wgmma: bool
    costs: str = "h200"
    is_fitted: bool = False


HOPPER_SHARED, AMPERE_SHARED, CONSUMER_SHARED = 232448, 166912, 101376

# By `jax.Device.device_kind`: the numbers of NVIDIA's data sheets, and of an H200 those that its driver reports.
MODELS = {
    "NVIDIA H200": Device(132, 1.98e9, 4.916736e12, HOPPER_SHARED, True, is_fitted=True),
    "NVIDIA H200 NVL": Device(132, 1.785e9, 4.8e12, HOPPER_SHARED, True),
    "NVIDIA GH200 480GB": Device(132, 1.98e9, 4.0e12, HOPPER_SHARED, True),
    "NVIDIA H100 80GB HBM3": Device(132, 1.98e9, 3.352e12, HOPPER_SHARED, True, "h100", is_fitted=True),
    "NVIDIA H100 NVL": Device(132, 1.785e9, 3.938e12, HOPPER_SHARED, True, "h100"),
    "NVIDIA H100 PCIe": Device(114, 1.755e9, 2.039e12, HOPPER_SHARED, True, "h100"),
    "NVIDIA A100-SXM4-80GB": Device(108, 1.41e9, 2.039e12, AMPERE_SHARED, False),
    "NVIDIA A100-SXM4-40GB": Device(108, 1.41e9, 1.555e12, AMPERE_SHARED, False),
    "NVIDIA A100 80GB PCIe": Device(108, 1.41e9, 1.935e12, AMPERE_SHARED, False),
    "NVIDIA A100-PCIE-40GB": Device(108, 1.41e9, 1.555e12, AMPERE_SHARED, False),
    "NVIDIA L40S": Device(142, 2.52e9, 8.64e11, CONSUMER_SHARED, False),
    "NVIDIA L4": Device(58, 2.04e9, 3.0e11, CONSUMER_SHARED, False),
}
TYPICAL_DEVICE = MODELS["NVIDIA H200"]  # for planning without a GPU


def planned_for(gpus: Sequence[Any], wgmma: bool = True) -> Device:
    """A device with the least of each number among the GPUs; without GPUs, a typical one.

    Its costs are those of one of these models, the same one in all processes. They are fitted to it if the device is
    that model.

    gpus: the `jax.Device`s of all processes. wgmma: whether this installation has kernels with this instruction.
    """
    devices = [_device_of(gpu) for gpu in gpus] or [TYPICAL_DEVICE]
    names = ("multiprocessors", "clock_hz", "bandwidth", "shared_bytes", "wgmma")
    numbers = {name: min(getattr(each, name) for each in devices) for name in names}
    least = dataclasses.replace(min(devices, key=lambda each: each.costs), **numbers)
    return dataclasses.replace(least, wgmma=wgmma and least.wgmma, is_fitted=least.is_fitted and least in devices)


def unsupported_reason(gpu: Any) -> str | None:
    """Why a GPU is too old for the kernels; None if it is not."""
    if capability_of(gpu) >= OLDEST_CAPABILITY:
        return None
    oldest = ".".join(map(str, OLDEST_CAPABILITY))
    return f"{gpu.device_kind} has compute capability {gpu.compute_capability}, the kernels need {oldest}"


def capability_of(gpu: Any) -> tuple[int, ...]:
    return tuple(map(int, gpu.compute_capability.split(".")))


def _device_of(gpu: Any) -> Device:
    """By its model. If that is not listed: by its architecture and its number of multiprocessors."""
    if gpu.device_kind in MODELS:
        return MODELS[gpu.device_kind]
    major, minor = capability_of(gpu)
    # The first GPUs of an architecture are for data centers: with stacked memory, and more shared memory.
    shared, bandwidth = CONSUMER_SHARED, 8e9
    if minor == 0 and major in (8, 9, 10):
        shared, bandwidth = (AMPERE_SHARED if major == 8 else HOPPER_SHARED), 2e10
    return Device(gpu.core_count, 1.7e9, gpu.core_count * bandwidth, shared, (major, minor) == (9, 0))
