"""Programs carry their kernels' settings by name. What this version does not understand is refused: nothing runs."""

import jax
import numpy as np
import pytest

import jaxconv
from cases.convolutions import convolutions, problem
from cases.problems import passes_of
from cases.tiles import CONVS_ALONE, FAMILY_TYPES
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint
from jaxconv.problem.offsets import offset_tables

OF_FAMILY = {"depthwise": "depthwise_5x5", "direct": "groups_of_16", "gather": "depthwise_5x5"}
FAMILIES_ON_GPUS = sorted({*CONVS_ALONE, *(family for family, _ in FAMILY_TYPES)})


def test_a_program_of_another_format_is_refused(monkeypatch, implementation):
    x, w = np.ones((1, 8, 8, 8), "float32"), np.ones((3, 3, 8, 8), "float32")
    with monkeypatch.context() as patched:
        patched.setattr(ffi, "FORMAT", ffi.FORMAT + 1)
        conv = jax.jit(lambda x, w: jaxconv.conv2d(x, w, implementation=implementation))
        with pytest.raises(
            (ValueError, jax.errors.JaxRuntimeError), match=f"format is {ffi.FORMAT}, this version reads"
        ):
            jax.block_until_ready(conv(x, w))
    jax.clear_caches()
    assert np.isfinite(jaxconv.conv2d(x, w, implementation=implementation)).all()


def kernel_attributes(plan, problem, settings):
    """Those of a plan's call, with the digest of its settings and with other settings; None: without one."""
    known = plan.settings | {"tile": plan.tile} | settings
    tile, numbers = known.pop("tile"), {name: value for name, value in known.items() if value is not None}
    others = {"tile": tile, "setting_names": " ".join(numbers), "settings": np.array([*numbers.values()], np.int64)}
    return ffi._kernel(plan, problem) | others


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES_ON_GPUS)
@pytest.mark.parametrize("settings, message", [
    (dict(split=None), "the setting split is missing"),
    (dict(stages=3), "there is no setting stages"),
    (dict(split=2**40), "beyond 32 bits"),
    (dict(tile="8x8x8"), "there is no tile 8x8x8"),
    (dict(tile=""), r"there is no tile (\W|$)"),
    (dict(split=0), "a split of 0"),
    (dict(split=-7), "a split of -7"),
])  # fmt: skip
def test_settings_that_no_kernel_has_are_refused(monkeypatch, family, settings, message):
    """And the next call runs."""
    name = OF_FAMILY.get(family, "many_of_all")
    kind, of_pass = passes_of(problem(name))["fprop"]
    plan = choose("cuda", kind, of_pass, Constraint("cuda", family, transform=()), ffi.device("cuda")).plan
    operands = [a.astype("bfloat16") for a in convolutions()[name].operands()[:2]]
    run = lambda: np.asarray(jax.jit(ffi.convolution(plan, of_pass))(*operands))
    expected = run()
    of_others = kernel_attributes(plan, of_pass, settings)
    with monkeypatch.context() as patched:
        patched.setattr(ffi, "_kernel", lambda *_: of_others)
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            run()
    np.testing.assert_array_equal(run(), expected)


OF_WINDOWS = [
    ("wgmma", dict(corner_h=1)), ("wgmma", dict(corner_w=-1)), ("wgmma", dict(tap_stride=8)),
    ("wgmma", dict(reach_w=-1)),
    ("direct", dict(halo_height=-1)), ("direct", dict(halo_width=8)), ("direct", dict(taps=-1)),
    ("depthwise", dict(first_row=1)), ("depthwise", dict(first_col=-1)),
    ("gather", dict(first_row=1)), ("gather", dict(tap_rows=-1)), ("gather", dict(filter_first=8)),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("family, added", OF_WINDOWS, ids=str)
def test_settings_of_another_window_are_refused(monkeypatch, family, added):
    """The handler cannot read the offset tables: it knows them by the digest. And the next call runs."""
    name = OF_FAMILY.get(family, "many_of_all")
    kind, of_pass = passes_of(problem(name))["fprop"]
    plan = choose("cuda", kind, of_pass, Constraint("cuda", family, transform=()), ffi.device("cuda")).plan
    operands = [a.astype("bfloat16") for a in convolutions()[name].operands()[:2]]
    run = lambda: np.asarray(jax.jit(ffi.convolution(plan, of_pass))(*operands))
    expected = run()
    of_others = kernel_attributes(plan, of_pass, {name: plan.settings[name] + more for name, more in added.items()})
    with monkeypatch.context() as patched:
        patched.setattr(ffi, "_kernel", lambda *_: of_others)
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="jaxconv: "):
            run()
    np.testing.assert_array_equal(run(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES_ON_GPUS)
@pytest.mark.parametrize("rows", [0, -1, 3], ids=["none", "one less", "three times"])
def test_a_wrong_number_of_classes_is_refused(monkeypatch, family, rows):
    name = OF_FAMILY.get(family, "many_of_all")
    kind, of_pass = passes_of(problem(name))["dgrad"]
    plan = choose("cuda", kind, of_pass, Constraint("cuda", family, transform=()), ffi.device("cuda")).plan
    shapes = [jax.ShapeDtypeStruct(of_pass.shape(role), of_pass.dtype(role)) for role in ("lhs", "rhs")]
    tables = offset_tables(of_pass)
    classes = np.repeat(tables.classes, rows, 0) if rows == 3 else tables.classes[:rows]
    monkeypatch.setattr(ffi, "offset_tables", lambda problem: tables._replace(classes=classes))
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match="the table of classes has a wrong number of rows"
    ):
        jax.block_until_ready(jax.jit(ffi.convolution(plan, of_pass))(*(np.zeros(s.shape, s.dtype) for s in shapes)))


@pytest.mark.gpu
@pytest.mark.parametrize("names, numbers, message", [
    ("split", 2, "numbers without names"), ("split chunk", 1, "names without numbers"),
])  # fmt: skip
def test_names_and_numbers_are_as_many(monkeypatch, names, numbers, message):
    kind, of_pass = passes_of(problem("many_of_all"))["fprop"]
    plan = choose("cuda", kind, of_pass, Constraint("cuda", "simt", transform=()), ffi.device("cuda")).plan
    operands = [a.astype("bfloat16") for a in convolutions()["many_of_all"].operands()[:2]]
    attributes = ffi._kernel(plan, of_pass) | {"setting_names": names, "settings": np.ones(numbers, np.int64)}
    monkeypatch.setattr(ffi, "_kernel", lambda *_: attributes)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
        jax.block_until_ready(jax.jit(ffi.convolution(plan, of_pass))(*operands))
