"""What the planner's tests share: its candidates, by their constraints, and the reasons why one is refused."""

import dataclasses
import math
import re

from jaxconv.families import FAMILIES, TYPICAL_DEVICE
from jaxconv.plan import Constraint
from jaxconv.product import Product
from jaxconv.rewriting import rewrite

CUDA = FAMILIES["cuda"]
PARTIAL = ("direct", "depthwise", "wgmma")  # take some problems of their types; the other families take them all


def device(**changes):
    return dataclasses.replace(TYPICAL_DEVICE, **changes)


def as_it_is(family, tile=None, **settings):
    return Constraint("cuda", family, tile, rewriting=(), **settings)


def channel_taps(problem):
    return math.prod(problem.kernel) * problem.in_channels


def sum_bytes(problem):
    return 8 if "float64" in {problem.lhs_dtype.name, problem.rhs_dtype.name, problem.out_dtype.name} else 4


def sums_in_f32(problem):
    return sum_bytes(problem) == 4 and problem.rhs_dtype.kind != "i"


def may_take(kind, problem):
    """The families that are not ruled out."""
    return [name for name, family in CUDA.items() if family.why_never(Product(kind, problem)) is None]


def candidates(kind, problem):
    """What may be chosen: each tile, made for the problem's types or not, that is not ruled out with its family."""
    return [(name, row) for name in may_take(kind, problem) for row in CUDA[name].tiles(Product(kind, problem))]


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
    product = Product(plan.kind, rewrite(plan.rewriting, problem).problem)
    return CUDA[plan.family].why_not(plan.settings, product, device) is not None
