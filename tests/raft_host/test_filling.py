"""Members being filled: nobody waits for a store that is away, nothing is left behind, nonsense is a problem only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evenkeel.protocol.records import Peer, Role
from evenkeel.protocol.replica import Start
from evenkeel.wire.messages import SnapshotTaken
from evenkeel_raft.host import filler
from evenkeel_raft.net.files.manifest import make_manifest
from tests.raft_host.support import ORDERS, QUICK, Cluster, Member
from tests.raft_host.test_state_machines import VALUES, problem, replica_of

NewCluster = Callable[..., Awaitable[Cluster]]
ONE_AT_A_TIME = msgspec.structs.replace(QUICK, keep_log_bytes=2000, snapshots_at_once=1)


async def beyond_the_log(new_cluster: NewCluster, *newcomers: str, **settings: Any) -> Cluster:
    """A group on `a` whose log no longer reaches back to its beginning, and stores that are to be learners of it."""
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
    """Have learners filled."""
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


async def test_a_store_that_goes_in_mid_transfer_gives_up_its_place(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has is kept for its return, when the transfer goes on where it was; meanwhile others are filled."""
    monkeypatch.setattr(filler, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
    cluster = await beyond_the_log(new_cluster, "d", "e", bytes_per_second=5000.0)
    away, learners = cluster["d"], [learner(cluster[name]) for name in "de"]
    await stage(cluster, learners[0])
    leader = cluster["a"].host
    await cluster.until(lambda: leader.reports()[ORDERS].filling.get("d", 0.0) > 0.1)
    await away.stop()
    leader.peers.budget.set_rate(None)
    await stage(cluster, *learners)
    await cluster.equal("ae", VALUES)
    await cluster.until(lambda: "d is not connected" in problem(cluster["a"]))
    assert len(outbox(cluster["a"])) == 1
    await away.start()
    await cluster.equal("ade", VALUES)
    await cluster.until(lambda: not outbox(cluster["a"]))
    assert leader.tally.snapshots_failed == 0


async def test_a_table_is_copied_within_its_limit(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a replica's own table holds, from the leader on, until it is taken away; no other table's does."""
    monkeypatch.setattr(filler, "make_manifest", partial(make_manifest, chunk_bytes=1 << 12))
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


async def test_a_member_that_never_answers_shows(new_cluster: NewCluster) -> None:
    """It is reported as empty, for no transfer would tell of it; once it answers, only a transfer does."""
    cluster = await new_cluster("a", "d", settings=ONE_AT_A_TIME)
    await cluster.begin("a")
    leader = cluster["a"].host
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.reports()[ORDERS].filling == {"d": 0.0})
    await cluster["d"].host.start(ORDERS, Start(learner(cluster["d"])))
    await cluster.until(lambda: not leader.reports()[ORDERS].filling)


async def test_a_snapshot_called_off_leaves_nothing(new_cluster: NewCluster) -> None:
    """A state machine that is still writing when nobody wants its snapshot any more is waited for, then it goes."""
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"]
    leader.machine.hold = {"snapshot"}
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.machine.asked["snapshot"])
    await stage(cluster)
    await cluster.until(lambda: not replica_of(leader).filler._filling)
    assert len(outbox(leader)) == 1
    leader.machine.release()
    await cluster.until(lambda: not outbox(leader))


@pytest.mark.parametrize("names", [["a\0b"], ["../../x"], [""], ["rows", "rows"], ["none"], ["."], ["x" * 300]])
async def test_impossible_files_are_a_problem_only(new_cluster: NewCluster, names: list[str]) -> None:
    """A state machine that names files that cannot be keeps its members from being filled, and nothing else."""
    cluster = await beyond_the_log(new_cluster, "d")
    leader = cluster["a"]
    honest = leader.machine.snapshot

    def lie(group: int, replica: int, directory: Path, answer: Callable[[Any], None]) -> None:
        honest(group, replica, directory, lambda taken: answer(SnapshotTaken(getattr(taken, "index", 0), names)))

    leader.machine.snapshot = lie  # type: ignore[method-assign]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.host.tally.snapshots_failed >= 2)
    assert problem(leader)
    assert not leader.host.failed.done()
    leader.machine.snapshot = honest  # type: ignore[method-assign]
    await cluster.equal("ad", VALUES)
    await cluster.until(lambda: not outbox(leader))


async def test_closing_in_mid_transfer_leaves_nothing(new_cluster: NewCluster) -> None:
    """A host that stops while it makes and sends snapshots stops, and its successor begins with an empty outbox."""
    cluster = await beyond_the_log(new_cluster, "d", "e", bytes_per_second=5000.0, snapshots_at_once=2)
    leader = cluster["a"]
    await stage(cluster, learner(cluster["d"]))
    await cluster.until(lambda: leader.host.reports()[ORDERS].filling.get("d", 0.0) > 0.1)
    leader.machine.hold = {"snapshot"}
    await stage(cluster, learner(cluster["d"]), learner(cluster["e"]))
    await asyncio.wait_for(leader.stop(), 20)
    await leader.stop_machine()
    await leader.start()
    await leader.start_machine()
    assert outbox(leader) == []
    leader.host.peers.budget.set_rate(None)
    await cluster.equal("ade", VALUES)
