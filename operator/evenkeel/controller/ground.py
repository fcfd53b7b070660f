"""What all looks of a controller share: the metastore, the epoch that fences its writes, the clocks, the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

from evenkeel.driver import drive, read_at_one_revision
from evenkeel.errors import FencedError
from evenkeel.metastore.api import KeyValue, Metastore, Txn
from evenkeel.metastore.clock import Clock
from evenkeel.metastore.epoch import Epoch
from evenkeel.model.conditions import timestamp
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreLoad
from evenkeel.reconcile.partitions import read_loads
from evenkeel.reconcile.requests import Requests
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
        self._loads: dict[str, StoreLoad] = {}

    @property
    def held(self) -> Epoch:
        """The epoch, as long as nobody said otherwise."""
        assert self.epoch is not None
        return self.epoch

    async def check(self) -> None:
        """Before what no transaction fences, such as statuses: FencedError if another controller is in charge."""
        self.judge_epoch(await self.metastore.get(self.keys.epoch))

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

    async def drive(self, requests: Requests[T]) -> T:
        """Carry out what a reconciliation asks for."""
        return await drive(requests, metastore=self.metastore, epoch=self.held)

    async def commit_all(self, txns: Iterable[Txn]) -> bool:
        """Run transactions, each of which may be refused; whether none was."""
        results = [await self.metastore.txn(txn) for txn in txns]
        return all(result.succeeded for result in results)

    async def snapshot(self, table: str) -> TableSnapshot:
        """A table's keys at one revision."""
        found = await read_at_one_revision(self.metastore, read_table(self.keys, table).prefixes)
        return TableSnapshot(self.keys, table, found)

    # What stores report comes with the watch, and is decoded as it comes: for every look would cost more than the look

    def take_loads(self, kvs: Iterable[KeyValue]) -> None:
        """All reports at one revision."""
        self._loads = read_loads((kv for kv in kvs if kv.key.startswith(self.keys.load(""))), self.keys)

    def take_load(self, key: str, kv: KeyValue | None) -> None:
        """One report that changed."""
        self._loads.pop(key.removeprefix(self.keys.load("")), None)
        if kv is not None:
            self._loads |= read_loads((kv,), self.keys)

    def loads(self) -> Mapping[str, StoreLoad]:
        """What stores report, by store."""
        return self._loads
