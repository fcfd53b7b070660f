"""The import contracts: kept by the tree as it is, and broken by what they are there to catch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.tree import ROOT, SOURCES


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(tree / source) for source in SOURCES)}
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, to be spoilt."""
    for source in SOURCES:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_contracts_are_kept(tree: Path) -> None:
    """The tree as it is breaks no contract."""
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line", "named"),
    [
        ("operator/evenkeel/protocol/keys.py", "import time", "evenkeel.protocol.keys -> time"),
        ("operator/evenkeel/protocol/keys.py", "from os import environ", "evenkeel.protocol.keys -> os"),
        ("operator/evenkeel/protocol/keys.py", "import asyncio.subprocess", "evenkeel.protocol.keys -> asyncio"),
        ("operator/evenkeel/planner/rules.py", "from random import choice", "evenkeel.planner.rules -> random"),
        ("operator/evenkeel/rebalancers/mod.py", "import socket", "evenkeel.rebalancers.mod -> socket"),
        ("operator/evenkeel/protocol/keys.py", "import evenkeel.metastore.memory", "evenkeel.metastore.memory"),
        ("operator/evenkeel/model/views.py", "import evenkeel_store", "evenkeel.model.views -> evenkeel_store"),
        ("raft_sidecar/evenkeel_raft/core/log.py", "import random", "evenkeel_raft.core.log -> random"),
        ("raft_sidecar/evenkeel_raft/core/log.py", "import evenkeel_store", "evenkeel_raft.core.log -> evenkeel_store"),
        ("operator/evenkeel/model/views.py", "import evenkeel_raft.core", "evenkeel.model.views -> evenkeel_raft"),
        ("operator/evenkeel/errors.py", "import evenkeel.model", "evenkeel.errors -> evenkeel.model"),
    ],
)
def test_forbidden_import_is_found(tree: Path, module: str, line: str, named: str) -> None:
    """An import that a contract is there to forbid is found, and named."""
    with (tree / module).open("a") as file:
        file.write(f"{line}\n")

    done = lint_imports(tree)

    assert done.returncode == 1
    assert named in done.stdout
