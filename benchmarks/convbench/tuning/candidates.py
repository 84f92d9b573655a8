"""Which settings of kernels are worth a measurement: the cheapest, of each tile or of all, and random ones."""

import random
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from jaxconv.planner.choose import Option, options
from jaxconv.planner.devices import Device
from jaxconv.planner.plan import ANY, Constraint
from jaxconv.problem import ConvProblem
from jaxconv.problem.product import Product
from jaxconv.transforms import Transform

FACTORS = (1 / 4, 1 / 2, 2, 4)  # of a setting, from the planner's to others


class Candidate(NamedTuple):
    """A kernel with settings and transform: the constraint that forces it, and the time that the planner estimates."""

    constraint: Constraint
    seconds: float


def candidates(kind: str, problem: ConvProblem, families: Collection[str], device: Device) -> list[Candidate]:
    """All tiles of the families under all transforms, each with the planner's settings and with some others.

    The cheapest comes first.
    """
    found = {}
    for option in _supported(kind, problem, ANY, device):
        if option.family in families:
            own = _forcing(kind, option)
            found[own] = option.candidate.seconds
            for constraint in _variants(own):
                varied = _supported(kind, problem, constraint, device)
                found |= {_forcing(kind, o): o.candidate.seconds for o in varied}
    return sorted((Candidate(*item) for item in found.items()), key=lambda candidate: candidate.seconds)


def likely(every: list[Candidate], for_each: int, within: float) -> list[Candidate]:
    """The cheapest settings of each tile under each transform, of all candidates, whose cheapest comes first.

    Args:
      for_each: settings of a tile under a transform.
      within: how many times the least time they may be estimated to take.
    """
    by_tile = defaultdict(list)
    for candidate in every:
        if candidate.seconds <= within * every[0].seconds:
            c = candidate.constraint
            by_tile[c.family, c.tile, c.transform].append(candidate)
    return [candidate for of_tile in by_tile.values() for candidate in of_tile[:for_each]]


def others(every: list[Candidate], seen: Collection[Candidate], count: int) -> list[Candidate]:
    """As many of the rest, drawn with a fixed seed."""
    known = set(seen)
    rest = [candidate for candidate in every if candidate not in known]
    return random.Random(0).sample(rest, min(count, len(rest)))


def transform_text(transform: Transform | None) -> str:
    """What rows call a transform."""
    return " and ".join(map(str, transform or ()))


def _supported(kind: str, problem: ConvProblem, constraint: Constraint, device: Device) -> Iterator[Option]:
    found = options("cuda", Product(kind, problem), constraint, device)
    return (option for option in found if option.candidate.reason is None)


def _forcing(kind: str, option: Option) -> Constraint:
    """The constraint that leaves nothing but an option. The planner works out n_tiles_per_cta from the rest."""
    return replace(option.plan("cuda", kind).constraint, n_tiles_per_cta=None)


def _variants(constraint: Constraint) -> Iterator[Constraint]:
    """A constraint with one of its settings changed; not all of them are supported."""
    for factor in FACTORS:
        scaled = lambda n, factor=factor: max(1, int(n * factor))
        if constraint.split:
            yield replace(constraint, split=scaled(constraint.split))
        if constraint.chunk:
            yield replace(constraint, chunk=scaled(constraint.chunk))
        if constraint.output_tile:
            rows, cols = constraint.output_tile
            yield replace(constraint, output_tile=(scaled(rows), cols))
            yield replace(constraint, output_tile=(rows, scaled(cols)))
