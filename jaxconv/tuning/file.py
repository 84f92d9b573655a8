"""The file of measured plans: JSON of one device, one version of jaxconv and its kernels, and one format."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxconv.compiled import planning
from jaxconv.ffi import MODULES
from jaxconv.planner.choose import Choice
from jaxconv.planner.plan import ANY, Constraint, Lax
from jaxconv.problem import ConvProblem
from jaxconv.tuning.entries import Entry
from jaxconv.tuning.machine import model

TUNING_FORMAT = 2
MUST_MATCH = ("format", "device", "jaxconv", "kernels")  # of the header
Key = tuple[str, ConvProblem]  # kind, problem


class Tuning(NamedTuple):
    """What a file holds. choices: of each entry, the best first, checked by this installation's planner. digest: of the
    file's bytes."""

    platform: str | None
    entries: dict[Key, Entry]
    choices: dict[Key, tuple[Choice, ...]]
    digest: str | None
    name: str

    def choice(
        self, platform: str | None, kind: str, problem: ConvProblem, constraint: Constraint = ANY, or_lax: bool = True
    ) -> Choice | None:
        """What was measured to be the best for a problem on a platform; None if the file does not say. constraint: of
        kernels. or_lax: whether lax may answer in place of them."""
        choices = self.choices.get((kind, problem), ()) if platform == self.platform else ()
        allows = lambda plan: or_lax if isinstance(plan, Lax) else constraint.allows(plan)
        return next((choice for choice in choices if allows(choice.plan)), None)


NOTHING = Tuning(None, {}, {}, None, "no file")


def read(path: str | os.PathLike[str]) -> Tuning:
    """The file at `path`.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no tuning file; it is of another device, version or format, or of other kernels; or an entry
        cannot run here.
    """
    content = Path(path).read_bytes()
    try:
        found = json.loads(content)
        platform = found["platform"]
        if platform not in tuple(MODULES):
            raise ValueError(f"platform {platform!r}")
        found_entries = list(found["entries"]) if found.get("format") == TUNING_FORMAT else []  # another one is refused
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is no tuning file of jaxconv.autotune: {error!r}") from error
    here = _header(platform)
    if here["device"] is None:
        raise ValueError(f"{path} was measured on {found.get('device')!r}, but JAX has no {platform} device here")
    for name in MUST_MATCH:
        if found.get(name) != here[name]:
            raise ValueError(
                f"{path} was measured with {name} {found.get(name)!r}, but here is {name} {here[name]!r}: measure "
                "here, by jaxconv.autotune into another file"
            )
    entries, choices = {}, {}
    for number, of_json in enumerate(found_entries):
        try:
            entry = Entry.from_json(platform, of_json)
            choices[entry.kind, entry.problem] = entry.choices(platform)
        except Exception as error:  # whatever an entry that was edited by hand fails by
            raise ValueError(
                f"{path}: entries[{number}] cannot be used: {type(error).__name__}: {error}. Measure again, by "
                "jaxconv.autotune into another file"
            ) from error
        entries[entry.kind, entry.problem] = entry
    digest = hashlib.sha256(content).hexdigest()
    return Tuning(platform, entries, choices, digest, f"{os.fspath(path)} (sha256 {digest})")


def extend(path: str | os.PathLike[str], platform: str, entries: Iterable[Entry] = ()) -> dict[Key, Entry]:
    """Adds entries to the file, or makes it, and returns all that it has then.

    Who reads it meanwhile sees the old one or the new one. Threads and processes that extend it at a time take turns.

    Raises:
      OSError: it cannot be read or written.
      ValueError: as `read`, or the file is of another platform.
    """
    target = os.path.realpath(path)  # a link stays one
    with _alone(target):
        known = read(path) if os.path.exists(path) else NOTHING
        if known.platform not in (None, platform):
            raise ValueError(f"{path} is of platform {known.platform}, but the function runs on {platform}")
        every = known.entries | {(entry.kind, entry.problem): entry for entry in entries}
        _replace(target, _content(platform, every.values()))
    return every


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Others wait. The file that is the lock stays: who waits for one that is removed would then be alone with it.

    Other users need not be able to write the lock, and a child that was forked meanwhile must not keep it.
    """
    name = f"{path}.lock"
    lock = os.open(name, os.O_RDONLY | (0 if os.path.exists(name) else os.O_CREAT), 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _content(platform: str, entries: Iterable[Entry]) -> str:
    """One entry a line."""
    header = json.dumps(_header(platform), indent=1).removesuffix("\n}")
    lines = ",\n".join(json.dumps(entry.to_json()) for entry in entries)
    return f'{header},\n "entries": [\n{lines}\n]}}\n'


def _replace(path: str, content: str) -> None:
    """The mode of a file that is there stays."""
    unfinished = Path(f"{path}.{uuid.uuid4().hex}")
    try:
        unfinished.write_text(content)
        if os.path.exists(path):
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _header(platform: str) -> dict[str, Any]:
    """kernels: the digest of what plans mean, for builds of one version. jax: for information. It may change the time
    of lax."""
    return {
        "format": TUNING_FORMAT,
        "platform": platform,
        "device": model(platform),
        "jaxconv": importlib.metadata.version("jaxconv"),
        "kernels": planning.DIGEST[:16],
        "jax": jax.__version__,
    }
