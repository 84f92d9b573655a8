"""What one device computes of a convolution that is split over a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxconv.epilogue import LIKE_RESULT, Epilogue
from jaxconv.problem import ConvProblem
from jaxconv.problem.factors import MeshAxes, resize
from jaxconv.problem.product import RESULT
from jaxconv.problem.wider import FLOAT8, FLOAT32, with_result
from jaxconv.sharding.halo import Halo, Piece
from jaxconv.sharding.split import MeshShape, Split, size_of, spatial_axes
from jaxconv.transforms.array_views import padded

SUMMED = {"conv": ("c",), "wgrad": ("n", "s0", "s1", "s2")}


class Apart(NamedTuple):
    """A conv whose lhs lacks rows that its windows read: so many before and after it, of its first dimension of space.

    joined: the conv whose lhs has them.
    """

    problem: ConvProblem
    rows: tuple[int, int]
    joined: ConvProblem


class Local(NamedTuple):
    """What computes problems on one device.

    compute: of a problem, the function of its operands.
    with_rows: the function of a conv's operands, and of the rows behind them; None if `joined` is better.
    """

    compute: Callable[[ConvProblem], Callable[[Array, Array], Array]]
    with_rows: Callable[[Apart], Callable[..., Array] | None] = lambda apart: None


class End(NamedTuple):
    """What a conv ends with. Its problem has the result that the epilogue gives it.

    kernel: of the problem with the sums as its result, the function of all operands that has the whole epilogue, if
      there is one.
    """

    epilogue: Epilogue
    kernel: Callable[[ConvProblem], Callable[..., Array] | None]

    def apply(self, problem: ConvProblem, sums: Array, operands: Sequence[Array]) -> Array:
        """The result, by XLA."""
        return self.epilogue.apply(problem, sums, self.epilogue.named(operands))

    @property
    def by_xla(self) -> End:
        return self._replace(kernel=lambda problem: None)

    def roles(self, operands: Sequence[Any]) -> tuple[str, ...]:
        """Of the epilogue's operands, as `split` has them."""
        named = zip(self.epilogue.operands, operands, strict=True)
        return tuple("out" if name in LIKE_RESULT else "channels" if x.ndim else "number" for name, x in named)


class Devices(NamedTuple):
    """The devices that split a dimension, in its order: that of `axes`, the slowest first."""

    axes: MeshAxes
    mesh_shape: MeshShape

    @property
    def count(self) -> int:
        return size_of(self.axes, self.mesh_shape)

    def index(self) -> Array:
        return lax.axis_index(self.axes)

    def own(self, values: Sequence[int]) -> Array:
        """This device's value."""
        return jnp.asarray(values, jnp.int32)[self.index()]

    def ppermute(self, x: Array, pairs: Sequence[tuple[int, int]]) -> Array:
        """lax's, which counts devices in the order of the mesh's axes, whatever the order of its argument."""
        axes = tuple(axis for axis in self.mesh_shape if axis in self.axes)
        index = np.arange(self.count).reshape([self.mesh_shape[axis] for axis in axes])
        index = index.transpose([axes.index(axis) for axis in self.axes]).ravel().tolist()
        return lax.ppermute(x, axes, [(index[source], index[destination]) for source, destination in pairs])


def block(
    kind: str, problem: ConvProblem, local: Local, split: Split, mesh_shape: MeshShape
) -> Callable[[Array, Array], Array]:
    """The function from a device's blocks of the operands to its block of the result; the devices exchange rows and
    sums. Without a split it is that of one device."""
    halos = _halos(problem, split, mesh_shape)
    devices = _devices(halos, split, mesh_shape)
    own, dtype = _shard(problem, split, mesh_shape, halos), problem.dtype(RESULT[kind])
    summed = tuple(axis for factor in SUMMED[kind] for axis in split.get(factor, ()))
    if summed and dtype in FLOAT8:  # rounded once, after all parts are added
        own = with_result(kind, own, FLOAT32)
    psum = lambda x: lax.psum(x, summed).astype(dtype) if summed else x
    moved = partial(_moved, problem, halos, devices)
    apart = _apart(own, halos)
    if apart is not None and (with_rows := local.with_rows(apart)):
        axis, halo, of = spatial_axes(problem, "lhs")["s0"], halos["s0"], devices["s0"]
        return lambda a, b: psum(with_rows(a, b, *_neighbours_rows(a, axis, halo, of)))
    compute = local.compute(own)

    def run(a: Array, b: Array) -> Array:
        a = moved(_gather_rows, a, "lhs")
        if kind == "wgrad":
            return psum(compute(a, moved(_rows_among_zeros, b, "out")))
        return psum(moved(_own_rows, compute(a, b), "out"))

    return run


def ended_block(
    problem: ConvProblem, local: Local, end: End, split: Split, mesh_shape: MeshShape
) -> Callable[..., Array]:
    """`block` of a conv that ends with an epilogue, whose operands follow: one kernel, where a device has complete sums
    and computes its own rows alone. local: what computes sums."""
    halos = _halos(problem, split, mesh_shape)
    own = _shard(problem, split, mesh_shape, halos)
    is_summed = any(split.get(factor) for factor in SUMMED["conv"])
    has_more_rows = any(halo.out_count != halo.out_block for halo in halos.values())
    if not (is_summed or has_more_rows or problem.periodic) and (kernel := end.kernel(end.epilogue.of_sums(own))):
        gather = partial(_moved, problem, halos, _devices(halos, split, mesh_shape), _gather_rows)
        return lambda lhs, rhs, *operands: kernel(gather(lhs, "lhs"), rhs, *operands)
    sums = block("conv", end.epilogue.of_sums(problem), local, split, mesh_shape)
    return lambda lhs, rhs, *operands: end.apply(own, sums(lhs, rhs), operands)


def _devices(halos: dict[str, Halo], split: Split, mesh_shape: MeshShape) -> dict[str, Devices]:
    return {factor: Devices(split.get(factor, ()), mesh_shape) for factor in halos}


def _moved(
    problem: ConvProblem, halos: dict[str, Halo], devices: dict[str, Devices], move: Callable, x: Array, role: str
) -> Array:
    """An array after each of its spatial dimensions was moved."""
    axes = spatial_axes(problem, role)
    for factor, halo in halos.items():
        x = move(x, axes[factor], halo, devices[factor])
    return x


def _halos(problem: ConvProblem, split: Split, mesh_shape: MeshShape) -> dict[str, Halo]:
    """Of the spatial factors that are split or periodic."""
    p = problem
    dims = zip(
        p.in_spatial, p.out_spatial, p.kernel, p.window_strides, p.pad_low, p.lhs_dilation, p.rhs_dilation, strict=True
    )
    are_there = spatial_axes(p, "lhs")
    return {
        factor: Halo(*dim, devices=size_of(split.get(factor, ()), mesh_shape), periodic=i in p.periodic)
        for i, dim in enumerate(dims)
        if (factor := f"s{i}") in are_there and (split.get(factor) or i in p.periodic)
    }


def of_one_device(problem: ConvProblem) -> ConvProblem:
    """The convolution that a kernel computes where nothing is split."""
    return _shard(problem, {}, {}, _halos(problem, {}, {}))


def apart_on_one_device(problem: ConvProblem) -> Apart | None:
    """The conv of a periodic problem: its image is its own neighbour."""
    halos = _halos(problem, {}, {})
    return _apart(_shard(problem, {}, {}, halos), halos)


def _shard(problem: ConvProblem, split: Split, mesh_shape: MeshShape, halos: dict[str, Halo]) -> ConvProblem:
    """The convolution of one device."""
    for factor, axes in split.items():
        if factor not in halos:
            by = size_of(axes, mesh_shape)
            problem = resize(problem, factor, lambda n, by=by: n // by)
    lhs, out, pad_low = list(problem.lhs_shape), list(problem.out_shape), list(problem.pad_low)
    for factor, halo in halos.items():
        i = int(factor[1:])
        lhs[problem.lhs_spec.spatial[i]] = halo.in_count
        out[problem.out_spec.spatial[i]] = halo.out_count
        pad_low[i] = halo.local_pad_low
    return dataclasses.replace(problem, lhs_shape=tuple(lhs), out_shape=tuple(out), pad_low=tuple(pad_low), periodic=())


def _apart(own: ConvProblem, halos: dict[str, Halo]) -> Apart | None:
    """A device's conv without the rows that it receives."""
    halo = halos.get("s0")
    if halo is None or len(halos) > 1 or halo.rows_apart is None:
        return None
    lhs, pad_low = list(own.lhs_shape), (-halo.span.start, *own.pad_low[1:])
    lhs[own.lhs_spec.spatial[0]] = halo.in_block
    return Apart(dataclasses.replace(own, lhs_shape=tuple(lhs), pad_low=pad_low), halo.rows_apart, own)


def _received(x: Array, axis: int, piece: Piece, devices: Devices) -> Array:
    """A piece, where it is needed."""
    part = lax.slice_in_dim(x, piece.start, piece.stop, axis=axis)
    return devices.ppermute(part, piece.pairs) if piece.hop % devices.count else part


def _neighbours_rows(x: Array, axis: int, halo: Halo, devices: Devices) -> list[Array]:
    """Those before this device's rows, if it needs any, and those after them."""
    return [_received(x, axis, piece, devices) for piece in halo.pieces if piece.hop != 0]


def _gather_rows(x: Array, axis: int, halo: Halo, devices: Devices) -> Array:
    """The input rows that this device's windows read: of its own block and of its neighbours'. Others are zeros."""
    x = _masked(x, axis, halo.in_size, devices)
    starts = (piece.hop * halo.in_block + piece.start - halo.span.start for piece in halo.pieces)
    parts = [(start, _received(x, axis, piece, devices)) for start, piece in zip(starts, halo.pieces, strict=True)]
    x = _joined(parts, x, len(halo.span), axis)
    return _window(x, axis, [offset - halo.span.start for offset in halo.in_offsets], halo.in_count, devices)


def _joined(parts: Sequence[tuple[int, Array]], like: Array, rows: int, axis: int) -> Array:
    """An array of so many rows, where each part begins at a row of its own. Other rows are zeros.

    XLA makes one kernel of it, two to four times as fast as that of a concatenation.
    """
    row = lax.broadcasted_iota(jnp.int32, [rows if i == axis else 1 for i in range(like.ndim)], axis)
    whole = jnp.zeros((*like.shape[:axis], rows, *like.shape[axis + 1 :]), like.dtype)
    for i, (start, part) in enumerate(parts):
        among_zeros = padded(part.shape, {axis: (start, rows)}).to(part)
        is_part = (start <= row) & (row < start + part.shape[axis])
        whole = among_zeros if i == 0 else jnp.where(is_part, among_zeros, whole)
    return whole


def _rows_among_zeros(g: Array, axis: int, halo: Halo, devices: Devices) -> Array:
    """The cotangent of the output rows that this device computes: zeros around those of its block."""
    g = _masked(g, axis, halo.out_size, devices)
    if halo.out_count == halo.out_block:
        return g
    whole = jnp.zeros((*g.shape[:axis], halo.out_count, *g.shape[axis + 1 :]), g.dtype)
    return lax.dynamic_update_slice_in_dim(whole, g, devices.own(halo.out_offsets), axis)


def _own_rows(y: Array, axis: int, halo: Halo, devices: Devices) -> Array:
    """The output rows of this device's block, of those that it computed."""
    return _window(y, axis, halo.out_offsets, halo.out_block, devices)


def _masked(x: Array, axis: int, rows: int, devices: Devices) -> Array:
    """A block with zeros in place of what XLA has after the last row: anything."""
    if rows % devices.count == 0:
        return x
    row = devices.index() * x.shape[axis] + lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.where(row < rows, x, 0)


def _window(x: Array, axis: int, offsets: Sequence[int], count: int, devices: Devices) -> Array:
    """`count` rows from this device's offset on."""
    if x.shape[axis] == count:
        return x
    return lax.dynamic_slice_in_dim(x, devices.own(offsets), count, axis)
