"""Concurrent reads and writes, and a ledger of acknowledged rows.

Each row belongs to one writer, which increments the row's version. A reader therefore knows the oldest version it may
see: the one that was acknowledged before the read began. The outcome of a failed write is unknown; its rows are
excluded from the checks.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from demo.facts import Kind, Operation, Tally
from evenkeel.client import Client
from evenkeel.errors import EvenkeelError

__all__ = ["ROWS_PER_WRITE", "Ledger", "Load"]

T = TypeVar("T")
ROWS_PER_WRITE: Final = 8
_PAUSE: Final = 0.02
_DEADLINE: Final = 30.0
_SCHEMA: Final = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(12, 2)), ("version", pa.int64())]
)


class Ledger:
    """The acknowledged rows of one writer, which readers use too."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.unsure: set[int] = set()
        self.writes = 0
        self.stale = 0
        self._ids: list[int] = []

    def acknowledged(self, rows: Sequence[dict[str, Any]]) -> None:
        """Record the rows of one acknowledged write."""
        self.writes += 1
        for row in rows:
            if row["id"] not in self.rows:
                self._ids.append(row["id"])
            self.rows[row["id"]] = row

    def given_up(self, rows: Sequence[dict[str, Any]]) -> None:
        """Record the rows of a failed write, which may still be applied."""
        self.unsure.update(row["id"] for row in rows)

    def some_row(self, rng: Random) -> dict[str, Any] | None:
        """Return a random row as it was last acknowledged."""
        return self.rows[rng.choice(self._ids)] if self._ids else None

    def seen(self, row: dict[str, Any] | None, acknowledged: dict[str, Any]) -> None:
        """Compare the result of a read with the row that was acknowledged before it began."""
        if row is None or row["version"] < acknowledged["version"]:
            self.stale += 1


class Load:
    """Writers and readers on their own threads; a context manager that stops them."""

    def __init__(self, endpoints: Sequence[str], table: str, *, loaded: int, pairs: int, began: float) -> None:
        self.operations: list[Operation] = []
        self._ledgers = [Ledger() for _ in range(pairs)]
        self._client = Client(endpoints, deadline=_DEADLINE)
        self._table = self._client.table(table)
        self._loaded, self._began = loaded, began
        self._errors: list[str] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_over, args=(work,), name=f"{kind} {number}", daemon=True)
            for number, ledger in enumerate(self._ledgers)
            for kind, work in (("writer", self._writes(number, ledger)), ("reader", self._reads(number, ledger)))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Let the operations in progress finish, then stop."""
        if not self._over.is_set():
            self._over.set()
            for thread in self._threads:
                thread.join(_DEADLINE + 5)
            self._client.close()

    def tally(self) -> Tally:
        """Return the totals."""
        return Tally(
            acknowledged=sum(ledger.writes for ledger in self._ledgers),
            rows=sum(len(ledger.rows) for ledger in self._ledgers),
            reads=sum(operation.kind == "read" for operation in self.operations),
            stale=sum(ledger.stale for ledger in self._ledgers),
            unsure=len(self.unsure()),
            errors=list(self._errors),
        )

    def acknowledged(self) -> pa.Table:
        """Return all acknowledged rows as they must be in the table."""
        rows = [row for ledger in self._ledgers for row in ledger.rows.values()]
        return pa.Table.from_pylist(rows, schema=_SCHEMA)

    def unsure(self) -> list[int]:
        """Return the rows whose state is unknown."""
        return sorted(number for ledger in self._ledgers for number in ledger.unsure)

    # Threads

    def _until_over(self, work: Iterator[None]) -> None:
        for _ in work:
            if self._over.wait(_PAUSE):
                return

    def _writes(self, number: int, ledger: Ledger) -> Iterator[None]:
        rng = Random(number)
        pairs = len(self._ledgers)
        fresh = itertools.count(self._loaded + number, pairs)
        for version in itertools.count(1):
            half = ROWS_PER_WRITE // 2
            old = {pairs * rng.randrange(self._loaded // pairs) + number for _ in range(half)}
            rows = [_row(place, version, rng) for place in (*old, *itertools.islice(fresh, half))]
            try:
                self._timed("write", partial(self._table.upsert, rows))
            except EvenkeelError as error:
                ledger.given_up(rows)
                self._errors.append(f"write: {error}")
            else:
                ledger.acknowledged(rows)
            yield

    def _reads(self, number: int, ledger: Ledger) -> Iterator[None]:
        rng = Random(-number - 1)
        while True:
            before = ledger.some_row(rng)
            if before is not None:
                self._read(before, ledger)
            yield

    def _read(self, before: dict[str, Any], ledger: Ledger) -> None:
        try:
            found = self._timed("read", partial(self._table.get, [before["id"]])).to_pylist()
        except EvenkeelError as error:
            self._errors.append(f"read: {error}")
            return
        ledger.seen(found[0] if found else None, before)

    def _timed(self, kind: Kind, call: Callable[[], T]) -> T:
        began = time.monotonic()
        result = call()
        self.operations.append(Operation(kind, began - self._began, time.monotonic() - began))
        return result


def _row(number: int, version: int, rng: Random) -> dict[str, Any]:
    amount = Decimal(rng.randrange(1_000_000)).scaleb(-2)
    return {"id": number, "customer": f"customer-{number % 997}", "amount": amount, "version": version}
