"""The rows: a program on both sides.

A row has the fields

    name, pass, dtype, implementation   the program, and what `install` was called with; "default": with nothing
    ms, lax_ms                          wall time of a call, milliseconds: the median of rounds, each a median of calls
    speedup                             lax_ms / ms
    queued_ms, lax_queued_ms            a call among others that do not wait for each other; older rows lack it
    compile_s, lax_compile_s            tracing, lowering and XLA's compilation: wall time, seconds
    ours, others                        convolutions in our compiled text: by our kernels, and not
    reasons                             of the latter
    difference                          of results from lax's, relative to their norm
    error, lax_error                    why there is no time
    rounds                              in which the sides took turns; older rows lack it, and have one

and those of `results` from commit on. Name, pass, dtype and implementation are its key.
"""

from pathlib import Path

import jax
import numpy as np

from convbench.clients.networks import NETWORKS
from convbench.clients.programs import Measured
from convbench.clients.reports import REPORTS
from convbench.clients.worker import Side
from convbench.measure import rounded

RESULTS = Path(__file__).parent.parent.parent / "clients"
KEY = ("name", "pass", "dtype", "implementation")
NAMES = (*NETWORKS, *REPORTS)


def key(row: dict) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def key_of(measured: Measured, implementation: str) -> tuple[str, ...]:
    return measured.name, measured.which, measured.dtype, implementation


def row_of(measured: Measured, implementation: str, ours: Side, theirs: Side) -> dict:
    numbers = {
        "ms": ours.ms,
        "lax_ms": theirs.ms,
        "speedup": ours.ms and theirs.ms and theirs.ms / ours.ms,
        "queued_ms": ours.queued_ms,
        "lax_queued_ms": theirs.queued_ms,
        "compile_s": ours.compile_s,
        "lax_compile_s": theirs.compile_s,
        "difference": None if ours.error or theirs.error else difference(ours.compared, theirs.compared),
    }
    counts = {"ours": ours.ours, "others": ours.others, "reasons": list(ours.reasons)}
    errors = {"error": ours.error, "lax_error": theirs.error}
    return dict(zip(KEY, key_of(measured, implementation))) | rounded(numbers) | counts | errors


def difference(actual: object, expected: object) -> float:
    """The norm of the difference of two trees of arrays, relative to that of the second."""
    pairs = list(zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True))
    norm = np.sqrt(sum(np.square(e, dtype=np.float64).sum() for _, e in pairs))
    return float(np.sqrt(sum(np.square(a - e, dtype=np.float64).sum() for a, e in pairs)) / norm)


def ordered(rows: list[dict]) -> list[dict]:
    """As networks and reports are listed."""
    return sorted(rows, key=lambda row: (NAMES.index(row["name"]), row["pass"], row["dtype"], row["implementation"]))
