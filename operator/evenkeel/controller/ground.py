"""What all looks of a controller share: the metastore, the epoch that fences its writes, the clocks, the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from evenkeel.controller.mirror import Mirror
from evenkeel.controller.reports import Reports
from evenkeel.driver import drive, read_at_one_revision
from evenkeel.errors import FencedError
from evenkeel.metastore.api import KeyValue, Metastore, Txn, TxnResult
from evenkeel.metastore.clock import Clock
from evenkeel.metastore.epoch import Epoch
from evenkeel.model.conditions import timestamp
from evenkeel.protocol.keys import Keys
from evenkeel.reconcile.known import KnownStores, read_stores
from evenkeel.reconcile.requests import Found, Requests
from evenkeel.reconcile.snapshot import TableSnapshot, read_table

__all__ = ["Ground"]

T = TypeVar("T")


class Ground:
    """One controller's footing; `epoch` is there from the moment it is in charge."""

    def __init__(self, metastore: Metastore, *, keys: Keys, clock: Clock, today: Callable[[], float]) -> None:
        self.metastore = metastore
        self.keys = keys
        self.clock = clock
        self.today = today
        self.epoch: Epoch | None = None
        self.mirror = Mirror(keys, clock)
        self.reports = Reports(keys)
        self._written = 0
        """The newest revision that a write of ours has made."""

    @property
    def held(self) -> Epoch:
        """The epoch, as long as nobody said otherwise."""
        assert self.epoch is not None
        return self.epoch

    async def check(self) -> None:
        """Before what no transaction fences, such as statuses: FencedError if another controller is in charge."""
        self.judge_epoch(await self.metastore.get(self.keys.epoch))

    async def begin(self) -> None:
        """Before a look: FencedError if another controller is in charge, and what happened until now is known.

        What a look reads comes from memory, so this is also where it shows that the metastore does not answer.
        """
        found = await self.metastore.range(self.keys.epoch)
        self.judge_epoch(next((kv for kv in found.kvs if kv.key == self.keys.epoch), None))
        await self.mirror.follow(found.revision)

    def judge_epoch(self, kv: KeyValue | None) -> None:
        """FencedError if the epoch is not as it was when it was taken."""
        if kv is None or kv.mod_revision != self.held.mod_revision:
            holder = kv.value.decode(errors="replace") if kv is not None else "nobody"
            raise FencedError(
                f"{self.held.holder} no longer holds {self.keys.epoch}: {holder} does; this controller must stop"
            )

    def now(self) -> str:
        """The moment, as statuses have it."""
        return timestamp(datetime.fromtimestamp(self.today(), UTC))

    # Writing

    async def drive(self, requests: Requests[T]) -> T:
        """Carry out what a reconciliation asks for."""
        return await drive(requests, metastore=self.metastore, epoch=self.held, read=self._read, wrote=self._wrote)

    async def commit_all(self, txns: Iterable[Txn]) -> bool:
        """Run transactions, each of which may be refused; whether none was."""
        results = [await self.metastore.txn(txn) for txn in txns]
        for result in results:
            self._wrote(result)
        return all(result.succeeded for result in results)

    def _wrote(self, result: TxnResult) -> None:
        if result.succeeded:
            self._written = max(self._written, result.revision)

    # Reading

    async def snapshot(self, table: str) -> TableSnapshot:
        """A table's keys at one revision."""
        return TableSnapshot(self.keys, table, await self._read(read_table(self.keys, table).prefixes))

    async def stores(self) -> KnownStores:
        """All stores."""
        if await self.mirror.reached(self._written):
            return self.mirror.stores()
        return read_stores((await self.metastore.range(self.keys.all_stores())).kvs, self.keys)

    async def assignments(self) -> Iterable[KeyValue]:
        """Every key that says who holds or will hold a partition."""
        if await self.mirror.reached(self._written):
            return self.mirror.assignments()
        return (await self.metastore.range(self.keys.assignments())).kvs

    async def _read(self, prefixes: tuple[str, ...]) -> Found:
        if await self.mirror.reached(self._written):
            return self.mirror.read(prefixes)
        return await read_at_one_revision(self.metastore, prefixes)
