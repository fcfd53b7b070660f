"""What is known of a group beside its rows and tokens: small, immutable, replaced as a whole.

A `Step` is what one transaction did to one group. The journal keeps steps, and a group that is loaded takes them just
as the running one did.
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
"""The longest a pin can be asked for."""
STEP_MILLISECONDS: Final = 3_600_000
"""The furthest that one entry moves log time."""
_STAMP_MILLISECONDS: Final = 10_000


class PinnedAt(Struct, array_like=True, frozen=True, gc=False):
    """A pin: the index it keeps readable, and until when by log time."""

    index: int
    expires: int


class GroupMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group at its applied index."""

    replica: int
    table: str = ""
    partition: int = 0
    applied: int = 0
    schema: RowSchema | None = None
    """None until the group's first leader has logged one."""
    changes: bool = False
    """Whether a change table is kept."""
    forgotten: int = 0
    """Changes up to this index are no longer kept."""
    pins: dict[str, PinnedAt] = {}
    ended: tuple[str, ...] = ()
    """Names of pins that expired last. They are not given again: whoever still reads would see two moments."""
    fences: dict[str, int] = {}
    time: int = 0
    """Log time in milliseconds (`logtime`); 0 until the group's log has begun to keep it."""
    stamps: tuple[tuple[int, int], ...] = ()
    """(log time, index) now and then, by which a leader finds what is older than the retention of changes."""
    rows: int = 0
    """Number in the names of its tables."""
    log: int = 0
    """Number of the table of recent rows that it shares with groups of the same column types."""
    damage: str = ""
    """Why the rows cannot be relied on; empty where they can."""

    @property
    def name(self) -> str:
        """The table as users call it."""
        return table_name(self.table)

    def fields(self) -> dict[str, str | int]:
        """What a line of the log says of it."""
        return {"table": self.name, "partition": self.partition}


class Step(Struct, array_like=True, frozen=True):
    """What a transaction did to a group. Without a head only the applied index and tokens changed."""

    group: int
    applied: int
    uses: list[TokenUse] = []
    metadata: GroupMetadata | None = None
    forgotten_writers: list[str] = []
    begins: bool = False
    """Whether nothing that was there before counts: a new replica, or a restored one."""
    ends: bool = False
    """Whether the group is gone."""
    time: int = 0
    """Log time after it; 0 where it is what it was, or what the head says."""


def advanced(time: int, stamp: int) -> int:
    """Return log time after an entry with this stamp: never less, and the same where the stamp is too far ahead."""
    return stamp if time < stamp <= time + STEP_MILLISECONDS else time


def with_stamp(metadata: GroupMetadata, *, at: int, index: int) -> GroupMetadata:
    """Remember when an index was logged, if the last time one was remembered is long enough ago."""
    stamps = metadata.stamps
    if stamps and at < stamps[-1][0] + _STAMP_MILLISECONDS:
        return metadata
    stamps = (*stamps, (at, index))
    if len(stamps) > MAX_STAMPS:
        stamps = stamps[::2]
    return msgspec.structs.replace(metadata, stamps=stamps)
