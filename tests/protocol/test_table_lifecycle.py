"""Creating, keeping and dropping tables, and crashes in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evenkeel.errors import PlanningError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Compare, Delete, KeyValue, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol import table_lifecycle
from evenkeel.protocol.records import (
    Leader,
    Lock,
    Planned,
    Retarget,
    Stable,
    TableRecord,
    TableState,
    Tombstone,
    decode,
    encode,
)
from evenkeel.protocol.stored_plan import Plan, make_plan, read_plan, write_plan
from tests.protocol.support import KEYS, TABLE, holds, peers, put, queue, shown

PARTITIONS = 130
RECORD = TableRecord(partitions=PARTITIONS, replicas=3, consensus_size=3, retarget=Retarget.QUEUE)
VOLUMES = {"a": "a-1", "b": "b-1", "c": "c-1"}
EVERYWHERE = tuple(VOLUMES.items())


def metastore() -> tuple[Mvcc, Compare]:
    store = Mvcc(keep_history=False)
    return store, holds(put(store, KEYS.epoch, "o1"))


def found(store: Mvcc, key: str) -> KeyValue:
    kv = store.get(key)
    assert kv is not None, key
    return kv


def first_plan(partitions: int = PARTITIONS, *, voters: int = 3) -> Plan:
    return make_plan([["a", "b", "c"]] * partitions, n=1, inputs=1, voters=voters, volumes=VOLUMES)


def next_transactions(store: Mvcc, epoch: Compare) -> Iterator[Txn]:
    """Return the remaining transactions of a creation, as any operator derives them from the keys."""
    record = store.get(KEYS.table(TABLE))
    head = store.get(KEYS.plan_head(TABLE))
    if record is None:
        yield table_lifecycle.announce(RECORD, keys=KEYS, table=TABLE, epoch=epoch)
    elif head is None:
        yield from write_plan(first_plan(), keys=KEYS, table=TABLE, head_mod=0, guards=(epoch, holds(record)))
    elif state(store) is TableState.CREATING:
        plan = read_plan(head, store.range(KEYS.plan_slices(TABLE, 1)).kvs)
        missing = [p for p in range(PARTITIONS) if store.get(KEYS.partition(TABLE, p).stable) is None]
        yield from table_lifecycle.genesis(plan, missing, keys=KEYS, table=TABLE, record=record, epoch=epoch)
        yield table_lifecycle.make_ready(record, keys=KEYS, table=TABLE, epoch=epoch)


def state(store: Mvcc) -> TableState:
    return decode(TableRecord, found(store, KEYS.table(TABLE)).value, key="table").state


def create(store: Mvcc, epoch: Compare, *, transactions: int = 1_000) -> int:
    """Create until done or until this many transactions have succeeded; return their number."""
    ran = 0
    while txns := list(next_transactions(store, epoch)):
        for txn in txns:
            if ran == transactions:
                return ran
            assert store.txn(txn).succeeded
            ran += 1
    return ran


def contents(store: Mvcc) -> dict[str, bytes]:
    return {kv.key: kv.value for kv in store.range(KEYS.root).kvs if kv.key != KEYS.epoch}


def test_creation() -> None:
    """A created table is ready; its stable keys are genesis, with the plan's number as ids; its trigger is set."""
    store, epoch = metastore()
    create(store, epoch)
    assert state(store) is TableState.READY
    for partition in range(PARTITIONS):
        keys = KEYS.partition(TABLE, partition)
        stable = decode(Stable, found(store, keys.stable).value, key=keys.stable)
        assert stable.genesis
        assert shown(stable.peers) == "a1 b1 c1"
        assert found(store, keys.trigger).value == b"1"
        assert store.get(keys.pending) is None


def test_creation_is_resumed_wherever_it_stopped() -> None:
    """After any transaction another operator can take over and writes the same keys; the last one makes it ready."""
    undisturbed, epoch = metastore()
    whole = create(undisturbed, epoch)
    assert whole > 4
    for stopped in range(whole + 1):
        store, epoch = metastore()
        create(store, epoch, transactions=stopped)
        assert (store.get(KEYS.table(TABLE)) is not None and state(store) is TableState.READY) == (stopped == whole)
        successor = holds(put(store, KEYS.epoch, "o2"))
        create(store, successor)
        assert contents(store) == contents(undisturbed)


def test_creation_stays_within_etcds_limits() -> None:
    """Partitions are created in batches of one transaction each."""
    store, epoch = metastore()
    create(store, epoch, transactions=2)
    sizes = [max(len(txn.compares), len(txn.success)) for txn in next_transactions(store, epoch)]
    assert len(sizes) == 4
    assert max(sizes) <= MAX_TXN_OPS


@pytest.mark.parametrize("key", [KEYS.epoch, KEYS.table(TABLE), KEYS.partition(TABLE, 7).stable])
def test_creation_fails_on_changed_keys(key: str) -> None:
    """A genesis batch fails if the record has changed or a partition already has stable."""
    store, epoch = metastore()
    create(store, epoch, transactions=2)
    batch = next(next_transactions(store, epoch))
    put(store, key, RECORD)
    before = contents(store)
    assert not store.txn(batch).succeeded
    assert contents(store) == before


@pytest.mark.parametrize("key", [KEYS.epoch, KEYS.table(TABLE), KEYS.tombstone(TABLE)])
def test_a_table_is_announced_once(key: str) -> None:
    """A table that exists, or whose uid was dropped, is not announced again; nor by a fenced operator."""
    store, epoch = metastore()
    put(store, key, Tombstone(()))
    assert not store.txn(table_lifecycle.announce(RECORD, keys=KEYS, table=TABLE, epoch=epoch)).succeeded


def test_an_announced_table_is_creating() -> None:
    """A table starts as creating, whatever the state of the given record."""
    store, epoch = metastore()
    ready = TableRecord(partitions=1, replicas=1, consensus_size=1, state=TableState.READY)
    assert store.txn(table_lifecycle.announce(ready, keys=KEYS, table=TABLE, epoch=epoch)).succeeded
    assert state(store) is TableState.CREATING


def test_a_partition_without_voters_is_not_created() -> None:
    """A first plan of learners only stops the creation with an error, and writes nothing."""
    store, epoch = metastore()
    record = put(store, KEYS.table(TABLE), RECORD)
    batches = table_lifecycle.genesis(
        first_plan(2, voters=0), [0, 1], keys=KEYS, table=TABLE, record=record, epoch=epoch
    )
    with pytest.raises(PlanningError, match="cannot create partition 0: plan 1 gives it no voter; add stores"):
        list(batches)


def test_states_keep_the_rest_of_the_record() -> None:
    """Marking a table ready or dropping changes only its state, and only of the record that was read."""
    store, epoch = metastore()
    record = put(store, KEYS.table(TABLE), RECORD)
    ready = table_lifecycle.make_ready(record, keys=KEYS, table=TABLE, epoch=epoch)
    dropping = table_lifecycle.mark_dropping(record, keys=KEYS, table=TABLE, epoch=epoch)
    assert store.txn(ready).succeeded
    assert not store.txn(dropping).succeeded
    record = found(store, KEYS.table(TABLE))
    assert store.txn(table_lifecycle.mark_dropping(record, keys=KEYS, table=TABLE, epoch=epoch)).succeeded
    kept = decode(TableRecord, found(store, KEYS.table(TABLE)).value, key="table")
    assert kept.state is TableState.DROPPING
    assert (kept.partitions, kept.retarget) == (PARTITIONS, Retarget.QUEUE)


def busy(store: Mvcc, epoch: Compare, table: str = TABLE) -> None:
    """Return a table with a key of every kind."""
    create(store, epoch)
    for partition in (0, 1, 129):
        keys = KEYS.partition(table, partition)
        put(store, keys.pending, queue("a1 b1 d2"))
        put(store, keys.planned, Planned(peers("a1")))
        put(store, keys.lock, Lock(token=3, term=1))
        put(store, KEYS.leader(table, partition), Leader("a", 3))
        put(store, KEYS.leader_target(table, partition), "b")
    put(store, KEYS.rebalancer_context(table), {})


def dropped() -> tuple[Mvcc, Compare]:
    store, epoch = metastore()
    busy(store, epoch)
    put(store, KEYS.store("a"), {"volume": "a-1"})
    for partition in (0, 1):
        put(store, KEYS.partition(f"{TABLE}0", partition).stable, Stable(peers("a1")))
    put(store, KEYS.table(f"{TABLE}0"), RECORD)
    record = found(store, KEYS.table(TABLE))
    assert store.txn(table_lifecycle.mark_dropping(record, keys=KEYS, table=TABLE, epoch=epoch)).succeeded
    record = found(store, KEYS.table(TABLE))
    assert store.txn(table_lifecycle.drop(record, EVERYWHERE, keys=KEYS, table=TABLE, epoch=epoch)).succeeded
    return store, epoch


def test_a_drop_leaves_only_the_tombstone() -> None:
    """One transaction deletes every key of the table; other tables' and the stores' keys stay."""
    store, _ = dropped()
    left = [kv.key for kv in store.range(KEYS.root).kvs if TABLE in kv.key and f"{TABLE}0" not in kv.key]
    assert left == [KEYS.tombstone(TABLE)]
    assert decode(Tombstone, found(store, left[0]).value, key="t") == Tombstone(EVERYWHERE)
    assert store.get(KEYS.store("a")) is not None
    assert store.get(KEYS.table(f"{TABLE}0")) is not None
    assert store.get(KEYS.partition(f"{TABLE}0", 1).stable) is not None


@pytest.mark.parametrize("key", [KEYS.epoch, KEYS.table(TABLE)])
def test_a_drop_is_guarded(key: str) -> None:
    """A fenced operator, or one that read another record, deletes nothing."""
    store, epoch = metastore()
    busy(store, epoch)
    txn = table_lifecycle.drop(found(store, KEYS.table(TABLE)), EVERYWHERE, keys=KEYS, table=TABLE, epoch=epoch)
    put(store, key, RECORD)
    before = contents(store)
    assert not store.txn(txn).succeeded
    assert contents(store) == before


def test_transactions_in_flight_fail_after_a_drop() -> None:
    """A plan, a batch of partitions or a change of state does not recreate a key of a dropped table."""
    store, epoch = metastore()
    create(store, epoch, transactions=1)
    late = list(write_plan(first_plan(), keys=KEYS, table=TABLE, head_mod=0, guards=(epoch, holds(record_of(store)))))
    late += table_lifecycle.genesis(first_plan(), [0], keys=KEYS, table=TABLE, record=record_of(store), epoch=epoch)
    late.append(table_lifecycle.make_ready(record_of(store), keys=KEYS, table=TABLE, epoch=epoch))
    late.append(table_lifecycle.announce(RECORD, keys=KEYS, table=TABLE, epoch=epoch))
    assert store.txn(table_lifecycle.drop(record_of(store), EVERYWHERE, keys=KEYS, table=TABLE, epoch=epoch)).succeeded
    before = contents(store)
    assert not any(store.txn(txn).succeeded for txn in late)
    assert contents(store) == before


def record_of(store: Mvcc) -> KeyValue:
    return found(store, KEYS.table(TABLE))


def test_every_volume_confirms() -> None:
    """Each volume removes itself from the tombstone once; a volume that is not listed writes nothing."""
    store, epoch = dropped()
    key = KEYS.tombstone(TABLE)
    for name, volume in reversed(EVERYWHERE):
        tombstone = found(store, key)
        assert table_lifecycle.confirm_drop(tombstone, store=name, volume="another") is None
        assert table_lifecycle.confirm_drop(tombstone, store="z", volume=volume) is None
        assert table_lifecycle.remove_tombstone(tombstone, gone=lambda *_: False, epoch=epoch) is None
        txn = table_lifecycle.confirm_drop(tombstone, store=name, volume=volume)
        assert txn is not None
        assert store.txn(txn).succeeded
        assert not store.txn(txn).succeeded
        assert table_lifecycle.confirm_drop(found(store, key), store=name, volume=volume) is None
    txn = table_lifecycle.remove_tombstone(found(store, key), gone=lambda *_: False, epoch=epoch)
    assert txn is not None
    assert store.txn(txn).succeeded
    assert store.get(key) is None


def test_confirmations_that_race_are_both_kept() -> None:
    """If two volumes confirm concurrently, the second one fails and retries, so no confirmation is lost."""
    store, _ = dropped()
    key = KEYS.tombstone(TABLE)
    one, other = (table_lifecycle.confirm_drop(found(store, key), store=s, volume=f"{s}-1") for s in "ab")
    assert one is not None
    assert other is not None
    assert store.txn(one).succeeded
    assert not store.txn(other).succeeded
    again = table_lifecycle.confirm_drop(found(store, key), store="b", volume="b-1")
    assert again is not None
    assert store.txn(again).succeeded
    assert decode(Tombstone, found(store, key).value, key=key) == Tombstone((("c", "c-1"),))


@pytest.mark.parametrize(
    ("gone", "buried"),
    [((), False), ((("a", "a-1"), ("b", "b-1")), False), (EVERYWHERE, True)],
)
def test_a_tombstone_stays_while_a_volume_may_hold_data(gone: tuple[tuple[str, str], ...], buried: bool) -> None:
    """A tombstone is removed only when all volumes it waits for are lost for good."""
    store, epoch = dropped()
    tombstone = found(store, KEYS.tombstone(TABLE))
    txn = table_lifecycle.remove_tombstone(tombstone, gone=lambda name, volume: (name, volume) in gone, epoch=epoch)
    assert (txn is not None) == buried


@pytest.mark.parametrize("key", [KEYS.epoch, KEYS.tombstone(TABLE)])
def test_removing_a_tombstone_is_guarded(key: str) -> None:
    """A tombstone that has changed, or whose operator is fenced, is not removed."""
    store, epoch = dropped()
    txn = table_lifecycle.remove_tombstone(found(store, KEYS.tombstone(TABLE)), gone=lambda *_: True, epoch=epoch)
    assert txn is not None
    put(store, key, Tombstone(()))
    assert not store.txn(txn).succeeded
    assert store.get(KEYS.tombstone(TABLE)) is not None


def test_a_drop_is_one_transaction_whatever_the_tables_size() -> None:
    """Prefix deletes keep a drop within etcd's limit, and do not overlap what the transaction puts."""
    store, epoch = metastore()
    txn = table_lifecycle.drop(put(store, KEYS.table(TABLE), RECORD), EVERYWHERE, keys=KEYS, table=TABLE, epoch=epoch)
    assert len(txn.success) < 20
    assert [op.key for op in txn.success if isinstance(op, Put)] == [KEYS.tombstone(TABLE)]
    assert all(isinstance(op, (Delete, Put)) for op in txn.success)
    assert encode(Tombstone(EVERYWHERE)) == txn.success[-1].value  # type: ignore[union-attr]
