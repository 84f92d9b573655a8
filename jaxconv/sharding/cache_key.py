"""A digest that tells convolutions apart in JAX's persistent compilation cache.

Before XLA's partitioner splits a program, its text has a convolution as a call of a Python function by a pointer. The
text shows the types of operands and result, but not the strides, padding and so on. It is the key of the cache. The
flag jax_remove_custom_partitioning_ptr_from_cache_key takes the pointer out of the key, and then only this digest
distinguishes two convolutions.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path

from jaxconv import ffi
from jaxconv.compiled import planning
from jaxconv.epilogue import NOTHING, Epilogue
from jaxconv.planner.plan import Implementation, constraint_of
from jaxconv.problem import ConvProblem
from jaxconv.tuning.file import Tuning


def digest(
    kind: str,
    platform: str | None,
    problem: ConvProblem,
    implementation: Implementation,
    tuning: Tuning,
    epilogue: Epilogue = NOTHING,
) -> str:
    """The digest of everything that the compiled convolution depends on. It is the same in every process."""
    installed = package(), ffi.unavailable_reason(platform), ffi.device(platform)
    asked = implementation is None, constraint_of(implementation)  # without a name lax may answer
    facts = kind, platform, problem, epilogue, *asked, *installed, tuning.digest
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@lru_cache(maxsize=1)
def package() -> str:
    """The package's version, and the digest of its sources: commits between releases have the same version."""
    sources = hashlib.sha256()
    for pattern in ("*.py", "*.json"):
        for path in sorted(Path(__file__).parents[1].rglob(pattern)):
            sources.update(path.read_bytes())
    sources.update(planning.DIGEST.encode())
    return f"{importlib.metadata.version('jaxconv')} {sources.hexdigest()}"
