"""One real API server for the whole session, without nodes; each test has its own namespace."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.cluster.binaries import lacking
from e2e.cluster.control_plane import api_server
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layers import leave_out
from evenkeel.metastore.etcd_server import EtcdServer, find_etcd
from tests.kubernetes.world import World
from tests.kubernetes.world import world as new_world
from tests.metastore.support import FAST_ELECTIONS
from tests.repository.tree import ROOT

_numbers = itertools.count()


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl as administrator of an API server with our CRDs."""
    if missing := lacking("kube-apiserver", "kubectl"):
        leave_out(f"not built yet: {', '.join(missing)} (make binaries ONLY=cluster)")
    with api_server(tmp_path_factory.mktemp("kubernetes")) as plane:
        kubectl = plane.kubectl
        kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        kubectl("wait", "--for=condition=Established", f"--filename={ROOT / 'crds'}")
        yield kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> str:
    name = f"test-{next(_numbers)}"
    kubectl("create", "namespace", name)
    return name


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def etcd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EtcdServer]:
    folder = tmp_path_factory.mktemp("etcd")
    async with EtcdServer(folder, binary=find_etcd(), fsync=False, extra_args=FAST_ELECTIONS) as server:
        yield server


@pytest.fixture(autouse=True)
def _nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods run as a user without an entry in /etc/passwd."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", unknown)


@pytest_asyncio.fixture
async def world(kubectl: Kubectl, namespace: str, etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[World]:
    async with new_world(kubectl, namespace, etcd.endpoint, tmp_path) as made:
        yield made
