"""Moves as they are kept with a plan: one line of text each, which people can read in etcd and programs read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from evenkeel.model.views import Move
from evenkeel.protocol.stored_plan import Plan

__all__ = ["moves_of", "spelled"]

_NOWHERE = "none"
"""No store is called so: stores have a dash and a number in their names."""


def spelled(moves: Iterable[Move]) -> dict[int, list[str]]:
    """By partition, its moves as `from -> to: reason`."""
    lines: dict[int, list[str]] = {}
    for move in moves:
        line = f"{move.source or _NOWHERE} -> {move.target or _NOWHERE}: {move.reason}"
        lines.setdefault(move.partition, []).append(line)
    return lines


def moves_of(plan: Plan) -> Iterator[Move]:
    """The moves that are kept with a plan, partition by partition."""
    for piece in plan.slices:
        for partition, lines in sorted(piece.reasons.items()):
            yield from (_read(partition, line) for line in lines)


def _read(partition: int, line: str) -> Move:
    way, _, reason = line.partition(": ")
    source, _, target = way.partition(" -> ")
    return Move(
        partition=partition,
        source=None if source == _NOWHERE else source,
        target=None if target == _NOWHERE else target,
        reason=reason,
    )
