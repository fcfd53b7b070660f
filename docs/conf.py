"""Sphinx settings. The source folder is the repository's root, so pages link to each other as they do on the web."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx

STATIC = Path(__file__).parent.parent / "build" / "docs-static"

project = "Evenkeel"
author = "The Evenkeel authors"
extensions = ["myst_parser"]
html_theme = "alabaster"
html_static_path = [str(STATIC)]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "e2e/*.md"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

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


class Mermaid(Directive):
    """A diagram, drawn in the reader's browser by the script from scripts/fetch-mermaid.sh."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Pass the diagram's source to the page."""
        source = "\n".join(self.content)
        return [nodes.raw("", f'<pre class="mermaid">{escape(source)}</pre>', format="html")]


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the site its menu without a directive in the README, which would show as text on the web."""
    if page == root_doc:
        source[0] += CONTENTS


def setup(app: Sphinx) -> None:
    """Register the diagrams and the menu."""
    app.add_directive("mermaid", Mermaid)
    for script in STATIC.glob("mermaid-*.js"):
        app.add_js_file(script.name)
    app.connect("source-read", add_contents)
