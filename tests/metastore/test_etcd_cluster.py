"""Three members: loss of the leader, and an isolated member, with watches and writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aetcd import rpc

from evenkeel.errors import UnreachableError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdBinary, EtcdCluster, EtcdServer
from tests.metastore.support import (
    FAST_ELECTIONS,
    TIMEOUT,
    events_until,
    persistent_txn,
    put,
    settings_for,
    shown,
)


@pytest.fixture
async def cluster(etcd_binary: EtcdBinary, tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    async with EtcdCluster(tmp_path, binary=etcd_binary, extra_args=FAST_ELECTIONS) as cluster:
        yield cluster
        if etcd_binary.survives_kill:
            # On SIGTERM the last leader would wait for a successor that is shutting down too.
            await asyncio.gather(*(member.kill() for member in cluster.members))


@pytest.mark.kills_etcd
async def test_losing_the_leader(cluster: EtcdCluster) -> None:
    """If the leader is killed, watch and writes continue: acknowledged writes are delivered in order and once."""
    leader = await leader_of(cluster)
    first = [leader.endpoint, *(endpoint for endpoint in cluster.endpoints if endpoint != leader.endpoint)]
    async with EtcdMetastore(settings_for(*first, request_timeout=1.0)) as store:
        watch = store.watch("/w/", after=await store.range("/w/"))
        following = asyncio.create_task(events_until(watch, lambda event: event.key == "/w/199"))
        acknowledged = []
        for number in range(200):
            if number == 50:
                await leader.kill()
            with contextlib.suppress(UnreachableError):
                await store.txn(put(f"/w/{number:03}"))
                acknowledged.append(f"{number:03}")
        seen = [key for key, _ in shown(await following)]
    assert seen == sorted(set(seen))
    assert set(acknowledged) <= set(seen)
    assert len(acknowledged) >= 198


async def test_member_without_a_majority_is_noticed(cluster: EtcdCluster) -> None:
    """An isolated member refuses requests instead of returning stale data, and works again with the others."""
    leader = await leader_of(cluster)
    lonely, other = [member for member in cluster.members if member is not leader]
    async with EtcdMetastore(settings_for(lonely.endpoint, request_timeout=1.0)) as store:
        await store.txn(put("/w/a"))
        watch = store.watch("/w/", after=await store.range("/w/"))
        following = asyncio.create_task(events_until(watch, lambda event: event.key == "/w/b"))
        leader.pause()
        other.pause()
        await refusal(lambda: store.get("/w/a"))
        await refusal(lambda: store.txn(put("/w/unwritten")))
        leader.resume()
        other.resume()
        await persistent_txn(store, put("/w/b"))
        assert shown(await following) == [("b", b"")]


async def refusal(action: Callable[[], Awaitable[object]]) -> None:
    """Repeat until the member has noticed that there is no leader, and reports it."""
    said = ""
    async with asyncio.timeout(TIMEOUT):
        while "no leader" not in said:
            try:
                await action()
            except UnreachableError as error:
                said = str(error)
    assert "may or may not" not in said


async def leader_of(cluster: EtcdCluster) -> EtcdServer:
    for member in cluster.members:
        async with rpc.insecure_channel(member.endpoint.removeprefix("http://")) as channel:
            status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest())
        if status.leader == status.header.member_id:
            return member
    raise AssertionError("no member leads")
