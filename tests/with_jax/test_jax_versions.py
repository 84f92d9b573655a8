"""A jax without the private names that jaxconv needs: the import says which versions have them."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxconv import _jax_private

MESSAGE = rf"jax 0\.10 to 0\.12, but jax {re.escape(jax.__version__)} is installed"
NAMES = [
    "core.trace_state_clean",
    "dispatch.simple_impl",
    "distributed.global_state",
    "interpreters.mlir._lowerings",
    "interpreters.mlir._platform_specific_lowerings",
    "interpreters.mlir.lower_with_sharding_in_types",
    "sharding_impls.GSPMDSharding",
    "sharding_impls.ShardingContext",
    "sharding_impls.parse_flatten_op_sharding",
]


@pytest.mark.parametrize("name", NAMES)
def test_each_missing_name_is_explained(name, monkeypatch):
    monkeypatch.delattr(f"jax._src.{name}")
    with pytest.raises(ImportError, match=MESSAGE) as error:
        importlib.reload(_jax_private)
    assert name.rpartition(".")[2] in str(error.value)


def test_import_of_the_package(tmp_path):
    program = "import jax._src.sharding_impls as s; del s.parse_flatten_op_sharding; import jaxconv"
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode != 0
    assert re.search(rf"ImportError: .*{MESSAGE}", run.stderr)


def test_no_other_module_uses_private_names():
    package = Path(_jax_private.__file__).parent
    users = [path.name for path in package.rglob("*.py") if "jax._src" in path.read_text()]
    assert users == ["_jax_private.py"]
