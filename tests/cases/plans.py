"""What the planner's tests share: its candidates, by their constraints, and the reasons why one is refused."""

import dataclasses
import functools
import math
import re

from jaxconv.planner.candidate import Asked
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint, kernel_name
from jaxconv.problem.product import RESULT, Product
from jaxconv.transforms import apply

CUDA = FAMILIES["cuda"]
TILES = {family: {tile.name: tile for tile in CUDA[family].tiles} for family in CUDA}
# They take some problems of their types; the other families take them all.
PARTIAL = ("direct", "depthwise", "gather", "wgmma")


def device(**changes):
    return dataclasses.replace(TYPICAL_DEVICE, **changes)


def as_it_is(family, tile=None, **settings):
    return Constraint("cuda", family, tile, transform=(), **settings)


def channel_taps(problem):
    return math.prod(problem.kernel) * problem.in_channels


def sum_bytes(problem):
    return 8 if "float64" in {problem.lhs_dtype.name, problem.rhs_dtype.name, problem.out_dtype.name} else 4


def sums_in_f32(problem):
    return sum_bytes(problem) == 4 and problem.rhs_dtype.kind != "i"


def tile_of(plan):
    """A tile of the family, with its fields."""
    return TILES[plan.family][plan.tile]


@functools.lru_cache(maxsize=4096)
def answers(kind, problem, family):
    """What a family that is named answers of the problem as it is: a candidate of each tile for its types, or of none
    with the reason."""
    return tuple(CUDA[family].candidates(Product(kind, problem), TYPICAL_DEVICE, Asked({}, None, True)))


def transforms_of(family, kind, problem):
    """Those that the family may answer, besides none."""
    return CUDA[family].transforms(Product(kind, problem))


def constraints(kind, problem):
    """`{name: constraint}` of all that may be chosen, for the problem as it is and transformed.

    It is of each tile for its types, or of a family of which none takes that."""
    named = {}
    for family in CUDA:
        for transform in [(), *transforms_of(family, kind, problem)]:
            for candidate in answers(kind, apply(transform, problem).problem, family):
                name = kernel_name(family, candidate.tile, transform)
                named[name] = Constraint(family=family, tile=candidate.tile, transform=transform)
    return named


@functools.lru_cache(maxsize=4096)
def candidates(kind, problem):
    """What may be chosen: `(family, tile)`s of the constraints."""
    named = ((c.family, c.tile) for c in constraints(kind, problem).values() if c.tile is not None)
    return [(family, TILES[family][tile]) for family, tile in dict.fromkeys(named)]


def may_take(kind, problem):
    """The families that are not ruled out."""
    return list(dict.fromkeys(family for family, _ in candidates(kind, problem)))


def plan_of(choice, family):
    """The family's plan; None if it is partial, with a reason for each tile."""
    if choice.plan is None:
        assert family in PARTIAL
        refused = [r for r in choice.rejected if r.what.startswith(family)]
        assert refused and all(r.reason for r in refused)
    else:
        assert choice.plan.family == family
    return choice.plan


def factor(rejection):
    """How many times the chosen candidate's cost, or None for another reason."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x the cost", rejection.reason)
    return match and float(match[1])


def is_refused(plan, problem, device=TYPICAL_DEVICE):
    """Whether the family itself says that it cannot run a plan."""
    return choose(plan.platform, plan.kind, problem, plan.constraint, device).plan != plan


def stored_slices(kind, problem, asked):
    """Of split-K, those that the workspace has room for; 0 where the kernel itself adds all."""
    bytes_of = lambda split: choose(
        "cuda", kind, problem, dataclasses.replace(asked, split=split)
    ).plan.workspace_bytes(problem)
    of_slices = bytes_of(asked.split) - bytes_of(1)
    slices, rest = divmod(of_slices, sum_bytes(problem) * math.prod(problem.shape(RESULT[kind])))
    assert rest == 0
    return slices


def shared_bytes(plan, problem):
    """The least shared memory of a device that has the plan, as reasons say it."""
    least = 0
    while True:
        choice = choose(plan.platform, plan.kind, problem, plan.constraint, device(shared_bytes=least))
        if choice.plan is not None:
            assert choice.plan == plan
            return least
        (more,) = {int(n) for r in choice.rejected for n in re.findall(r"^(\d+) bytes of shared memory", r.reason)}
        assert more > least
        least = more
