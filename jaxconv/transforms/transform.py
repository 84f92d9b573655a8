"""Rewritings: a problem as another convolution, which tensor cores take faster, by cheap changes of its arrays.

Each is exact on finite numbers. An infinity or a NaN makes NaNs of the zeros that it meets, and a rewriting puts some
in: so results of its neighbours in a pack, which do not depend on it, become NaN too.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from jaxconv.problem import ConvProblem
from jaxconv.problem.product import Product
from jaxconv.transforms.array_views import AS_IT_IS, ROLES, Rewritten, swapped
from jaxconv.transforms.dense import ChannelsLast, PackedColumns, PackedGroups, PatchRowsAsImages
from jaxconv.transforms.depthwise import MultipliersAsDepth, PaddedGroups, StridesAsDepth


@dataclasses.dataclass(frozen=True)
class SwappedOperands:
    """Of a wgrad: that of the problem's data gradient, with lhs and out in each other's role.

    A filter's gradient is the same seen from either side: sum of g * conv(x, w) is sum of x * dgrad(g, w). What reads
    its rows once for each tap is then the output's cotangent, which may have far fewer channels. A last step.
    """

    def why_not(self, problem: ConvProblem) -> str | None:
        return None

    def __str__(self) -> str:
        return "swapped operands"


Step = (
    ChannelsLast
    | PackedColumns
    | PatchRowsAsImages
    | PackedGroups
    | PaddedGroups
    | MultipliersAsDepth
    | StridesAsDepth
    | SwappedOperands
)
Rewriting = tuple[Step, ...]  # in their order; none leaves the problem as it is


@lru_cache(maxsize=4096)
def rewrite(rewriting: Rewriting, problem: ConvProblem) -> Rewritten:
    """The problem after all steps, which apply. A data gradient becomes that of the rewritten forward problem."""
    if not rewriting:
        return Rewritten(problem, dict.fromkeys(ROLES, AS_IT_IS))
    *first, last = rewriting
    if isinstance(last, SwappedOperands):
        before, forms, _ = rewrite(tuple(first), problem)
        return Rewritten(before.dgrad(), swapped(forms), swapped=True)
    if problem.reverse:
        forward, forms, _ = rewrite(rewriting, problem.dgrad())
        return Rewritten(forward.dgrad(), swapped(forms))
    before, forms, _ = rewrite(tuple(first), problem)
    after, changed, _ = last.rewrite(before)
    return Rewritten(after, forms | {role: forms[role].then(form) for role, form in changed.items()})


def why_not(rewriting: Rewriting, problem: ConvProblem) -> str | None:
    """Why a step does not apply to what those before it make of the problem."""
    if not rewriting:
        return None
    problem = forward(problem)
    *first, last = rewriting
    return why_not(tuple(first), problem) or last.why_not(rewrite(tuple(first), problem).problem)


def why_members_meet(rewriting: Rewriting, product: Product) -> str | None:
    """Why a number of one member of a vmap would be multiplied for another's results, if only with a zero."""
    problem = forward(product.problem)
    for step in rewriting:
        match step:
            # A weight gradient's groups are packed without harm: what is between two groups is thrown away.
            case PackedGroups(many) if product.kind == "conv" and problem.member.groups % many:
                return f"groups of several members of a vmap, which have {problem.member.groups} each"
            case MultipliersAsDepth() if problem.member.out_channels < problem.out_channels:
                return "a channel's results are of several members of a vmap"
    return None


def forward(problem: ConvProblem) -> ConvProblem:
    """The convolution that it is, or that it is the data gradient of."""
    return problem.dgrad() if problem.reverse else problem
