"""The kernel families of each platform, by the names that their handlers know them by."""

from __future__ import annotations

from functools import partial

from jaxconv.planner.host import HostFamily
from jaxconv.planner.native import NativeFamily
from jaxconv.transforms import dense_transforms, depthwise_transforms

Family = HostFamily | NativeFamily

FAMILIES: dict[str, dict[str, Family]] = {
    "cpu": {"gemm": HostFamily("gemm", swaps=True), "depthwise": HostFamily("depthwise")},
    "cuda": {
        "simt": NativeFamily("simt"),
        "im2col": NativeFamily("im2col"),
        "mma": NativeFamily("mma", partial(dense_transforms, packs_groups=True)),
        "direct": NativeFamily("direct", partial(dense_transforms, stores_parts=True)),
        "depthwise": NativeFamily("depthwise", depthwise_transforms),
        "wgmma": NativeFamily("wgmma", partial(dense_transforms, k_major=True)),
    },
}
