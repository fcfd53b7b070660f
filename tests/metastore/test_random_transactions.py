"""The same random transactions on Mvcc and on a real etcd: all results and the whole history must be equal.

The simulations and the explorer rely on this.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from aetcd import rpc

from evenkeel.errors import CompactedError, MetastoreError
from evenkeel.metastore._etcd_errors import translate
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer
from evenkeel.metastore.metastore_api import Compare, Delete, Event, Get, Op, Put, Snapshot, Txn, TxnResult
from evenkeel.metastore.mvcc import Mvcc
from tests.metastore.support import END, compact_etcd, events_until, put, settings_for

ROUNDS = 500
PREFIXES = ("", "a", "a/", "a/b", "b/", "none/")
KEYS = ("a", "a/1", "a/2", "a/b", "a/b/1", "ab", "b", "b/1", "é", "\U0001f6f6")
VALUES = (b"", b"x", b"y", b"\x00\xff")


class Pair:
    """Mvcc and etcd, given the same operations."""

    def __init__(self, etcd: EtcdMetastore, server: EtcdServer, rng: random.Random) -> None:
        self.mvcc = Mvcc()
        self.etcd = etcd
        self.rng = rng
        self._server = server
        self._leases: list[int] = []

    async def step(self) -> None:
        action = self.rng.choices(
            (self.transaction, self.old_range, self.grant, self.revoke, self.compact), (80, 10, 4, 3, 3)
        )[0]
        await action()

    async def transaction(self) -> None:
        txn = self.random_txn()
        theirs = await outcome(lambda: self.etcd.txn(txn))
        assert theirs == await outcome(lambda: self.mvcc.txn(txn)), txn

    async def old_range(self) -> None:
        prefix = self.rng.choice(PREFIXES)
        revision = self.rng.randint(max(1, self.mvcc.compacted - 2), self.mvcc.revision + 1)
        theirs = await outcome(lambda: self.etcd.range(prefix, revision=revision))
        assert theirs == await outcome(lambda: self.mvcc.range(prefix, revision)), (prefix, revision)

    async def grant(self) -> None:
        lease = await self.etcd.lease(600)
        self._leases.append(self.mvcc.grant_lease(lease.id))

    async def revoke(self) -> None:
        if self._leases:
            lease = self.rng.choice(self._leases)
            theirs = await outcome(lambda: revoke_in_etcd(self._server.endpoint, lease))
            assert theirs == await outcome(lambda: self.mvcc.revoke_lease(lease))

    async def compact(self) -> None:
        revision = self.rng.randint(max(1, self.mvcc.compacted - 1), self.mvcc.revision)
        if revision > self.mvcc.compacted:
            await compact_etcd(self._server.endpoint, revision)
            self.mvcc.compact(revision)

    def random_txn(self) -> Txn:
        compares = tuple(self.random_compare() for _ in range(self.rng.randint(0, 3)))
        success, failure = (tuple(self.random_op() for _ in range(self.rng.randint(0, 4))) for _ in range(2))
        if self.rng.random() < 0.2:
            failure = (*(Get(key) for key in KEYS), Get(self.rng.choice(PREFIXES), prefix=True))
        return Txn(compares, success, failure)

    def random_compare(self) -> Compare:
        key = self.rng.choice(KEYS)
        kv = self.mvcc.get(key)
        field = self.rng.choice(("mod", "create", "version", "value"))
        if field == "value":
            operand: int | bytes = self.rng.choice((*VALUES, kv.value if kv else b""))
        else:
            true = (kv.mod_revision, kv.create_revision, kv.version) if kv else (0,)
            operand = max(0, self.rng.choice(true) + self.rng.choice((-1, 0, 0, 0, 1)))
        end = self.rng.choice(("", "", f"{key}\0", f"{key}z", "zz"))
        return Compare(key, field, self.rng.choice(("=", "=", "=", "!=", "<", ">")), operand, end)  # type: ignore[arg-type]

    def random_op(self) -> Op:
        kind: type[Delete | Get] | None = self.rng.choices((None, Delete, Get), (5, 2, 3))[0]
        if kind is None:
            lease = self.rng.choice((0, 0, *self._leases[-3:], 12345 if self.rng.random() < 0.05 else 0))
            return Put(self.rng.choice(KEYS), self.rng.choice(VALUES), lease)
        if self.rng.random() < 0.3:
            return kind(self.rng.choice(PREFIXES), prefix=True)
        return kind(self.rng.choice(KEYS))


async def outcome(
    action: Callable[[], object],
) -> TxnResult | Snapshot | type[MetastoreError] | object:
    """Return an action's result, or the type of its error."""
    try:
        result = action()
        return await result if hasattr(result, "__await__") else result
    except MetastoreError as error:
        return type(error)


async def revoke_in_etcd(endpoint: str, lease: int) -> None:
    async with rpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        try:
            await rpc.LeaseStub(channel).LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease))
        except rpc.AioRpcError as error:
            raise translate(error) from error


async def history_of_etcd(etcd: EtcdMetastore, after: int) -> list[Event]:
    """Return the events of a watch of all keys since one revision."""
    watch = etcd.watch("", after=Snapshot("", after, ()))
    return await events_until(watch, lambda event: event.key == END)


@pytest.mark.parametrize("seed", range(4))
async def test_mvcc_behaves_like_etcd(new_server: Callable[..., EtcdServer], seed: int) -> None:
    """Hundreds of random transactions, past reads, leases and compactions have equal results on both."""
    async with (
        new_server(fsync=False) as server,
        EtcdMetastore(settings_for(server.endpoint, page_keys=3)) as etcd,
    ):
        pair = Pair(etcd, server, random.Random(seed))
        for _ in range(ROUNDS):
            await pair.step()
        assert await etcd.range("") == pair.mvcc.range("")
        assert await etcd.txn(put(END)) == pair.mvcc.txn(put(END))
        compacted = max(pair.mvcc.compacted, 1)
        assert await history_of_etcd(etcd, compacted) == pair.mvcc.changes("", compacted)
        with pytest.raises(CompactedError):
            pair.mvcc.changes("", pair.mvcc.compacted - 1)
