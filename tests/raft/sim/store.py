"""A model state machine: registers, of which a crash keeps the last checkpoint."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from evenkeel_raft.core.raft_types import NORMAL, Entry, SnapshotMeta


class State(Struct, frozen=True):
    """The registers as of an index."""

    index: int
    values: dict[str, int]


_EMPTY = State(0, {})


def encode(operation: dict[str, Any]) -> bytes:
    return json.dumps(operation).encode()


class Store:
    """Registers with writes and compare-and-set; state and applied index are durable together."""

    def __init__(self) -> None:
        self.state = _EMPTY
        self.durable = _EMPTY
        self.files: dict[int, State] = {}  # snapshots received, by index

    @property
    def applied(self) -> int:
        return self.state.index

    def apply(self, entry: Entry) -> bool:
        """Apply the next entry; the result is that of a compare-and-set."""
        assert entry.index == self.state.index + 1, (entry.index, self.state.index)
        values, result = self.state.values, True
        if entry.kind == NORMAL:
            operation = json.loads(entry.data)
            key = operation["key"]
            result = "old" not in operation or values.get(key, 0) == operation["old"]
            if result:
                values = {**values, key: operation["value"]}
        self.state = State(entry.index, values)
        return result

    def genesis(self) -> None:
        """Start at the genesis snapshot, which is empty."""
        if self.state.index == 0:
            self.state = State(1, {})

    def checkpoint(self) -> None:
        """Make the state durable."""
        self.durable = self.state

    def restore(self, index: int) -> None:
        """Restore a received snapshot."""
        self.state = self.files[index]
        self.checkpoint()

    def crash(self) -> None:
        self.state = self.durable

    def damage(self) -> None:
        self.state = self.durable = _EMPTY
        self.files = {}

    def reopen(self, meta: SnapshotMeta) -> int:
        """Prepare for a log that begins at `meta`, finishing an interrupted restore; returns the applied index."""
        if self.state.index < meta.index and meta.index in self.files:
            self.restore(meta.index)
        if meta.index == 1:
            self.genesis()
        return self.state.index
