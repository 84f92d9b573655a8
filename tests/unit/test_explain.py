"""`explain`: a line for each convolution and pass that a function's program holds, and for what answers it."""

import functools
import re
import warnings
from collections import Counter

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.derivatives import loss
from cases.plans import candidates
from cases.problems import passes_of, problem_of
from cases.reference import HOST, lax_channels_last
from cases.small import ENTRIES, named
from cases.tiles import has_pass, is_for_tf32
from jaxconv.explain import lines
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint, constraint_of

X, W = jax.ShapeDtypeStruct((2, 5, 4, 3), np.float32), jax.ShapeDtypeStruct((3, 2, 3, 4), np.float32)


pytestmark = pytest.mark.usefixtures("on_the_host")


def passes(fn, *args, **kwargs):
    return [line.split()[0] for line in lines(fn, *args, **kwargs)]


def answers(fn, *args, **kwargs):
    """What follows each problem."""
    return [line.split(": ", 1)[1] for line in lines(fn, *args, **kwargs)]


def test_a_line(capsys):
    """Printed: the pass, the problem, the family, and why not the other."""
    assert jaxconv.explain(jaxconv.conv2d, X, W) is None
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == "\n".join(lines(jaxconv.conv2d, X, W)) + "\n"
    (line,) = printed.out.splitlines()
    assert line.startswith("fprop float32[2,5,4,3] * float32[3,2,3,4] -> float32[2,5,4,4], window_strides (1, 1), ")
    assert re.search(r": gemm; not depthwise: \S+", line)


@pytest.mark.parametrize("precision, text", [
    (None, ""), ("highest", ", precision HIGHEST"), (("default", "highest"), ", precision HIGHEST"),
    ("BF16_BF16_F32_X3", ", algorithm BF16_BF16_F32_X3"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_precision(precision, text, dtype):
    """It is of float32 alone."""
    x, w = (jax.ShapeDtypeStruct(of.shape, dtype) for of in (X, W))
    (line,) = lines(lambda x, w: jaxconv.conv2d(x, w, precision=precision), x, w)
    assert f"groups 1{text if dtype == 'float32' else ''}: " in line


ENTRY_CALLS = {
    "conv1d": (jaxconv.conv1d, (2, 9, 3), (3, 3, 4)),
    "conv2d": (jaxconv.conv2d, X.shape, W.shape),
    "conv3d": (jaxconv.conv3d, (2, 3, 4, 3, 2), (2, 3, 2, 2, 3)),
    "conv_general_dilated": (
        lambda x, w: jaxconv.conv_general_dilated(x, w, (1, 1), "SAME"), (2, 3, 5, 4), (4, 3, 3, 2)
    ),
    "conv_transpose": (lambda x, w: jaxconv.conv_transpose(x, w, (2, 2), "SAME"), X.shape, W.shape),
}  # fmt: skip


@pytest.mark.parametrize("conv, x, w", ENTRY_CALLS.values(), ids=ENTRY_CALLS)
def test_every_function(conv, x, w):
    x, w = (jax.ShapeDtypeStruct(shape, np.float32) for shape in (x, w))
    assert passes(conv, x, w) == ["fprop"]
    assert answers(conv, x, w)[0].startswith("gemm")
    gradients = jax.grad(loss(conv), argnums=(0, 1))
    assert Counter(passes(gradients, x, w)) == Counter(["fprop", "dgrad", "wgrad"])


@pytest.mark.parametrize("argnums, expected", [
    ((0, 1), {"fprop": 1, "dgrad": 1, "wgrad": 1}), (0, {"fprop": 1, "dgrad": 1}), (1, {"fprop": 1, "wgrad": 1})
])  # fmt: skip
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("entry", ENTRIES)
def test_gradients(entry, jitted, argnums, expected):
    """The passes that the program needs, whatever was traced."""
    step = jax.value_and_grad(loss(getattr(named("dense"), entry)(None)), argnums=argnums)
    assert Counter(passes(jax.jit(step) if jitted else step, X, W)) == expected


def test_the_forward_is_first():
    assert passes(jax.value_and_grad(loss(jaxconv.conv2d), argnums=(0, 1)), X, W)[0] == "fprop"


def test_problems_of_gradients():
    """The data gradient maps outputs to inputs; the weight gradient is shown as the convolution that it is of."""
    by_pass = {line.split()[0]: line for line in lines(jax.grad(loss(jaxconv.conv2d), argnums=(0, 1)), X, W)}
    assert "float32[2,5,4,4] * float32[3,2,3,4] -> float32[2,5,4,3]" in by_pass["dgrad"]
    assert "float32[2,5,4,3] * float32[3,2,3,4] -> float32[2,5,4,4]" in by_pass["wgrad"]


SQUARE = jax.ShapeDtypeStruct((3, 3, 3, 3), np.float32)


def repeated(x, w):
    return jaxconv.conv2d(jaxconv.conv2d(x, w), w)


def scanned(x, w):
    return lax.scan(lambda x, _: (jaxconv.conv2d(x, w), None), x, None, length=7)[0]


def branches(x, w):
    return lax.cond(x.sum() > 0, lambda: jaxconv.conv2d(x, w), lambda: jaxconv.conv2d(x, w, rhs_dilation=2))


def looped(x, w):
    return lax.while_loop(lambda x: x.sum() > 0, lambda x: jaxconv.conv2d(x, w), x)


def mapped_loop(x, w):
    return lax.map(lambda x: jaxconv.conv2d(x[None], w), x)


jitted_conv = jax.jit(jaxconv.conv2d)


def jitted_twice(x, w):
    return jitted_conv(jitted_conv(x, w), w)


def deep(x, w):
    return jax.jit(lambda x, w: lax.scan(lambda x, _: (branches(x, w), None), x, None, length=2)[0])(x, w)


@pytest.mark.parametrize("fn, convolutions", [
    (repeated, 2), (scanned, 1), (branches, 2), (looped, 1), (mapped_loop, 1), (jitted_twice, 2), (deep, 2),
    (jax.checkpoint(repeated), 2), (lambda x, w: x, 0),
])  # fmt: skip
def test_convolutions_inside_of_programs(fn, convolutions):
    """Each one as often as it is written; in a loop that is once."""
    assert passes(fn, X, SQUARE) == convolutions * ["fprop"]
    assert passes(jax.jit(fn), X, SQUARE) == convolutions * ["fprop"]


def test_remat_repeats_the_forward():
    step = jax.value_and_grad(jax.checkpoint(loss(jaxconv.conv2d)), argnums=(0, 1))
    assert Counter(passes(step, X, W)) == {"fprop": 2, "dgrad": 1, "wgrad": 1}


def test_gradient_of_a_scan():
    step = jax.grad(lambda x, w: jnp.sum(scanned(x, w) ** 2), argnums=(0, 1))
    assert Counter(passes(step, X, SQUARE)) == {"fprop": 1, "dgrad": 1, "wgrad": 1}


@pytest.mark.parametrize("x_axis, w_axis, problem", [
    (0, None, "float32[12,5,4,3] * float32[3,2,3,4] -> float32[12,5,4,4]"),
    (None, 0, "float32[2,5,4,3] * float32[3,2,3,24] -> float32[2,5,4,24]"),
    (0, 0, "float32[12,5,4,3] * float32[3,2,3,24] -> float32[12,5,4,4]"),
])  # fmt: skip
def test_vmap_is_one_convolution(x_axis, w_axis, problem):
    x, w = (a if axis is None else jax.ShapeDtypeStruct((6, *a.shape), a.dtype)
            for a, axis in [(X, x_axis), (W, w_axis)])  # fmt: skip
    (line,) = lines(jax.vmap(jaxconv.conv2d, in_axes=(x_axis, w_axis)), x, w)
    assert problem in line


def test_a_flax_network():
    """Parameters in their tree; strides, groups and dtype are the layers'."""

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            ours = dict(conv_general_dilated_cls=lambda: jaxconv.conv_general_dilated)
            x = linen.relu(linen.Conv(8, (3, 3), strides=2, **ours)(x))
            x = linen.relu(linen.Conv(8, (3, 3), feature_group_count=8, **ours)(x))
            return linen.Conv(4, (1, 1), dtype=jnp.bfloat16, **ours)(x)

    network = Network()
    parameters = jax.eval_shape(network.init, jax.random.key(0), X)
    forward = lines(network.apply, parameters, X)
    assert [line.split()[0] for line in forward] == ["fprop"] * 3
    assert [line.split(": ", 1)[1].split(";")[0] for line in forward] == ["gemm", "depthwise", "gemm"]
    assert "window_strides (2, 2)" in forward[0]
    assert "groups 8" in forward[1]
    assert "bfloat16[" in forward[2]
    step = jax.grad(lambda parameters, x: jnp.sum(network.apply(parameters, x) ** 2))
    assert Counter(passes(step, parameters, X)) == {"fprop": 3, "dgrad": 2, "wgrad": 3}


def test_nothing_is_run():
    """Neither the convolutions nor anything beside them, which a program that prints would show."""
    ran = []

    def noisy(x, w):
        jax.debug.callback(lambda: ran.append(True))
        return jaxconv.conv2d(x, w)

    for args in [(X, W), (jnp.ones(X.shape), jnp.ones(W.shape)), (np.ones(X.shape, "f4"), np.ones(W.shape, "f4"))]:
        assert passes(noisy, *args) == ["fprop"]
    jax.effects_barrier()
    assert not ran


def test_arguments_by_name():
    """Arrays, and what is no array: strides, names."""
    assert "window_strides (2, 1)" in lines(jaxconv.conv2d, X, w=W, window_strides=(2, 1), padding="VALID")[0]
    assert answers(jaxconv.conv2d, X, W, implementation="gemm")[0].startswith("gemm")


def test_arguments_in_trees():
    layers = {"first": [SQUARE], "second": (SQUARE, 2.0)}
    network = lambda layers, x: layers["second"][1] * repeated(x, layers["first"][0] + layers["second"][0])
    assert passes(network, layers, X) == ["fprop", "fprop"]


# What answers.


def family(case, implementation=None, entry="front_door"):
    return answers(getattr(named(case), entry)(implementation), *named(case).operands())[0].split(";")[0]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("case, implementation, expected", [
    ("dense", None, "gemm"), ("depthwise", None, "depthwise"), ("dense", "cpu", "gemm"),
    ("depthwise", "cpu", "depthwise"), ("depthwise", "gemm", "gemm"), ("depthwise", "depthwise", "depthwise"),
    ("depthwise", Constraint(family="gemm"), "gemm"), ("depthwise", Constraint(platform="cpu"), "depthwise"),
])  # fmt: skip
def test_families(case, implementation, expected, entry):
    assert family(case, implementation, entry) == expected


def test_the_other_family_has_a_reason():
    (dense,) = answers(named("dense").front_door(None), X, W)
    assert re.fullmatch(r"gemm; not depthwise: .*channel.*", dense)
    (depthwise,) = answers(named("depthwise").front_door(None), *named("depthwise").operands())
    assert re.fullmatch(r"depthwise; not gemm: \d+\.\d+x the cost", depthwise)


def test_a_named_family_lasts_through_gradients():
    case = named("depthwise")
    step = jax.grad(loss(case.front_door("gemm")), argnums=(0, 1))
    assert {answer.split(";")[0] for answer in answers(step, *case.operands())} == {"gemm"}


@pytest.mark.parametrize("fn", [lax_channels_last, functools.partial(jaxconv.conv2d, implementation="xla")])
def test_lax_as_asked(fn):
    assert answers(fn, X, W) == ["lax, as asked"]
    both = lambda x, w: (fn(x, w), jaxconv.conv2d(x, w))
    assert [answer.split(";")[0] for answer in answers(both, X, W)] == ["lax, as asked", "gemm"]


@pytest.mark.filterwarnings("ignore::jaxconv.FallbackWarning")
@pytest.mark.parametrize("shapes, dtype, reason", [
    ((X.shape, W.shape), "uint8", "dtype uint8 with result uint8"),
    (((1, 2, 3, 3, 3, 3), (2, 2, 2, 2, 2, 2)), "float32", "4 spatial dimensions"),
])  # fmt: skip
def test_lax_where_nothing_else_does(shapes, dtype, reason):
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    conv = functools.partial(jaxconv.conv_general_dilated, padding="SAME", window_strides=(1,) * (len(x.shape) - 2))
    layout = {} if len(x.shape) == 6 else {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    (answer,) = answers(functools.partial(conv, **layout), x, w)
    assert answer.startswith(f"lax: {reason}")


@pytest.mark.parametrize("implementation", ["simt", "im2col", "cuda", Constraint(platform="cuda")])
def test_what_would_be_an_error_is_not_hidden(implementation):
    """A name that cannot answer, on this platform, is never shown as answering."""
    conv = functools.partial(jaxconv.conv2d, implementation=implementation)
    (answer,) = answers(conv, X, W)
    assert re.match("an error: .*(cpu|platform)", answer)


def test_without_warnings():
    """Plans of native kernels, on this platform and through gradients."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines(jax.grad(loss(jaxconv.conv2d), argnums=(0, 1)), X, W)


# Platforms.

GPU_ANSWER = re.compile(r"(?P<pass>fprop|dgrad|wgrad) .*: (?P<kernel>\w+ \d+x\d+[^:]*), split \d+[^:]*\(\d+\.\d+ us\)")


def gpu():
    return jax.devices("gpu")[0]


def float32_tiles(family, which="fprop"):
    """None of a family without kernels of float32 for a pass."""
    of_pass = passes_of(problem_of(lax_channels_last, X.shape, W.shape))[which]
    return [tile for name, tile in candidates(*of_pass) if name == family]


@pytest.mark.gpu
def test_a_line_on_a_gpu():
    """Every tile, or its family, is chosen or rejected with a reason, in each pass, also under transforms."""
    ours = functools.partial(jaxconv.conv2d, implementation="cuda")
    with jax.default_device(gpu()):
        explained = lines(jax.grad(loss(ours), argnums=(0, 1)), X, W)
    assert len(explained) == 3
    for line in explained:
        answer, *rejected = line.split("; not ")
        match = GPU_ANSWER.fullmatch(answer)
        assert match, answer
        tiles = {f"{name} {tile}" for name in FAMILIES["cuda"] for tile in float32_tiles(name, match["pass"])}
        reasons = dict(each.split(": ", 1) for each in rejected)
        assert all(reasons.values())
        kernels = [match["kernel"], *reasons]
        named = {max((what for what in (*tiles, *FAMILIES["cuda"]) if kernel.startswith(what)), key=len)
                 for kernel in kernels}  # fmt: skip
        assert named >= tiles
        assert {kernel.split()[0] for kernel in kernels} == set(FAMILIES["cuda"])


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES["cuda"])
def test_named_on_a_gpu(family):
    """A line is of the family, or tile, that was named. Some tiles take weight gradients or 16 bits alone."""
    problem = problem_of(lax_channels_last, X.shape, W.shape)
    for tile in float32_tiles(family):
        of_tile = Constraint(family=family, tile=tile.name)
        for implementation in (family, of_tile):
            with jax.default_device(gpu()):
                (answer,) = answers(functools.partial(jaxconv.conv2d, implementation=implementation), X, W)
            if choose("cuda", "conv", problem, constraint_of(implementation)).plan is None:
                assert re.match(rf"an error: .*{family}", answer), answer
            else:
                assert answer.startswith(f"{family} {tile}" if implementation is of_tile else f"{family} "), answer


@pytest.mark.gpu
@pytest.mark.parametrize("family, groups", [("direct", 8), ("depthwise", 32)])
def test_partial_families_on_a_gpu(family, groups):
    """A line says its output tile, of a tile that takes the problem, or why it does not."""
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((2, 20, 20, 32), (3, 3, 32 // groups, 32)))
    ours, theirs = (functools.partial(conv, feature_group_count=groups) for conv in (jaxconv.conv2d, lax_channels_last))
    problem = problem_of(theirs, x.shape, w.shape, x.dtype)
    taken = 0
    for tile in (tile for name, tile in candidates("conv", problem) if name == family):
        named = Constraint(family=family, tile=tile.name, output_tile=(2, 8), transform=())
        with jax.default_device(gpu()):
            (answer,) = answers(functools.partial(ours, implementation=named), x, w)
        if choose("cuda", "conv", problem, named).plan is None:
            # For a window, or few channels, or no groups, alone.
            may_be = family == "depthwise" or tile.stream_rows or tile.packed or tile.taps_in_n
            assert may_be and re.match(rf"an error: .*{family} {tile}: ", answer), answer
            continue
        taken += 1
        assert re.match(rf"{family} {tile}, split 1, output tile 2x8 \(\d+\.\d+ us\)", answer), answer
        assert {r.split(":")[0] for r in answer.split("; not ")[1:]} == FAMILIES["cuda"].keys() - {family}
    assert taken > 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tile",
    [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if not is_for_tf32(tile)],
    ids=lambda tile: tile.name.replace(" ", "_"),
)
def test_wgmma_on_a_gpu(tile):
    """The passes that the tile is compiled for; of the others, and of many groups, it says why not."""
    dtype, precision = ("float32", "highest") if tile.bf16x6 else ("bfloat16", None)
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((2, 20, 20, 32), (3, 3, 32, 24)))
    grouped = jax.ShapeDtypeStruct((3, 3, 1, 32), dtype)
    split = tile.cluster_split or 3
    named = Constraint("cuda", "wgmma", tile.name, split=split, transform=())
    conv = functools.partial(jaxconv.conv2d, implementation=named, precision=precision)
    gradients = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=(0, 1))
    with jax.default_device(gpu()):
        explained = {line.split()[0]: line for line in lines(gradients, x, w)}
        (refused,) = answers(functools.partial(conv, feature_group_count=32), x, grouped)
    assert set(explained) == {"fprop", "dgrad", "wgrad"}
    for which, line in explained.items():
        planned = rf": wgmma {tile}, split {split} \(\d+\.\d+ us\)"
        of_others = rf": an error: .*wgmma {tile}: a tile that is for \w+( \w+)? alone"
        assert re.search(planned if has_pass(tile, which) else of_others, line), line
    assert re.match(r"an error: .*wgmma: 32 groups, each of which is a launch, of 16 at most", refused), refused


@pytest.mark.gpu
@pytest.mark.parametrize("default, committed, families", [
    ("gpu", "cpu", FAMILIES["cpu"]), ("cpu", "gpu", FAMILIES["cuda"]), ("gpu", None, FAMILIES["cuda"]),
    ("cpu", None, FAMILIES["cpu"]),
])  # fmt: skip
def test_the_platform_is_that_of_committed_arguments(default, committed, families):
    devices = {"cpu": HOST, "gpu": gpu()}
    with jax.default_device(devices[default]):
        x, w = jnp.ones(X.shape), jnp.ones(W.shape)
        x = jax.device_put(x, devices[committed]) if committed else x
        (answer,) = answers(jaxconv.conv2d, x, w)
    assert re.split(r"\W", answer)[0] in families


def test_committed_to_another_host_device():
    x = jax.device_put(np.ones(X.shape, np.float32), jax.devices("cpu")[3])
    assert answers(jaxconv.conv2d, x, W) == answers(jaxconv.conv2d, X, W)
