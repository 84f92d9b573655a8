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
    return found(r"model name\s*: (.*)", Path("/proc/cpuinfo")) or host.machine()


def found(pattern: str, path: Path) -> str | None:
    """The first group of a pattern in a file; None if there is no such file, or it does not match."""
    match = re.search(pattern, path.read_text()) if path.exists() else None
    return match and match[1].strip()
