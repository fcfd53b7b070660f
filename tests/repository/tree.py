"""Where things are; shared by the tests beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator", "raft_sidecar", "spark_operator_hooks")
PACKAGES = sorted(file.parent for source in SOURCES for file in (ROOT / source).glob("*/__init__.py"))
