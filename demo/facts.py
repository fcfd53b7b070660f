"""What was seen, from the beginning to the end; times are seconds since the beginning."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Facts", "Fingerprint", "Operation", "Sample", "Step", "Tally", "Verdict"]

Kind = Literal["read", "write"]


class Operation(Struct, frozen=True):
    """One read or write that was answered."""

    kind: Kind
    began: float
    seconds: float


class Sample(Struct, frozen=True, kw_only=True):
    """The table at one moment."""

    at: float
    leaders: dict[str, int]
    """How many partitions each store leads."""
    replicas: dict[str, int]
    moving: int
    """Partitions whose replicas change."""
    leaderless: int
    copied: dict[str, int] = {}
    """Bytes of snapshots that each store has sent since its process began."""
    wasted: dict[str, int] = {}
    """Those of snapshots that were called off."""


class Step(Struct, frozen=True):
    """A part of the story."""

    title: str
    began: float
    ended: float
    disturbs: bool
    """Whether it is one that reads and writes are to survive."""


class Fingerprint(Struct, frozen=True):
    """Rows in three numbers."""

    rows: int
    checksum: int
    amount: str
    """The sum of all amounts."""


class Tally(Struct, frozen=True, kw_only=True):
    """What the load came to."""

    acknowledged: int
    """Writes that were answered."""
    rows: int
    """Rows that differ from what was loaded, or are new."""
    reads: int
    stale: int
    """Reads that showed less than what had been acknowledged before they began."""
    unsure: int
    """Rows of writes that were given up: they may be there or not."""
    errors: list[str]


class Verdict(Struct, frozen=True):
    """One thing that must hold, and whether it does."""

    what: str
    holds: bool
    detail: str


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that the report shows."""

    title: str
    steps: list[Step]
    samples: list[Sample]
    operations: list[Operation]
    tally: Tally
    verdicts: list[Verdict]
