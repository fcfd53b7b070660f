"""A group in memory: its metadata and write tokens, its tables, and the indexes at which it is being read.

Only the apply thread changes it. Other threads read `metadata` and `layout`, which are replaced and never modified, and
hold indexes. The same lock protects taking an index and deciding what folding may replace: a reader that takes the
applied index is either seen by a later fold, or takes an index that the fold under way does not pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from evenkeel_store.engine.group_metadata import MAX_PIN_MILLISECONDS, Step
from evenkeel_store.engine.journal import KeptGroup
from evenkeel_store.engine.table_layout import TableLayout
from evenkeel_store.engine.write_tokens import WriteTokens

__all__ = ["HASHES_KEPT", "AppliedTimestamps", "Group", "SizeSample"]

HASHES_KEPT: Final = 100


class SizeSample(NamedTuple):
    """The bytes per row of a snapshot, as sampled."""

    width: float
    rows: int
    """Rows of the group when it was sampled."""
    written: int
    """Rows written by then."""


class AppliedTimestamps(NamedTuple):
    """The stamps that this process has applied: how many, and the last."""

    number: int = 0
    last: int = 0


class Group:
    """One group of the store."""

    def __init__(self, number: int, kept: KeptGroup) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.unfolded = 0
        """Rows in the log."""
        self.folded = 0
        """Rows in its own table."""
        self.folded_to = 0
        """Its own table contains nothing that was written after this index."""
        self.size: int | None = None
        """Estimated bytes of a snapshot; None before it was measured."""
        self.samples: dict[str, SizeSample] = {}
        """The samples behind `size`, by kind of rows."""
        self.written = 0
        """Rows written since the process started."""
        self.hashes: dict[int, str] = {}
        """The last hashes, by index."""
        self.differs = ""
        """How its rows differed from the leader's in the last comparison; empty if they did not."""
        self.comparison_problem = ""
        """On the leader: what the last comparison of all replicas found against its rows."""
        self.stamps = AppliedTimestamps()
        self.layout: TableLayout | None = None
        """None while there are no columns, and while tables change."""
        self._held: dict[object, int] = {}
        self.replace(kept)

    def replace(self, kept: KeptGroup) -> None:
        """Replace the whole state."""
        with self.lock:
            self.metadata = kept.metadata
            self.tokens = WriteTokens(kept.uses)
            self.layout = self._make_layout(None)
            self.folded_to = kept.metadata.applied

    def kept(self) -> KeptGroup:
        """Return the state without rows."""
        return KeptGroup(self.metadata, self.tokens.all())

    def advance(self, step: Step) -> None:
        """Apply a step; tokens that are already known are skipped."""
        with self.lock:
            if step.begins:
                self.tokens = WriteTokens()
                self.folded_to = step.applied
            self.tokens.forget(step.forgotten_writers)
            for use in step.uses:
                if self.tokens.is_new(use.writer, use.sequence):
                    self.tokens.use(use)
            metadata = self.metadata if step.metadata is None else step.metadata
            self.metadata = msgspec.structs.replace(metadata, applied=step.applied, time=step.time or metadata.time)
            self.layout = self._make_layout(self.layout)

    def _make_layout(self, known: TableLayout | None) -> TableLayout | None:
        metadata = self.metadata
        if metadata.schema is None:
            return None
        if known is not None and (known.rows_number, known.log_number, known.changes, known.schema) == (
            metadata.rows,
            metadata.log,
            metadata.changes,
            metadata.schema,
        ):
            return known
        return TableLayout(self.number, metadata.schema, rows=metadata.rows, log=metadata.log, changes=metadata.changes)

    # Held indexes

    @contextmanager
    def holding(self, index: int | None = None) -> Iterator[int]:
        """Hold an index, by default the applied one; yields it."""
        held = self.hold(index)
        try:
            yield held[1]
        finally:
            self.release(held)

    def hold(self, index: int | None = None) -> tuple[object, int]:
        """Keep the rows at an index readable until `release`."""
        owner = object()
        with self.lock:
            at = self._held[owner] = self.metadata.applied if index is None else index
        return owner, at

    def hold_pin(self, name: str) -> tuple[object, int] | None:
        """Hold a pin's index, even if the pin expires meanwhile; None if there is no such pin."""
        owner = object()
        with self.lock:
            pin = self.metadata.pins.get(name)
            if pin is None:
                return None
            self._held[owner] = pin.index
        return owner, pin.index

    def release(self, held: tuple[object, int]) -> None:
        """Release a held index."""
        with self.lock:
            self._held.pop(held[0], None)

    def readable(self) -> tuple[int, list[int]]:
        """Return the applied index, and all pinned and held indexes in order."""
        with self.lock:
            pinned = {pin.index for pin in self.metadata.pins.values()}
            return self.metadata.applied, sorted(pinned | set(self._held.values()))

    @property
    def newest(self) -> int:
        """Log time at the applied index; while the group keeps none, the newest stamp, or 0."""
        metadata = self.metadata
        if metadata.time:
            return metadata.time
        return max(self.tokens.newest, metadata.stamps[-1][0] if metadata.stamps else 0)

    @property
    def pinned_after(self) -> int:
        """A log time that had passed when the latest pin was created; 0 without pins."""
        return max(0, max((pin.expires for pin in self.metadata.pins.values()), default=0) - MAX_PIN_MILLISECONDS)

    @property
    def doubt(self) -> str:
        """Why its rows may be wrong; empty if nothing speaks against them."""
        return self.comparison_problem or self.differs

    def forget_comparisons(self) -> None:
        """Forget the results of comparisons, after the rows were replaced."""
        self.hashes.clear()
        self.differs = self.comparison_problem = ""

    @property
    def estimated_rows(self) -> int:
        """The number of rows, if every row in the log is a new one."""
        return self.folded + self.unfolded

    @property
    def is_folded(self) -> bool:
        """Whether all applied rows are in the group's own table."""
        return self.unfolded == 0

    def table_is_at(self, index: int) -> bool:
        """Whether its own table contains exactly what was written up to an applied index."""
        return self.unfolded == 0 and self.folded_to <= index

    def note_stamps(self, stamps: AppliedTimestamps) -> None:
        """Add stamps that were applied."""
        if stamps.number:
            self.stamps = AppliedTimestamps(self.stamps.number + stamps.number, stamps.last)

    def count(self, rows: int) -> None:
        """Add to the number of rows in the log; negative if rows left it."""
        with self.lock:
            self.unfolded += rows

    def note_hash(self, index: int, value: str) -> None:
        """Store a hash and drop old ones."""
        with self.lock:
            self.hashes[index] = value
            for old in sorted(self.hashes)[:-HASHES_KEPT]:
                del self.hashes[old]
