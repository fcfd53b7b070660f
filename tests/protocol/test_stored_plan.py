"""Stored plans: written in slices, activated by their head, read back or refused."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import msgspec
import pytest

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Compare, Delete, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.records import PlanState, encode
from evenkeel.protocol.stored_plan import KEPT, SLICE, Plan, make_plan, read_plan, write_plan
from tests.protocol.support import KEYS, TABLE, holds, put, targets

VOLUMES = {name: f"{name}-1" for name in "abcdefghij"}
GUARD = Compare(KEYS.epoch, "mod", "=", 2)
ETCD_REQUEST = 3 << 19
"""Etcd's default limit of a request, 1.5 MiB."""


def rows(partitions: int, *, seed: int = 0) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.sample("abcdefghij", 3) for _ in range(partitions)]


def plan_of(partitions: int, *, n: int = 1, seed: int = 0, reason: str = "") -> Plan:
    reasons = {p: [reason] for p in range(partitions)} if reason else None
    return make_plan(rows(partitions, seed=seed), n=n, inputs=7, voters=3, volumes=VOLUMES, reasons=reasons)


def transactions(plan: Plan, *, head_mod: int = 0) -> list[Txn]:
    return list(write_plan(plan, keys=KEYS, table=TABLE, head_mod=head_mod, guards=(GUARD,)))


def metastore() -> Mvcc:
    """Return a store in which `GUARD` holds."""
    store = Mvcc(keep_history=False)
    assert holds(put(store, KEYS.epoch, "o1")) == GUARD
    return store


def write(store: Mvcc, plan: Plan) -> None:
    head = store.get(KEYS.plan_head(TABLE))
    for txn in transactions(plan, head_mod=0 if head is None else head.mod_revision):
        assert store.txn(txn).succeeded


def stored_plan(store: Mvcc) -> Plan:
    """Read the plan as a successor would."""
    head = store.get(KEYS.plan_head(TABLE))
    assert head is not None
    n = msgspec.json.decode(head.value)["n"]
    return read_plan(head, store.range(KEYS.plan_slices(TABLE, n)).kvs)


@pytest.mark.parametrize("partitions", [1, SLICE - 1, SLICE, SLICE + 1, 1000])
def test_a_successor_reads_the_plan_as_it_was(partitions: int) -> None:
    """Targets, reasons, number, inputs and hash are read back as written."""
    store, plan = metastore(), plan_of(partitions, n=4, reason="store k joined")
    write(store, plan)
    assert stored_plan(store) == plan
    assert plan.n == 4
    assert len(plan.slices) == -(-partitions // SLICE)
    for partition, row in enumerate(rows(partitions)):
        assert plan.target(partition) == targets(" ".join(row))
        assert plan.reasons(partition) == ("store k joined",)


def test_targets_name_volumes_and_roles() -> None:
    """A target has the stores' present volumes, with learners after the voters."""
    plan = make_plan([["a", "b", "c"]], n=1, inputs=1, voters=2, volumes={"a": "a-1", "b": "b-4", "c": "c-1"})
    assert plan.target(0) == targets("a b@4 c*")
    assert plan.reasons(0) == ()


def test_the_hash_stands_for_the_targets() -> None:
    """Equal targets have equal hashes for any plan number; another target has another hash."""
    assert plan_of(100, n=1).head.hash == plan_of(100, n=2).head.hash
    assert plan_of(100, seed=0).head.hash != plan_of(100, seed=1).head.hash
    moved = make_plan(rows(1), n=1, inputs=7, voters=3, volumes=VOLUMES | {rows(1)[0][0]: "new"})
    assert moved.head.hash != plan_of(1).head.hash


def _bytes(txn: Txn) -> int:
    return sum(len(op.key) + len(op.value) for op in txn.success if isinstance(op, Put))


@pytest.mark.parametrize(
    ("partitions", "reason", "least"),
    [(64, "", 1), (6_400, "", 1), (6_401, "", 2), (20_000, "", 4), (3_000, "x" * 1_500, 5)],
)
def test_large_plans_are_split(partitions: int, reason: str, least: int) -> None:
    """Every transaction is within etcd's limits of operations and bytes, and only the last one writes the head."""
    plan = plan_of(partitions, n=KEPT + 5, reason=reason)
    written = transactions(plan)
    assert len(written) >= least
    assert all(max(len(txn.compares), len(txn.success)) <= MAX_TXN_OPS for txn in written)
    assert all(_bytes(txn) < ETCD_REQUEST for txn in written)
    heads = [op.key == KEYS.plan_head(TABLE) for txn in written for op in txn.success if isinstance(op, Put)]
    assert heads == [False] * len(plan.slices) + [True]
    store = metastore()
    for txn in written:
        assert store.txn(txn).succeeded
    assert stored_plan(store) == plan


def test_a_plan_is_inactive_before_its_head() -> None:
    """After an interruption the old plan is complete; the next attempt at n overwrites the leftovers."""
    first, second = plan_of(10_000, n=1), plan_of(10_000, n=2, seed=1)
    for interrupted in range(len(transactions(second))):
        store = metastore()
        write(store, first)
        head = store.get(KEYS.plan_head(TABLE))
        assert head is not None
        for txn in transactions(second, head_mod=head.mod_revision)[:interrupted]:
            store.txn(txn)
        assert stored_plan(store) == first
        again = plan_of(10_000, n=2, seed=2)
        write(store, again)
        assert stored_plan(store) == again


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("key", [KEYS.epoch, KEYS.plan_head(TABLE)])
def test_every_transaction_is_guarded(at: int, key: str) -> None:
    """An operator that lost the epoch, or whose plan number is taken, writes neither slices nor the head."""
    store = metastore()
    written = transactions(plan_of(10_000))
    for txn in written[:at]:
        assert store.txn(txn).succeeded
    put(store, key, "someone else")
    before = store.revision
    assert not any(store.txn(txn).succeeded for txn in written[at:])
    assert store.revision == before


def test_the_last_plans_are_kept() -> None:
    """Ten older plans are kept for `explain`; older ones are deleted."""
    store = metastore()
    for n in range(1, KEPT + 6):
        write(store, plan_of(70, n=n, seed=n))
    kept = {kv.key.split("/")[-2] for kv in store.range(KEYS.plans(TABLE)).kvs if not kv.key.endswith("head")}
    assert {int(n) for n in kept} == set(range(6, KEPT + 6))
    assert stored_plan(store) == plan_of(70, n=KEPT + 5, seed=KEPT + 5)


def test_deleting_an_old_plan_keeps_other_plans() -> None:
    """Deleting plan 1 keeps plans 10 and 11, whose keys start alike."""
    (txn,) = transactions(plan_of(10, n=KEPT + 1))
    assert [op for op in txn.success if isinstance(op, Delete)] == [Delete(KEYS.plan_slices(TABLE, 1), prefix=True)]


def _tampered(store: Mvcc, change: str) -> None:
    slices = store.range(KEYS.plan_slices(TABLE, 1)).kvs
    if change == "missing":
        store.txn(Txn(success=(Delete(slices[0].key),)))
    elif change == "surplus":
        put(store, KEYS.plan_slice(TABLE, 1, len(slices)), msgspec.Raw(slices[0].value))
    elif change == "other":
        other = encode(plan_of(200, seed=9).slices[1])
        put(store, slices[1].key, msgspec.Raw(other))
    else:
        for one, two in ((0, 1), (1, 0)):
            put(store, slices[one].key, msgspec.Raw(slices[two].value))


@pytest.mark.parametrize("change", ["missing", "surplus", "other", "swapped"])
def test_slices_that_do_not_match_the_head_are_refused(change: str) -> None:
    """A plan whose slices do not match its hash is refused, and the error names the plan."""
    store = metastore()
    write(store, plan_of(200))
    _tampered(store, change)
    with pytest.raises(
        MalformedRecordError, match=rf"plan 1 under '{KEYS.plan_head(TABLE)}' does not match its slices"
    ):
        stored_plan(store)


def test_a_plan_of_another_version_is_read_as_it_was_written() -> None:
    """Slices written by another version, with other fields or in another order, still match their hash."""
    store = metastore()
    plan = plan_of(SLICE + 1)
    values = [msgspec.json.encode({"notes": "later", **msgspec.to_builtins(piece)}) for piece in plan.slices]
    digest = hashlib.blake2b(b"".join(values), digest_size=16).hexdigest()
    for index, value in enumerate(values):
        put(store, KEYS.plan_slice(TABLE, 1, index), msgspec.Raw(value))
    put(store, KEYS.plan_head(TABLE), msgspec.structs.replace(plan.head, hash=digest))
    assert stored_plan(store).slices == plan.slices


@pytest.mark.parametrize("state", PlanState)
def test_the_state_is_kept(state: PlanState) -> None:
    """A plan that awaits approval is still awaiting it for a successor."""
    names: Sequence[Sequence[str]] = rows(3)
    store = metastore()
    write(store, make_plan(names, n=1, inputs=7, voters=3, volumes=VOLUMES, state=state))
    assert stored_plan(store).head.state is state
