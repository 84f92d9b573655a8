"""The README's Python examples run as they are shown."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
EXAMPLES = dict(zip(("first", "flax"), BLOCKS, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name):
    exec(compile(EXAMPLES[name], f"README.md, {name} example", "exec"), {})
