"""A group's metadata: everything but its rows and write tokens; small, immutable, replaced as a whole.

A `Step` is the change that one transaction made to one group. The journal stores steps, and loading a group applies
them as the running process did.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from evenkeel.protocol.keys import table_name
from evenkeel.rows.row_schema import RowSchema
from evenkeel_store.engine.write_tokens import TokenUse

__all__ = [
    "ENDED_KEPT",
    "MAX_PIN_MILLISECONDS",
    "MAX_STAMPS",
    "STEP_MILLISECONDS",
    "GroupMetadata",
    "PinnedAt",
    "Step",
    "advanced",
    "with_stamp",
]

MAX_STAMPS: Final = 256
ENDED_KEPT: Final = 256
MAX_PIN_MILLISECONDS: Final = 86_400_000
"""The longest lifetime of a pin."""
STEP_MILLISECONDS: Final = 3_600_000
"""The most that one entry advances log time."""
_STAMP_MILLISECONDS: Final = 10_000


class PinnedAt(Struct, array_like=True, frozen=True, gc=False):
    """A pin: the index that it keeps readable, and the log time at which it expires."""

    index: int
    expires: int


class GroupMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group's metadata at its applied index."""

    replica: int
    table: str = ""
    partition: int = 0
    applied: int = 0
    schema: RowSchema | None = None
    """None until the group's first leader has logged the columns."""
    changes: bool = False
    """Whether changes are kept."""
    forgotten: int = 0
    """Changes up to this index have expired."""
    pins: dict[str, PinnedAt] = {}
    ended: tuple[str, ...] = ()
    """Names of the pins that expired last. They are not reused: a reader of the old pin would see other rows."""
    fences: dict[str, int] = {}
    time: int = 0
    """Log time in milliseconds (`log_time`); 0 while the group keeps none."""
    stamps: tuple[tuple[int, int], ...] = ()
    """Samples of (log time, index), by which a leader finds the changes that are past their retention."""
    rows: int = 0
    """The number in the names of its tables."""
    log: int = 0
    """The number of its log table, shared by groups with the same column types."""
    damage: str = ""
    """Why the rows are damaged; empty if they are not."""

    @property
    def name(self) -> str:
        """The table's name, as users know it."""
        return table_name(self.table)

    def fields(self) -> dict[str, str | int]:
        """Return the fields for log lines."""
        return {"table": self.name, "partition": self.partition}


class Step(Struct, array_like=True, frozen=True):
    """What a transaction did to a group. Without metadata, only the applied index, tokens and log time changed."""

    group: int
    applied: int
    uses: list[TokenUse] = []
    metadata: GroupMetadata | None = None
    forgotten_writers: list[str] = []
    begins: bool = False
    """Whether it replaces all earlier state: a new replica, or a restored one."""
    ends: bool = False
    """Whether the group was destroyed."""
    time: int = 0
    """Log time after the step; 0 if it did not change, or is that of `metadata`."""


def advanced(time: int, stamp: int) -> int:
    """Return log time after an entry with this stamp: never earlier, and unchanged if the stamp is too far ahead."""
    return stamp if time < stamp <= time + STEP_MILLISECONDS else time


def with_stamp(metadata: GroupMetadata, *, at: int, index: int) -> GroupMetadata:
    """Record when an index was logged, if the last record is old enough."""
    stamps = metadata.stamps
    if stamps and at < stamps[-1][0] + _STAMP_MILLISECONDS:
        return metadata
    stamps = (*stamps, (at, index))
    if len(stamps) > MAX_STAMPS:
        stamps = stamps[::2]
    return msgspec.structs.replace(metadata, stamps=stamps)
