"""Encoding of message batches."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.wire.payload_pieces import LARGE_BYTES
from evenkeel_raft.core.raft_messages import AnyMessage, Append, CommitNotice
from evenkeel_raft.core.raft_types import Entry
from evenkeel_raft.net.peer_frames import PEER_CODEC, Batch, batch_payload

sizes = st.one_of(st.integers(0, 40), st.sampled_from([LARGE_BYTES - 1, LARGE_BYTES, 1 << 16, 100_000]))


def append(lengths: list[int]) -> Append:
    entries = [Entry(place, 1 << 40, 1, bytes([place]) * size) for place, size in enumerate(lengths)]
    return Append(1 << 60, 0, 2, 3, 4, 5, 6, 7, entries)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.one_of(st.lists(sizes, max_size=20), st.none()), max_size=20))
def test_a_batch_in_pieces_is_the_same_bytes(contents: list[list[int] | None]) -> None:
    """A batch encoded in pieces has the same bytes as one encoded at once."""
    notice = CommitNotice(1, 0, 2, 3, 4, 5)
    messages: list[AnyMessage] = [notice if lengths is None else append(lengths) for lengths in contents]
    payload = b"".join(batch_payload(messages))
    assert payload == PEER_CODEC.encode(Batch(messages))


def test_large_entries_are_sent_from_where_they_are() -> None:
    """Large entries are sent to any number of members without a copy per member."""
    message = append([LARGE_BYTES, 3])
    for _ in range(2):
        assert any(piece is message.entries[0].data for piece in batch_payload([message]))
