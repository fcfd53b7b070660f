"""Where things are, and what pages show; shared by all tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator", "raft_sidecar", "spark_operator_hooks")
PACKAGES = sorted(file.parent for source in SOURCES for file in (ROOT / source).glob("*/__init__.py"))


def shown(page: Path, language: str) -> list[str]:
    """The blocks of code in one language that a page shows."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def tracked(*suffixes: str) -> list[str]:
    """List the files of the repository whose names end so."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listing.stdout.split("\0") if name.endswith(suffixes) and (ROOT / name).is_file()]
