"""What is left behind in a store's directories: of use, in the way, or none of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from evenkeel.errors import StateMachineError
from evenkeel.protocol.keys import group_number
from evenkeel_raft.shared.raft_configurations import member
from tests.raft_host.support import ORDERS, Cluster, Member
from tests.raft_host.test_state_machines import replica_of

NewCluster = Callable[..., Awaitable[Cluster]]

DIGEST = "0123456789abcdef" * 2


def inbox(store: Member) -> Path:
    return store.directory / "raft" / "inbox"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_strange_files_do_not_matter(new_cluster: NewCluster) -> None:
    """A host starts whatever lies in its inbox; what it did not make itself it leaves alone."""
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


async def test_snapshots_for_nobody_are_deleted_at_the_start(new_cluster: NewCluster) -> None:
    """Whole or in part, those of replicas that are not here, or no longer of use, go; parts for a replica here stay."""
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
    """A snapshot that arrived and was never restored goes with its replica."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    applier = cluster["a"].host._replicas.by_group[group_number(*ORDERS)].applier
    directory = inbox(cluster["a"]) / f"{group_number(*ORDERS)}-{member(('a', 1))}-0-9-1-{DIGEST}"
    directory.mkdir()
    applier.received_snapshots.add(9, directory)
    await cluster["a"].host.destroy(ORDERS, ("a", 1))
    await cluster.until(lambda: names(inbox(cluster["a"])) == set())


async def test_a_replica_is_remembered_until_its_state_is_gone(new_cluster: NewCluster) -> None:
    """A state machine that cannot delete is asked again, also by the next process: the log forgets nothing before."""
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


async def test_a_snapshot_that_comes_too_late_goes(new_cluster: NewCluster) -> None:
    """One that arrives when the log is past it is of no use, and its files are nobody's."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster.write(x="1", y="2")
    replica, number = replica_of(cluster["a"]), member(("a", 1))
    directory = inbox(cluster["a"]) / f"{replica.group}-{number}-0-2-1-{DIGEST}"
    directory.mkdir()
    replica.applier.on_snapshot_received(2, directory)
    assert replica.applier.received_snapshots.get(2) is None
    await cluster.until(lambda: names(inbox(cluster["a"])) == set())
