"""The in-memory log: compared with a plain list, and at its boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel_raft.core.errors import InvariantError
from evenkeel_raft.core.raft_log import ENTRY_OVERHEAD, UNKNOWN_TERM, Log, Write
from evenkeel_raft.core.raft_types import CONF, NORMAL, Conf, Entry, SnapshotMeta, genesis

META = genesis(Conf(voters=(1,)))


def entries(first: int, terms: list[int], size: int = 0) -> list[Entry]:
    return [Entry(first + at, term, NORMAL, b"x" * size) for at, term in enumerate(terms)]


def log_of(terms: list[int], *, commit: int = 1) -> Log:
    return Log(META, entries(2, terms), commit=commit, applied=1)


def terms_of(log: Log) -> list[int]:
    return [entry.term for entry in log.entries(log.offset, log.last_index)]


RISING = st.lists(st.integers(2, 5), max_size=8).map(sorted)


@given(RISING, RISING, st.data())
def test_maybe_append_replaces_only_conflicts(mine: list[int], theirs: list[int], data: st.DataObject) -> None:
    """After an append the log contains the leader's entries, and loses only conflicting ones."""
    log = log_of(mine)
    prev = data.draw(st.integers(1, len(theirs) + 1))
    count = data.draw(st.integers(0, len(theirs) + 1 - prev))
    full = [1, *theirs]
    sent = entries(prev + 1, full[prev : prev + count])
    agrees = prev <= len(mine) + 1 and [1, *mine][prev - 1] == full[prev - 1]
    assert log.maybe_append(prev, full[prev - 1], sent) is agrees
    if not agrees:
        assert terms_of(log) == mine
        return
    overlap = mine[prev - 1 : prev - 1 + count]
    kept = mine[prev - 1 + count :] if overlap == full[prev : prev + len(overlap)] else []
    assert terms_of(log) == mine[: prev - 1] + full[prev : prev + count] + kept
    assert (log.last_index, log.last_term) == (1 + len(terms_of(log)), ([1, *terms_of(log)])[-1])


def test_committed_entries_are_never_replaced() -> None:
    """A conflict with committed entries is a broken invariant."""
    log = log_of([2, 2], commit=3)
    with pytest.raises(InvariantError, match="conflicts with the log committed up to 3"):
        log.maybe_append(1, 1, entries(2, [3]))


def test_terms_at_the_edges() -> None:
    """The snapshot's last entry has a known term; entries below it or above the log have none."""
    log = log_of([2, 3, 3], commit=4)
    log.applied = 4
    log.compact(3)
    assert [log.term(index) for index in (2, 3, 4, 5)] == [UNKNOWN_TERM, 3, 3, UNKNOWN_TERM]
    assert terms_of(log) == [3]


def test_sizes_survive_compaction_and_truncation() -> None:
    """Sizes between two indexes stay right after truncation and compaction."""
    log = Log(META, entries(2, [2, 2, 2, 2], size=10), commit=1, applied=1)
    each = 10 + ENTRY_OVERHEAD
    assert log.size(1, 5) == 4 * each
    log.compact(2)
    assert log.size(2, 5) == 3 * each
    assert log.size(0, 5) == 3 * each
    log.maybe_append(3, 2, entries(4, [3], size=5))
    assert log.size(2, 4) == each + 5 + ENTRY_OVERHEAD
    assert log.end == log.end_of(4)


def test_followers_do_not_measure() -> None:
    """Received entries are measured only on demand, also after truncation and compaction."""
    log = Log(META, entries(2, [2, 2], size=10), commit=3, applied=1)
    each = 10 + ENTRY_OVERHEAD
    log.measure()
    log.maybe_append(3, 2, entries(4, [2, 2, 2], size=10))
    assert not log.measured
    log.applied = log.committed = 5
    log.compact(5)
    log.maybe_append(6, 2, entries(7, [2], size=10))
    assert log.size(5, 7) == 2 * each
    assert log.end - log.applied_end == 2 * each


def test_batches_hold_what_fits_and_at_least_one() -> None:
    """A batch is as large as allowed, and holds at least one entry if there is one."""
    log = Log(META, entries(2, [2, 2, 2], size=10), commit=1, applied=1)
    each = 10 + ENTRY_OVERHEAD
    assert len(log.batch(2, 1)) == 1
    assert len(log.batch(2, 2 * each)) == 2
    assert len(log.batch(2, 2 * each + 1)) == 2
    assert len(log.batch(3, 100 * each)) == 2
    assert log.batch(5, 100) == []


@given(RISING, st.integers(0, 12), st.integers(0, 6))
def test_find_conflict_by_term(terms: list[int], index: int, term: int) -> None:
    """The hint is the highest index at or below the given one whose term is at or below the given one."""
    log = log_of(terms)
    found = log.find_conflict_by_term(index, term)
    candidates = [at for at in range(1, min(index, log.last_index) + 1) if log.term(at) <= term]
    assert found == max(candidates, default=min(index, log.offset - 1))


def test_a_write_does_not_make_truncated_entries_durable() -> None:
    """A completed write covers nothing that was truncated after its submission."""
    log = log_of([2])
    log.extend(entries(3, [2, 2]))
    assert [entry.index for entry in log.submit_entries()] == [3, 4]
    write = Write(1, log.last_index, 1, 0, False)
    log.writes.append(write)
    log.maybe_append(3, 2, entries(4, [3]))
    assert write.last == 3
    assert [entry.index for entry in log.submit_entries()] == [4]


def test_a_second_configuration_proves_the_first() -> None:
    """Recovery treats all configuration entries but the last as committed, regardless of the hard state."""
    held = [Entry(2, 2, CONF, b""), Entry(3, 2, NORMAL, b""), Entry(4, 2, CONF, b"")]
    assert Log(META, held, commit=1, applied=1).committed == 2
    assert Log(META, held[:2], commit=1, applied=1).committed == 1


def test_broken_disks_are_refused() -> None:
    """Entries that do not follow their snapshot, or a log that ends before the commit or applied index, are refused."""
    with pytest.raises(InvariantError, match="do not follow the snapshot at 1"):
        Log(META, entries(5, [2]), commit=1, applied=1)
    with pytest.raises(InvariantError, match="it ends at 2, but 1 was committed and 9 applied"):
        Log(META, entries(2, [2]), commit=1, applied=9)
    with pytest.raises(InvariantError, match="9 was committed"):
        Log(META, entries(2, [2]), commit=9, applied=1)


def test_a_snapshot_is_not_durable_before_its_write() -> None:
    """A snapshot is restored only once its own write is durable; older writes do not count."""
    log = log_of([2])
    log.extend(entries(3, [2]))
    log.submit_entries()
    old = Write(1, 3, 1, 0, False)
    log.writes.append(old)
    meta = SnapshotMeta(9, 4, Conf(voters=(1, 2)))
    log.restore(meta)
    new = Write(2, log.last_index, 9, 0, True)
    log.writes.append(new)
    assert (log.durable, old.last, new.last) == (0, 0, 9)
    log.snapshot_written(old)
    assert log.pending_snapshot == meta
    log.snapshot_written(new)
    assert log.restore_due == meta


def test_configuration_entries_are_found() -> None:
    """The indexes of configuration entries follow truncation and compaction."""
    log = Log(META, [Entry(2, 2, CONF, b""), Entry(3, 2, NORMAL, b""), Entry(4, 2, CONF, b"")], commit=2, applied=1)
    assert log.conf_in(1, 2)
    assert not log.conf_in(2, 3)
    assert log.conf_in(2, 9)
    log.maybe_append(3, 2, entries(4, [3]))
    assert log.conf_indexes == [2]
    log.compact(2)
    assert log.conf_indexes == []
