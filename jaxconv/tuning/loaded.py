"""The measured plans that this process uses, and that all processes of a program use the same."""

from __future__ import annotations

import os
import threading
import time

import jax

from jaxconv._jax_private import global_state
from jaxconv.tuning.file import NOTHING, Tuning, read

VARIABLE = "JAXCONV_TUNING"
LONGEST_WAIT_S = 300  # for the other processes: the first convolution of one may come minutes after that of another

_lock = threading.Lock()
_current: Tuning | None = None  # None: neither was a file loaded, nor was the environment looked at
_is_compared = False  # with what the other processes hold
_comparisons = 0


def load_tuning(path: str | os.PathLike[str] | None) -> None:
    """Makes convolutions use the plans of a file that `jaxconv.autotune` wrote.

    With implementation=None a convolution has the fastest that was measured. Where that is lax, lax answers, without a
    `FallbackWarning`. With "cuda", "cpu" or a kernel family it has the fastest measured plan of that name, never lax.
    What the file does not have so is planned by estimates. Programs that are compiled already keep their plans, those
    of calls outside of jit too: load the file before the first convolution, or call `jax.clear_caches()`.

    If the environment variable JAXCONV_TUNING is the path of a file, the first convolution loads it.

    In a program of several processes, each must load the same file, after `jax.distributed.initialize` and before its
    first convolution. The call waits up to five minutes for the others, also with None. With the environment variable,
    the first convolution waits so: every process must have one. What was loaded before `jax.distributed.initialize` is
    compared at the first convolution.

    Args:
      path: of the file, which replaces the one loaded before. None: plan by estimates again.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is of another device, another version of jaxconv, other kernels or another format; an entry of it
        cannot run here; or another process of the program holds another file, or does not load one. The one loaded
        before stays.
    """
    global _current, _is_compared
    with _lock:
        tuning = NOTHING if path is None else read(path)
        _is_compared = _compare_processes(tuning, waits=True)
        _current = tuning


def loaded_tuning() -> Tuning:
    """The measured plans. The first call loads the environment's file."""
    global _current, _is_compared
    with _lock:
        if _current is None:
            _current = _of_environment()
        if not _is_compared:
            # Without a file, nobody is waited for: a program that uses none may have processes without convolutions.
            _is_compared = _compare_processes(_current, waits=_current is not NOTHING)
        return _current


def _of_environment() -> Tuning:
    path = os.environ.get(VARIABLE)
    try:
        return read(path) if path else NOTHING
    except (OSError, ValueError) as error:
        error.add_note(f"The environment variable {VARIABLE} is the path of this file.")
        raise


def _compare_processes(tuning: Tuning, waits: bool) -> bool:
    """Raises ValueError if a process of this program holds another file: their programs would not be the same.

    Each process says what it holds, in a folder for each comparison. It goes on to the next folder when it knows what
    the others hold, be it the same or not, as they then do too. If one of them said nothing in time, all stay.

    Returns whether there was anything to compare by: before `jax.distributed.initialize` there is not.
    """
    global _comparisons
    client = global_state.client
    if client is None:
        return False
    processes = jax.process_count()  # starts JAX's backends, for which other processes may be waiting
    folder, end = f"jaxconv/tuning/{_comparisons}/", time.monotonic() + LONGEST_WAIT_S
    own = f"{folder}{jax.process_index()}"
    client.key_value_set(own, f"{tuning.digest} {tuning.name}")
    for process in range(processes if waits else 0):
        try:
            client.blocking_key_value_get(f"{folder}{process}", max(1, int(1000 * (end - time.monotonic()))))
        except RuntimeError as error:
            client.key_value_delete(own)  # or one that comes later would find it, and go on alone
            raise ValueError(
                f"process {process} did not say within {LONGEST_WAIT_S} s which tuning file it holds: each process of "
                f"a program must load the same one, by load_tuning or by its first convolution with {VARIABLE}"
            ) from error
    _comparisons += 1
    held = {int(key.removeprefix(folder)): value.partition(" ") for key, value in client.key_value_dir_get(folder)}
    if len({digest for digest, _, _ in held.values()}) > 1:
        texts = (f"process {process} has {name}" for process, (_, _, name) in sorted(held.items()))
        raise ValueError(
            f"the processes of one program must hold the same tuning file, by load_tuning or {VARIABLE}, but "
            f"{', '.join(texts)}"
        )
    return True
