"""The CUDA families' planning, which is C++: src_cuda/<family>/planning.h, through the module `_planning`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from jaxconv.compiled import planning
from jaxconv.planner.candidate import Asked, Candidate, Settings
from jaxconv.planner.devices import COSTS, Device
from jaxconv.problem import ConvProblem, Dim
from jaxconv.problem.native import arguments, native
from jaxconv.problem.product import Product
from jaxconv.transforms import Transform

MANY_IMAGES = 1 << 20  # a wgrad sums so many in several launches


@dataclasses.dataclass(frozen=True)
class Tile:
    """A compiled tile: what a thread block computes at a time. Its fields, as `rows`, are those of its family."""

    name: str
    fields: dict[str, int] = dataclasses.field(compare=False, repr=False)

    def __getattr__(self, name: str) -> int:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"a tile {self.name} has no {name}") from None

    def __str__(self) -> str:
        return self.name


class NativeFamily:
    """A CUDA kernel family.

    transforms: of a product, those that are tried. None: the family takes no transformed problem.
    """

    def __init__(self, name: str, transforms: Callable[[Product], list[Transform]] | None = None) -> None:
        self._transforms = transforms
        self._native: Any = getattr(planning, name)
        self.needs_aligned: bool = self._native.needs_aligned  # arrays that begin at multiples of 16 bytes
        self.tiles = tuple(Tile(name, fields) for name, fields in self._native.tiles)

    def transforms(self, product: Product) -> list[Transform]:
        """Those that it may answer under, besides the problem as it is."""
        return self._transforms(product) if self._transforms else []

    def takes_transform(self, transform: Transform) -> bool:
        return not transform or self._transforms is not None

    def candidates(self, product: Product, device: Device, asked: Asked) -> Iterator[Candidate]:
        found = self._native.candidates(native(product), _native_device(device), *asked)
        return (Candidate(c.tile, c.reason, c.seconds, c.settings) for c in found)

    def fit_digest(self, tile: str | None, settings: Settings, problem: ConvProblem) -> int:
        """A number of a problem, whatever its batch, and the settings that are for it."""
        return self._native.fit_digest(
            **arguments(problem), padding_low=problem.pad_low, tile=tile, settings=dict(settings)
        )

    def workspace_bytes(self, tile: str | None, settings: Settings, product: Product, device: Device) -> Dim:
        """Symbolic if the batch is: it grows by the same for each image, or in steps of 16 bytes. Sums of a wgrad may
        be added for large batches alone.
        """
        need = lambda images: self._native.workspace_bytes(
            native(product, images), _native_device(device), tile, dict(settings)
        )
        if product.has_known_batch:
            return need(product.images)
        image = -(-max(need(n + 16) - need(n) for n in (1, MANY_IMAGES)) // 16)
        first = max(need(n) - (n - 1) * image for n in (1, MANY_IMAGES))
        return first + (product.problem.batch - 1) * image

    def gradient_sum_rows(self, tile: str | None, settings: Settings, product: Product, device: Device) -> int:
        """Of a wgrad that also sums its cotangent over positions: rows that its workspace begins with."""
        return self._native.gradient_sum_rows(native(product), _native_device(device), tile, dict(settings))


@lru_cache(maxsize=64)
def _native_device(device: Device) -> planning.Device:
    return planning.Device(
        multiprocessors=device.multiprocessors,
        clock_hz=device.clock_hz,
        bandwidth=device.bandwidth,
        l2_bytes=device.l2_bytes,
        shared_bytes=device.shared_bytes,
        wgmma=device.wgmma,
        costs=COSTS[device.costs],
    )
