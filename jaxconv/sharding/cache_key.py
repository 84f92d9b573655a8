"""What tells a convolution apart in the text of a program that XLA's partitioner has still to split.

There a convolution is a call of a Python function, by a pointer, with operands and a result of some types: strides,
padding and all else are in the function. JAX's persistent compilation cache has that text as its key, without the
pointer if jax_remove_custom_partitioning_ptr_from_cache_key is set, so the text must tell any two convolutions apart.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path

from jaxconv import ffi
from jaxconv.compiled import planning
from jaxconv.planner.plan import constraint_of
from jaxconv.problem import ConvProblem


def digest(kind: str, platform: str | None, problem: ConvProblem, implementation) -> str:
    """Of everything that the compiled convolution depends on; the same in every process."""
    installed = package(), ffi.why_no_kernels(platform), ffi.device(platform)
    facts = kind, platform, problem, constraint_of(implementation), *installed
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@lru_cache(maxsize=1)
def package() -> str:
    """The package's version and, as work between releases has the last one's, its sources."""
    sources = hashlib.sha256()
    for pattern in ("*.py", "*.json"):
        for path in sorted(Path(__file__).parents[1].rglob(pattern)):
            sources.update(path.read_bytes())
    sources.update(planning.DIGEST.encode())
    return f"{importlib.metadata.version('jaxconv')} {sources.hexdigest()}"
