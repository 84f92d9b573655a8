"""The device that times were measured on, by its model."""

from __future__ import annotations

import os
import platform as host
import re
from pathlib import Path

import jax


def model(platform: str) -> str | None:
    """The model of the devices that JAX has of a platform, in all processes: all models, if there are several.

    For a host, also the number of cores that this process may use. None if JAX has no such device.
    """
    if platform == "cpu":
        return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"
    try:
        return " and ".join(sorted({device.device_kind for device in jax.devices(platform)}))
    except RuntimeError:
        return None


def cpu_name() -> str:
    facts = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", facts.read_text()) if facts.exists() else None
    return named[1].strip() if named else host.machine()
