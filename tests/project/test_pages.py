"""The Python blocks of the pages run as they are shown, and messages that a page quotes are those of the code."""

import ast
import functools
import re

import jax
import numpy as np
import pytest

import jaxconv
from cases.files import ROOT, module_at
from cases.parts import repeated
from cases.reference import exception_of
from jaxconv import ffi
from jaxconv.compiled import planning

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = ("python", "text", "{eval-rst}", "{toctree}")


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def alone(tmp_path, monkeypatch, without_tuning, uninstalled):
    """In an empty folder, and what a page changes in this process is changed back."""
    monkeypatch.chdir(tmp_path)
    flag = "jax_remove_custom_partitioning_ptr_from_cache_key"
    before = getattr(jax.config, flag)
    yield
    jax.config.update(flag, before)


README, *OTHERS = (page for page in PAGES if "```python" in page.read_text())


@pytest.mark.parametrize("page", [README, *map(repeated, OTHERS)], ids=name)
def test_blocks_run(page, alone):
    """The blocks of a page are one program. Tracebacks name the page's lines."""
    text, namespace = page.read_text(), {}
    for block in FENCED.finditer(text):
        if block[1] == "python":
            lines_before = text.count("\n", 0, block.start(2))
            exec(compile("\n" * lines_before + block[2], page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_python_hides(page):
    """Else it would not run: each fence says what it holds, and indented blocks are not Python."""
    text = page.read_text()
    assert {block[1] for block in FENCED.finditer(text)} <= set(LANGUAGES)
    rest = FENCED.sub("", text)
    assert "```" not in rest
    assert not re.findall(r"^    (?:>>> |import |from |jax\w*\.|@).*", rest, re.MULTILINE)


def texts_of_the_code():
    """Every text in the package and in its build. Where a value is put in, it has …. Those of C++ are constants."""
    yield from (value for value in vars(planning).values() if isinstance(value, str))
    for file in (*(ROOT / "jaxconv").rglob("*.py"), *(ROOT / "build_backend").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def refusals_of_other_versions():
    """What the host says to a program of another format, and to one of a format with other attributes."""
    x, w = np.ones((1, 8, 8, 8), "float32"), np.ones((3, 3, 8, 8), "float32")
    attributes = ffi._attributes
    changes = {"FORMAT": ffi.FORMAT + 1, "_attributes": lambda *problem: attributes(*problem) | {"tiles": np.int64(0)}}
    for name, value in changes.items():
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ffi, name, value)
            conv = jax.jit(functools.partial(jaxconv.conv2d, implementation="cpu"))
            yield str(exception_of(lambda: jax.block_until_ready(conv(x, w))))
        jax.clear_caches()


def test_quoted_messages_are_of_the_code(on_the_host):
    """The first cells of the tables of the troubleshooting page, but for what JAX says."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    of_jax = page[page.index("## Meshes and exports") : page.index("## Tuning files")]
    quoted = re.findall(r"^\| `(.+?)` \|", page.replace(of_jax, ""), re.MULTILINE)
    assert len(quoted) > 30
    texts = [re.sub(r"\s+", " ", text) for text in (*texts_of_the_code(), *refusals_of_other_versions())]
    is_there = lambda message: any(re.search(".*".join(map(re.escape, message.split("…"))), text) for text in texts)
    assert [message for message in quoted if not is_there(message)] == []


def test_api_page_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    documented = re.findall(r"^\.\. auto\w+:: (?:jaxconv\.)?(\w+)", page, re.MULTILINE)
    assert set(jaxconv.__all__) <= set(documented)


def test_pictures_are_as_drawn():
    """`python docs/kernels/draw.py` draws them: offset tables in them are those of the code."""
    draw = module_at(ROOT / "docs" / "kernels" / "draw.py")
    drawn = {f"{name}.svg": picture().svg() for name, picture in draw.PICTURES.items()}
    assert drawn == {file.name: file.read_text() for file in draw.HERE.glob("*.svg")}
