"""What rows were measured on, and with what."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

import jax
import jaxlib.version

from jaxconv.tuning.machine import cpu_name, found


def describe() -> dict:
    """The device; what cannot be found is None."""
    device = jax.devices()[0]
    gpu = device.platform == "gpu"
    return {
        "platform": device.platform,
        "device": device.device_kind if gpu else cpu_name(),
        "multiprocessors" if gpu else "cores": device.core_count if gpu else len(os.sched_getaffinity(0)),
    }


def origin(commit: str | None) -> dict:
    """What each row says of its run: commit (git's, unless given), date and versions; what cannot be found is None."""
    gpu = jax.default_backend() == "gpu"
    return {
        "commit": commit or _git_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "driver": found(r"Kernel Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version")) if gpu else None,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "python": platform.python_version(),
    }


def _git_commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None
