"""`python -m jaxconv run script.py args...`: a script as it is, with its convolutions on jaxconv.

`python -m jaxconv explain module:function`: which kernel answers each convolution of a function.

`python -m jaxconv doctor`: what is installed, and which kernels run here.
"""

from __future__ import annotations

import argparse
import io
import os
import pkgutil
import runpy
import sys
import types

import jaxconv
from jaxconv import doctor, explain_command
from jaxconv.planner.plan import IMPLEMENTATIONS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jaxconv", description="Convolutions for JAX.")
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("doctor", help="print versions, devices, and a check of each kernel family; 1 if one is wrong")
    run = commands.add_parser("run", help="run a script, as Python does, after jaxconv.install()")
    run.add_argument("--implementation", choices=list(IMPLEMENTATIONS), help="as in jaxconv.install")
    # One argument: argparse would take a "--" behind the script for its own.
    run.add_argument("script", nargs=argparse.REMAINDER, help="the script, and its arguments")
    explain = commands.add_parser("explain", help="print which kernel answers each convolution of a function")
    explain.add_argument("function", metavar="module:function", help="traced, not run; its results must need them")
    explain.add_argument(
        "args",
        nargs="*",
        type=explain_command.array_of,
        metavar="float32[8,32,32,3]",
        help="types of its arguments; none if it makes its arrays itself",
    )
    options = parser.parse_args()
    if options.command == "doctor":
        sys.exit(doctor.main())
    if options.command == "explain":
        try:
            function = explain_command.function_of(options.function)
        except LookupError as error:
            explain.error(*error.args)
        print(explain_command.table(function, options.args))
        return
    words = options.script[1:] if options.script[:1] == ["--"] else options.script
    if not words:
        run.error("the following arguments are required: script")
    if not os.path.exists(words[0]):
        run.error(f"no such script: {words[0]}")
    jaxconv.install(options.implementation)
    sys.argv = words
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    _run_as_main(words[0])


def _run_as_main(path: str) -> None:
    """Runs a script in a module `__main__` that stays: threads that outlive the script look up its names there.

    `runpy.run_path` takes the module away when the script ends. It is left with folders, archives and compiled scripts.
    """
    if pkgutil.get_importer(path) is not None or path.endswith(".pyc"):
        runpy.run_path(path, run_name="__main__")
        return
    path = os.path.abspath(path)  # as Python gives it to a script, which may change its folder
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)  # not this module's imports of __future__
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    main()
