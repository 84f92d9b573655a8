"""`python -m jaxconv run`: a script's arguments, convolutions, exit code and traceback."""

import subprocess
import sys
import textwrap

import pytest

from cases.parts import repeated
from jaxconv.__main__ import main

CONVOLUTION = """
    import sys
    import jax, jax.numpy as jnp
    from jax import lax
    from beside import WINDOW
    jax.config.update("jax_platforms", "cpu")
    lowered = jax.jit(lambda x, w: lax.conv(x, w, (1, 1), "SAME")).lower(jnp.ones((1, 1, 4, 4)), jnp.ones(WINDOW))
    print(__name__, sys.argv, "jaxconv_conv" in lowered.as_text())
"""


def run(folder, script, *options, args=()):
    (folder / "script.py").write_text(textwrap.dedent(script))
    (folder / "beside.py").write_text("WINDOW = (1, 1, 3, 3)")
    command = [sys.executable, "-m", "jaxconv", "run", *options, str(folder / "script.py"), *args]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, text=True)


@pytest.mark.parametrize("options, is_ours", [
    ((), True), repeated(("--implementation", "cpu"), True), (("--implementation", "cuda"), False)
])  # fmt: skip
def test_script(options, is_ours, tmp_path):
    """With its folder on the path, and options that are its own."""
    args = ["--implementation", "its own", "-v"]
    process = run(tmp_path, CONVOLUTION, *options, args=args)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == f"__main__ {[str(tmp_path / 'script.py'), *args]} {is_ours}"
    assert ("install('cuda') is not for cpu, but install() is" in process.stderr) == (not is_ours)


@pytest.mark.parametrize("args", [("--", "-x"), ("a", "--", "-x"), ("--",)], ids=str)
def test_dashes_are_the_scripts_own(args, tmp_path):
    assert run(tmp_path, "import sys; print(sys.argv[1:])", args=args).stdout.strip() == str([*args])


def test_a_script_that_changes_its_folder(tmp_path):
    """Its path is absolute, as under Python."""
    (tmp_path / "script.py").write_text("import inspect, os\nf = lambda: 1\nos.chdir('/')\nprint(inspect.getsource(f))")
    command = [sys.executable, "-m", "jaxconv", "run", "script.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.stdout.strip() == "f = lambda: 1", process.stderr


def test_exit_code(tmp_path):
    assert run(tmp_path, "raise SystemExit(7)").returncode == 7


def test_traceback(tmp_path):
    process = run(tmp_path, "def f():\n    raise KeyError('lost')\nf()\n")
    assert process.returncode == 1
    assert process.stderr.rstrip().endswith("KeyError: 'lost'")
    assert f'File "{tmp_path / "script.py"}", line 2, in f' in process.stderr


def test_annotations_are_the_scripts_own(tmp_path):
    """A future of our module is none of the script's."""
    assert run(tmp_path, "def f(x: 1 + 1): ...\nprint(f.__annotations__)").stdout == "{'x': 2}\n"


def test_a_thread_that_outlives_the_script(tmp_path):
    """It finds the script's class by its name."""
    process = run(tmp_path, """
        import pickle, threading

        class Named:
            value = 3

        def work():
            threading.main_thread().join()
            print(pickle.loads(pickle.dumps(Named())).value)

        threading.Thread(target=work).start()
    """)  # fmt: skip
    assert process.returncode == 0 and process.stdout == "3\n", process.stderr


def test_a_process_that_the_script_starts(tmp_path):
    """It imports the script, to find what it is to call."""
    process = run(tmp_path, """
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """)  # fmt: skip
    assert process.stdout == "[2, 4]\n", process.stderr


def test_a_folder(tmp_path):
    """With a `__main__.py`, as Python runs it."""
    (tmp_path / "__main__.py").write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.WINDOW)")
    (tmp_path / "beside.py").write_text("WINDOW = 3")
    command = [sys.executable, "-m", "jaxconv", "run", str(tmp_path), "more"]
    process = subprocess.run(command, cwd=tmp_path.parent, capture_output=True, text=True)
    assert process.stdout == "__main__ ['more'] 3\n", process.stderr


@pytest.mark.parametrize("arguments, message", [
    (["run"], "required: script"),
    (["run", "missing.py"], "no such script: missing.py"),
    (["run", "--implementation", "tpu", "missing.py"], "invalid choice: 'tpu'"),
    ([], "usage: python -m jaxconv"),
])  # fmt: skip
def test_bad_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    """In this process: nothing is run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["jaxconv", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
