"""The checks of a release's wheels, and the workflows that make them."""

import os
import re
import zipfile

import pytest
import yaml

from cases.files import ROOT, module_at

HOST = ["jaxconv/py.typed", "jaxconv/__init__.py", "jaxconv/_cpu.abi3.so", "jaxconv/_planning.abi3.so"]
CUDA = ["jaxconv_cuda13_plugin/__init__.py", "jaxconv_cuda13_plugin/_cuda.abi3.so"]


@pytest.fixture(scope="module")
def checks():
    return module_at(ROOT / "packages" / "check_wheels.py")


def write_wheel(folder, name, files, tag="cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64", size=0):
    path = folder / f"{name}-0.1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in files:
            wheel.writestr(file, b"\0" * size)
    return path


def test_a_release(checks, tmp_path, capsys):
    write_wheel(tmp_path, "jaxconv", HOST)
    assert checks.main(tmp_path) == 1
    assert "there is no wheel of jaxconv_cuda13_plugin" in capsys.readouterr().out
    write_wheel(tmp_path, "jaxconv_cuda13_plugin", CUDA)
    write_wheel(tmp_path, "jaxconv", HOST, tag="cp311-cp311-manylinux_2_34_x86_64")
    assert checks.main(tmp_path) == 0
    write_wheel(tmp_path, "jaxconv", HOST, tag="cp311-cp311-linux_x86_64")
    assert checks.main(tmp_path) == 1


@pytest.mark.parametrize(
    "files, more, complaint",
    [
        (HOST, {"tag": "cp312-abi3-manylinux_2_39_x86_64"}, "for manylinux_2_39_x86_64: build it where glibc is 2.34"),
        (HOST, {"tag": "cp312-abi3-linux_x86_64"}, "for linux_x86_64: "),
        (HOST, {"tag": "cp312-cp312-manylinux_2_28_x86_64"}, "cp312-cp312 is neither"),
        (HOST, {"size": 2 * 2**20}, "it has 8.0 MiB, the limit is 5"),
        (HOST[:3], {}, "libraries are jaxconv/_cpu.abi3.so: not "),
        (HOST[1:], {}, "it lacks py.typed"),
        ([*HOST, "jaxconv.libs/libgomp-1234.so.1.0.0"], {}, "libgomp-1234.so.1.0.0: not "),
    ],
)
def test_wrong_wheels(checks, tmp_path, files, more, complaint):
    (found,) = checks.complaints(write_wheel(tmp_path, "jaxconv", files, **more))
    assert complaint in found


def test_workflows_run_what_is_there():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    commands = []
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        for job in yaml.safe_load(workflow.read_text())["jobs"].values():
            commands += [re.sub(r"\S*\${{.*?}}\S*", "", step["run"]).split() for step in job["steps"] if "run" in step]
    assert [".ci/run"] in commands
    for program, *arguments in commands:
        if program == "make":
            assert set(arguments) <= set(targets)
        else:
            assert os.access(ROOT / program, os.X_OK)
