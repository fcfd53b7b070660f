"""Write and read numbered plans in the metastore.

Plan n of a table consists of its targets in slices, `plans/<table>/<n>/<slice>`, and of `plans/<table>/head`, which
activates them. Slices are written only while the head is still n-1 and the operator holds the epoch. So a head never
exists without exactly the slices that its hash covers. A crash before the head leaves slices that the next attempt at
n overwrites. An operator that takes over continues plan n as stored; a newly computed plan is n+1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Compare, Delete, KeyValue, Op, Put, Txn
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import (
    PlanCounts,
    PlanHead,
    PlanSlice,
    PlanState,
    TargetPeer,
    decode,
    encode,
)

__all__ = ["SLICE", "Plan", "make_plan", "read_plan", "write_plan"]

SLICE = 64
"""Partitions per slice, as in a PartitionAssignment object."""
KEPT = 10
"""Older plans that are kept for `explain`."""
_TXN_OPS = 100
_TXN_BYTES = 1 << 20
"""Below etcd's request limit of 1.5 MiB."""


class Plan(msgspec.Struct, frozen=True):
    """A whole plan in memory."""

    head: PlanHead
    slices: tuple[PlanSlice, ...]

    @property
    def n(self) -> int:
        """The plan's number, which partitions record as their trigger."""
        return self.head.n

    def target(self, partition: int) -> tuple[TargetPeer, ...]:
        """Return one partition's target."""
        return self.slices[partition // SLICE].target(partition)

    def reasons(self, partition: int) -> tuple[str, ...]:
        """Return the reasons of the partition's moves."""
        return self.slices[partition // SLICE].reasons.get(partition, ())


def make_plan(
    rows: Sequence[Sequence[str]],
    *,
    n: int,
    inputs: int,
    voters: int,
    volumes: Mapping[str, str],
    basis: str = "",
    reasons: Mapping[int, Iterable[str]] | None = None,
    state: PlanState = PlanState.ACTIVE,
    counts: PlanCounts | None = None,
) -> Plan:
    """Build plan n; `rows[p]` names partition p's stores, voters first, and `volumes` their present volumes."""
    slices = tuple(
        _slice(rows, first=first, voters=voters, volumes=volumes, reasons=reasons or {})
        for first in range(0, len(rows), SLICE)
    )
    digest = _hash(map(encode, slices))
    head = PlanHead(n=n, hash=digest, inputs=inputs, basis=basis, slices=len(slices), state=state, counts=counts)
    return Plan(head, slices)


def _slice(
    rows: Sequence[Sequence[str]],
    *,
    first: int,
    voters: int,
    volumes: Mapping[str, str],
    reasons: Mapping[int, Iterable[str]],
) -> PlanSlice:
    mine = rows[first : first + SLICE]
    stores = sorted({store for row in mine for store in row})
    index = {store: at for at, store in enumerate(stores)}
    return PlanSlice(
        first=first,
        voters=voters,
        stores=tuple((store, volumes[store]) for store in stores),
        rows=tuple(tuple(index[store] for store in row) for row in mine),
        reasons={p: tuple(reasons[p]) for p in range(first, first + len(mine)) if p in reasons},
    )


def _hash(values: Iterable[bytes]) -> str:
    """Hash the bytes as stored, so that a plan written by another version of Evenkeel keeps its hash."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        digest.update(value)
    return digest.hexdigest()


def write_plan(
    plan: Plan,
    *,
    keys: Keys,
    table: str,
    head_mod: int,
    guards: tuple[Compare, ...],
    beside: tuple[Op, ...] = (),
) -> Iterator[Txn]:
    """Return the transactions that store the plan; each must succeed before the next, and the last activates it.

    `guards` compare the epoch and, if the table may be dropped concurrently, its record. `beside` is written together
    with the head.
    """
    compares = (*guards, Compare(keys.plan_head(table), "mod", "=", head_mod))
    puts: list[Op] = []
    size = 0
    for index, piece in enumerate(plan.slices):
        value = encode(piece)
        if puts and (len(puts) >= _TXN_OPS or size + len(value) > _TXN_BYTES):
            yield Txn(compares, tuple(puts))
            puts, size = [], 0
        puts.append(Put(keys.plan_slice(table, plan.n, index), value))
        size += len(value)
    puts += (Put(keys.plan_head(table), encode(plan.head)), *beside)
    if plan.n > KEPT:
        puts.append(Delete(keys.plan_slices(table, plan.n - KEPT), prefix=True))
    yield Txn(compares, tuple(puts))


def read_plan(head: KeyValue, slices: Iterable[KeyValue]) -> Plan:
    """Decode a stored plan; raise if its slices do not match its head."""
    record = decode(PlanHead, head.value, key=head.key)
    stored = sorted(slices, key=lambda kv: kv.key)
    found = _hash(kv.value for kv in stored)
    if len(stored) != record.slices or found != record.hash:
        raise MalformedRecordError(
            f"plan {record.n} under {head.key!r} does not match its slices ({len(stored)} of {record.slices} found, "
            f"hash {found} instead of {record.hash}); the operator replaces it by a new plan"
        )
    return Plan(record, tuple(decode(PlanSlice, kv.value, key=kv.key) for kv in stored))
