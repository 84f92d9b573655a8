"""lax as one more candidate on a GPU: where it is taken, where not, and who is never given it."""

import dataclasses

import jax
import pytest

import jaxconv
from cases.plans import device
from cases.problems import channels_first, each_channel, halves, layer, of_layouts, passes_of
from jaxconv import ffi
from jaxconv.explain import lines
from jaxconv.lowering import decide
from jaxconv.planner.choose import Times, choose
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.plan import Constraint, Lax
from jaxconv.planner.xla import AHEAD, Comparison, choose_or_lax, compare, constants_of, kind_of, work_of
from jaxconv.problem.product import Product
from jaxconv.tuning import file
from jaxconv.tuning.entries import Entry
from jaxconv.tuning.loaded import loaded_tuning

BY_LAX = halves((1, 32, 32, 1536), (1, 1, 1536, 512))
EACH = each_channel((1, 16, 16, 960), (3, 3))
BY_OURS = halves((128, 28, 28, 256), (3, 3, 256, 256))
DENSE = halves((32, 28, 28, 128), (3, 3, 128, 128))
UNFITTED = device(is_fitted=False)


def is_lax(kind, problem, on=TYPICAL_DEVICE):
    return isinstance(choose_or_lax("cuda", kind, problem, on).plan, Lax)


def kinds(problem):
    """By pass."""
    return tuple(kind_of(Product(*of_pass)) for of_pass in passes_of(problem).values())


@pytest.fixture
def on_cuda(without_tuning, cuda_kernels, monkeypatch):
    """As on an H200, also for what explains programs."""
    monkeypatch.setattr("jaxconv.traced.Traced.platform", "cuda")


def operands(problem):
    return [jax.ShapeDtypeStruct(problem.shape(role), problem.dtype(role)) for role in ("lhs", "rhs")]


def conv(problem, implementation=None):
    return lambda x, w: jaxconv.conv2d(x, w, feature_group_count=problem.groups, implementation=implementation)


def lowered(problem, implementation=None):
    traced = jax.jit(conv(problem, implementation)).trace(*operands(problem))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


# What the model says.


@pytest.mark.parametrize("problem, expected", [
    (halves((8, 14, 14, 64), (1, 1, 64, 96)), ("1x1 fprop", "1x1 dgrad", "1x1 wgrad")),
    (layer((8, 14, 14, 64), (1, 1, 64, 96), window_strides=2), ("float32 window", None, "float32 window wgrad")),
    (DENSE, ("window", "window", "window wgrad")),
    (layer((8, 14, 14, 64), (3, 3, 64, 96), "float16", window_strides=2), ("window", None, "window wgrad")),
    (layer((8, 14, 14, 64), (3, 3, 64, 96)), ("float32 window", "float32 window", "float32 window wgrad")),
    (halves((8, 500, 64), (3, 64, 96)), ("window", "window", "window wgrad")),
    (EACH, (None, None, None)),
])  # fmt: skip
def test_kinds(problem, expected):
    assert kinds(problem) == expected


(BATCH,) = jax.export.symbolic_shape("batch")
OTHERS = {
    "float64": layer((8, 14, 14, 64), (3, 3, 64, 96), "float64"),
    "int8": layer((8, 14, 14, 64), (3, 3, 64, 96), "int8", "int32"),
    "highest": layer((8, 14, 14, 64), (3, 3, 64, 96), precision="highest"),
    "to_float32": halves((8, 14, 14, 64), (3, 3, 64, 96), result="float32"),
    "dilated": halves((8, 14, 14, 64), (3, 3, 64, 96), rhs_dilation=2),
    "transposed": halves((8, 14, 14, 64), (3, 3, 64, 96), lhs_dilation=2, padding=2),
    "grouped": halves((8, 14, 14, 64), (3, 3, 16, 96), feature_group_count=4),
    "groups_of_112": halves((64, 28, 28, 896), (3, 3, 112, 896), feature_group_count=8),
    "groups_of_128": halves((32, 28, 28, 512), (3, 3, 128, 512), feature_group_count=4),
    "float32_groups_of_128": layer((32, 28, 28, 512), (3, 3, 128, 512), feature_group_count=4),
    "groups_by_128_taps": halves((2, 1500, 1024), (128, 64, 1024), feature_group_count=16),
    "depthwise_5x5": each_channel((8, 14, 14, 64), (5, 5)),
    "depthwise_by_2": each_channel((8, 14, 14, 64), (3, 3), window_strides=2),
    "stem": halves((8, 64, 64, 3), (7, 7, 3, 64)),
    "odd_channels": halves((8, 14, 14, 60), (3, 3, 60, 96)),
    "volume": halves((8, 6, 14, 14, 64), (3, 3, 3, 64, 96)),
    "batch_last": of_layouts((14, 14, 64, 8), (3, 3, 64, 96), ("HWCN", "HWIO", "HWCN")),
    "empty": halves((0, 14, 14, 64), (3, 3, 64, 96)),
    "symbolic_batch": halves((BATCH, 14, 14, 64), (3, 3, 64, 96)),
}


@pytest.mark.parametrize("problem", OTHERS.values(), ids=OTHERS)
def test_what_lax_is_never_taken_for(problem):
    """Also not on a GPU without fitted costs: there it is never one of the first choices that anyone measured."""
    assert kinds(problem)[0] is None
    assert not is_lax("conv", problem) and not is_lax("conv", problem, UNFITTED)


def test_more_work_takes_longer():
    images = [work_of(Product("conv", halves((n, 28, 28, 128), (3, 3, 128, 128)))) for n in (1, 8, 64, 512)]
    seconds = [work.seconds(constants_of("window", TYPICAL_DEVICE)) for work in images]
    assert 4e-6 < seconds[0] < seconds[1] < seconds[2] < seconds[3]
    assert seconds[3] == pytest.approx(8 * seconds[2], rel=0.25)


@pytest.mark.parametrize("window", [(1, 1), (3, 3)])
@pytest.mark.parametrize("which", ["fprop", "dgrad"])
def test_cudnn_multiplies_whole_blocks_of_channels(which, window):
    """Of a conv's K: a dgrad's is that of output channels."""
    work = [
        work_of(Product(*passes_of(halves((8, 28, 28, i), (*window, i, o)))[which])) for i, o in ((40, 80), (64, 96))
    ]
    assert work[0].flops == work[1].flops and work[0].waits == work[1].waits


def test_a_weight_gradient_has_no_blocks_of_channels():
    """Its K is positions."""
    work = work_of(Product(*passes_of(halves((8, 28, 28, 40), (3, 3, 40, 80)))["wgrad"]))
    assert work.flops == 2 * 384 * 128 * 8 * 28 * 28


def test_lax_must_be_ahead_by_more_than_the_usual_error():
    work, constants = work_of(Product("conv", DENSE)), constants_of("window", TYPICAL_DEVICE)
    least = AHEAD * constants.error * work.seconds(constants) - constants.ours_seconds
    assert compare(work, 1.01 * least, constants).is_lax_faster
    assert not compare(work, 0.99 * least, constants).is_lax_faster


# Who gets it.


def test_the_choice():
    assert is_lax("conv", BY_LAX) and not is_lax("conv", BY_OURS)
    choice = choose_or_lax("cuda", "conv", BY_LAX, TYPICAL_DEVICE)
    assert choice.cost < choose("cuda", "conv", BY_LAX).cost
    assert choose_or_lax("cuda", "conv", BY_OURS, TYPICAL_DEVICE) == choose("cuda", "conv", BY_OURS)


def test_the_choice_for_channels_first():
    """As for channels last: cuDNN gets them so."""
    by_lax = channels_first((1, 1536, 32, 32), (512, 1536, 1, 1))
    by_ours = channels_first((128, 256, 28, 28), (256, 256, 3, 3))
    of_one_pixel = channels_first((128, 256, 1, 1), (256, 256, 1, 1))
    assert is_lax("conv", by_lax) and not is_lax("conv", by_ours)
    assert is_lax("conv", by_ours, UNFITTED) and is_lax("conv", of_one_pixel, UNFITTED)


def test_less_work_than_was_measured(monkeypatch):
    """Nothing is known of small float32 layers: whatever is expected, lax does not answer them."""
    monkeypatch.setattr(Comparison, "is_lax_faster", True)
    large, small = (layer((n, 27, 9, c), (3, 3, c, c)) for n, c in ((128, 256), (1, 32)))  # planned in no other test
    assert is_lax("conv", large) and not is_lax("conv", small)


@pytest.mark.parametrize("implementation", ["cuda", "mma", Constraint(), Constraint("cuda", "mma", split=1)])
def test_no_name_ever_means_lax(on_cuda, implementation):
    assert isinstance(decide("conv", "cuda", BY_LAX, None).plan, Lax)
    assert decide("conv", "cuda", BY_LAX, implementation).plan.platform == "cuda"


def test_the_host_is_as_it_was():
    for kind, problem in passes_of(BY_LAX).values():
        assert choose_or_lax("cpu", kind, problem, TYPICAL_DEVICE) == choose("cpu", kind, problem)


def test_programs(on_cuda):
    """Without a warning, which would be an error here."""
    by_lax = lowered(BY_LAX)
    assert "stablehlo.convolution" in by_lax and "jaxconv_conv" not in by_lax
    for text in (lowered(BY_LAX, "cuda"), lowered(BY_OURS)):
        assert "stablehlo.convolution" not in text and "jaxconv_conv" in text


def test_a_loaded_tuning_wins(on_cuda, monkeypatch, tmp_path):
    monkeypatch.setattr(file, "model", lambda platform: "NVIDIA H200")
    plan, path = choose("cuda", "conv", BY_LAX).plan, tmp_path / "tuning.json"
    file.extend(path, "cuda", [Entry("conv", BY_LAX, {plan: Times(7.5, 3.0), Lax(): Times(None, 3.1)}),
                               Entry("conv", BY_OURS, {Lax(): Times(None, 90.0)})])  # fmt: skip
    jaxconv.load_tuning(path)
    tuning = loaded_tuning()
    assert decide("conv", "cuda", BY_LAX, None, tuning).plan == plan
    assert isinstance(decide("conv", "cuda", BY_OURS, None, tuning).plan, Lax)


def test_a_gpu_without_fitted_costs(on_cuda, monkeypatch):
    """Dense layers are lax's, small ones too; others are ours."""
    for kind, problem in passes_of(DENSE).values():
        assert is_lax(kind, problem, UNFITTED)
    assert is_lax("conv", halves((1, 7, 7, 64), (1, 1, 64, 64)), UNFITTED)
    assert not is_lax("conv", EACH, UNFITTED)
    monkeypatch.setattr(ffi, "device", lambda platform: UNFITTED)
    (line,) = lines(conv(DENSE), *operands(DENSE))
    assert ": lax; not wgmma " in line and line.endswith("autotune measures both)")
    assert "jaxconv_conv" in lowered(DENSE, "cuda") and "jaxconv_conv" not in lowered(DENSE)


# What explain says.


def test_explain(on_cuda):
    (by_lax,) = lines(conv(BY_LAX), *operands(BY_LAX))
    assert by_lax.partition(": ")[2].startswith("lax (7.")
    assert " us expected); not wgmma " in by_lax and by_lax.endswith(" us expected")
    (by_ours,) = lines(conv(BY_OURS), *operands(BY_OURS))
    assert ": wgmma " in by_ours and "; not simt " in by_ours
    assert "; not lax: " in by_ours and "us expected, within a factor of 1." in by_ours.rpartition("not lax: ")[2]
    (named,) = lines(conv(BY_LAX, "cuda"), *operands(BY_LAX))
    assert ": wgmma " in named and "lax" not in named


def test_equal_choices_are_equal():
    """By what was chosen, not by the reasons."""
    choice = choose_or_lax("cuda", "conv", BY_LAX, TYPICAL_DEVICE)
    assert choice == dataclasses.replace(choice, others=tuple)


IN_FLOAT32 = layer((32, 28, 28, 128), (3, 3, 128, 128))


def with_bias(problem, implementation=None):
    return lambda x, w: jaxconv.conv2d(
        x, w, feature_group_count=problem.groups, bias=0.5, activation="relu", implementation=implementation
    )


@pytest.mark.parametrize("problem, on, by_lax", [
    (IN_FLOAT32, UNFITTED, True), (IN_FLOAT32, TYPICAL_DEVICE, False), (DENSE, UNFITTED, False),
    (BY_LAX, TYPICAL_DEVICE, False),
])  # fmt: skip
def test_with_an_epilogue(problem, on, by_lax, on_cuda, monkeypatch):
    """No times of lax with one are known. So lax has dense float32 layers of GPUs of which nothing is known, and no
    others: of 16 bits it would store float32."""
    monkeypatch.setattr(ffi, "device", lambda platform: on)
    for implementation, expected in (None, by_lax), ("cuda", False):
        conv = with_bias(problem, implementation)
        (line,) = lines(conv, *operands(problem))
        assert line.startswith("fprop with its epilogue ") and (": lax; not" in line) == expected
        text = jax.jit(conv).trace(*operands(problem)).lower(lowering_platforms=("cuda",)).as_text()
        assert ("stablehlo.convolution" in text) == expected and ("jaxconv_conv" in text) != expected
