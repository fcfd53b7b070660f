"""The moves that are stored with a plan, one line of text each, and a partition's moves in all stored plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.views import Move
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import PlanSlice, decode
from evenkeel.protocol.stored_plan import SLICE, Plan

__all__ = ["PlannedPartition", "explain_partition", "format_moves", "moves_of"]

_NOWHERE = "none"
"""No store has this name: store names end with a dash and a number."""


def format_moves(moves: Iterable[Move]) -> dict[int, list[str]]:
    """Return, by partition, its moves as `from -> to: reason`."""
    lines: dict[int, list[str]] = {}
    for move in moves:
        line = f"{move.source or _NOWHERE} -> {move.target or _NOWHERE}: {move.reason}"
        lines.setdefault(move.partition, []).append(line)
    return lines


def moves_of(plan: Plan) -> Iterator[Move]:
    """Yield the moves that are stored with a plan, partition by partition."""
    for piece in plan.slices:
        for partition, lines in sorted(piece.reasons.items()):
            yield from (_parse(partition, line) for line in lines)


def _parse(partition: int, line: str) -> Move:
    way, _, reason = line.partition(": ")
    source, _, target = way.partition(" -> ")
    return Move(
        partition=partition,
        source=None if source == _NOWHERE else source,
        target=None if target == _NOWHERE else target,
        reason=reason,
    )


class PlannedPartition(msgspec.Struct, frozen=True):
    """A partition in one stored plan."""

    plan: int
    stores: tuple[str, ...]
    """Its target, the preferred leader first."""
    moves: tuple[str, ...]
    """As `from -> to: reason`; empty if the plan does not move the partition."""


def explain_partition(kvs: Iterable[KeyValue], partition: int, *, keys: Keys, table: str) -> list[PlannedPartition]:
    """Return a partition in all stored plans, the newest first; `kvs` has every key of the table's plans."""
    found: list[PlannedPartition] = []
    for kv in kvs:
        number, _, index = kv.key.removeprefix(keys.plans(table)).partition("/")
        if not number.isdecimal() or index != f"{partition // SLICE:06d}":
            continue
        try:
            piece = decode(PlanSlice, kv.value, key=kv.key)
            stores = tuple(peer.store for peer in piece.target(partition))
        except (MalformedRecordError, IndexError):
            continue
        found.append(PlannedPartition(int(number), stores, piece.reasons.get(partition, ())))
    return sorted(found, key=lambda entry: -entry.plan)
