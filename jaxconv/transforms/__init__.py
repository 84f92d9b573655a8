"""A problem as another one, by cheap changes of its arrays."""

from jaxconv.transforms.array_views import ROLES, Form, Rewritten
from jaxconv.transforms.candidates import rewritings, rewritings_of_channels
from jaxconv.transforms.dense import ChannelsLast, PackedColumns, PackedGroups, PatchRowsAsImages
from jaxconv.transforms.depthwise import MultipliersAsDepth, PaddedGroups, StridesAsDepth
from jaxconv.transforms.transform import Rewriting, SwappedOperands, rewrite, why_members_meet, why_not
