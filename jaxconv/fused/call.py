"""A convolution with an epilogue as a value, and how it is computed in two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxconv import fallback, primitives
from jaxconv.epilogue import LIKE_RESULT, Epilogue
from jaxconv.planner.plan import Implementation
from jaxconv.problem import ConvProblem
from jaxconv.problem.product import EpilogueKind
from jaxconv.sharding.block import Local, block

BY_LAX = "xla"


class Call(NamedTuple):
    """problem: its operands and its result have one dtype. sharding: of the result's type."""

    problem: ConvProblem
    epilogue: Epilogue
    implementation: Implementation
    sharding: NamedSharding

    @property
    def before_activation(self) -> Call:
        return self._replace(epilogue=self.epilogue.before_activation(self.problem))

    @property
    def epilogue_kind(self) -> EpilogueKind:
        return EpilogueKind.RESIDUAL if "residual" in self.epilogue.operands else EpilogueKind.PLAIN

    @property
    def of_sums(self) -> ConvProblem:
        """The problem with the sums as its result."""
        return self.epilogue.of_sums(self.problem)

    @property
    def differentiated(self) -> ConvProblem:
        """The problem whose derivatives are taken. The cotangent of a result wider than the operands is not narrowed to
        them: it may be beyond their range."""
        is_wider = self.epilogue.out_dtype.itemsize > self.problem.out_dtype.itemsize
        return self.of_sums if is_wider else self.problem

    def named(self, operands: Sequence[Array]) -> dict[str, Array]:
        return self.epilogue.named(operands)

    def in_order(self, operands: Mapping[str, Array]) -> list[Array]:
        return [operands[name] for name in self.epilogue.operands]

    def placed(self, operands: Mapping[str, Array]) -> dict[str, Array]:
        """Over explicit mesh axes as the result lies: derivatives multiply them by its cotangent."""
        if not self.sharding.mesh.explicit_axes:
            return dict(operands)
        of_channels = PartitionSpec(self.sharding.spec[self.problem.out_spec.second])
        specs = {name: self.sharding.spec if name in LIKE_RESULT else of_channels for name in operands}
        on = lambda name, x: NamedSharding(self.sharding.mesh, specs[name] if x.ndim else PartitionSpec())
        return {name: jax.sharding.reshard(x, on(name, x)) for name, x in operands.items()}

    def decomposed(self, lhs: Array, rhs: Array, *operands: Array) -> Array:
        """The sums by a convolution without epilogue, and the epilogue by XLA."""
        sums = conv(lhs, rhs, self.of_sums, self.implementation, self.sharding)
        return self.epilogue.apply(self.problem, sums, self.named(operands))


def conv(
    lhs: Array, rhs: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    if implementation == BY_LAX:
        return block("conv", problem, Local(fallback.LAX["conv"]), {}, {})(lhs, rhs)
    return primitives.conv(lhs, rhs, problem, implementation, sharding)


def wgrad(
    lhs: Array, out: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    if implementation == BY_LAX:
        return block("wgrad", problem, Local(fallback.LAX["wgrad"]), {}, {})(lhs, out)
    return primitives.wgrad(lhs, out, problem, implementation, sharding)
