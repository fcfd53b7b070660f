"""Invalid data on the disk or from peers: reported, without harm to other groups."""

from __future__ import annotations

import logging
from functools import partial

import msgspec
import pytest

from evenkeel.errors import MalformedRecordError, UnsupportedVersionError
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.replica_decision import Start
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.core.raft_types import Conf, SnapshotMeta
from evenkeel_raft.errors import WrongVolumeError
from evenkeel_raft.host.host import Host
from evenkeel_raft.shared.raft_configurations import member
from evenkeel_raft.shared.raft_groups import Partition
from tests.raft_host.support import LOOPBACK, Member, NewCluster, problem, replica_of


async def run(store: Member, *, name: str, cluster: str) -> Host:
    """Open a store's directory under another name."""
    return await Host.open(
        store.directory / "raft", store=name, cluster=cluster, socket=store.directory / "s", listen=(LOOPBACK, 0)
    )


async def test_the_volume_of_another_store_is_refused(new_cluster: NewCluster) -> None:
    """A volume of another store or cluster is refused; its own store accepts it."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster["a"].stop()
    with pytest.raises(WrongVolumeError, match=r"belongs to store a, but this is store b"):
        await run(cluster["a"], name="b", cluster="c")
    with pytest.raises(WrongVolumeError, match=r"belongs to cluster c, but this store belongs to d"):
        await run(cluster["a"], name="a", cluster="d")
    await cluster["a"].start()
    await cluster.write(x="1")


async def test_an_unwritable_peers_file_is_tolerated(new_cluster: NewCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Peers work even if their file cannot be written; that is logged once and retried at the next change."""
    cluster = await new_cluster("a", "b")
    store = cluster["a"]
    known = (store.directory / "raft" / "peers.json").read_bytes()
    obstacle = store.directory / "raft" / "peers.json.new"
    obstacle.mkdir()
    peers = {"b": cluster["b"].address, "z": cluster["b"].address._replace(port=1)}
    for _ in range(3):
        store.host.set_peers(peers)
    assert set(store.host.status.peer_states()) == {"b", "z"}
    assert len([record for record in caplog.records if "peers.json" in record.getMessage()]) == 1
    assert (store.directory / "raft" / "peers.json").read_bytes() == known
    obstacle.rmdir()
    store.host.set_peers(peers)
    assert set(msgspec.json.decode((store.directory / "raft" / "peers.json").read_bytes())) == {"b", "z"}


@pytest.mark.parametrize("text", [b"", b"{", b'{"b":7}', b'{"\xff":["h",1,"v"]}', b'{"b":' + b"[" * 100_000])
async def test_a_damaged_peers_file_is_ignored(new_cluster: NewCluster, text: bytes) -> None:
    """A host with a damaged peers file starts without peers."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster["a"].stop()
    (cluster["a"].directory / "raft" / "peers.json").write_bytes(text)
    await cluster["a"].start()
    await cluster.write(x="1")
    assert cluster["a"].host.status.peer_states() == {}


async def test_an_invalid_configuration_stops_one_group(
    new_cluster: NewCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An undecodable configuration stops only its own replica."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    store, other = cluster["a"], Partition("orders.1", 1)
    group, number = group_number(*other), member(("a", 5))
    await store.host.start(other, Start(store.peer(5)))
    meta = SnapshotMeta(9, 3, Conf(voters=(1, number), info={1: b"\xff"}))
    store.host._replicas.by_group[group].step("b", InstallSnapshot(group, 0, 1, number, 3, meta))
    future = cluster.propose(store, b"\x91\xa7barrier")
    await cluster.until(lambda: "stopped" in store.host.reports()[other].problem)
    await cluster.until(future.done)
    await cluster.write(x="1")
    assert problem(store) == ""
    assert not store.host.failed.done()
    logged = [record for record in caplog.records if getattr(record, "table", "") == other.fields()["table"]]
    assert [(record.levelno, vars(record)["partition"]) for record in logged] == [(logging.ERROR, other.partition)]


async def test_a_bug_stops_one_group(new_cluster: NewCluster) -> None:
    """An unexpected exception in one replica does not affect those queued behind it."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    store, other = cluster["a"], Partition("orders.1", 1)
    first = Configuration((store.peer(5),))
    await store.host.start(other, Start(store.peer(5), first))
    broken = store.host._replicas.by_group[group_number(*other)]
    broken._process_ready = partial(next, iter(()))  # type: ignore[method-assign]
    broken._enqueue()
    replica_of(store)._enqueue()
    await cluster.until(lambda: "stopped" in store.host.reports()[other].problem)
    await cluster.write(x="1")


async def test_a_volume_of_another_cluster_version_is_refused(new_cluster: NewCluster) -> None:
    """A release that does not support the volume's cluster version refuses it before opening the log."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    assert cluster["a"].host.version == 1
    volume = cluster["a"].directory / "raft" / "log" / "volume.json"
    formats: list[int] = []

    def record_format(version: int) -> None:
        formats.append(msgspec.json.decode(volume.read_bytes())["format"])

    cluster["a"].host._machine.set_cluster_version = record_format  # type: ignore[method-assign]
    cluster["a"].host.set_version(1)
    cluster["a"].host.set_version(2)
    assert formats == [1, 2], "the first release refuses the volume before the state machine writes what it cannot read"
    await cluster["a"].stop()
    await cluster["a"].start()
    assert cluster["a"].host.version == 2
    await cluster["a"].stop()
    note = cluster["a"].directory / "raft" / "version.json"
    for text, error in (
        ('{"version": 9}', r"the volume in .* has cluster version 9, but this release supports 1 to 2: run a newer"),
        ("{}", r"cannot read a cluster version from .*version.json"),
    ):
        note.write_text(text)
        with pytest.raises((UnsupportedVersionError, MalformedRecordError), match=error):
            await run(cluster["a"], name="a", cluster="c")
    note.unlink()
    await cluster["a"].start()
    await cluster.write(x="1")
