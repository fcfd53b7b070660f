"""Examples and pages: every resource in them is valid, and the reference is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.resource_reference import main, render

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
PAGES = ("resources.md", "rebalancers.md")
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_example_names() -> None:
    """The examples are valid and can be applied together."""
    found = [(item.kind, item.key) for file in EXAMPLES for item in load_yaml(file.read_text(), str(file))]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    """Every resource on a page is valid."""
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    assert blocks
    for block in blocks:
        assert load_yaml(block, page)


def test_reference_is_current() -> None:
    """The tables of docs/resources.md are those that the models generate."""
    page = (ROOT / "docs" / "resources.md").read_text()
    assert page == render(page), "run `python -m evenkeel.model.resource_reference docs/resources.md`"
    assert "| `consensusSize` | an integer from 1 to 99 |" in page


def test_reference_writes(tmp_path: Path) -> None:
    """The command updates the tables of a page and nothing else."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fields: Table.status -->\nold\n<!-- end -->\nafter\n")
    main([str(page)])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| `leaderless` |" in text
    assert "\nold\n" not in text
