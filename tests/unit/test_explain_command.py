"""`python -m jaxconv explain`: its table, and what it says of arguments that it cannot use."""

import re
import subprocess
import sys

import pytest

from jaxconv.__main__ import main
from jaxconv.explain_command import HEADER

MODULE = """
import jax, jax.numpy as jnp, jaxconv

number = 3

def training():
    w = jnp.ones((3, 3, 4, 8))
    return jax.grad(lambda w: jnp.sum(jaxconv.conv2d(jnp.ones((2, 6, 5, 4)), w, activation="silu") ** 2))(w)

def by_lax(x, w):
    return jaxconv.conv2d(x, w, implementation="xla")

def nothing():
    jaxconv.conv2d(jnp.ones((2, 6, 5, 4)), jnp.ones((3, 3, 4, 8)))

def wrong():
    raise KeyError("lost")
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch, on_the_host):
    (tmp_path / "its_model.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("its_model", None)


@pytest.fixture
def command(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["jaxconv", "explain", *arguments])
        main()

    return run


def rows(table):
    """Each row's columns, each with its lines in one."""
    for row in re.split(r"^\+.*$", table, flags=re.M):
        cells = [line.split("|")[1:-1] for line in row.splitlines() if line]
        if cells:
            yield tuple(" ".join(map(str.strip, column)).strip() for column in zip(*cells))


def test_types_of_arguments(command, capsys):
    command("its_model:by_lax", "float32[2,6,5,4]", "float32[3,3,4,8]")
    header, row = rows(capsys.readouterr().out)
    assert header == HEADER
    assert row[0] == "convolution"
    assert row[1].startswith("float32[2,6,5,4] * float32[3,3,4,8] -> float32[2,6,5,8], window_strides (1, 1)")
    assert row[2:] == ("lax, as asked", "", "")


def test_function_without_arguments(command, capsys):
    """A row for each pass: the kernel, and why not the other."""
    command("its_model:training")
    _, *passes = rows(capsys.readouterr().out)
    assert [row[0] for row in passes] == ["fprop with its epilogue", "wgrad"]
    assert all(row[2].startswith("gemm") and re.search("depthwise: .*one channel", row[4]) for row in passes)


def test_in_a_process(tmp_path):
    """A module in the current folder, and what a kernel cannot do."""
    command = [sys.executable, "-m", "jaxconv", "explain", "its_model:training"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert len(list(rows(process.stdout))) == 3


def test_no_convolution(command, capsys):
    command("its_model:nothing")
    assert capsys.readouterr().out == "The function's results need no convolution.\n"


@pytest.mark.parametrize("arguments, message", [
    (["conv2d"], "must be named as module:function, got 'conv2d'"),
    (["no_such.module:f"], "no such module: no_such.module"),
    (["its_model.inner:f"], "no such module: its_model.inner"),
    (["its_model:missing"], "module its_model has no missing"),
    (["its_model:number"], "its_model:number is not a function, but of type int"),
    (["its_model:by_lax", "float32[2,6"], "must be written as float32[8,32,32,3], got 'float32[2,6'"),
    (["its_model:by_lax", "float33[2,6]"], "must be written as float32[8,32,32,3], got 'float33[2,6]'"),
    ([], "required: module:function"),
])  # fmt: skip
def test_bad_arguments(arguments, message, command, capsys):
    with pytest.raises(SystemExit) as exit:
        command(*arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_what_the_user_raises(command):
    with pytest.raises(KeyError, match="lost"):
        command("its_model:wrong")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        command("needs_more:f")
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        command("its_model:by_lax")


def test_without_tabulate(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "tabulate", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxconv\[explain\]'"):
        command("its_model:training")
