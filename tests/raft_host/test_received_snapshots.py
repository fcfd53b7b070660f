"""Leftover snapshot files: used, deleted or ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenkeel.errors import StateMachineError
from evenkeel.protocol.keys import group_number
from evenkeel_raft.shared.raft_configurations import member
from tests.raft_host.support import ORDERS, Member, NewCluster, replica_of

DIGEST = "0123456789abcdef" * 2


def inbox(store: Member) -> Path:
    return store.directory / "raft" / "inbox"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_unknown_files_are_ignored(new_cluster: NewCluster) -> None:
    """Unknown files in the inbox are ignored and kept."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster["a"].stop()
    strange = {"12-34", "1-2-3", "1-2-x-y-z", "1-2-3-4-5", "lost+found", "a.partial"}
    for name in strange:
        (inbox(cluster["a"]) / name).mkdir()
    (inbox(cluster["a"]) / "1-2-0-9-1-notes").write_text("x")
    await cluster["a"].start()
    await cluster.write(x="1")
    assert strange <= names(inbox(cluster["a"]))


async def test_useless_snapshots_are_deleted_at_startup(new_cluster: NewCluster) -> None:
    """At startup, useless snapshots are deleted; partial ones of a local replica stay."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster["a"].stop()
    here = f"{group_number(*ORDERS)}-{member(('a', 1))}-0"
    useful = f"{here}-9-1-{DIGEST}.partial"
    useless = (
        f"5-6-0-9-1-{DIGEST}",
        f"5-6-0-9-1-{DIGEST}.partial",
        f"{here}-9-1-{DIGEST}",
        f"{here}-3-1-{DIGEST}.gone",
    )
    for name in (useful, *useless):
        (inbox(cluster["a"]) / name).mkdir()
        (inbox(cluster["a"]) / name / "rows").write_text("x")
    await cluster["a"].start()
    assert names(inbox(cluster["a"])) == {useful}


async def test_a_deleted_replica_leaves_no_snapshot(new_cluster: NewCluster) -> None:
    """A received snapshot is deleted with its replica."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    applier = cluster["a"].host._replicas.by_group[group_number(*ORDERS)].applier
    directory = inbox(cluster["a"]) / f"{group_number(*ORDERS)}-{member(('a', 1))}-0-9-1-{DIGEST}"
    directory.mkdir()
    applier.received_snapshots.add(9, directory)
    await cluster["a"].host.destroy(ORDERS, ("a", 1))
    await cluster.until(lambda: names(inbox(cluster["a"])) == set())


async def test_a_replica_is_remembered_until_its_state_is_gone(new_cluster: NewCluster) -> None:
    """A replica stays in the log until the state machine has deleted its data, also across restarts."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster.write(x="1")
    store = cluster["a"]
    store.machine.refuse = {"destroy": "the disk is read-only"}
    with pytest.raises(StateMachineError, match="the disk is read-only"):
        await store.host.destroy(ORDERS, ("a", 1))
    await store.stop()
    await store.start()
    assert store.host.running() == {ORDERS: ("a", 1)}
    store.machine.refuse = {}
    await cluster.until(lambda: store.host.status.machine_connected)
    await store.host.destroy(ORDERS, ("a", 1))
    assert await store.state() == {}
    assert store.host.running() == {}


async def test_an_outdated_snapshot_is_deleted(new_cluster: NewCluster) -> None:
    """A snapshot that arrives after the log is past it is deleted."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster.write(x="1", y="2")
    replica, number = replica_of(cluster["a"]), member(("a", 1))
    directory = inbox(cluster["a"]) / f"{replica.group}-{number}-0-2-1-{DIGEST}"
    directory.mkdir()
    replica.applier.on_snapshot_received(2, directory)
    assert replica.applier.received_snapshots.get(2) is None
    await cluster.until(lambda: names(inbox(cluster["a"])) == set())
