"""Random convolutions of a size that a host can check, and plans drawn from all that take them."""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import jaxconv
from cases.convolution import Convolution, channels_last_convolution
from cases.fused import Fused
from cases.plans import CUDA, constraints
from cases.problems import passes_of, problem_of
from cases.reference import integers, pullback, run_on_host
from cases.tiles import FORWARD_ALONE, PASSES, result_of
from jaxconv import ffi
from jaxconv.fused.lowering import ends_with
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint
from jaxconv.problem.product import EpilogueKind

MOST_PRODUCTS = 1 << 25  # of a forward pass
OPERANDS_OF = {EpilogueKind.NONE: (), EpilogueKind.PLAIN: ("bias",), EpilogueKind.RESIDUAL: ("bias", "residual")}
SETTINGS = [*({"split": n} for n in (2, 3, 5, 8)), *({"n_tiles_per_cta": n} for n in (1, 2, 7)),
            *({"output_tile": n} for n in ((1, 8), (2, 16), (3, 8), (5, 24)))]  # fmt: skip

FEW, VECTORS = st.integers(1, 13), st.sampled_from([8, 16, 24, 32, 40, 48, 64, 72, 96, 128, 136, 192])
NARROW, CHANNELS = st.sampled_from([1, 3, 4, 8, 16]), st.sampled_from([8, 16, 24, 40, 64, 144])
WIDE = st.sampled_from([32, 48, 64, 96, 128, 192])
# Groups, and the input and output channels of each.
GROUPS = st.one_of(
    st.tuples(st.just(1), VECTORS, VECTORS),
    st.tuples(st.just(1), FEW | VECTORS, FEW | VECTORS),
    st.tuples(st.sampled_from([2, 3, 4, 8, 16, 40]), NARROW, NARROW),
    st.tuples(st.sampled_from([2, 3, 4, 20]), WIDE, WIDE),
    st.tuples(CHANNELS, st.just(1), st.sampled_from([1, 1, 1, 2])),
)
PIXELS = {1: st.integers(1, 300), 2: st.integers(1, 48), 3: st.integers(1, 16)}
MOSTLY_ONE = st.sampled_from([1, 1, 1, 2, 3])


@st.composite
def convolutions(draw):
    """Dense ones of few and of many channels, narrow and wide groups, and single channels."""
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups, ins, outs = draw(GROUPS)
    kernel = each(st.sampled_from([1, 2, 3, 3, 4, 5, 7]))
    convolution = channels_last_convolution(
        (draw(st.integers(1, 5)), *each(PIXELS[rank]), groups * ins),
        (*kernel, ins, groups * outs),
        window_strides=each(MOSTLY_ONE | st.just(4)),
        lhs_dilation=each(MOSTLY_ONE),
        rhs_dilation=each(MOSTLY_ONE),
        padding=each(st.tuples(st.integers(-1, 6), st.integers(0, 6))),
        feature_group_count=groups,
    )
    shapes = (jax.ShapeDtypeStruct(shape, "float32") for shape in (convolution.lhs, convolution.rhs))
    try:
        results = math.prod(jax.eval_shape(convolution.lax(), *shapes).shape)
    except (TypeError, ValueError):  # negative padding of what is small
        results = 0
    assume(0 < results * math.prod(kernel) * ins <= MOST_PRODUCTS)
    return convolution


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is drawn of convolutions: a dtype, as tiles have it, a precision, and the epilogue of a forward pass."""

    dtype: str
    precision: str | None
    epilogue_kind: EpilogueKind

    def __str__(self):
        return "_".join([self.dtype, *([self.precision] if self.precision else []), self.epilogue_kind.name.lower()])

    @property
    def operand(self):
        return self.dtype.partition("_to_")[0]

    @property
    def result(self):
        return result_of(self.dtype)

    @property
    def passes(self):
        is_forward_alone = self.dtype in FORWARD_ALONE or self.epilogue_kind is not EpilogueKind.NONE
        return ("fprop",) if is_forward_alone else tuple(PASSES)

    def fused(self, convolution):
        operands = OPERANDS_OF[self.epilogue_kind]
        return Fused(convolution.lhs, convolution.rhs, convolution.params, operands, (), "none")

    def operands(self, convolution):
        """x, w and a cotangent, or x, w and the epilogue's: so small that sums are exact."""
        bound = {"bfloat16": 1, "float16": 1, "int8": 15}.get(self.operand, 3)
        if self.epilogue_kind is not EpilogueKind.NONE:
            return self.fused(convolution).arrays(self.operand, self.result, bound)
        arrays = convolution.operands()
        return tuple(integers(a.shape, self.operand, seed, bound) for seed, a in enumerate(arrays))

    def expected(self, convolution, operands):
        """By lax in float32, rounded once: `{pass: result}`."""
        exact = [a.astype("float32") for a in operands]
        if self.epilogue_kind is not EpilogueKind.NONE:
            results = {"fprop": run_on_host(self.fused(convolution).theirs(), *exact)}
        else:
            results = dict(zip(PASSES, run_on_host(pullback(convolution.lax()), *exact), strict=True))
        return {which: np.asarray(array).astype(self.result) for which, array in results.items()}


VARIANTS = [Variant(dtype, None, kind) for dtype in ("bfloat16", "float16", "float32", "bfloat16_to_float32")
         for kind in EpilogueKind]  # fmt: skip
VARIANTS += [Variant("float32", "highest", kind) for kind in EpilogueKind]
VARIANTS += [Variant("int8_to_int32", None, EpilogueKind.NONE)]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A pass of a convolution by one plan."""

    variant: Variant
    convolution: Convolution
    which: str
    asked: Constraint

    def results(self, operands):
        more = dict(precision=self.variant.precision, implementation=self.asked)
        if self.variant.epilogue_kind is not EpilogueKind.NONE:
            return self.variant.fused(self.convolution).ours(out_dtype=self.variant.result, **more)(*operands)
        result = self.variant.result
        conv = self.convolution.bound(jaxconv.conv_general_dilated, preferred_element_type=result, **more)
        return PASSES[self.which](conv)(*operands)


def plans_of(variant, convolution, drawn, most):
    """Plans of each pass for this device: up to so many of a family, many with a setting of their own."""
    lax_conv = functools.partial(convolution.lax(), precision=variant.precision)
    problem = problem_of(lax_conv, convolution.lhs, convolution.rhs, variant.operand, variant.result)
    for which in variant.passes:
        of_pass = passes_of(problem)[which]
        is_supported = functools.partial(_is_supported, *of_pass, variant.epilogue_kind)
        every = list(constraints(*of_pass).values())
        drawn.shuffle(every)
        for family in CUDA:
            supported = filter(is_supported, (asked for asked in every if asked.family == family))
            for asked in itertools.islice(supported, most):
                own = [changed for more in SETTINGS if is_supported(changed := dataclasses.replace(asked, **more))]
                chosen = drawn.choice(own) if own and drawn.random() < 0.5 else asked
                yield Planned(variant, convolution, which, chosen)


def _is_supported(kind, problem, epilogue_kind, asked):
    plan = choose("cuda", kind, problem, asked, ffi.device("cuda"), epilogue_kind).plan
    return plan is not None and (epilogue_kind is EpilogueKind.NONE or ends_with(plan, problem))
