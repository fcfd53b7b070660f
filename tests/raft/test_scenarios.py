"""Every scenario file leaves exactly the trace it states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.scenario import FOLDER, replay

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """Each command of the file leaves the trace stated below it."""
    text = path.read_text()
    assert replay(text) == text, "if the new trace is right: python -m tests.raft.scenario --rewrite " + path.stem
