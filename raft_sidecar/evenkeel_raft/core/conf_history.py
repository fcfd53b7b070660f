"""Configurations by index.

A configuration takes effect when its entry is applied. Older ones are kept back to where the log begins, because a
snapshot at index i must carry the configuration as of i: neither an older one (members would be lost) nor a newer one
(the entry that made it would then be applied twice).
"""

from __future__ import annotations

from evenkeel_raft.core.confchange import apply_change
from evenkeel_raft.core.errors import InvariantError, RefusedError
from evenkeel_raft.core.raft_types import Conf, Entry, SnapshotMeta, decode_conf_change

__all__ = ["ConfHistory"]


class ConfHistory:
    """The applied configuration, `current`, made by the entry at `index`; and those before it."""

    __slots__ = ("_history", "current", "index")

    def __init__(self, meta: SnapshotMeta) -> None:
        self.restore(meta)

    def restore(self, meta: SnapshotMeta) -> None:
        """Begin anew at a snapshot."""
        self.current, self.index = meta.conf, meta.index
        self._history: list[tuple[int, Conf]] = [(meta.index, meta.conf)]

    def apply(self, entry: Entry) -> Conf:
        """Make the entry's configuration the current one."""
        try:
            self.current = apply_change(self.current, decode_conf_change(entry.data))
        except RefusedError as error:
            raise InvariantError(f"committed configuration entry {entry.index} does not fit: {error}") from error
        self.index = entry.index
        self._history.append((entry.index, self.current))
        return self.current

    def as_of(self, index: int) -> Conf:
        """Return the configuration after applying the entry at the index."""
        for since, conf in reversed(self._history):
            if since <= index:
                return conf
        raise InvariantError(f"no configuration is known as of {index}; the oldest is of {self._history[0][0]}")

    def compact(self, index: int) -> None:
        """Forget configurations that were already superseded at the index."""
        keep = 0
        while keep + 1 < len(self._history) and self._history[keep + 1][0] <= index:
            keep += 1
        del self._history[:keep]
