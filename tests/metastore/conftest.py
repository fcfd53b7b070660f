"""Servers and metastores for the tests of this folder.

One real etcd serves the whole session; tests keep apart by a prefix of their own. A test that stops, kills or
reconfigures a server starts its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdBinary, EtcdServer, find_etcd
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.runtime.clock import VirtualClock
from tests.metastore.support import FAST_ELECTIONS, Subject, compact_etcd, settings_for

_prefixes = (f"/test-{number}/" for number in itertools.count())


@pytest.fixture(scope="session")
def etcd_binary() -> EtcdBinary:
    return find_etcd()


@pytest.fixture(autouse=True)
def _no_killing_of_the_wheel(request: pytest.FixtureRequest) -> None:
    """Tests that kill etcd need one that survives it; CI must have one."""
    if request.node.get_closest_marker("kills_etcd") is None:
        return
    binary: EtcdBinary = request.getfixturevalue("etcd_binary")
    if binary.survives_kill:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI has to run this test: {binary.warning}")
    pytest.skip(binary.warning)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_server(etcd_binary: EtcdBinary, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EtcdServer]:
    data_dir = tmp_path_factory.mktemp("etcd")
    async with EtcdServer(data_dir, binary=etcd_binary, fsync=False, extra_args=FAST_ELECTIONS) as server:
        yield server


@pytest.fixture
def new_server(etcd_binary: EtcdBinary, tmp_path: Path) -> Callable[..., EtcdServer]:
    """Makes servers that one test has for itself, in directories of their own."""
    numbers = itertools.count()

    def make(**options: object) -> EtcdServer:
        extra = (*FAST_ELECTIONS, *options.pop("extra_args", ()))  # type: ignore[misc]
        return EtcdServer(tmp_path / f"etcd-{next(numbers)}", binary=etcd_binary, extra_args=extra, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def prefix() -> str:
    return next(_prefixes)


@pytest.fixture(params=["memory", "etcd"])
async def subject(request: pytest.FixtureRequest, shared_server: EtcdServer) -> AsyncIterator[Subject]:
    """Each kind of metastore in turn."""
    if request.param == "memory":
        async with MemoryMetastore(clock=VirtualClock()) as memory:
            yield Subject(memory, memory.compact)
    else:
        async with EtcdMetastore(settings_for(shared_server.endpoint)) as etcd:
            yield Subject(etcd, lambda revision: compact_etcd(shared_server.endpoint, revision))
