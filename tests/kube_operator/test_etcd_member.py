"""Members of the bundled etcd that start without data: new ones, and after the loss of their volume."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from evenkeel.metastore.etcd_membership import Membership
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdCluster, EtcdServer, find_etcd
from evenkeel_operator.process import etcd_member
from evenkeel_operator.process.etcd_member import FORMED, main, prepare
from tests.metastore.support import FAST_ELECTIONS, put, settings_for

pytestmark = pytest.mark.skipif(not find_etcd().survives_kill, reason="members are killed: run `make binaries`")


def config_map(folder: Path, cluster: EtcdCluster, lost: EtcdServer, *, formed: bool) -> Path:
    """The ConfigMap as the chart mounts it."""
    folder.mkdir(exist_ok=True)
    config = {
        "name": "$(POD_NAME)",
        "data-dir": str(lost.data_dir / "data"),
        "advertise-client-urls": lost.endpoint,
        "initial-advertise-peer-urls": lost.peer_url,
        "initial-cluster": ",".join(f"{one.name}={one.peer_url}" for one in cluster.members),
        "initial-cluster-state": "new",
    }
    (folder / "etcd.yaml").write_bytes(msgspec.yaml.encode(config))
    if formed:
        (folder / FORMED).write_text("true")
    return folder


def again(cluster: EtcdCluster, lost: EtcdServer, state: str) -> EtcdServer:
    """The same member, started with its configuration."""
    server = EtcdServer(
        lost.data_dir,
        name=lost.name,
        ports=(lost.client_port, lost.peer_port),
        fsync=False,
        extra_args=(*FAST_ELECTIONS, f"--initial-cluster-state={state}"),
    )
    server.peers, server.cluster_token = lost.peers, lost.cluster_token
    cluster.members[cluster.members.index(lost)] = server
    return server


def new_cluster(folder: Path) -> EtcdCluster:
    return EtcdCluster(folder, fsync=False, extra_args=FAST_ELECTIONS)


async def test_a_member_without_its_data_is_replaced(tmp_path: Path) -> None:
    """It returns as a new member with every key, and the cluster survives the loss of a second one."""
    async with new_cluster(tmp_path) as cluster, EtcdMetastore(settings_for(*cluster.endpoints)) as store:
        await store.txn(put("/kept", b"value"))
        lost = cluster.members[2]
        async with Membership(settings_for(*cluster.endpoints)) as membership:
            before = {one.name: one.number for one in await membership.members()}
            await lost.kill()
            shutil.rmtree(lost.data_dir / "data")
            folder = config_map(tmp_path / "map", cluster, lost, formed=True)
            config = await prepare(lost.name, folder, cluster.endpoints)
            assert (config["name"], config["initial-cluster-state"]) == ("member-2", "existing")
            await again(cluster, lost, "existing").start()
            after = {one.name: one.number for one in await membership.members()}
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] != before[name]} == {"member-2"}
        await cluster.members[0].kill()
        async with EtcdMetastore(settings_for(cluster.members[2].endpoint)) as alone:
            found = await alone.get("/kept")
        assert found is not None
        assert found.value == b"value"


async def test_an_interrupted_replacement_is_finished(tmp_path: Path) -> None:
    """Whether the old member was only removed or the new one already added, a retry adds it once."""
    async with new_cluster(tmp_path) as cluster:
        lost = cluster.members[1]
        await lost.kill()
        shutil.rmtree(lost.data_dir / "data")
        folder = config_map(tmp_path / "map", cluster, lost, formed=True)
        others = [one.endpoint for one in cluster.members if one is not lost]
        async with Membership(settings_for(*others, request_timeout=30.0)) as membership:
            [gone] = [one for one in await membership.members() if one.name == lost.name]
            await membership.remove(gone)
            for _ in range(2):
                await prepare(lost.name, folder, cluster.endpoints)
            here = [one for one in await membership.members() if lost.peer_url in one.peer_urls]
        assert [one.started for one in here] == [False]
        await again(cluster, lost, "existing").start()


async def test_a_member_with_data_starts_with_it(tmp_path: Path) -> None:
    """It asks no other member, and keeps its identity."""
    async with new_cluster(tmp_path) as cluster:
        whole = cluster.members[0]
        folder = config_map(tmp_path / "map", cluster, whole, formed=True)
        config = await prepare(whole.name, folder, ["http://127.0.0.1:1"])
        assert config["initial-cluster-state"] == "new"


async def test_only_the_first_start_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty member starts before the cluster has been formed; afterwards it waits for the others."""
    monkeypatch.setattr(etcd_member, "_REQUEST_TIMEOUT_SECONDS", 0.3)
    cluster = new_cluster(tmp_path)
    first = cluster.members[0]
    folder = config_map(tmp_path / "map", cluster, first, formed=False)
    config = await prepare(first.name, folder, cluster.endpoints)
    assert config["initial-cluster-state"] == "new"
    monkeypatch.setattr(etcd_member, "_WAIT_SECONDS", 0.05)
    (folder / FORMED).write_text("true")
    tried, join = asyncio.Event(), etcd_member._join

    async def observed_join(config: etcd_member.Config, endpoints: Sequence[str]) -> bool:
        found = await join(config, endpoints)
        tried.set()
        return found

    monkeypatch.setattr(etcd_member, "_join", observed_join)
    waiting = asyncio.create_task(prepare(first.name, folder, cluster.endpoints))
    await tried.wait()
    # No member has answered, so it tries again.
    tried.clear()
    await asyncio.wait((waiting, asyncio.ensure_future(tried.wait())), return_when=asyncio.FIRST_COMPLETED)
    assert not waiting.done()
    others = [again(cluster, one, "new") for one in cluster.members[1:]]
    for one in others:
        await one.launch()
    try:
        for one in others:
            await one.ready()
        # The others have it as a member, though it never started.
        assert (await waiting)["initial-cluster-state"] == "existing"
        await again(cluster, first, "existing").start()
    finally:
        await cluster.terminate()


def test_an_invalid_configuration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names the file."""
    arguments = ("--name=etcd-0", f"--config-map={tmp_path}", "--endpoints=http://127.0.0.1:1")
    assert main([*arguments, f"--output={tmp_path / 'out'}"]) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "etcd.yaml") in said
