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


VIOLATIONS = [
    ("operator/evenkeel/protocol/keys.py", "import time", "evenkeel.protocol.keys -> time"),
    ("operator/evenkeel/protocol/keys.py", "from os import environ", "evenkeel.protocol.keys -> os"),
    (
        "operator/evenkeel/protocol/change_steps.py",
        "import asyncio.subprocess",
        "evenkeel.protocol.change_steps -> asyncio",
    ),
    ("operator/evenkeel/protocol/keys.py", "import evenkeel.metastore.mvcc", "keys -> evenkeel.metastore.mvcc"),
    (
        "operator/evenkeel/planner/placement_rules.py",
        "from random import choice",
        "evenkeel.planner.placement_rules -> random",
    ),
    ("operator/evenkeel/rebalancers/rendezvous.py", "import socket", "evenkeel.rebalancers.rendezvous -> socket"),
    ("operator/evenkeel/model/views.py", "import evenkeel_store", "evenkeel.model.views -> evenkeel_store"),
    ("operator/evenkeel/model/views.py", "import evenkeel_raft.core", "evenkeel.model.views -> evenkeel_raft.core"),
    ("operator/evenkeel/errors.py", "import evenkeel.model", "evenkeel.errors -> evenkeel.model"),
    ("raft_sidecar/evenkeel_raft/core/raft_log.py", "import uuid", "evenkeel_raft.core.raft_log -> uuid"),
    (
        "raft_sidecar/evenkeel_raft/core/raft_log.py",
        "import evenkeel.errors",
        "evenkeel_raft.core.raft_log -> evenkeel.errors",
    ),
    (
        "raft_sidecar/evenkeel_raft/core/raft_log.py",
        "import evenkeel_spark",
        "evenkeel_raft.core.raft_log -> evenkeel_spark",
    ),
    (
        "raft_sidecar/evenkeel_raft/host/replica_label.py",
        "import evenkeel_raft.agent.agent",
        "evenkeel_raft.host.replica_label -> evenkeel_raft.agent.agent",
    ),
    (
        "operator/evenkeel_operator/process/leader_term.py",
        "import evenkeel_raft.core",
        "evenkeel_operator.process.leader_term -> evenkeel_raft.core",
    ),
    (
        "operator/evenkeel_operator/kube/leader_lease.py",
        "import evenkeel_operator.reconcilers",
        "evenkeel_operator.kube.leader_lease -> evenkeel_operator.reconcilers",
    ),
    (
        "operator/evenkeel_operator/manifests/store_pod.py",
        "import time",
        "evenkeel_operator.manifests.store_pod -> time",
    ),
    (
        "raft_sidecar/evenkeel_store/engine/group_metadata.py",
        "import evenkeel_raft.core",
        "evenkeel_store.engine.group_metadata -> evenkeel_raft.core",
    ),
    (
        "raft_sidecar/evenkeel_store/engine/group_metadata.py",
        "import evenkeel_store.serving.scans",
        "evenkeel_store.engine.group_metadata -> evenkeel_store.serving.scans",
    ),
    (
        "spark_operator_hooks/evenkeel_spark/source_options.py",
        "import evenkeel_store",
        "evenkeel_spark.source_options -> evenkeel_store",
    ),
]


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the contracts say of a copy of the sources in which every one of them is broken."""
    tree = tmp_path_factory.mktemp("tree")
    for source in SOURCES:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tree / source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tree)
    for module, line, _ in VIOLATIONS:
        with (tree / module).open("a") as file:
            file.write(f"{line}\n")
    done = lint_imports(tree)
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_contracts_are_kept() -> None:
    """The tree as it is breaks no contract."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


def test_every_contract_can_be_broken(verdict: str) -> None:
    """No contract is kept whatever one does."""
    assert "Contracts: 0 kept" in verdict


@pytest.mark.parametrize("named", [named for *_, named in VIOLATIONS])
def test_forbidden_import_is_found(verdict: str, named: str) -> None:
    """An import that a contract is there to forbid is found, and named."""
    assert named in verdict
