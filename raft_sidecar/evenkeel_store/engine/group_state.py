"""A group while the process runs: its head and tokens, where its rows are, and who reads at which index.

One thread changes it (the one that applies). Others look at `head` and `layout`, which are replaced and never changed,
and hold indexes readable. What folding may replace is decided under the same lock under which an index is taken: a
reader that takes the applied index is either seen by a folding that begins later, or takes an index that the folding
under way does not go past.
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
    """How many bytes of a snapshot a row takes."""

    width: float
    rows: int
    """How many there were."""
    written: int
    """How many had been written by then."""


class AppliedTimestamps(NamedTuple):
    """Stamps of entries applied by this process: how many, and the last."""

    number: int = 0
    last: int = 0


class Group:
    """One group of this store."""

    def __init__(self, number: int, kept: KeptGroup) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.unfolded = 0
        """How many of its rows are in the log."""
        self.folded = 0
        """How many are in its own table."""
        self.folded_to = 0
        """Nothing that was written past this index is in its own table."""
        self.size: int | None = None
        """About how many bytes a snapshot of it would have; None before it was measured."""
        self.samples: dict[str, SizeSample] = {}
        """What its size rests on, by kind of rows."""
        self.written = 0
        """Rows written since the process began."""
        self.hashes: dict[int, str] = {}
        """By index, the last ones."""
        self.differs = ""
        """How its rows differ from the leader's, when they were last compared; empty where they are the same."""
        self.comparison_problem = ""
        """Where it is led here: what asking all replicas said against its rows."""
        self.stamps = AppliedTimestamps()
        self.layout: TableLayout | None = None
        """None where there are no rows yet, and while they move."""
        self._held: dict[object, int] = {}
        self.replace(kept)

    def replace(self, kept: KeptGroup) -> None:
        """Be what was kept, whatever was before."""
        with self.lock:
            self.metadata = kept.metadata
            self.tokens = WriteTokens(kept.uses)
            self.layout = self._lay_out(None)
            self.folded_to = kept.metadata.applied

    def kept(self) -> KeptGroup:
        """Return all there is beside rows."""
        return KeptGroup(self.metadata, self.tokens.all())

    def advance(self, step: Step) -> None:
        """Be as a step left it; tokens that are known already are none the worse for it."""
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
            self.layout = self._lay_out(self.layout)

    def _lay_out(self, known: TableLayout | None) -> TableLayout | None:
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

    # Who reads where

    @contextmanager
    def holding(self, index: int | None = None) -> Iterator[int]:
        """Keep the rows at an index readable, by default the applied one; yields the index."""
        held = self.hold(index)
        try:
            yield held[1]
        finally:
            self.release(held)

    def hold(self, index: int | None = None) -> tuple[object, int]:
        """Keep the rows at an index readable until it is released."""
        owner = object()
        with self.lock:
            at = self._held[owner] = self.metadata.applied if index is None else index
        return owner, at

    def hold_pin(self, name: str) -> tuple[object, int] | None:
        """Keep a pin's index readable, even if the pin ends meanwhile; None where there is no such pin."""
        owner = object()
        with self.lock:
            pin = self.metadata.pins.get(name)
            if pin is None:
                return None
            self._held[owner] = pin.index
        return owner, pin.index

    def release(self, held: tuple[object, int]) -> None:
        """Let an index go."""
        with self.lock:
            self._held.pop(held[0], None)

    def readable(self) -> tuple[int, list[int]]:
        """Return the applied index, and in order those before it that somebody may ask for."""
        with self.lock:
            pinned = {pin.index for pin in self.metadata.pins.values()}
            return self.metadata.applied, sorted(pinned | set(self._held.values()))

    @property
    def newest(self) -> int:
        """Log time at the applied index; where the log does not keep it yet, the newest stamp there is, or 0."""
        metadata = self.metadata
        if metadata.time:
            return metadata.time
        return max(self.tokens.newest, metadata.stamps[-1][0] if metadata.stamps else 0)

    @property
    def pinned_after(self) -> int:
        """A log time that was past when the last of the pins was taken; 0 where there is none."""
        return max(0, max((pin.expires for pin in self.metadata.pins.values()), default=0) - MAX_PIN_MILLISECONDS)

    @property
    def doubt(self) -> str:
        """Why its rows may not be what they should be; empty where nothing is known against them."""
        return self.comparison_problem or self.differs

    def forget_comparisons(self) -> None:
        """Other rows have taken the place of those that were compared."""
        self.hashes.clear()
        self.differs = self.comparison_problem = ""

    @property
    def about_rows(self) -> int:
        """How many rows there are, those in the log counted as if all were new."""
        return self.folded + self.unfolded

    @property
    def is_folded(self) -> bool:
        """Whether every row that is applied by now is in the group's own table."""
        return self.unfolded == 0

    def is_as_at(self, index: int) -> bool:
        """Whether its own table has what was written up to an index that is applied, and nothing else."""
        return self.unfolded == 0 and self.folded_to <= index

    def note_stamps(self, stamps: AppliedTimestamps) -> None:
        """Know of stamps that were applied."""
        if stamps.number:
            self.stamps = AppliedTimestamps(self.stamps.number + stamps.number, stamps.last)

    def count(self, rows: int) -> None:
        """Know that so many rows came to the log, or left it."""
        with self.lock:
            self.unfolded += rows

    def note_hash(self, index: int, value: str) -> None:
        """Keep a hash, and forget old ones."""
        with self.lock:
            self.hashes[index] = value
            for old in sorted(self.hashes)[:-HASHES_KEPT]:
                del self.hashes[old]
