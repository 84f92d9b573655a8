"""lax as one more candidate: the time of XLA's own kernels, which are cuDNN's, on a GPU.

cuDNN can be faster in a few kinds of convolutions. Each has constants of its own, fitted by `python -m benchmarks
fit-lax`. If lax answers, XLA chooses the kernel by timing, and the same program may give other bits in another process.
So lax is taken only if it is ahead by more than the usual error of the comparison.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import NamedTuple

from jaxconv import transforms
from jaxconv.planner.choose import Choice, Rejection, choose
from jaxconv.planner.devices import COSTS, Device
from jaxconv.planner.plan import ANY, Lax
from jaxconv.problem import ConvProblem, Spec
from jaxconv.problem.algorithms import Float32, names_algorithm
from jaxconv.problem.native import native
from jaxconv.problem.product import OPERANDS, RESULT, EpilogueKind, Product, ceil_div, vector_elements
from jaxconv.transforms import ChannelsLast

FAMILY = "lax"  # of the constants in a device's data
AHEAD = 1.05  # lax must be expected to be so many times as fast as ours, and ahead of that by the comparison's error
LEAST_CHANNELS = 16  # of what tensor cores multiply well
TILE = 128  # rows and columns that cuDNN's thread blocks compute
BLOCK = 32  # whole blocks of so many channels are multiplied for each tap


class Constants(NamedTuple):
    """What is fitted for a kind of convolution.

    begin_seconds: what any call takes.
    flops_per_second: of tensor cores.
    bytes_per_second: of the memory, for operands and result.
    result_bytes_per_second: for the result once more, because nothing overlaps with its stores.
    wait_seconds: what a unit of `Work.waits` takes.
    least_flops: the least of the rows; of less work nothing is known.
    ours_seconds: what the planner's estimates of our kernels lack; below 0: what they have too much.
    error: a factor, by the standard deviation of the logarithm of (ours / lax), as expected over as measured.
    """

    begin_seconds: float
    flops_per_second: float
    bytes_per_second: float
    result_bytes_per_second: float
    wait_seconds: float
    least_flops: float
    ours_seconds: float
    error: float


class Work(NamedTuple):
    """What the time of cuDNN's kernels depends on.

    flops: of whole tiles, and of conv of whole blocks of channels. waits: of conv, steps of K, which follow each other.
    A wgrad splits K over the GPU, and the time that the best split takes grows by the root of the work, here in Mflop.
    """

    flops: float
    bytes: float
    result_bytes: float
    waits: float

    def seconds(self, constants: Constants) -> float:
        c = constants
        busy = max(self.flops / c.flops_per_second, self.bytes / c.bytes_per_second)
        return c.begin_seconds + busy + self.result_bytes / c.result_bytes_per_second + self.waits * c.wait_seconds


def kind_of(product: Product) -> str | None:
    """The kind of a pass that lax may be faster in; None for others, where lax is slow or was not measured.

    All kinds are channels-last, of one or two dimensions, without dilations, in bfloat16, float16, or float32 as tf32.
    A data gradient of strides above 1 has a dilation. The kinds are dense convolutions with enough channels on both
    sides for tensor cores, in whole 16-byte vectors.
    """
    p, rank = product.problem, len(product.problem.kernel)
    dtypes = {p.lhs_dtype, p.rhs_dtype, p.out_dtype}
    is_known = (
        rank <= 2
        and {*p.lhs_dilation, *p.rhs_dilation} == {1}
        and p.lhs_spec == p.out_spec == Spec(0, rank + 1, tuple(range(1, rank + 1)))
        and p.groups == 1
        and product.has_known_batch
        and not p.is_empty
        and len(dtypes) == 1
        and not names_algorithm(p.precision)  # lax does not compute by it
    )
    dtype = p.lhs_dtype.name
    if (
        not is_known
        or dtype not in ("bfloat16", "float16", "float32")
        or (dtype == "float32" and product.float32 is not Float32.TF32)
    ):
        return None
    kind = _dense_kind(product)
    return f"float32 {kind}" if kind and dtype == "float32" else kind


def _dense_kind(product: Product) -> str | None:
    p, is_wgrad, is_dgrad = product.problem, product.kind == "wgrad", product.problem.reverse
    channels = p.in_channels, p.out_channels
    if min(channels) < LEAST_CHANNELS or any(c % vector_elements(p.lhs_dtype) for c in channels):
        return None
    if math.prod(p.kernel) == math.prod(p.window_strides) == 1:  # with strides it is a window to cuDNN
        return f"1x1 {'wgrad' if is_wgrad else 'dgrad' if is_dgrad else 'fprop'}"
    return "window wgrad" if is_wgrad else "window"


def work_of(product: Product) -> Work:
    sizes = native(product)
    whole = lambda size: ceil_div(size, TILE) * TILE
    k = sizes.k
    if product.kind != "wgrad":
        k = k // product.problem.in_channels * ceil_div(product.problem.in_channels, BLOCK) * BLOCK
    flops = 2.0 * whole(sizes.m) * whole(sizes.n) * k
    size = {role: _bytes(product.problem, role) for role in (*OPERANDS[product.kind], RESULT[product.kind])}
    waits = math.sqrt(flops / 1e6) if product.kind == "wgrad" else k / 64
    return Work(flops, sum(size.values()), size[RESULT[product.kind]], waits)


def _bytes(problem: ConvProblem, role: str) -> int:
    return math.prod(problem.shape(role)) * problem.dtype(role).itemsize


class Comparison(NamedTuple):
    """Seconds that lax and our kernel are expected to take, and the usual error of their ratio, a factor."""

    lax: float
    ours: float
    error: float

    @property
    def is_lax_faster(self) -> bool:
        return self.ours > AHEAD * self.error * self.lax


def compare(work: Work, ours: float, constants: Constants) -> Comparison:
    """ours: seconds by the planner's estimate."""
    return Comparison(work.seconds(constants), ours + constants.ours_seconds, constants.error)


def constants_of(kind: str, device: Device) -> Constants:
    numbers = COSTS[device.costs][FAMILY]
    return Constants(*(numbers[f"{kind} {name}"] for name in Constants._fields))


def expected_seconds(kind: str, problem: ConvProblem, device: Device) -> float | None:
    """What lax is expected to take, if that is known."""
    product = Product(kind, _channels_last(problem))
    kind_of_lax = kind_of(product)
    if kind_of_lax is None or not device.is_fitted:
        return None
    work, constants = work_of(product), constants_of(kind_of_lax, device)
    return work.seconds(constants) if work.flops >= constants.least_flops else None


@lru_cache(maxsize=4096)
def choose_or_lax(
    platform: str, kind: str, problem: ConvProblem, device: Device, epilogue_kind: EpilogueKind = EpilogueKind.NONE
) -> Choice:
    """The choice for those who name no implementation: on a GPU lax, if it is expected to be faster.

    No times of lax with an epilogue are known.
    """
    ours, product = choose(platform, kind, problem, ANY, device, epilogue_kind), Product(kind, _channels_last(problem))
    kind_of_lax = kind_of(product) if platform == "cuda" else None
    if kind_of_lax is None or ours.plan is None:
        return ours
    if not device.is_fitted:
        why = "lax is taken for dense layers on this GPU, which no costs are fitted to (jaxconv.autotune measures both)"
        return _lax(ours, math.inf, why)
    if epilogue_kind is not EpilogueKind.NONE:
        return ours
    work, constants = work_of(product), constants_of(kind_of_lax, device)
    if work.flops < constants.least_flops:
        return ours
    found = compare(work, ours.cost, constants)
    if found.is_lax_faster:
        return _lax(ours, found.lax, f"{1e6 * found.ours:.1f} us expected")
    why = f"{1e6 * found.lax:.1f} us expected, within a factor of {found.error:.2f}"
    return dataclasses.replace(ours, others=lambda: (*ours.rejected, Rejection("lax", why)))


def _channels_last(problem: ConvProblem) -> ConvProblem:
    """The problem as cuDNN gets it: XLA lays images out channels last, whatever the order of their axes is."""
    are_images = problem.lhs_spec.first == problem.out_spec.first == 0
    is_other = ChannelsLast().unsupported_reason(problem) is None
    return transforms.apply((ChannelsLast(),), problem).problem if are_images and is_other else problem


def _lax(ours: Choice, seconds: float, reason: str) -> Choice:
    return Choice(Lax(), seconds, lambda: (Rejection(str(ours.plan), reason),))
