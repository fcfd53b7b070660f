"""Conversion of a replayed log into the groups to start, the index of live records, and the log heads."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate, pairwise

from msgspec import Struct

from evenkeel_raft.core.raft_types import Entry, HardState, SnapshotMeta
from evenkeel_raft.errors import CorruptLogError
from evenkeel_raft.log.live_index import SMALL, GroupIndex, Index, Place
from evenkeel_raft.log.log_heads import Head, Heads
from evenkeel_raft.log.log_records import Metastore, entry_sizes, meta_size
from evenkeel_raft.log.log_recovery import Scan
from evenkeel_raft.log.log_replay import ContradictionError, ReplayedGroup

__all__ = ["Recovered", "RecoveredGroup", "rebuild_heads", "rebuild_index", "recovered"]


class RecoveredGroup(Struct, frozen=True):
    """One replica's recovered log, from which `core.rawnode.RawNode` starts."""

    replica: int
    generation: int
    label: bytes
    meta: SnapshotMeta
    hard_state: HardState
    entries: list[Entry]


class Recovered(Struct, frozen=True):
    """A volume's contents. `retired` has the highest replica id ever held of each group no longer present."""

    volume: str
    groups: dict[int, RecoveredGroup]
    retired: dict[int, int]
    metastore: Metastore | None


def recovered(scan: Scan, volume: str) -> Recovered:
    """Return the volume's contents for the caller."""
    replay = scan.replay
    return Recovered(
        volume=volume,
        groups={number: _recovered_group(scan, number, group) for number, group in replay.groups.items()},
        retired={number: replica for number, (replica, _) in replay.retired.items()},
        metastore=replay.metastore[0],
    )


def _recovered_group(scan: Scan, number: int, group: ReplayedGroup) -> RecoveredGroup:
    try:
        entries = group.entries()
    except ContradictionError as error:
        raise CorruptLogError(f"group {number}: {error}", file=scan.segments[0].name, offset=0) from None
    return RecoveredGroup(group.replica, group.generation, group.label, group.meta, group.hard_state, entries)


def rebuild_heads(scan: Scan) -> Heads:
    """Return the heads that the next records are validated against."""
    heads = Heads()
    heads.retired = {number: replica for number, (replica, _) in scan.replay.retired.items()}
    for number, group in scan.replay.groups.items():
        state = group.hard_state
        heads.groups[number] = Head(
            group.replica, group.generation, group.meta.index, group.last, state.term, state.vote, state.commit
        )
    return heads


def rebuild_index(scan: Scan) -> Index:
    """Return the index of all live records."""
    index, replay = Index(), scan.replay
    index.segments = list(scan.segments)
    lives: defaultdict[int, int] = defaultdict(int)
    for number, group in replay.groups.items():
        index.groups[number] = _group_index(index, group, lives)
    for round_, size in lives.items():
        index.count(round_, size)
    for number, (replica, round_) in replay.retired.items():
        index.retired[number] = (replica, _placed(index, round_, SMALL))
    if replay.metastore[0] is not None:
        index.metastore = _placed(index, replay.metastore[1], SMALL)
    return index


def _group_index(index: Index, group: ReplayedGroup, lives: defaultdict[int, int]) -> GroupIndex:
    places = GroupIndex(group.replica, group.generation)
    places.identity = _placed(index, group.identity_round, SMALL + len(group.label))
    places.hard_state = _placed(index, group.hard_state_round, SMALL)
    places.meta = _placed(index, group.meta_round, SMALL + meta_size(group.meta))
    for run in group.runs:
        totals = [0, *accumulate(entry_sizes(run.entries))]
        ends = [totals[first - run.first] for first in run.firsts] + totals[-1:]
        sizes = [end - begin for begin, end in pairwise(ends)]
        places.entries.extend(run.firsts, run.rounds, sizes, end=run.end)
        for round_, size in zip(run.rounds, sizes, strict=True):
            lives[round_] += size
    return places


def _placed(index: Index, round_: int, size: int) -> Place:
    if round_ < 0:
        return Place()
    index.count(round_, size)
    return Place(round_, size)
