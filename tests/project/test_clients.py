"""The benchmark of whole networks: the networks are those of their papers, and a failure is a row."""

import functools
from argparse import Namespace
from typing import Any

import jax
import numpy as np
import pytest

from cases.parts import every_other
from convbench.clients.command import combined, in_turns
from convbench.clients.networks import NETWORKS
from convbench.clients.programs import Measured, model_of
from convbench.clients.reports import REPORTS
from convbench.clients.rows import difference, row_of
from convbench.clients.tables import markdown
from convbench.clients.worker import Compiled, Side, queued_seconds
from convbench.command import main
from convbench.rows import RowFile

SIZES = {
    "resnet50": 25_557_032,
    "resnet50_nchw": 25_557_032,
    "mobilenetv2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "convnext_t": 28_589_128,
}


@pytest.mark.parametrize("name", every_other(SIZES))
def test_number_of_parameters(name):
    """As torchvision has it."""
    _, variables, _ = model_of(Measured(name, "training", "bfloat16"))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(variables)} == {"float32"}
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == SIZES[name]


@pytest.mark.parametrize("name", every_other(NETWORKS))
def test_sizes_fit_together(name):
    """The real ones, traced: a network's result has its input's extents, or is one for each image."""
    model, variables, x = model_of(Measured(name, "inference", "bfloat16"))
    y = jax.eval_shape(functools.partial(model.apply, train=False), variables, x)
    scale = 32 if name == "decoder" else 1
    assert y.shape[:-1] in ((x.shape[0],), (x.shape[0], *(scale * size for size in x.shape[1:-1])))
    assert y.dtype == "bfloat16"


@pytest.mark.parametrize("name", REPORTS)
def test_reports_can_be_traced(name):
    jax.eval_shape(REPORTS[name].function, *REPORTS[name].operands)


@pytest.mark.full
def test_command(tmp_path, capsys, implementation):
    """On both sides, each in its process; what the file has is not measured again."""
    out = tmp_path / "rows.json"
    command = ["clients", "--models", "decoder", "jax#37922", "--dtypes", "float32", "--passes", "training", "report"]
    command += ["--small", "--calls", "1", "--rounds", "2", "--commit", "abc", "--out", str(out)]
    assert main(command) == 0
    network, report = (rows := RowFile.load(out).rows)
    assert (network["name"], network["ours"], report["ours"]) == ("decoder", 14, 1)
    for row in rows:
        assert (row["implementation"], row["others"], row["error"], row["lax_error"]) == (implementation, 0, None, None)
        assert min(row[field] for field in ("ms", "lax_ms", "speedup", "compile_s", "lax_compile_s")) > 0
        assert min(row["queued_ms"], row["lax_queued_ms"]) > 0
        assert row["difference"] < 1e-3 and row["commit"] == "abc"
    assert main([*command, "--seconds-limit", "0"]) == 0
    assert RowFile.load(out).rows == rows
    assert "decoder" in capsys.readouterr().out


def test_what_takes_too_long_is_given_up(tmp_path):
    out = tmp_path / "rows.json"
    assert main(["clients", "--models", "jax#37922", "--patience", "0", "--out", str(out)]) == 1
    (row,) = RowFile.load(out).rows
    assert row["error"] == row["lax_error"] == "no result after 0 s"


def test_a_failure_is_a_row():
    ours = Compiled().measure(Measured("decoder", "training", "no such dtype", small=True), calls=1)
    assert ours.error and "no such dtype" in ours.error
    row = row_of(Measured("decoder", "training", "bfloat16"), "cuda", ours, Side(ms=2.0, compile_s=1.0))
    assert row["ms"] is None and row["lax_ms"] == 2.0 and row["difference"] is None
    assert ours.error in markdown([row])


class Failing:
    """A side that answers, and fails in its second round. Its calls are counted."""

    def __init__(self, fails):
        self.calls, self.fails = 0, fails

    def ask(self, measured, calls, limit_s):
        self.calls += 1
        time = float(self.calls)
        return Side(error="the process ended") if self.fails and self.calls == 2 else Side(time, queued_ms=time)

    def again(self, calls, limit_s):
        return self.ask(None, calls, limit_s)


def test_no_round_comes_after_a_failure():
    sides: list[Any] = [Failing(False), Failing(True)]
    options = Namespace(calls=1, patience=1, rounds=3)
    theirs, ours = in_turns(sides, Measured("decoder", "training", "float32"), options)
    assert (theirs.ms, ours.ms, ours.error) == (1.5, None, "the process ended")
    assert [side.calls for side in sides] == [2, 2]
    assert "nothing was compiled" in str(Compiled().time(1).error)


def test_rounds_are_combined():
    """The median, whichever round it is of; a failure in any round is the row's."""
    first = Side(ms=3.0, compile_s=1.0, ours=2, queued_ms=1.0)
    others = Side(ms=1.0, queued_ms=3.0), Side(ms=2.0, queued_ms=2.5)
    assert combined([first, *others]) == first._replace(ms=2.0, queued_ms=2.5)
    assert combined([first, Side(error="the process ended"), Side(ms=2.0)]) == Side(error="the process ended")


def test_queued_calls_do_not_wait_for_each_other():
    waited = []

    class Result:
        def __init__(self, number):
            self.number = number

        def block_until_ready(self):
            waited.append(self.number)

    numbers = iter(range(11))
    assert queued_seconds(lambda of: Result(next(of)), (numbers,), 10) > 0
    assert waited == [0, 10]  # the first one, before the clock runs


def test_difference_is_relative_to_the_norm():
    assert difference((np.float32(3), np.ones(3)), (np.float32(1), np.zeros(3))) == pytest.approx(np.sqrt(7))


def test_reports_are_linked():
    row = row_of(Measured("jax#37922", "report", "bfloat16"), "cuda", Side(1.0, 1.0, 1, 0), Side(error="refused"))
    text = markdown([row])
    assert "[jax#37922](https://github.com/jax-ml/jax/issues/37922)" in text and "lax: refused" in text
