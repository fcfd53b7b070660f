"""Everything that was recorded; times are seconds since the start."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Facts", "Fingerprint", "Operation", "Sample", "Step", "Tally", "Verdict"]

Kind = Literal["read", "write"]


class Operation(Struct, frozen=True):
    """One read or write that succeeded."""

    kind: Kind
    began: float
    seconds: float


class Sample(Struct, frozen=True, kw_only=True):
    """The table at one moment."""

    at: float
    leaders: dict[str, int]
    """Number of partitions that each store leads."""
    replicas: dict[str, int]
    moving: int
    """Partitions whose replicas are changing."""
    leaderless: int
    copied: dict[str, int] = {}
    """Snapshot bytes that each store has sent since its process started."""
    wasted: dict[str, int] = {}
    """Snapshot bytes of cancelled transfers."""


class Step(Struct, frozen=True):
    """One step of the demo."""

    title: str
    began: float
    ended: float
    disturbs: bool
    """Whether reads and writes must survive a disturbance in this step."""


class Fingerprint(Struct, frozen=True):
    """A set of rows in three numbers."""

    rows: int
    checksum: int
    amount: str
    """The sum of all amounts."""


class Tally(Struct, frozen=True, kw_only=True):
    """Totals of the load."""

    acknowledged: int
    """Writes that were acknowledged."""
    rows: int
    """Rows that were inserted or updated."""
    reads: int
    stale: int
    """Reads that returned an older version than one acknowledged before they began."""
    unsure: int
    """Rows of failed writes, whose outcome is unknown."""
    errors: list[str]


class Verdict(Struct, frozen=True):
    """One check and its result."""

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
