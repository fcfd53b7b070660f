"""The configurations of a group by log index.

A configuration takes effect when its entry is applied. Older ones are kept back to the beginning of the log, because a
snapshot at index i must carry the configuration as of i. An older one would lose members; with a newer one the entry
that made it would be applied twice.
"""

from __future__ import annotations

from evenkeel_raft.core.confchange import apply_change
from evenkeel_raft.core.errors import InvariantError, RefusedError
from evenkeel_raft.core.raft_types import Conf, Entry, SnapshotMeta, decode_conf_change

__all__ = ["ConfHistory"]


class ConfHistory:
    """The applied configuration, `current`, made by the entry at `index`, and its predecessors."""

    __slots__ = ("_history", "current", "index")

    def __init__(self, meta: SnapshotMeta) -> None:
        self.restore(meta)

    def restore(self, meta: SnapshotMeta) -> None:
        """Replace the history by a snapshot's configuration."""
        self.current, self.index = meta.conf, meta.index
        self._history: list[tuple[int, Conf]] = [(meta.index, meta.conf)]

    def apply(self, entry: Entry) -> Conf:
        """Apply a configuration entry and return the new current configuration."""
        try:
            self.current = apply_change(self.current, decode_conf_change(entry.data))
        except RefusedError as error:
            raise InvariantError(f"committed configuration entry {entry.index} cannot be applied: {error}") from error
        self.index = entry.index
        self._history.append((entry.index, self.current))
        return self.current

    def as_of(self, index: int) -> Conf:
        """Return the configuration in effect after the entry at the index was applied."""
        for since, conf in reversed(self._history):
            if since <= index:
                return conf
        raise InvariantError(f"no configuration is known as of index {index}; the oldest is {self._history[0][0]}")

    def compact(self, index: int) -> None:
        """Drop configurations that were superseded at or before the index."""
        keep = 0
        while keep + 1 < len(self._history) and self._history[keep + 1][0] <= index:
            keep += 1
        del self._history[:keep]
