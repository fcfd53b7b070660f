"""State machines that fail, hang, lie or lose their state: their replica waits, others serve, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from evenkeel.errors import StateMachineError
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.records import Role
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.socket_messages import Applied
from tests.raft_host.support import (
    ORDERS,
    SHORT_LOG,
    VALUES,
    Cluster,
    Member,
    NewCluster,
    pass_time,
    problem,
    replica_of,
)


async def beyond_the_log(new_cluster: NewCluster) -> tuple[Cluster, Member]:
    """Return a group with a compacted log, and a store that will be a learner."""
    cluster = await new_cluster("a", "b", "c", "d", settings=SHORT_LOG)
    await cluster.begin("a", "b", "c")
    await cluster.write(**VALUES)
    leader = cluster.leading()
    await cluster.until(lambda: leader.host.reports()[ORDERS].log_bytes < 8000)
    newcomer = cluster["d"]
    await newcomer.host.start(ORDERS, Start(newcomer.peer(2, Role.LEARNER)))
    return cluster, newcomer


async def add_learner(cluster: Cluster, newcomer: Member) -> None:
    peers = (*(cluster[name].peer() for name in "abc"), newcomer.peer(2, Role.LEARNER))
    await cluster.change(*peers, token=3)


async def test_a_machine_that_always_fails_does_not_lead(new_cluster: NewCluster) -> None:
    """A store that cannot apply stops leading and reports why; it is retried with backoff and catches up."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = cluster.leading()
    bad.machine.refuse["apply"] = "no space left"
    await cluster.write(x="1")
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    opened = bad.machine.asked["open"]
    for second in range(60):
        await pass_time(cluster, 1)
        assert cluster.leader() is not bad, f"after {second} s"
    assert problem(bad) == "no space left"
    assert bad.machine.asked["open"] - opened < 20
    await cluster.write(y="2")
    del bad.machine.refuse["apply"]
    await cluster.equal("abc", {"x": "1", "y": "2"})
    await cluster.until(lambda: problem(bad) == "")
    assert replica_of(bad).fit_to_lead


async def test_a_snapshot_that_cannot_be_restored_is_replaced(new_cluster: NewCluster) -> None:
    """A received snapshot that cannot be restored is replaced by another."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    await newcomer.stop_machine()
    changing = asyncio.create_task(add_learner(cluster, newcomer))
    inbox = newcomer.directory / "raft" / "inbox"
    await cluster.until(lambda: any(not path.name.endswith(".partial") for path in inbox.iterdir()))
    for rows in inbox.glob("*/rows"):
        rows.write_bytes(b"rubbish")
    await newcomer.start_state_machine()
    await changing
    await cluster.equal("abcd", VALUES)
    await cluster.until(lambda: problem(newcomer) == "")


async def test_nothing_is_restored_before_the_log_has_it(new_cluster: NewCluster) -> None:
    """A snapshot is restored only after the log has recorded it."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    await newcomer.stop_machine()
    await newcomer.start_state_machine(hold={"open"})
    await cluster.until(lambda: newcomer.machine.asked["open"])
    # From here on, writes are not completed.
    writes: list[Callable[[], None]] = []
    replica = replica_of(newcomer)
    persisted = replica._on_persisted
    replica._on_persisted = lambda batch: writes.append(lambda: persisted(batch))  # type: ignore[method-assign]
    changing = asyncio.create_task(add_learner(cluster, newcomer))
    await cluster.until(lambda: replica.node.restoring)
    newcomer.machine.release()
    await cluster.until(lambda: replica.applier.attached)
    await pass_time(cluster, 1)
    assert newcomer.machine.asked["restore"] == 0
    replica._on_persisted = persisted  # type: ignore[method-assign]
    for write in writes:
        write()
    await changing
    await cluster.equal("abcd", VALUES)


async def test_nothing_is_applied_past_a_gap(new_cluster: NewCluster) -> None:
    """Entries after a snapshot with missing files are not applied."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    writes: list[Callable[[], None]] = []
    replica = replica_of(newcomer)
    persisted = replica._on_persisted
    replica._on_persisted = lambda batch: writes.append(lambda: persisted(batch))  # type: ignore[method-assign]
    changing = asyncio.create_task(add_learner(cluster, newcomer))
    await cluster.until(lambda: replica.node.restoring)
    snapshot = replica.node.restoring
    await cluster.write(**VALUES)
    node = replica.node
    await cluster.until(lambda: node.status().last_index > snapshot and node.committed > snapshot)
    replica.applier.received_snapshots.drop()
    replica._on_persisted = persisted  # type: ignore[method-assign]
    for write in writes:
        write()
    await changing
    await cluster.equal("abcd", VALUES)
    await cluster.until(lambda: newcomer.host.counters.snapshots_restored == 1)


async def test_a_machine_that_claims_too_much_stops_its_replica(new_cluster: NewCluster) -> None:
    """An answer beyond what was sent stops the replica: state and log do not match."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = next(member for member in cluster.members.values() if member is not cluster.leading())
    honest = bad.machine.apply
    bad.machine.apply = lambda group, replica, request, answer: honest(  # type: ignore[method-assign]
        group, replica, request, lambda _: answer(Applied(1000))
    )
    await cluster.write(x="1")
    await cluster.until(lambda: "1000 was reported applied" in problem(bad))
    await cluster.write(y="2")


async def test_an_unanswered_open_is_reported(new_cluster: NewCluster) -> None:
    """An unanswered open makes the leader hand over, and is reported."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    bad = cluster.leading()
    await bad.stop_machine()
    await bad.start_state_machine(hold={"open"})
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    await cluster.until(lambda: "has not answered" in problem(bad))
    bad.machine.release()
    await cluster.equal("abc", {"x": "1"})
    await cluster.until(lambda: problem(bad) == "")


async def test_an_unanswered_apply_is_reported(new_cluster: NewCluster) -> None:
    """An unanswered apply makes the leader hand over, and is reported."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = cluster.leading()
    bad.machine.hold = {"apply"}
    await cluster.write(x="1")
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    await cluster.until(lambda: "is stalled" in problem(bad))
    bad.machine.release()
    await cluster.equal("abc", {"x": "1"})
    await cluster.until(lambda: problem(bad) == "")


async def test_a_backlog_is_bounded(new_cluster: NewCluster) -> None:
    """The backlog of a follower without a state machine is bounded."""
    limit = 20_000
    cluster = await new_cluster("a", "b", "c", settings=msgspec.structs.replace(SHORT_LOG, max_log_bytes=limit))
    await cluster.begin("a", "b", "c")
    poor = next(member for member in cluster.members.values() if member is not cluster.leading())
    await poor.stop_machine()
    node, refused = replica_of(poor).node, poor.host.counters.refused_messages
    values: dict[str, str] = {}
    while not refused["backlog"]:
        more = {f"k{len(values) + number}": "v" * 200 for number in range(20)}
        await cluster.write(**more)
        values |= more
    assert node.unapplied_bytes() > limit
    more = {f"more{number}": "v" * 1000 for number in range(100)}
    await cluster.write(**more)
    values |= more
    assert node.unapplied_bytes() < 2 * limit
    assert node.leader
    await poor.start_state_machine()
    await cluster.equal("abc", values)


async def test_damage_is_reported_for_a_while(new_cluster: NewCluster) -> None:
    """A damaged state is restored, and the damage is reported for a minute afterwards."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    await add_learner(cluster, newcomer)
    await cluster.equal("abcd", VALUES)
    await newcomer.stop_machine()
    (newcomer.directory / "state" / "state.db").write_bytes(b"not a database" * 500)
    await newcomer.start_state_machine()
    await cluster.until(lambda: "the state is damaged" in problem(newcomer))
    assert newcomer.host.reports()[ORDERS].damaged
    await cluster.until(lambda: "the state was damaged and has been restored" in problem(newcomer))
    await cluster.equal("abcd", VALUES)
    await pass_time(cluster, 50)
    assert newcomer.host.reports()[ORDERS].damaged
    await pass_time(cluster, 15)
    assert (problem(newcomer), newcomer.host.reports()[ORDERS].damaged) == ("", False)


async def test_doubts_are_reported_until_withdrawn(new_cluster: NewCluster) -> None:
    """A doubt is reported until the state machine withdraws it or is opened again."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    member = cluster["b"]
    assert member.end is not None
    group, number = group_number(*ORDERS), replica_of(member).id[1]
    member.end.doubt(group, number, "it differs")
    await cluster.until(lambda: problem(member) == "the state is in doubt: it differs")
    assert member.host.reports()[ORDERS].damaged
    member.end.doubt(group, number, "")
    await cluster.until(lambda: problem(member) == "")
    member.end.doubt(group, number, "it differs")
    await cluster.until(lambda: problem(member) != "")
    await member.stop_machine()
    await member.start_state_machine()
    await cluster.until(lambda: replica_of(member).fit_to_lead)
    assert problem(member) == ""


async def test_an_unfit_state_is_not_led_from(new_cluster: NewCluster) -> None:
    """A leader with an unfit state hands over immediately and does not lead again."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = cluster.leading()
    assert bad.end is not None
    bad.end.doubt(group_number(*ORDERS), replica_of(bad).id[1], "most have other rows", unfit=True)
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    for _ in range(5):
        await pass_time(cluster, 1)
        assert cluster.leader() not in (None, bad)


async def test_answers_of_an_earlier_session_are_ignored(new_cluster: NewCluster) -> None:
    """Answers and failures of an earlier session are ignored."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster.write(x="1")
    await cluster.equal("a", {"x": "1"})
    replica = replica_of(cluster["a"])
    applied = replica.node.applied
    late = [asyncio.get_running_loop().create_future() for _ in range(2)]
    late[0].set_exception(StateMachineError("from an earlier session"))
    late[1].set_result(applied + 5)
    for future in late:
        replica.applier._on_applied(replica.applier._session - 1, future)
    assert (replica.applier.attached, replica.applier.failing, problem(cluster["a"])) == (True, False, "")
    assert (replica.node.applied, replica.stopped) == (applied, False)
