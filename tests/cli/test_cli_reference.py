"""docs/cli.md: its reference is current, and its examples run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evenkeel.cli.cli_reference import main, render
from tests.repository.tree import ROOT, shown

PAGE = ROOT / "docs" / "cli.md"


def test_reference_is_current() -> None:
    """The reference has every verb and option."""
    text = PAGE.read_text()
    assert text == render(text), "run `make crds`"
    assert "### evenkeel hand-over TABLE PARTITION [STORE]" in text


def test_reference_writes(tmp_path: Path) -> None:
    """Only the part between the markers is replaced."""
    page = tmp_path / "cli.md"
    page.write_text("before\n<!-- commands -->\nold\n<!-- end -->\nafter\n")
    main([str(page)])
    text = page.read_text()
    assert text.startswith("before\n<!-- commands -->\n### evenkeel validate\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old\n" not in text


def test_blocks_of_the_page(tmp_path: Path) -> None:
    """The commands of the page succeed in an empty home directory."""
    blocks = shown(PAGE, "sh")
    assert len(blocks) == 1
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-euo", "pipefail", "-c", *blocks], env=environment, check=True, capture_output=True)
    assert list(tmp_path.glob(".bash_completions/*"))
