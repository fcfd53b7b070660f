"""What is known of a group beside its rows and tokens: small, immutable, replaced as a whole.

A `Step` is what one transaction did to one group. The journal keeps steps, and a group that is loaded takes them just
as the running one did.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from evenkeel.protocol.keys import table_name
from evenkeel.rows.schema import RowSchema
from evenkeel_store.tokens import TokenUse

__all__ = ["ENDED_KEPT", "MAX_STAMPS", "Head", "PinnedAt", "Step", "with_stamp"]

MAX_STAMPS: Final = 256
ENDED_KEPT: Final = 256
_STAMP_MILLISECONDS: Final = 10_000


class PinnedAt(Struct, array_like=True, frozen=True, gc=False):
    """A pin: the index it keeps readable, and until when by the clocks of leaders."""

    index: int
    expires: int


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    stamps: tuple[tuple[int, int], ...] = ()
    """(milliseconds, index) now and then, by which a leader finds what is older than the retention of changes."""
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
    head: Head | None = None
    forgotten_writers: list[str] = []
    begins: bool = False
    """Whether nothing that was there before counts: a new replica, or a restored one."""
    ends: bool = False
    """Whether the group is gone."""


def with_stamp(head: Head, *, at: int, index: int) -> Head:
    """Remember when an index was logged, if the last time one was remembered is long enough ago."""
    stamps = head.stamps
    if stamps and at < stamps[-1][0] + _STAMP_MILLISECONDS:
        return head
    stamps = (*stamps, (at, index))
    if len(stamps) > MAX_STAMPS:
        stamps = stamps[::2]
    return msgspec.structs.replace(head, stamps=stamps)
