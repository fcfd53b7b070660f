"""A reference model of a group in plain dictionaries, and random logs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from evenkeel_store.engine.log_entries import (
    Absent,
    AddColumns,
    Condition,
    Conditional,
    Delete,
    Expire,
    Fence,
    Hash,
    LogTime,
    Pin,
    Present,
    Unpin,
    Upsert,
    decode_entry,
    encode_entry,
)
from tests.store.support import KEYED, WIDER, columns, conditional, delete, upsert

HOUR = 3_600_000


class Model:
    """A group of `KEYED` or `WIDER` rows."""

    def __init__(self) -> None:
        self.applied = 0
        self.rows: dict[int, str | None] = {}
        self.notes = False
        self.tokens: dict[tuple[str, int], bool] = {}
        self.times: dict[str, int] = {}
        self.fences: dict[str, int] = {}
        self.pins: dict[str, tuple[int, int, dict[int, str | None]]] = {}
        self.ended: set[str] = set()
        self.changes: list[tuple[int, int, int, int]] = []
        self.keeping = False
        self.forgotten = 0
        self.time = 0

    def apply(self, data: bytes, rows: list[dict[str, Any]]) -> None:
        """Apply one entry, given its rows before encoding."""
        self.applied += 1
        entry, _ = decode_entry(data)
        match entry:
            case AddColumns(schema, changes):
                self.notes = self.notes or schema == WIDER
                if changes and not self.keeping:
                    self.forgotten = self.applied
                self.keeping = changes
            case LogTime(at):
                self._keep_time(at)
            case Pin(name, expires, at) if name not in self.ended:
                expires = self._stamped(at) + expires - at if self.time else expires
                index, until, kept = self.pins.get(name, (self.applied, expires, dict(self.rows)))
                self.pins[name] = (index, max(until, expires), kept)
            case Unpin(name):
                self.pins.pop(name, None)
            case Expire():
                self._expire(entry)
            case Hash() | Pin():
                pass
            case Upsert() | Delete() | Conditional():
                self._write(entry, rows)

    def _stamped(self, at: int) -> int:
        """Return an entry's log time, which no stamp moves back or by more than an hour, or its stamp."""
        if not self.time:
            return at
        if 0 < at - self.time <= HOUR:
            self.time = at
        return self.time

    def _keep_time(self, at: int) -> None:
        if self.time:
            self._stamped(at)
            return
        self.time = at
        self.times = {writer: min(time, at) for writer, time in self.times.items()}

    def _expire(self, entry: Expire) -> None:
        if self.time:
            late = max(0, entry.at - self._stamped(entry.at))
            entry = Expire(entry.pins - late, entry.writers - late, entry.changes)
        self.ended |= {name for name, pin in self.pins.items() if pin[1] <= entry.pins}
        self.pins = {name: pin for name, pin in self.pins.items() if name not in self.ended}
        silent = {writer for writer, time in self.times.items() if time <= entry.writers}
        self.tokens = {token: ok for token, ok in self.tokens.items() if token[0] not in silent}
        self.times = {writer: time for writer, time in self.times.items() if writer not in silent}
        if self.keeping:
            self.forgotten = max(self.forgotten, min(entry.changes, self.applied - 1))

    def _write(self, entry: Upsert | Delete | Conditional, rows: list[dict[str, Any]]) -> None:
        at = self._stamped(entry.at)
        token = (entry.writer, entry.sequence)
        if entry.writer and token in self.tokens:
            return
        ok = not isinstance(entry, Conditional) or self._holds(entry.condition, {row["id"] for row in rows})
        if entry.writer:
            self.tokens[token] = ok
            self.times[entry.writer] = max(self.times.get(entry.writer, 0), at)
        gone = isinstance(entry, Delete)
        for place, row in enumerate(rows if ok else []):
            self.rows.pop(row["id"], None)
            if not gone:
                self.rows[row["id"]] = row.get("name")
            if self.keeping:
                self.changes.append((self.applied, place, int(gone), row["id"]))

    def _holds(self, condition: Condition, keys: set[int]) -> bool:
        match condition:
            case Absent():
                return not keys & self.rows.keys()
            case Present():
                return keys <= self.rows.keys()
            case Fence(name, number):
                if number < self.fences.get(name, 0):
                    return False
                self.fences[name] = number
        return True

    def kept_changes(self) -> list[tuple[int, int, int, int]]:
        return [change for change in self.changes if change[0] > self.forgotten]

    def copy(self) -> Model:
        return deepcopy(self)


def random_log(rng: random.Random) -> Iterator[tuple[bytes, list[dict[str, Any]]]]:
    """Yield entries and their rows, such that one applied twice, skipped or out of order changes the state."""
    yield columns(changes=rng.random() < 0.5), []
    wide = False
    index = 1
    while True:
        index += 1
        rows: list[dict[str, Any]] = [
            {"id": rng.randrange(8), "name": f"{index}.{place}"} for place in range(rng.randrange(1, 5))
        ]
        writer = rng.choice(["", "a", "b"])
        token = (writer, max(1, index - rng.choice([0, 0, 0, 7])) if writer else 0)
        schema = WIDER if wide else KEYED
        at = index + rng.choice([0, 0, 0, 0, -20, 2 * HOUR])
        match rng.randrange(21):
            case 0 | 1 | 2:
                yield delete([row["id"] for row in rows], schema, token=token, at=at), rows
            case 3 | 4 | 5:
                conditions: list[Condition] = [Absent(), Present(), Fence("f", rng.randrange(1, index))]
                yield (
                    conditional(rows[:1], rng.choice(conditions), token=("c", token[1] + 1), schema=schema),
                    rows[:1],
                )
            case 6 | 7:
                yield encode_entry(Pin(rng.choice("pqrstuvwxyz"), at + rng.randrange(30), at)), []
            case 8:
                yield encode_entry(Unpin(rng.choice("pqr"))), []
            case 9:
                yield encode_entry(Expire(at, max(0, at - 15), rng.randrange(index), at)), []
            case 10:
                yield encode_entry(Hash()), []
            case 11:
                yield encode_entry(LogTime(max(1, at if at < HOUR else index))), []
            case 12:
                wide = wide or rng.random() < 0.5
                yield columns(WIDER if wide else KEYED, changes=rng.random() < 0.6), []
            case _:
                yield upsert(rows, rng.choice([KEYED, schema]), token=token, at=at), rows
