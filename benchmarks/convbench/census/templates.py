"""Kinds of networks: the shapes that their layers have where they are published."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from convbench.cases import Ints

ANY_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW = (1, 2, 4, 8, 16)
# Their extents divided by 4, 8, 16 and 32 are 56, 28, 14, 7; 58, 29, 15, 8; 62, 31, 16, 8; 66, 33, 17, 9; ...
PHOTOS = tuple((size, size) for size in (224, 192, 232, 248, 256, 264, 272, 280, 299, 320, 380, 448, 512))


class Stage(NamedTuple):
    """A layer's channels, and by how much the layers before it have divided the extents of the network's input."""

    reduction: int | Ints
    ins: int
    outs: int
    groups: int = 1


@dataclass(frozen=True)
class Template:
    """Layers of a kind: each is any choice of one from each field.

    images: extents of what a network reads. windows, strides, dilations: of each dimension; one number stands for all.
    has_own_stride: windows that touch each other, as in patch embeddings.
    padding: "half" of the window on each side, "none", or "causal": all of it before.
    transposed: the strides are those of a transposed convolution.
    """

    name: str
    images: tuple[Ints, ...]
    windows: tuple[int | Ints, ...]
    stages: tuple[Stage, ...]
    batches: Ints = ANY_BATCH
    strides: tuple[int | Ints, ...] = (1,)
    dilations: Ints = (1,)
    has_own_stride: bool = False
    padding: str = "half"
    transposed: bool = False


def dense(*stages: tuple[int | Ints, int, int]) -> tuple[Stage, ...]:
    return tuple(Stage(*stage) for stage in stages)


def square(*stages: tuple[int | Ints, int]) -> tuple[Stage, ...]:
    """As many channels in as out."""
    return tuple(Stage(reduction, channels, channels) for reduction, channels in stages)


def depthwise(*stages: tuple[int | Ints, int]) -> tuple[Stage, ...]:
    return tuple(Stage(reduction, channels, channels, groups=channels) for reduction, channels in stages)


def grouped(*stages: tuple[int | Ints, int, int]) -> tuple[Stage, ...]:
    """Reduction, channels, channels of a group."""
    return tuple(Stage(reduction, channels, channels, channels // width) for reduction, channels, width in stages)


def of_lengths(*lengths: int) -> tuple[Ints, ...]:
    return tuple((length,) for length in lengths)


def cubes(sizes: Iterable[int]) -> tuple[Ints, ...]:
    return tuple((size,) * 3 for size in sizes)


RESNET = square((4, 64), (8, 128), (16, 256), (32, 512))
RESNET_1X1 = dense(
    (4, 64, 256), (4, 256, 64), (4, 256, 128), (8, 128, 512), (8, 512, 128), (8, 512, 256), (16, 256, 1024),
    (16, 1024, 256), (16, 1024, 512), (32, 512, 2048), (32, 2048, 512),
)  # fmt: skip
MOBILENET = depthwise(
    (2, 32), (4, 96), (4, 144), (8, 192), (8, 240), (16, 384), (16, 480), (16, 672), (32, 960), (32, 1152)
)
EXPANSIONS = dense(
    (2, 32, 16), (2, 16, 96), (4, 96, 24), (4, 24, 144), (8, 144, 40), (8, 40, 240), (16, 240, 80), (16, 80, 480),
    (16, 112, 672), (32, 672, 192), (32, 192, 1152), (32, 1152, 320),
)  # fmt: skip
SEGMENTED = ((256, 256), (320, 320), (512, 512), (388, 388), (256, 512))
LATENTS = ((32, 32), (64, 64), (96, 96), (128, 128), (64, 96))
VOLUMES = (*cubes((64, 96, 128)), (32, 160, 160), (64, 128, 160))
CLIPS = tuple((frames, size, size) for frames in (8, 16, 32) for size in (112, 160, 224))
SPEECH = of_lengths(16000, 48000, 80000, 160000, 240000)

TEMPLATES = (
    # Images: classification.
    Template("resnet_1x1", PHOTOS, windows=(1,), stages=RESNET_1X1),
    Template("resnet_3x3", PHOTOS, windows=(3,), strides=(1, 2), stages=RESNET),
    Template("resnet_shortcut", PHOTOS, windows=(1,), strides=(2,), stages=dense(
        (4, 256, 512), (8, 512, 1024), (16, 1024, 2048),
    )),
    Template("image_stem", PHOTOS, windows=(3, 7), strides=(2,), stages=dense(
        (1, 3, 64), (1, 3, 32), (1, 3, 24), (1, 4, 64),
    )),
    Template("vgg_3x3", PHOTOS, windows=(3,), stages=dense(
        (1, 3, 64), (1, 64, 64), (2, 64, 128), (2, 128, 128), (4, 128, 256), (4, 256, 256), (8, 256, 512),
        (8, 512, 512), (16, 512, 512),
    )),
    Template("densenet_growth", PHOTOS, windows=(3,), stages=dense(
        (4, 128, 32), (8, 128, 32), (16, 128, 32), (32, 128, 32), (4, 192, 32), (8, 192, 48), (16, 192, 48),
    )),
    Template("densenet_1x1", PHOTOS, windows=(1,), stages=dense(
        (4, 64, 128), (4, 96, 128), (4, 160, 128), (8, 224, 128), (8, 352, 128), (16, 608, 128), (16, 736, 128),
        (32, 992, 128), (8, 512, 256), (16, 1024, 512),
    )),
    Template("inception_1x7", ((17, 17), (12, 12), (14, 14), (19, 19)), windows=((1, 7), (7, 1)), stages=dense(
        (1, 128, 128), (1, 128, 192), (1, 160, 160), (1, 160, 192), (1, 192, 192),
    )),
    Template("inception_1x3", ((8, 8), (7, 7), (9, 9)), windows=((1, 3), (3, 1)), stages=dense(
        (1, 384, 384), (1, 448, 384),
    )),
    Template("inception_5x5", ((35, 35), (28, 28), (31, 31)), windows=(3, 5), stages=dense(
        (1, 48, 64), (1, 64, 96), (1, 96, 96),
    )),
    Template("mobilenet_depthwise", PHOTOS, windows=(3, 5, 7), strides=(1, 2), stages=MOBILENET),
    Template("mobilenet_1x1", PHOTOS, windows=(1,), stages=EXPANSIONS),
    Template("convnext_depthwise", PHOTOS, windows=(7,), stages=depthwise(
        (4, 96), (8, 192), (16, 384), (32, 768), (4, 128), (8, 256), (16, 512), (32, 1024), (32, 1536),
    )),
    Template("large_depthwise", PHOTOS, windows=(9, 13, 27, 31, (5, 51), (51, 5)), stages=depthwise(
        (4, 96), (4, 128), (8, 192), (8, 256), (16, 384), (16, 512), (32, 1024),
    )),
    Template("resnext", PHOTOS, windows=(3,), strides=(1, 2), stages=grouped(
        (4, 128, 4), (8, 256, 8), (16, 512, 16), (32, 1024, 32), (4, 256, 8), (8, 512, 16),
    )),
    Template("regnet", PHOTOS, windows=(3,), strides=(1, 2), stages=grouped(
        (4, 48, 24), (8, 120, 24), (16, 336, 24), (32, 888, 24), (4, 72, 8), (8, 168, 8), (8, 448, 112),
        (16, 896, 112), (16, 784, 56), (32, 1624, 56), (8, 192, 48),
    )),
    Template("one_image_1x1", PHOTOS, windows=(1,), batches=(1,), stages=(*RESNET_1X1, *EXPANSIONS)),
    Template("one_image_3x3", PHOTOS, windows=(3,), batches=(1,), strides=(1, 2), stages=(*RESNET, *MOBILENET)),
    Template("patches", PHOTOS, windows=(4, 14, 16, 32), has_own_stride=True, padding="none", stages=dense(
        (1, 3, 768), (1, 3, 1024), (1, 3, 96), (1, 3, 384),
    )),
    Template("downsampling", PHOTOS, windows=(2,), has_own_stride=True, padding="none", stages=dense(
        (4, 96, 192), (8, 192, 384), (16, 384, 768), (4, 128, 256), (16, 512, 1024),
    )),
    # Images: segmentation, detection, super-resolution.
    Template("deeplab_aspp", ((33, 33), (65, 65), (64, 128), (41, 41)), windows=(3,), batches=FEW,
             dilations=(6, 12, 18, 24), stages=dense((1, 2048, 256), (1, 1280, 256), (1, 320, 256))),
    Template("dilated_resnet", ((65, 65), (64, 128), (28, 28), (60, 60)), windows=(3,), dilations=(2, 4), stages=square(
        (1, 128), (1, 256), (1, 512),
    )),
    Template("detection", ((800, 1216), (640, 640), (800, 1088)), windows=(3,), batches=FEW, stages=square(
        (8, 256), (16, 256), (32, 256), (64, 256),
    )),
    Template("unet2d", SEGMENTED, windows=(3,), batches=FEW, stages=dense(
        (1, 3, 64), (1, 64, 64), (2, 64, 128), (2, 128, 128), (4, 256, 256), (8, 512, 512), (16, 1024, 1024),
        (8, 1024, 512), (4, 512, 256), (1, 128, 64),
    )),
    Template("unet2d_up", SEGMENTED, windows=(2, 3), batches=FEW, strides=(2,), transposed=True, stages=dense(
        (16, 1024, 512), (8, 512, 256), (4, 256, 128), (2, 128, 64),
    )),
    Template("superresolution", ((48, 48), (96, 96), (192, 192)), windows=(3,), stages=dense(
        (1, 64, 64), (1, 64, 256), (1, 256, 256), (1, 64, 3), (1, 96, 32),
    )),
    Template("odd_windows", ((31, 29), (19, 33), (29, 35), (35, 19)), windows=((5, 3), (3, 5), (7, 3), (1, 5)),
             stages=dense((1, 48, 72), (1, 40, 56), (1, 24, 80), (1, 72, 72))),
    # Images: generation.
    Template("diffusion_3x3", LATENTS, windows=(3,), batches=FEW, stages=dense(
        (1, 4, 320), (1, 320, 320), (1, 960, 320), (1, 640, 320), (2, 320, 640), (2, 640, 640), (2, 1920, 640),
        (4, 640, 1280), (4, 1280, 1280), (4, 2560, 1280), (8, 1280, 1280), (8, 2560, 1280), (1, 320, 4),
    )),
    Template("diffusion_down", LATENTS, windows=(3,), batches=FEW, strides=(2,), stages=square(
        (1, 320), (2, 640), (4, 1280),
    )),
    Template("diffusion_1x1", LATENTS, windows=(1,), batches=FEW, stages=dense(
        (1, 960, 320), (2, 320, 640), (2, 1280, 640), (4, 640, 1280), (8, 2560, 1280),
    )),
    Template("vae", ((256, 256), (512, 512), (384, 512)), windows=(3,), batches=(1, 2, 4), stages=dense(
        (8, 4, 512), (8, 512, 512), (4, 512, 512), (2, 512, 256), (2, 256, 256), (1, 256, 128), (1, 128, 128),
        (1, 128, 3), (1, 3, 128),
    )),
    Template("gan_down", ((64, 64), (128, 128), (256, 256)), windows=(4,), strides=(2,), stages=dense(
        (1, 3, 64), (2, 64, 128), (4, 128, 256), (8, 256, 512),
    )),
    Template("gan_up", ((64, 64), (128, 128), (256, 256)), windows=(4, 5), strides=(2,), transposed=True, stages=dense(
        (16, 1024, 512), (8, 512, 256), (4, 256, 128), (2, 128, 64), (2, 64, 3),
    )),
    # Speech and sequences.
    Template("wav2vec_stem", SPEECH, windows=(10,), batches=FEW, strides=(5,), padding="none", stages=dense(
        (1, 1, 512),
    )),
    Template("wav2vec", SPEECH, windows=(2, 3), batches=(1, 2, 4, 8, 16, 32), strides=(2,), padding="none",
             stages=square((5, 512), (10, 512), (40, 512), (160, 512))),
    Template("positional_128", of_lengths(249, 499, 749, 1499), windows=(128,), batches=(1, 2, 4, 8, 16, 32),
             stages=grouped((1, 768, 48), (1, 1024, 64))),
    Template("wavenet", of_lengths(4096, 8192, 16384, 32768), windows=(2, 3), batches=FEW,
             dilations=(1, 2, 4, 16, 64, 256, 512), padding="causal",
             stages=dense((1, 32, 64), (1, 64, 128), (1, 128, 256), (1, 256, 512))),
    Template("whisper", of_lengths(1500, 3000), windows=(3,), batches=(1, 2, 4, 8, 16, 32), strides=(1, 2),
             stages=dense((1, 80, 384), (1, 80, 512), (1, 128, 1280), (1, 512, 512), (1, 1280, 1280))),
    Template("mamba", of_lengths(1024, 2048, 4096, 8192), windows=(3, 4), batches=FEW, padding="causal",
             stages=depthwise((1, 1536), (1, 2048), (1, 4096), (1, 5120))),
    Template("conformer", of_lengths(200, 375, 512, 1024, 1500), windows=(5, 9, 15, 31), batches=(1, 4, 16, 32, 64),
             stages=depthwise((1, 144), (1, 256), (1, 512), (1, 1024))),
    Template("sequence_dense", of_lengths(256, 512, 1000, 2000), windows=(1, 3, 5, 9), batches=(1, 4, 16, 32, 64),
             stages=dense((1, 256, 1024), (1, 1024, 256), (1, 512, 512), (1, 384, 1536))),
    Template("vocoder", of_lengths(2048, 8192, 32768), windows=(3, 7, 11), batches=FEW, dilations=(1, 3, 5),
             stages=square((1, 256), (2, 128), (2, 64), (1, 32))),
    Template("vocoder_up", of_lengths(256, 1024, 4096), windows=(16,), batches=FEW, strides=(4, 8), transposed=True,
             stages=dense((1, 512, 256), (1, 256, 128), (1, 128, 64), (1, 64, 32))),
    Template("long_taps", of_lengths(1000, 3000, 7680), windows=(15, 25, 32, 64, 128), batches=(1, 8, 32, 64, 128),
             stages=dense((1, 1, 16), (1, 12, 64), (1, 64, 64), (1, 22, 40))),
    Template("spectrograms", ((161, 400), (161, 800), (80, 1000), (128, 998)),
             windows=(3, (11, 5), (41, 11), (21, 11)), batches=FEW, strides=(1, 2),
             stages=dense((1, 1, 32), (1, 32, 32), (1, 1, 256), (2, 256, 256))),
    # Video and volumes.
    Template("r2plus1d_space", CLIPS, windows=((1, 3, 3),), batches=FEW, strides=(1, (1, 2, 2)), stages=dense(
        ((1, 2, 2), 64, 144), ((2, 4, 4), 64, 230), ((2, 4, 4), 128, 288), ((4, 8, 8), 256, 576),
    )),
    Template("r2plus1d_time", CLIPS, windows=((3, 1, 1),), batches=FEW, strides=(1, (2, 1, 1)), stages=dense(
        ((1, 2, 2), 144, 64), ((2, 4, 4), 230, 128), ((2, 4, 4), 288, 128), ((4, 8, 8), 576, 256),
    )),
    Template("i3d", CLIPS, windows=(3,), batches=FEW, stages=dense(
        ((2, 4, 4), 64, 192), ((2, 8, 8), 96, 128), ((2, 8, 8), 128, 192), ((2, 8, 8), 32, 96),
        ((4, 16, 16), 112, 224), ((4, 16, 16), 160, 320),
    )),
    Template("i3d_1x1x1", CLIPS, windows=(1,), batches=FEW, stages=dense(
        ((2, 8, 8), 192, 96), ((2, 8, 8), 256, 128), ((4, 16, 16), 480, 192), ((4, 16, 16), 528, 256),
    )),
    Template("video_stem", CLIPS, windows=((7, 7, 7), (3, 7, 7), (1, 7, 7), (5, 7, 7)), batches=FEW,
             strides=((1, 2, 2), 2), stages=dense((1, 3, 64), (1, 3, 45), (1, 3, 24))),
    Template("tubelets", CLIPS, windows=((2, 16, 16), (4, 16, 16)), batches=FEW, has_own_stride=True, padding="none",
             stages=dense((1, 3, 768), (1, 3, 1024))),
    Template("x3d_depthwise", CLIPS, windows=(3, (5, 1, 1)), batches=FEW, strides=(1, (1, 2, 2)), stages=depthwise(
        ((1, 4, 4), 54), ((1, 8, 8), 108), ((1, 16, 16), 216), ((1, 8, 8), 96),
    )),
    Template("volume_stem", VOLUMES, windows=(3, 5, 7), batches=(1, 2, 4), strides=(1, 2), stages=dense(
        (1, 1, 32), (1, 4, 32), (1, 1, 16), (1, 2, 64),
    )),
    Template("unet3d", VOLUMES, windows=(3,), batches=(1, 2, 4), strides=(1, 2), stages=dense(
        (1, 32, 32), (2, 32, 64), (2, 64, 64), (4, 128, 128), (8, 256, 256), (16, 320, 320), (4, 256, 128),
        (1, 64, 32),
    )),
    Template("unet3d_up", VOLUMES, windows=(2, 3), batches=(1, 2, 4), strides=(2,), transposed=True, stages=dense(
        (2, 64, 32), (4, 128, 64), (8, 256, 128), (16, 320, 256),
    )),
    Template("video_vae", ((17, 128, 128), (9, 256, 256), (33, 64, 64)), windows=(3,), batches=(1, 2), stages=dense(
        (1, 128, 128), ((1, 2, 2), 256, 256), ((1, 4, 4), 512, 512), (1, 3, 128),
    )),
)  # fmt: skip
