"""The layers and passes of the census: drawn from the templates in turn, always the same for a seed."""

import math
import random
from itertools import cycle
from typing import NamedTuple

from convbench.cases import Case, Ints, dilate
from convbench.census.templates import TEMPLATES, Stage, Template
from convbench.programs import PASSES

# Of a layer, so that lax takes some milliseconds at most, unless it is far from what the GPU could do.
MOST_FLOPS = 1e12
MOST_BYTES = 1e9
ITEMSIZE = 2


class Drawn(NamedTuple):
    case: Case
    which: str


def draw(rows: int, seed: int) -> list[Drawn]:
    """As many different pairs of a layer and a pass. With more rows, those of fewer come first."""
    chance, templates, drawn = random.Random(seed), cycle(TEMPLATES), {}
    while len(drawn) < rows:
        drawn[Drawn(_layer(next(templates), chance), chance.choice(PASSES))] = None  # perhaps once more the same
    return list(drawn)


def is_plausible(case: Case) -> bool:
    """Whether a network may have such a layer: it has an output, its window suits the image, it is not too large."""
    extents = zip(case.lhs[1:-1], case.rhs, case.lhs_dilation, case.rhs_dilation)
    fits = all(dilate(window, spread) <= 2 * dilate(size, hole) for size, window, hole, spread in extents)
    touched = ITEMSIZE * sum(map(math.prod, (case.lhs, case.rhs, case.out)))
    multiplied = 2 * math.prod(case.out) * math.prod(case.rhs[:-1]) / math.prod(case.lhs_dilation)
    return fits and min(case.out) > 0 and touched <= MOST_BYTES and multiplied <= MOST_FLOPS


def _layer(template: Template, chance: random.Random) -> Case:
    """A plausible layer of a template."""
    while True:
        case = _case(template, chance)
        if is_plausible(case):
            return case


def _case(template: Template, chance: random.Random) -> Case:
    image, stage = chance.choice(template.images), chance.choice(template.stages)
    rank = len(image)
    in_all = lambda value: (value,) * rank if isinstance(value, int) else value
    size = tuple(-(-extent // by) for extent, by in zip(image, in_all(stage.reduction)))
    window = in_all(chance.choice(template.windows))
    stride = window if template.has_own_stride else in_all(chance.choice(template.strides))
    dilation = in_all(chance.choice(template.dilations))
    batch, unit = chance.choice(template.batches), (1,) * rank
    pads = [_padding(template, *of_one) for of_one in zip(window, stride, dilation)]
    return Case(
        name=_name(template, batch, size, stage, window, stride, dilation),
        suite=template.name,
        lhs=(batch, *size, stage.ins),
        rhs=(*window, stage.ins // stage.groups, stage.outs),
        window_strides=unit if template.transposed else stride,
        padding=tuple(pads),
        lhs_dilation=stride if template.transposed else unit,
        rhs_dilation=dilation,
        feature_group_count=stage.groups,
    )


def _padding(template: Template, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """Of one dimension. A transposed convolution makes its input larger by its stride exactly."""
    if template.transposed:
        cut = (window - stride + 1) // 2  # of the result, at each side; of an odd window one less at the end
        return window - 1 - cut, stride - 1 + cut
    reach = dilate(window, dilation) - 1
    return {"half": (reach // 2, reach // 2), "causal": (reach, 0), "none": (0, 0)}[template.padding]


def _name(template: Template, batch: int, size: Ints, stage: Stage, window: Ints, stride: Ints, dilation: Ints) -> str:
    """All that tells a layer from others of its template."""
    joined = lambda prefix, numbers: prefix + "x".join(map(str, numbers))
    parts = [template.name, f"b{batch}", joined("", size), f"{stage.ins}to{stage.outs}", joined("k", window)]
    parts += [joined("s", stride)] * (max(stride) > 1) + [joined("d", dilation)] * (max(dilation) > 1)
    return "_".join(parts + [f"g{stage.groups}"] * (stage.groups > 1))
