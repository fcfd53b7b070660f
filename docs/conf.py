"""Sphinx's settings. The source folder is the root, so that pages link to each other as they do on the web."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Evenkeel"
author = "The Evenkeel authors"
extensions = ["myst_parser"]
html_theme = "alabaster"
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "e2e/*.md"]
myst_heading_anchors = 3

CONTENTS = """
```{toctree}
:hidden:
:glob:

docs/*
e2e/README
CONTRIBUTING
CHANGELOG
```
"""


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the site its menu without a directive in the README, which would show on the web as text."""
    if page == root_doc:
        source[0] += CONTENTS


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("source-read", add_contents)
