"""The kernel families of each platform, by the names that their handlers know them by."""

from __future__ import annotations

from jaxconv.planner.host import Gemm, HostDepthwise, HostFamily
from jaxconv.planner.native import NativeFamily

Family = HostFamily | NativeFamily

FAMILIES: dict[str, dict[str, Family]] = {
    "cpu": {"gemm": Gemm(), "depthwise": HostDepthwise()},
    "cuda": {
        "simt": NativeFamily("simt"),
        "im2col": NativeFamily("im2col"),
        "mma": NativeFamily("mma", transforms=True, packs_groups=True),
        "direct": NativeFamily("direct", transforms=True, stores_parts=True),
        "depthwise": NativeFamily("depthwise", transforms=True, of_channels=True),
        "wgmma": NativeFamily("wgmma", transforms=True, k_major=True),
    },
}
