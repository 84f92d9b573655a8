"""What the C++ module of src_cuda/planning.cc offers."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

SPATIAL: int  # the spatial dimensions that kernels have
VECTOR_BYTES: int  # the most that a thread loads at once
TAP_COLUMNS: int  # of the offset tables
CLASS_COLUMNS: int
BLOCK_CHANNELS: int  # of an activation that has its channels in blocks
MOST_TMA_STEP: int  # pixels from a window to the next, where TMA reads them
MOST_WINDOW_PARTS: int  # that depthwise takes of a window, whose every plane is one or more
OLDEST_CAPABILITY: tuple[int, int]  # of the GPUs that the CUDA kernels are compiled for
DIGEST: str  # of the native sources
COORDINATE_LIMIT: int  # coordinates in an image are less
POSITIONS_LIMIT: int  # output positions are fewer
TOO_MANY_POSITIONS: str  # the reason against a problem that has them
CUDA_FAMILIES: tuple[str, ...]  # each is a module of this one: its planner
host: Any  # the planners of the host's kernel families, by their names
FORMAT: int  # of programs' custom calls: attributes, settings, offset tables

Array = tuple[Sequence[int], Sequence[int], str]  # sizes, axes, dtype's name

def has_channel_vectors(  # of 16 bytes, in both operands
    is_wgrad: bool, src: Array, filter: Array, dst: Array, in_channels: int, out_channels: int
) -> bool: ...
def takes_types(is_wgrad: bool, src: str, filter: str, dst: str, has_epilogue: bool) -> bool: ...  # names of dtypes
def sum_type(operand: str, result: str) -> str: ...  # names of dtypes
def epilogue_type(operand: str, result: str) -> str: ...  # names of dtypes
def period(stride: int, dilation: int) -> int: ...  # of output positions that see the same taps
def is_quantised(result: str) -> bool: ...  # the name of a dtype
def adds_residual_on_host(residual: str, numbers: str) -> bool: ...  # names of dtypes
def needs_epilogue_on_cuda(result: str) -> bool: ...  # the name of a dtype
def is_k_major_alone(dtype: str) -> bool: ...  # whether wgmma reads operands of a type in no other order

class Float32(Enum):  # how it is multiplied
    BF16 = ...
    TF32 = ...
    BF16X6 = ...
    FLOAT32 = ...

class Product:
    m: int  # the sizes of each group's matrix product
    n: int
    k: int  # on average over the residue classes: a position sees only the taps of its own class

    def __init__(
        self,
        is_wgrad: bool,
        float32: Float32,
        src: Array,
        filter: Array,
        dst: Array,
        kernel: Sequence[int],
        window_strides: Sequence[int],
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        groups: int,
        member_groups: int,
        src_batch_grouped: bool,
        dst_batch_grouped: bool,
        filter_in_grouped: bool,
        dst_in_blocks: bool,
        has_epilogue: bool,
        has_residual: bool,
        taps: np.ndarray,
        classes: np.ndarray,
    ) -> None: ...

class Device:
    def __init__(
        self,
        multiprocessors: int,
        clock_hz: float,
        bandwidth: float,
        l2_bytes: int,
        shared_bytes: int,
        wgmma: bool,
        costs: Mapping[str, Mapping[str, float]],
    ) -> None: ...

class Candidate:
    tile: str | None
    reason: str | None
    seconds: float
    settings: dict[str, int]
