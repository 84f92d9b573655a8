"""What the wheels of a release must be, beyond what auditwheel asks: `python packages/check_wheels.py dist`."""

import re
import sys
import zipfile
from pathlib import Path

MIB = 2**20
NEWEST_GLIBC = 34  # manylinux_2_34
MODULES = {"jaxconv": {"_cpu", "_planning"}, "jaxconv_cuda13_plugin": {"_cuda"}}
MOST_BYTES = {"jaxconv": 5 * MIB, "jaxconv_cuda13_plugin": 100 * MIB}  # 100 MiB is what the package index takes


def complaints(wheel: Path) -> list[str]:
    """What is wrong with a wheel."""
    name, _, python, abi, platform = wheel.stem.split("-")
    found = []
    if wheel.stat().st_size > MOST_BYTES[name]:
        found.append(f"it has {wheel.stat().st_size / MIB:.1f} MiB, the limit is {MOST_BYTES[name] / MIB:.0f}")
    glibc = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", platform)]
    if not glibc or min(glibc) > NEWEST_GLIBC:
        found.append(f"it is for {platform}: build it where glibc is 2.{NEWEST_GLIBC} or older")
    if python != "cp311" and (python, abi) != ("cp312", "abi3"):
        found.append(f"{python}-{abi} is neither for Python 3.11 nor for the stable ABI of 3.12")
    files = zipfile.ZipFile(wheel).namelist()
    if name == "jaxconv" and "jaxconv/py.typed" not in files:
        found.append("it lacks py.typed, without which no type checker reads its hints")
    libraries = [Path(file) for file in files if ".so" in Path(file).name]
    modules = {file.name.partition(".")[0] for file in libraries if file.parent == Path(name)}
    if modules != MODULES[name] or len(libraries) != len(modules):
        found.append(f"its libraries are {', '.join(map(str, libraries))}: not {', '.join(MODULES[name])} alone")
    return found


def main(folder: str) -> int:
    """Prints each wheel with its size. Exit status: 1 if one is wrong, or missing."""
    wheels = sorted(Path(folder).glob("*.whl"))
    wrong = MODULES.keys() - {wheel.name.partition("-")[0] for wheel in wheels}
    for name in wrong:
        print(f"there is no wheel of {name}")
    for wheel in wheels:
        print(f"{wheel.name}: {wheel.stat().st_size / MIB:.1f} MiB")
        for complaint in complaints(wheel):
            wrong.add(wheel.name)
            print(f"  {complaint}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
