"""Bounded queue of raft messages for one peer.

Raft repeats lost messages, so a full queue drops new ones instead of blocking the sender. Entries are dropped first.
Votes, responses and leadership transfers are small and more important, so their limit is twice as high. Only the newest
heartbeat of each group is kept, because it replaces the older ones. All waiting messages leave in one frame, so the
heartbeats of a thousand groups share a frame.

Commit notices may wait a little, because no client waits for them; often the next entries carry the same commit index.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from evenkeel_raft.core.raft_messages import Append, CommitNotice, Heartbeat, Message

__all__ = ["Outbox"]

_MESSAGE_BYTES: Final = 64
_ENTRY_BYTES: Final = 24


class Outbox:
    """The messages that wait for one peer."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._notices: dict[tuple[int, int], CommitNotice] = {}
        self._heartbeats: dict[tuple[int, int], Message] = {}
        self._queue: deque[tuple[Message, int]] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queue or self._heartbeats or self._notices)

    @property
    def urgent(self) -> bool:
        """Whether a message waits that must leave at the end of this turn of the event loop."""
        return bool(self._queue or self._heartbeats)

    def add(self, message: Message) -> bool:
        """Queue a message; return False if it was dropped."""
        if isinstance(message, Heartbeat):
            self._heartbeats[message.group, message.receiver] = message
            return True
        if isinstance(message, CommitNotice):
            self._notices[message.group, message.receiver] = message
            return True
        size, limit = _MESSAGE_BYTES, 2 * self._limit
        if isinstance(message, Append):
            limit = self._limit
            for entry in message.entries:
                size += len(entry.data) + _ENTRY_BYTES
        if self.bytes and self.bytes + size > limit:
            return False
        self._queue.append((message, size))
        self.bytes += size
        if isinstance(message, Append) and self._notices:
            self._outdate(message)
        return True

    def _outdate(self, append: Append) -> None:
        """Drop a commit notice that these entries make redundant."""
        at = append.group, append.receiver
        notice = self._notices.get(at)
        if notice is not None and notice.commit <= min(append.commit, append.prev_index + len(append.entries)):
            del self._notices[at]

    def take(self, size: int) -> list[Message]:
        """Remove and return messages of about `size` bytes, at least one if any waits."""
        # A heartbeat may tell the group to sleep, so it must follow the commit notices.
        taken: list[Message] = [*self._notices.values(), *self._heartbeats.values()]
        self._notices.clear()
        self._heartbeats.clear()
        room = size - _MESSAGE_BYTES * len(taken)
        while self._queue and (not taken or self._queue[0][1] <= room):
            message, cost = self._queue.popleft()
            taken.append(message)
            room -= cost
            self.bytes -= cost
        return taken

    def clear(self) -> int:
        """Drop all messages; return how many."""
        dropped = len(self._queue) + len(self._heartbeats) + len(self._notices)
        self._queue.clear()
        self._notices.clear()
        self._heartbeats.clear()
        self.bytes = 0
        return dropped
