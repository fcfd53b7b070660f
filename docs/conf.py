"""Sphinx settings. The source folder is the repository's root, so pages link to each other as they do on the web."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STATIC = Path(__file__).parent.parent / "build" / "docs-static"

project = "Evenkeel"
author = "The Evenkeel authors"
extensions = ["myst_parser"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1200px"}
html_static_path = [str(STATIC)]
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


def draw_diagrams(app: Sphinx, page: str, source: list[str]) -> None:
    """Let the script from scripts/fetch-mermaid.sh draw the diagrams in the reader's browser."""
    source[0] = DIAGRAM.sub(
        lambda found: f'```{{raw}} html\n<pre class="mermaid">\n{escape(found[1])}</pre>\n```', source[0]
    )


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the site its menu without a directive in the README, which would show as text on the web."""
    if page == root_doc:
        source[0] += CONTENTS


def setup(app: Sphinx) -> None:
    """Register the diagrams and the menu."""
    for script in STATIC.glob("mermaid-*.js"):
        app.add_js_file(script.name)
        # Without this, diagrams that are drawn in the same millisecond share an id and overlap.
        app.add_js_file(None, body="mermaid.initialize({startOnLoad: true, deterministicIds: true})")
    app.connect("source-read", draw_diagrams)
    app.connect("source-read", add_contents)
