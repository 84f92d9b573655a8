"""The kernel families of each platform, by the names that their handlers know them by."""

from __future__ import annotations

from functools import partial

from jaxconv.compiled import planning
from jaxconv.planner.host import HostFamily
from jaxconv.planner.native import NativeFamily
from jaxconv.transforms import dense_transforms, depthwise_transforms

Family = HostFamily | NativeFamily

# Those that are tried for CUDA's families. The others take no transformed problem.
TRANSFORMS = {
    "mma": partial(dense_transforms, packs_groups=True),
    "direct": partial(dense_transforms, joins_groups=True, stores_parts=True),
    "depthwise": depthwise_transforms,
    "gather": depthwise_transforms,
    "wgmma": partial(dense_transforms, k_major=True),
}
FAMILIES: dict[str, dict[str, Family]] = {
    "cpu": {name: HostFamily(name, swaps=name == "gemm") for name in planning.host.FAMILIES},
    "cuda": {name: NativeFamily(name, TRANSFORMS.get(name)) for name in planning.CUDA_FAMILIES},
}
