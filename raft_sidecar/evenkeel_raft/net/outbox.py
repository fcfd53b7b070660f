"""Messages that wait for their peer.

Raft repeats what is lost, so a queue that is full drops what comes, and says how much: it never makes the sender wait.
Entries are dropped first; votes, answers and hand-overs are small and matter more, so they get twice the room.
Of the heartbeats of a group only the newest is kept: it says all that the older ones said. All messages that wait
together leave together, so the heartbeats of a thousand groups are one frame.

News of a commit can wait a little, for nobody is answered by it; with luck the next entries carry it along.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from evenkeel_raft.core.raft_messages import Append, CommitNotice, Heartbeat, Message

__all__ = ["Outbox"]

_MESSAGE_BYTES: Final = 64
_ENTRY_BYTES: Final = 24


class Outbox:
    """The queue to one peer."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._notices: dict[tuple[int, int], CommitNotice] = {}
        self._heartbeats: dict[tuple[int, int], Message] = {}
        self._queue: deque[tuple[Message, int]] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queue or self._heartbeats or self._notices)

    @property
    def pressing(self) -> bool:
        """Whether anything waits that should not wait any longer than this turn of the loop."""
        return bool(self._queue or self._heartbeats)

    def add(self, message: Message) -> bool:
        """Queue a message, or drop it and return False."""
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
        """Drop the news that entries carry along."""
        at = append.group, append.receiver
        notice = self._notices.get(at)
        if notice is not None and notice.commit <= min(append.commit, append.prev_index + len(append.entries)):
            del self._notices[at]

    def take(self, size: int) -> list[Message]:
        """Take out messages of about this many bytes, at least one where there is any."""
        # A heartbeat may be the last word before a group falls asleep, so it comes after the news.
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
        """Drop everything, for the peer is gone; returns how many messages that were."""
        dropped = len(self._queue) + len(self._heartbeats) + len(self._notices)
        self._queue.clear()
        self._notices.clear()
        self._heartbeats.clear()
        self.bytes = 0
        return dropped
