"""Snapshot transfers to members: slots, limits, clean-up and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from evenkeel.protocol.records import Peer, Role, StoreSettings
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.socket_messages import Failed, SnapshotTaken
from evenkeel_raft.core.raft_messages import Append, HeartbeatResponse, Message
from evenkeel_raft.host import snapshot_sender
from evenkeel_raft.net.files.snapshot_manifest import make_manifest
from evenkeel_raft.shared.raft_configurations import member
from tests.raft_host.support import ORDERS, QUICK, VALUES, Cluster, Member, NewCluster, pass_time, problem, replica_of

ONE_AT_A_TIME = msgspec.structs.replace(QUICK, keep_log_bytes=2000, snapshots_at_once=1)


async def beyond_the_log(new_cluster: NewCluster, *newcomers: str, **settings: Any) -> Cluster:
    """Return a group on `a` with a compacted log, and stores that will be learners."""
    options = msgspec.structs.replace(ONE_AT_A_TIME, **settings)
    cluster = await new_cluster("a", *newcomers, settings=options)
    await cluster.begin("a")
    await cluster.write(**VALUES)
    await cluster.until(lambda: cluster["a"].host.reports()[ORDERS].log_bytes < 8000)
    for name in newcomers:
        await cluster[name].host.start(ORDERS, Start(learner(cluster[name])))
    return cluster


def learner(member: Member) -> Peer:
    return member.peer(2, Role.LEARNER)


async def stage(cluster: Cluster, *learners: Peer) -> None:
    """Stage learners, so that they get snapshots."""
    staged = tuple(sorted(learners))

    def proposed() -> bool:
        view = cluster["a"].view
        if view is None or view.newest != view.applied:
            return False
        if view.applied.staged != staged:
            cluster["a"].host.propose(ORDERS, msgspec.structs.replace(view.applied, staged=staged))
        return view.applied.staged == staged

    await cluster.until(proposed)


def outbox(member: Member) -> list[Path]:
    return list((member.directory / "raft" / "outbox").glob("*"))


async def test_an_early_message_is_delivered_later(new_cluster: NewCluster) -> None:
    """A leader's message from before the replica existed is delivered when it is created."""
    cluster = await new_cluster("a", "b", settings=ONE_AT_A_TIME)
    await cluster.begin("a")
    await cluster.write(**VALUES)
    await stage(cluster, learner(cluster["b"]))
    newcomer = cluster["b"].host
    await cluster.until(lambda: newcomer.counters.refused_messages["unknown_group"] > 0)
    await newcomer.start(ORDERS, Start(learner(cluster["b"])))
    assert replica_of(cluster["b"]).node.leader == replica_of(cluster["a"]).node.replica
    await cluster.equal("ab", VALUES)


async def test_a_store_that_stops_in_mid_transfer_gives_up_its_slot(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that stops in mid-transfer gives up its slot; the transfer resumes when it returns."""
    monkeypatch.setattr(snapshot_sender, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
    cluster = await beyond_the_log(new_cluster, "d", "e", bytes_per_second=5000.0)
    away, learners = cluster["d"], [learner(cluster[name]) for name in "de"]
    await stage(cluster, learners[0])
    leader = cluster["a"].host
    await cluster.until(lambda: leader.reports()[ORDERS].filling.get("d", 0.0) > 0.1)
    await away.stop()
    leader.peers.budget.set_rate(None)
    await stage(cluster, *learners)
    await cluster.equal("ae", VALUES)
    await cluster.until(lambda: "transfer to d is waiting" in problem(cluster["a"]))
    assert len(outbox(cluster["a"])) == 1
    await away.start()
    await cluster.equal("ade", VALUES)
    await cluster.until(lambda: not outbox(cluster["a"]))
    assert leader.counters.snapshots_failed == 0


async def test_a_table_is_copied_within_its_limit(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a table applies to its snapshots until it is removed; other tables' limits do not."""
    monkeypatch.setattr(snapshot_sender, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
    cluster = await beyond_the_log(new_cluster, "d", "e")
    leader = cluster["a"].host
    leader.limit_copies({ORDERS.table: 1.0, "another.1": 1.0})
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: 0.1 < leader.reports()[ORDERS].filling.get("d", 0.0) < 1)
    began = cluster.clock.now()
    await cluster.until(lambda: cluster.clock.now() > began + 20)
    assert leader.reports()[ORDERS].filling["d"] < 1
    leader.limit_copies({"another.1": 1.0})
    await cluster.equal("ad", VALUES)


async def test_throttles_change_during_a_transfer_and_persist(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New throttles apply to a running transfer and survive a restart."""
    monkeypatch.setattr(snapshot_sender, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
    cluster = await beyond_the_log(new_cluster, "d", "e")
    leader = cluster["a"].host
    leader.throttle(StoreSettings(bytes_per_second=1.0, snapshots_at_once=3))
    await stage(cluster, learner(cluster["d"]))
    began = cluster.clock.now()
    await cluster.until(lambda: cluster.clock.now() > began + 20)
    assert leader.reports()[ORDERS].filling["d"] < 1
    await cluster["a"].stop()
    await cluster["a"].start()
    leader = cluster["a"].host
    assert (leader.peers.budget.rate, leader.status.snapshots_at_once) == (1.0, 3)
    leader.throttle(None)
    assert (leader.peers.budget.rate, leader.status.snapshots_at_once) == (None, 1)
    await cluster.equal("ad", VALUES)
    await cluster["a"].stop()
    await cluster["a"].start()
    assert cluster["a"].host.peers.budget.rate is None


async def test_a_silent_member_is_reported(new_cluster: NewCluster) -> None:
    """A member that never answered is reported at 0% until it answers."""
    cluster = await new_cluster("a", "d", settings=ONE_AT_A_TIME)
    await cluster.begin("a")
    leader = cluster["a"].host
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.reports()[ORDERS].filling == {"d": 0.0})
    await cluster["d"].host.start(ORDERS, Start(learner(cluster["d"])))
    await cluster.until(lambda: not leader.reports()[ORDERS].filling)


async def test_a_member_has_caught_up_once_its_state_is_restored(new_cluster: NewCluster) -> None:
    """A member counts as caught up only after its state is restored; until then its transfer shows 100%."""
    cluster = await beyond_the_log(new_cluster, "d")
    leader, newcomer = cluster["a"], cluster["d"]
    newcomer.machine.hold = {"restore"}
    await stage(cluster, learner(newcomer))
    await cluster.until(lambda: newcomer.machine.asked["restore"])
    await cluster.until(lambda: leader.host.reports()[ORDERS].filling == {"d": 1.0})
    await pass_time(cluster, 2.0)
    assert leader.view is not None
    assert learner(newcomer).id not in leader.view.caught_up
    assert leader.host.reports()[ORDERS].filling == {"d": 1.0}
    newcomer.machine.release()
    await cluster.until(lambda: leader.view is not None and learner(newcomer).id in leader.view.caught_up)
    assert leader.host.reports()[ORDERS].filling == {}


async def test_a_cancelled_snapshot_leaves_nothing(new_cluster: NewCluster) -> None:
    """A cancelled snapshot is deleted once the state machine has finished writing it."""
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"]
    leader.machine.hold = {"snapshot"}
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.machine.asked["snapshot"])
    await stage(cluster)
    await cluster.until(lambda: not replica_of(leader).snapshot_sender._transfers)
    assert len(outbox(leader)) == 1
    leader.machine.release()
    await cluster.until(lambda: not outbox(leader))


async def test_a_cancelled_transfer_sends_nothing_more(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A throttled transfer sends nothing more after it is cancelled."""
    monkeypatch.setattr(snapshot_sender, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"].host
    leader.throttle(StoreSettings(bytes_per_second=1000.0, snapshots_at_once=3))
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.counters.snapshot_bytes)
    began = cluster.clock.now()
    await stage(cluster)
    await cluster.until(lambda: cluster.clock.now() > began + 1)
    sent = leader.counters.snapshot_bytes
    assert leader.counters.wasted_bytes == sent
    leader.throttle(None)
    await cluster.until(lambda: cluster.clock.now() > began + 30)
    assert leader.counters.snapshot_bytes == sent


@pytest.mark.parametrize("names", [["a\0b"], ["../../x"], [""], ["rows", "rows"], ["none"], ["."], ["x" * 300]])
async def test_invalid_file_names_fail_the_transfer(new_cluster: NewCluster, names: list[str]) -> None:
    """Invalid file names from a state machine fail the transfer and nothing else."""
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"]
    honest = leader.machine.snapshot

    def lie(group: int, replica: int, directory: Path, answer: Callable[[Any], None]) -> None:
        honest(group, replica, directory, lambda taken: answer(SnapshotTaken(getattr(taken, "index", 0), names)))

    leader.machine.snapshot = lie  # type: ignore[method-assign]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.host.counters.snapshots_failed >= 2)
    assert problem(leader)
    assert not leader.host.failed.done()
    leader.machine.snapshot = honest  # type: ignore[method-assign]
    await cluster.equal("ad", VALUES)
    await cluster.until(lambda: not outbox(leader))


async def test_a_request_during_a_failing_transfer_is_served(new_cluster: NewCluster) -> None:
    """A snapshot requested while the previous transfer is ending starts another transfer."""
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"]
    replica = replica_of(leader)
    honest, work = leader.machine.snapshot, replica.snapshot_sender.process_ready
    number = member(learner(cluster["d"]).id)

    def fail(group: int, replica: int, directory: Path, answer: Callable[[Any], None]) -> None:
        answer(Failed("not now"))

    def answer_first() -> None:
        node = replica.node
        node.step(HeartbeatResponse(replica.group, 0, number, node.replica, node.term, 0, 0))
        work()

    leader.machine.snapshot = fail  # type: ignore[method-assign]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.host.counters.snapshots_failed == 1)
    replica.snapshot_sender.process_ready = answer_first
    await cluster.until(lambda: leader.host.counters.snapshots_failed == 3)
    replica.snapshot_sender.process_ready = work
    leader.machine.snapshot = honest  # type: ignore[method-assign]
    await cluster.equal("ad", VALUES)


async def test_closing_in_mid_transfer_leaves_nothing(new_cluster: NewCluster) -> None:
    """A host that stops in mid-transfer leaves nothing; the next one starts with an empty outbox."""
    cluster = await beyond_the_log(new_cluster, "d", "e", bytes_per_second=5000.0, snapshots_at_once=2)
    leader = cluster["a"]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.host.reports()[ORDERS].filling.get("d", 0.0) > 0.1)
    leader.machine.hold = {"snapshot"}
    await stage(cluster, learner(cluster["d"]), learner(cluster["e"]))
    await asyncio.wait_for(leader.stop(), 20)
    await leader.stop_machine()
    await leader.start()
    await leader.start_state_machine()
    assert outbox(leader) == []
    leader.host.peers.budget.set_rate(None)
    await cluster.equal("ade", VALUES)


async def test_a_snapshot_that_does_not_fit_is_declined(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that does not fit is declined before any data is sent, and retried until there is space."""
    free = [10]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: "only 10 are free" in problem(leader))
    assert "snapshot transfer to d failed" in problem(leader)
    assert leader.host.counters.snapshot_bytes == 0
    free[0] = 1 << 40
    await cluster.equal("ad", VALUES)
    await cluster.until(lambda: problem(leader) == "")


async def test_the_log_keeps_entries_after_a_running_transfer(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log keeps the entries after a snapshot that is being sent, so one snapshot is enough."""
    monkeypatch.setattr(snapshot_sender, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
    cluster = await beyond_the_log(new_cluster, "d", bytes_per_second=100.0)  # one chunk, then almost nothing
    leader = cluster["a"]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.host.reports()[ORDERS].filling.get("d", 0.0) > 0.1)
    taken = leader.machine.asked["snapshot"]
    later = {f"later{number}": "v" * 200 for number in range(60)}
    await cluster.write(**later)
    assert leader.host.reports()[ORDERS].filling
    for name in "ad":
        cluster[name].host.peers.budget.set_rate(None)
    await cluster.equal("ad", {**VALUES, **later})
    await cluster.until(lambda: leader.host.counters.snapshots_sent == 1)
    assert leader.machine.asked["snapshot"] == taken
    await cluster.write(last="1")
    await cluster.until(lambda: leader.host.reports()[ORDERS].log_bytes < 8000)


async def test_the_log_keeps_entries_for_a_lagging_member(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that lags and answers gets the missing entries, not a snapshot."""
    cluster = await new_cluster("a", "b", "c", settings=ONE_AT_A_TIME)
    await cluster.begin("a", "b", "c")
    await cluster.write(first="1")
    await cluster.equal("abc", {"first": "1"})
    leader = cluster.leading()
    slow = next(member for member in cluster.members.values() if member is not leader)
    send = leader.host.peers.send

    def without_entries(store: str, message: Message) -> None:
        if store != slow.name or not isinstance(message, Append):
            send(store, message)

    monkeypatch.setattr(leader.host.peers, "send", without_entries)
    await cluster.write(**VALUES)
    await pass_time(cluster, 3)
    monkeypatch.undo()
    await cluster.equal("abc", {"first": "1", **VALUES})
    assert slow.host.counters.snapshots_restored == 0


async def test_an_interrupted_restore_is_repeated(new_cluster: NewCluster) -> None:
    """A restore interrupted by a crash is repeated from the received files, without another transfer."""
    cluster = await beyond_the_log(new_cluster, "d")
    newcomer = cluster["d"]
    newcomer.machine.hold = {"restore"}
    await stage(cluster, learner(newcomer))
    await cluster.until(lambda: newcomer.machine.asked["restore"])
    newcomer.machine._held.clear()
    await newcomer.stop_machine()
    await newcomer.stop()
    await cluster["a"].stop_machine()
    await cluster["a"].stop()
    await newcomer.start()
    await newcomer.start_state_machine()
    await cluster.equal("d", VALUES)
    await cluster.until(lambda: not list((newcomer.directory / "raft" / "inbox").iterdir()))
