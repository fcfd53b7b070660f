"""The commands of README, docs/quickstart.md and docs/local.md run from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.test_local import COMMAND, Here
from tests.repository.tree import ROOT


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    found = Here(tmp_path / "c")
    yield found
    found.close()


@pytest.mark.parametrize("page", ["quickstart.md", "local.md"])
def test_blocks_of_the_page(here: Here, page: str) -> None:
    """Every block of shell commands and Python succeeds."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    run(here, blocks)


def test_commands_of_the_readme(here: Here) -> None:
    """The `evenkeel` commands succeed."""
    commands = re.findall(r"^    (evenkeel .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) > 5
    run(here, [("sh", command) for command in commands])


def run(here: Here, blocks: list[tuple[str, str]]) -> None:
    environment = {
        **os.environ,
        "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
        "EVENKEEL_LOCAL": str(here.root),
    }
    for kind, block in blocks:
        command = ["bash", "-euo", "pipefail", "-c", block] if kind == "sh" else [sys.executable, "-c", block]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}\n{here.logs()}"
