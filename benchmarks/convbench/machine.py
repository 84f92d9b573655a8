"""What the rows of a file were measured on."""

import datetime
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import jax
import jaxlib.version


def describe(commit: str | None) -> dict:
    """Device, versions, commit (git's, unless given) and date; what cannot be found is None."""
    device = jax.devices()[0]
    gpu = device.platform == "gpu"
    return {
        "platform": device.platform,
        "device": device.device_kind if gpu else _cpu_name(),
        "multiprocessors" if gpu else "cores": device.core_count if gpu else len(os.sched_getaffinity(0)),
        "driver": _found(r"Kernel Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version")) if gpu else None,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "python": platform.python_version(),
        "jaxconv": version("jaxconv"),
        "commit": commit or _git_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _cpu_name() -> str:
    return _found(r"model name\s*: (.*)", Path("/proc/cpuinfo")) or platform.machine()


def _found(pattern: str, path: Path) -> str | None:
    match = re.search(pattern, path.read_text()) if path.exists() else None
    return match and match[1].strip()


def _git_commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None
