"""The kernel families: their tiles, what each cannot do, what it costs. `plan.choose` chooses among them."""

from jaxconv.devices import TYPICAL_DEVICE, Device
from jaxconv.families.base import LAUNCH_SECONDS, Family, Settings, Tile, TileRow
from jaxconv.families.cuda_cores import IM2COL_SCRATCH, Im2col, Simt
from jaxconv.families.depthwise import Depthwise
from jaxconv.families.depthwise_shape import DepthwiseTile
from jaxconv.families.direct import Direct
from jaxconv.families.direct_shape import DirectTile
from jaxconv.families.host import Gemm, HostDepthwise
from jaxconv.families.mma import Mma
from jaxconv.families.wgmma import Wgmma, WgmmaTile

# Of each platform, in the order of src_cpu's `Family` and src_cuda's `kFamilies`.
FAMILIES: dict[str, dict[str, Family]] = {
    "cpu": {"gemm": Gemm(), "depthwise": HostDepthwise()},
    "cuda": {
        "simt": Simt(),
        "im2col": Im2col(),
        "mma": Mma(),
        "direct": Direct(),
        "depthwise": Depthwise(),
        "wgmma": Wgmma(),
    },
}
