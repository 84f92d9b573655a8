"""Sphinx's settings for the documentation site, which `make docs` builds.

The source folder is the root of the repository: pages lie where GitHub shows them, and link to each other as files.
"""

import importlib.metadata
from pathlib import Path

HERE = Path(__file__).parent

project = "jaxconv"
author = "the authors of jaxconv"
release = importlib.metadata.version("jaxconv")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist", "docs/site"]
myst_heading_anchors = 3  # the anchors that GitHub gives headings
napoleon_use_param = False  # "scale, bias: ..." is one entry
napoleon_custom_sections = [("Layer parameters", "params_style")]

# Docstrings have code in single backticks, as Markdown has. A name of the API becomes a link.
default_role = "py:obj"
smartquotes = False
highlight_language = "text"
autodoc_typehints = "none"  # signatures are long enough
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"jaxconv {release}"
html_copy_source = False
html_extra_path = ["site/index.html"]  # leads to README.html


def add_navigation(app, docname, source):
    """The first page of the site has the table of contents, which GitHub has no use for."""
    if docname == root_doc:
        source[0] += (HERE / "site" / "contents.md").read_text()


def setup(app):
    app.connect("source-read", add_navigation)
