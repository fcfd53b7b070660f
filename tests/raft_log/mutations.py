"""Known bugs, one per rule of the log, that tests inject to prove that the walk detects them.

A mutation patches the log through pytest's monkeypatch; the product knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from msgspec.structs import replace

from evenkeel_raft.core.raft_types import SnapshotMeta
from evenkeel_raft.log import log_recovery, segment_collector, shared_log
from evenkeel_raft.log.live_index import Index
from evenkeel_raft.log.log_frames import Draft, Layout
from evenkeel_raft.log.log_records import Append, Destroyed, Moved, StoredRecord
from evenkeel_raft.log.log_replay import ReplayedGroup
from evenkeel_raft.log.segment_collector import Collected, Collector

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


def _do_not_check_copies(patch: Patch) -> None:
    patch.setattr(segment_collector, "_mismatch", lambda _copies, _index, *, live: "")


def _after_take(
    patch: Patch,
    spoil: Callable[[segment_collector._LiveRecords, Append | Moved, int, segment_collector._LiveGroup | None], None],
) -> None:
    """Change the collector's live records after each record; `spoil` also gets those from before it."""
    take = segment_collector._LiveRecords._take

    def taking(
        self: segment_collector._LiveRecords,
        record: Append | Moved,
        meta: SnapshotMeta | None,
        label: bytes | None,
        round_: int,
    ) -> None:
        found = self._groups.get(record.group)
        before = replace(found) if found is not None else None
        take(self, record, meta, label, round_)
        spoil(self, record, round_, before)

    _do_not_check_copies(patch)
    patch.setattr(segment_collector._LiveRecords, "_take", taking)


def _copy_dead_entries(patch: Patch, kind: type[Append | Moved]) -> None:
    def spoil(
        self: segment_collector._LiveRecords,
        record: Append | Moved,
        round_: int,
        _before: segment_collector._LiveGroup | None,
    ) -> None:
        group = self._index.groups.get(record.group)
        if group is None or not isinstance(record, kind) or not record.entries:
            return
        begin = record.entries[0].index
        for _, end, its_round, _ in [extent for extent in group.entries if extent[0] <= begin][-1:]:
            if its_round == round_ and end < begin:
                dead = record.entries[: end - begin]  # a slice with a negative end
                self._group(record.group).entries.update({entry.index: entry for entry in dead})

    _after_take(patch, spoil)


def dead_appends_copied(patch: Patch) -> None:
    """Entries of an old leader's append are copied as live, though a new leader's append truncated them."""
    _copy_dead_entries(patch, Append)


def dead_copies_copied(patch: Patch) -> None:
    """Copied entries are copied again, though an append in their round truncated them."""
    _copy_dead_entries(patch, Moved)


def first_hard_state_copied(patch: Patch) -> None:
    """The collector takes the first of two hard states in a round."""

    def spoil(
        self: segment_collector._LiveRecords,
        record: Append | Moved,
        _round: int,
        before: segment_collector._LiveGroup | None,
    ) -> None:
        if before is not None and before.hard_state is not None:
            self._groups[record.group].hard_state = before.hard_state

    _after_take(patch, spoil)


def first_beginning_copied(patch: Patch) -> None:
    """The collector takes the first of two log beginnings in a round."""

    def spoil(
        self: segment_collector._LiveRecords,
        record: Append | Moved,
        _round: int,
        before: segment_collector._LiveGroup | None,
    ) -> None:
        if before is not None and before.meta is not None:
            self._groups[record.group].meta = before.meta

    _after_take(patch, spoil)


def used_ids_forgotten(patch: Patch) -> None:
    """The collector does not copy used replica ids."""
    records = segment_collector._LiveRecords.records

    def forgetful(self: segment_collector._LiveRecords) -> list[StoredRecord]:
        return [record for record in records(self) if not isinstance(record, Destroyed)]

    _do_not_check_copies(patch)
    patch.setattr(segment_collector._LiveRecords, "records", forgetful)


def copies_written_last(patch: Patch) -> None:
    """Copies follow the records of their round instead of preceding them."""
    apply = Index.apply

    def reordered(records: Iterable[StoredRecord]) -> Sequence[StoredRecord]:
        return sorted(records, key=lambda record: isinstance(record, Moved))

    def applying(self: Index, records: Iterable[StoredRecord], sizes: Iterable[int], *, round_: int) -> None:
        apply(self, reordered(records), sizes, round_=round_)

    patch.setattr(shared_log, "Draft", lambda records: Draft(reordered(records)))
    patch.setattr(Index, "apply", applying)


def segment_freed_early(patch: Patch) -> None:
    """A segment is freed when only a part of it is copied."""
    collect = Collector.collect

    def hasty(self: Collector, budget: int) -> Collected:
        return replace(collect(self, budget), floor=self._index.segments[1].first_round)

    patch.setattr(Collector, "collect", hasty)


def copies_believed_early(patch: Patch) -> None:
    """The collector advances past copies that a full disk refused."""
    collect = Collector.collect

    def hasty(self: Collector, budget: int) -> Collected:
        found = collect(self, budget)
        self.advance(found)
        return found

    patch.setattr(Collector, "collect", hasty)


def header_has_new_floor(patch: Patch) -> None:
    """A segment's header frees segments, though the round with the copies may be torn."""
    header, bind = Layout.header, Draft.bind
    floors = [0]

    def binding(self: Draft, layout: Layout, *, segment: int, offset: int, round_: int, floor: int) -> bytearray:
        floors[0] = floor
        return bind(self, layout, segment=segment, offset=offset, round_=round_, floor=floor)

    def early(self: Layout, *, segment: int, size: int, first_round: int, floor: int) -> bytes:
        return header(self, segment=segment, size=size, first_round=first_round, floor=max(floor, floors[0]))

    patch.setattr(Draft, "bind", binding)
    patch.setattr(Layout, "header", early)


def copies_truncate(patch: Patch) -> None:
    """A recovery treats copies as an append, which replaces everything after them."""
    patch.setattr(ReplayedGroup, "fill", ReplayedGroup.append)


def newest_round_believed(patch: Patch) -> None:
    """A recovery uses the newest round without making it durable."""
    patch.setattr(log_recovery, "_settle", lambda _disk, _layout, _segment, _data: None)
