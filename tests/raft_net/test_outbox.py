"""The outbox: bounded, non-blocking, heartbeats coalesced."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel_raft.core.raft_messages import Append, CommitNotice, Heartbeat, Message, ReadRequest
from evenkeel_raft.core.raft_types import NORMAL, Entry
from evenkeel_raft.net.outbox import Outbox


def append(group: int, size: int) -> Append:
    return Append(group, 0, 1, 2, 3, 4, 3, 4, [Entry(5, 3, NORMAL, bytes(size))])


def heartbeat(group: int, context: int, receiver: int = 2) -> Heartbeat:
    return Heartbeat(group, 0, 1, receiver, 3, 4, context, False)


def small(group: int) -> ReadRequest:
    return ReadRequest(group, 0, 1, 2, 3, 4)


def notice(group: int, commit: int) -> CommitNotice:
    return CommitNotice(group, 0, 1, 2, 3, commit)


def test_newest_heartbeat_of_a_group_is_kept() -> None:
    """Only the newest heartbeat per group and replica is kept, ahead of other messages."""
    outbox = Outbox(limit=1 << 20)
    messages: list[Message] = [
        heartbeat(1, 1),
        small(1),
        heartbeat(2, 1),
        heartbeat(1, 2),
        heartbeat(1, 1, receiver=9),
    ]
    for message in messages:
        assert outbox.add(message)
    assert outbox.take(1 << 20) == [heartbeat(1, 2), heartbeat(2, 1), heartbeat(1, 1, receiver=9), small(1)]
    assert not outbox


def test_full_queue_drops_entries_first() -> None:
    """Beyond the limit entries are dropped; beyond twice the limit, everything but heartbeats."""
    outbox = Outbox(limit=1000)
    assert outbox.add(append(1, 800))
    assert not outbox.add(append(1, 800))
    added = 0
    while outbox.add(small(1)):
        added += 1
    assert 10 < added < 30
    assert outbox.bytes <= 2000
    assert outbox.add(heartbeat(1, 1))
    assert outbox.clear() == added + 2
    assert outbox.bytes == 0


def test_commit_notices_are_not_urgent() -> None:
    """Commit notices are not urgent; the newest per group leaves first, followed by heartbeats."""
    outbox = Outbox(limit=1 << 20)
    for message in (notice(1, 4), notice(2, 4), notice(1, 5)):
        assert outbox.add(message)
    assert outbox
    assert not outbox.urgent
    outbox.add(heartbeat(1, 1))
    assert outbox.urgent
    assert outbox.take(1 << 20) == [notice(1, 5), notice(2, 4), heartbeat(1, 1)]
    assert not outbox


def test_entries_replace_commit_notices() -> None:
    """Entries with the same commit index make a notice redundant; others do not."""
    outbox = Outbox(limit=1 << 20)
    assert outbox.add(notice(1, 4))
    assert outbox.add(notice(2, 5))
    said, behind = append(1, 10), append(2, 10)
    assert outbox.add(said)
    assert outbox.add(behind)
    assert outbox.take(1 << 20) == [notice(2, 5), said, behind]
    below = Append(1, 0, 1, 2, 3, 2, 3, 9, [])
    outbox.add(notice(1, 9))
    outbox.add(below)
    assert outbox.take(1 << 20) == [notice(1, 9), below]


def test_entry_larger_than_the_queue_passes_alone() -> None:
    """A message larger than the limit is accepted when the outbox is empty."""
    outbox = Outbox(limit=1000)
    assert outbox.add(append(1, 5000))
    assert not outbox.add(append(1, 1))
    assert len(outbox.take(100)) == 1


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 2000))
def test_batches_keep_order_and_size(sizes: list[int], room: int) -> None:
    """Messages leave in order, in batches of about the requested size, and the byte count returns to 0."""
    outbox = Outbox(limit=1 << 20)
    messages = [append(group, size) for group, size in enumerate(sizes)]
    for message in messages:
        outbox.add(message)
    out: list[Message] = []
    while outbox:
        batch = outbox.take(room)
        assert len(batch) == 1 or sum(88 + sizes[message.group] for message in batch) <= room
        out += batch
    assert out == messages
    assert outbox.bytes == 0
