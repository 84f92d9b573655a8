"""The native module `_planning`, which everything needs, and the reason if a native module is missing."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["planning", "missing_reason"]


def missing_reason(name: str) -> str:
    """Why a native module is missing: perhaps the sources in the current folder hide the installed package."""
    here = Path(__file__).parent
    installed = PathFinder.find_spec(name, [os.path.join(entry, here.name) for entry in sys.path])
    if installed is None or installed.origin is None:
        return f"jaxconv's native module {name} is missing: install the package with `pip install .`"
    return (
        f"the sources in {here.parent} hide the jaxconv installed in {Path(installed.origin).parent}: "
        "run Python in another folder, or install with `pip install --editable .`"
    )


if importlib.util.find_spec("jaxconv._planning") is None:
    raise ImportError(missing_reason("jaxconv._planning"))

from jaxconv import _planning as planning  # noqa: E402
