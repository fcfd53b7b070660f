"""A raft node on the shared log, restarted from what the log recovers."""

from __future__ import annotations

from random import Random

from evenkeel_raft.core.raft_types import Conf, Entry, genesis
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.log.log_records import Append, Compacted, Created
from tests.raft_log.sim import SimDisk
from tests.raft_log.support import open_log, write

GROUP, REPLICA = 7, 1


class Host:
    """A group of one on a disk; its state machine records all entries."""

    def __init__(self, disk: SimDisk, applied: list[Entry]) -> None:
        self.log, found = open_log(disk)
        self.applied = applied
        if GROUP not in found.groups:
            first = Append(GROUP, REPLICA, 0, genesis(Conf(voters=(REPLICA,))), [], None)
            write(self.log, Created(GROUP, REPLICA, 0, b"orders/7"), first)
            self.log, found = open_log(disk)
        group = found.groups[GROUP]
        self.node = RawNode(
            group=GROUP,
            replica=group.replica,
            generation=group.generation,
            rng=Random(1),
            meta=group.meta,
            hard_state=group.hard_state,
            entries=group.entries,
            applied=applied[-1].index if applied else 0,
        )
        self.node.campaign()
        self.work()

    def work(self) -> None:
        """Process the node's `ready` until it has no work."""
        while True:
            out = self.node.ready()
            if out.append is None and not out.apply:
                return
            if out.append is not None:
                batch = out.append
                write(self.log, Append(GROUP, REPLICA, 0, batch.snapshot, batch.entries, batch.hard_state))
                self.node.on_persisted(batch.token)
            if out.apply:
                self.applied += out.apply
                self.node.on_applied(out.apply[-1].index)

    def compact(self) -> None:
        meta = self.node.compact(self.applied[-1].index)
        write(self.log, Compacted(GROUP, REPLICA, 0, meta))


def test_a_group_lives_through_crashes() -> None:
    """Over many restarts and compactions, every applied proposal is applied once and in order."""
    disk, rng = SimDisk(), Random(3)
    applied: list[Entry] = []
    for life in range(40):
        host = Host(disk, applied)
        for number in range(rng.randrange(6)):
            host.node.propose(f"{life}/{number}".encode())
            host.work()
        if rng.random() < 0.5:
            host.compact()
        disk.crash(rng)
    assert [entry.index for entry in applied] == list(range(2, len(applied) + 2))
    assert [entry.term for entry in applied] == sorted(entry.term for entry in applied)
    payloads = [entry.data for entry in applied if entry.data]
    assert len(payloads) == len(set(payloads)) > 50
    assert Host(disk, applied).log.stats().segments < 8
