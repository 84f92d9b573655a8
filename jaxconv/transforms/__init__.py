"""A problem as another one, by cheap changes of its arrays."""

from jaxconv.transforms.array_views import ArrayView, Moves, Transformed
from jaxconv.transforms.candidates import dense_transforms, depthwise_transforms
from jaxconv.transforms.columns import PackedColumns, PackedOutputs, TapsAsChannels
from jaxconv.transforms.dense import (
    ChannelsLast,
    KMajorFilter,
    PackedGroups,
    PatchRowsAsImages,
    PositionsLast,
    SeenPixels,
    channels_first,
)
from jaxconv.transforms.depthwise import MultipliersAsDepth, PaddedGroups, StridesAsDepth, VolumesAsImages
from jaxconv.transforms.transform import (
    STEPS,
    Step,
    SwappedOperands,
    Transform,
    added_results_reason,
    apply,
    channel_numbers,
    has_more_zeros,
    keeps_output_sums,
    mixed_members_reason,
    unsupported_reason,
)
