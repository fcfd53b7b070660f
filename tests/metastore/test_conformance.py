"""The behaviour of every metastore; each test runs on the in-memory one and on a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from evenkeel.errors import CompactedError, LeaseNotFoundError, MetastoreError, RefusedError
from evenkeel.metastore.etcd_server import EtcdBinary
from evenkeel.metastore.metastore_api import (
    MAX_TXN_OPS,
    Compare,
    Delete,
    Get,
    Put,
    Snapshot,
    Txn,
    WatchBatch,
    absent,
    unchanged,
)
from tests.metastore.support import (
    TIMEOUT,
    Subject,
    delete,
    events_until,
    events_until_end,
    persistent_txn,
    put,
    shown,
)


async def test_absent_key_reads_as_none(subject: Subject, prefix: str) -> None:
    """A key that was never written is None."""
    assert await subject.store.get(prefix + "a") is None


async def test_put_sets_all_revisions(subject: Subject, prefix: str) -> None:
    """A key has the revisions of its creation and its last change, and the number of changes."""
    created = await subject.store.txn(put(prefix + "a", b"1"))
    changed = await subject.store.txn(put(prefix + "a", b"2"))
    kv = await subject.store.get(prefix + "a")
    assert kv is not None
    assert (kv.value, kv.version, kv.lease) == (b"2", 2, 0)
    assert (kv.create_revision, kv.mod_revision) == (created.revision, changed.revision)
    assert changed.revision == created.revision + 1


async def test_recreated_key_starts_over(subject: Subject, prefix: str) -> None:
    """A key that is deleted and created again is at version 1."""
    await subject.store.txn(put(prefix + "a"))
    await subject.store.txn(delete(prefix + "a"))
    again = await subject.store.txn(put(prefix + "a"))
    kv = await subject.store.get(prefix + "a")
    assert kv is not None
    assert (kv.version, kv.create_revision) == (1, again.revision)


async def test_one_transaction_is_one_revision(subject: Subject, prefix: str) -> None:
    """All keys of a transaction carry the same mod revision."""
    result = await subject.store.txn(Txn(success=(Put(prefix + "a", b""), Put(prefix + "b", b""))))
    snapshot = await subject.store.range(prefix)
    assert [kv.mod_revision for kv in snapshot.kvs] == [result.revision] * 2


async def test_reading_makes_no_revision(subject: Subject, prefix: str) -> None:
    """A transaction that only reads, or deletes nothing, does not change the revision."""
    before = await subject.store.txn(put(prefix + "a"))
    after = await subject.store.txn(Txn(success=(Get(prefix + "a"), Delete(prefix + "none"))))
    assert after.revision == before.revision
    assert after.results[1].deleted == 0


async def test_failed_comparison_runs_the_other_branch(subject: Subject, prefix: str) -> None:
    """If a comparison does not hold, `failure` runs and `success` does not."""
    await subject.store.txn(put(prefix + "a", b"1"))
    txn = Txn((absent(prefix + "a"),), (Put(prefix + "a", b"2"),), (Get(prefix + "a"),))
    result = await subject.store.txn(txn)
    assert not result.succeeded
    assert [kv.value for kv in result.results[0].kvs] == [b"1"]


async def test_many_reads_on_failure_are_of_one_revision(subject: Subject, prefix: str) -> None:
    """All reads of a failed transaction are of the revision at which it failed."""
    keys = [f"{prefix}{number:02}" for number in range(30)]
    fails = Txn((absent(keys[0]),), (Put(keys[0], b""),), tuple(Get(key) for key in keys))
    stop = asyncio.Event()

    async def overwrite() -> None:
        while not stop.is_set():
            await subject.store.txn(Txn(success=tuple(Put(key, b"") for key in keys)))
            await asyncio.sleep(0)

    await subject.store.txn(Txn(success=tuple(Put(key, b"") for key in keys)))
    overwriting = asyncio.create_task(overwrite())
    for _ in range(20):
        result = await subject.store.txn(fails)
        assert not result.succeeded
        assert len({part.kvs[0].mod_revision for part in result.results} | {result.revision}) == 1
    stop.set()
    await overwriting


async def test_all_comparisons_must_hold(subject: Subject, prefix: str) -> None:
    """One comparison that does not hold makes the transaction fail."""
    kv = await subject.store.get(prefix + "a")
    holds, fails = unchanged(prefix + "a", kv), Compare(prefix + "b", "version", ">", 0)
    assert (await subject.store.txn(Txn((holds, holds)))).succeeded
    assert not (await subject.store.txn(Txn((holds, fails, holds)))).succeeded


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare("a", "value", "=", b"m"), True),
        (Compare("a", "value", "!=", b"m"), False),
        (Compare("a", "value", "<", b"n"), True),
        (Compare("a", "value", ">", b"l"), True),
        (Compare("a", "value", ">", b"m"), False),
        (Compare("a", "version", "=", 2), True),
        (Compare("a", "version", "<", 2), False),
        (Compare("a", "mod", ">", 0), True),
        (Compare("a", "create", "!=", 0), True),
        (Compare("none", "mod", "=", 0), True),
        (Compare("none", "create", "=", 0), True),
        (Compare("none", "version", "<", 1), True),
        (Compare("none", "value", "=", b""), False),
        (Compare("none", "value", "!=", b"m"), False),
        (Compare("a", "version", "<", 3, end="b"), True),
        (Compare("a", "version", "<", 2, end="b"), False),
        (Compare("a", "version", "=", 2, end="z"), False),
        (Compare("a", "version", ">", 0, end="z"), True),
        (Compare("a\0", "version", "<", 2, end="z"), True),
        (Compare("m", "mod", "=", 0, end="n"), True),
        (Compare("m", "value", "!=", b"m", end="n"), False),
    ],
)
async def test_comparison(subject: Subject, prefix: str, compare: Compare, *, holds: bool) -> None:
    """Fields compare as numbers or bytes; an absent key has zeros and no value; a range compares every key."""
    await subject.store.txn(put(prefix + "a", b"l"))
    await subject.store.txn(put(prefix + "a", b"m"))
    await subject.store.txn(put(prefix + "b", b"m"))
    end = prefix + compare.end if compare.end else ""
    here = Compare(prefix + compare.key, compare.field, compare.op, compare.operand, end)
    assert (await subject.store.txn(Txn((here,)))).succeeded is holds


async def test_operations_see_earlier_ones(subject: Subject, prefix: str) -> None:
    """A read within a transaction sees its earlier writes."""
    ops = (Get(prefix, prefix=True), Put(prefix + "a", b"1"), Get(prefix, prefix=True), Delete(prefix + "b"))
    await subject.store.txn(put(prefix + "b", b"0"))
    result = await subject.store.txn(Txn(success=(*ops, Get(prefix, prefix=True))))
    seen = [[kv.key for kv in part.kvs] for part in result.results]
    assert seen == [[prefix + "b"], [], [prefix + "a", prefix + "b"], [], [prefix + "a"]]


async def test_prefix_delete(subject: Subject, prefix: str) -> None:
    """A prefix delete removes exactly the keys that start with it, and returns their number."""
    keys = ("a", "a/1", "a/2", "ab", "b")
    await subject.store.txn(Txn(success=tuple(Put(prefix + key, b"") for key in keys)))
    result = await subject.store.txn(delete(prefix + "a/", prefix=True))
    assert result.results[0].deleted == 2
    assert [kv.key for kv in (await subject.store.range(prefix)).kvs] == [prefix + key for key in ("a", "ab", "b")]


@pytest.mark.parametrize(
    "ops",
    [
        (Put("a", b"1"), Put("a", b"2")),
        (Put("a", b"1"), Delete("a")),
        (Delete("a"), Put("a", b"1")),
        (Delete("", prefix=True), Put("a", b"1")),
    ],
)
async def test_key_changed_twice_is_refused(subject: Subject, prefix: str, ops: tuple[Put | Delete, ...]) -> None:
    """A branch that would change a key twice is refused, even if the other branch would run."""
    here = tuple(
        Put(prefix + op.key, op.value) if isinstance(op, Put) else Delete(prefix + op.key, prefix=op.prefix)
        for op in ops
    )
    for txn in (Txn(success=here), Txn(failure=here)):
        with pytest.raises(RefusedError, match="duplicate key"):
            await subject.store.txn(txn)
    assert (await subject.store.range(prefix)).kvs == ()


async def test_most_operations(subject: Subject, prefix: str) -> None:
    """128 comparisons and operations are accepted, 129 are refused and change nothing."""
    keys = [f"{prefix}{number:03}" for number in range(MAX_TXN_OPS + 1)]
    compares, puts = [absent(key) for key in keys], [Put(key, b"") for key in keys]
    for txn in (Txn(tuple(compares)), Txn(success=tuple(puts)), Txn(failure=tuple(puts))):
        with pytest.raises(RefusedError, match="too many operations"):
            await subject.store.txn(txn)
    assert (await subject.store.txn(Txn(tuple(compares[1:]), tuple(puts[1:])))).succeeded
    assert len((await subject.store.range(prefix)).kvs) == MAX_TXN_OPS


async def test_empty_keys_are_refused(subject: Subject) -> None:
    """An empty key is refused."""
    for txn in (Txn((absent(""),)), put("", b""), delete(""), Txn(success=(Get(""),))):
        with pytest.raises(RefusedError):
            await subject.store.txn(txn)
    with pytest.raises(RefusedError):
        await subject.store.get("")


async def test_range_is_ordered_and_exact(subject: Subject, prefix: str) -> None:
    """A range has every key under the prefix in order, and no others."""
    keys = [prefix + key for key in ("x", "x/1", "x/10", "x/2", "xé", "x\U0001f6f6", "y", "w")]
    await subject.store.txn(Txn(success=tuple(Put(key, key.encode()) for key in keys)))
    snapshot = await subject.store.range(prefix + "x")
    assert [kv.key for kv in snapshot.kvs] == sorted(keys[:6])
    assert [kv.value.decode() for kv in snapshot.kvs] == sorted(keys[:6])


async def test_range_at_an_old_revision(subject: Subject, prefix: str) -> None:
    """A past revision can be read as it was."""
    await subject.store.txn(put(prefix + "a", b"1"))
    then = await subject.store.txn(put(prefix + "b", b"1"))
    await subject.store.txn(put(prefix + "a", b"2"))
    await subject.store.txn(delete(prefix + "b"))
    await subject.store.txn(put(prefix + "c", b"1"))
    past = await subject.store.range(prefix, revision=then.revision)
    assert past.revision == then.revision
    assert [(kv.key, kv.value) for kv in past.kvs] == [(prefix + "a", b"1"), (prefix + "b", b"1")]


async def test_range_at_a_compacted_revision(subject: Subject, prefix: str) -> None:
    """A compacted revision cannot be read, except the last compacted one."""
    await subject.store.txn(put(prefix + "a", b"1"))
    result = await subject.store.txn(put(prefix + "a", b"2"))
    await subject.compact(result.revision)
    assert len((await subject.store.range(prefix, revision=result.revision)).kvs) == 1
    with pytest.raises(CompactedError):
        await subject.store.range(prefix, revision=result.revision - 1)


async def test_range_at_a_future_revision(subject: Subject, prefix: str) -> None:
    """A future revision cannot be read."""
    result = await subject.store.txn(put(prefix + "a"))
    with pytest.raises(RefusedError, match="future"):
        await subject.store.range(prefix, revision=result.revision + 1)


async def test_watch_delivers_changes_in_order(subject: Subject, prefix: str) -> None:
    """A watch delivers every change after its snapshot in order, with transactions undivided."""
    await subject.store.txn(put(prefix + "a", b"before"))
    watch = subject.store.watch(prefix, after=await subject.store.range(prefix))
    await subject.store.txn(put(prefix + "a", b"1"))
    both = await subject.store.txn(Txn(success=(Put(prefix + "b", b"2"), Delete(prefix + "a"))))
    await subject.store.txn(put(prefix + "a", b"3"))
    events = await events_until_end(watch, subject.store, prefix)
    assert shown(events) == [("a", b"1"), ("b", b"2"), ("a", None), ("a", b"3")]
    assert [event.mod_revision for event in events[1:3]] == [both.revision] * 2


async def test_watch_starts_in_the_past(subject: Subject, prefix: str) -> None:
    """A watch after an old snapshot first delivers the changes since."""
    snapshot = await subject.store.range(prefix)
    for value in (b"1", b"2"):
        await subject.store.txn(put(prefix + "a", value))
    watch = subject.store.watch(prefix, after=snapshot)
    assert shown(await events_until_end(watch, subject.store, prefix)) == [("a", b"1"), ("a", b"2")]


async def test_watch_catches_up_over_a_long_history(subject: Subject, prefix: str) -> None:
    """A history longer than one of etcd's messages is delivered completely."""
    snapshot = await subject.store.range(prefix)
    for _ in range(15):
        await asyncio.gather(*(subject.store.txn(put(f"{prefix}{number:02}")) for number in range(100)))
    watch = subject.store.watch(prefix, after=snapshot)
    events = await events_until_end(watch, subject.store, prefix)
    assert [event.mod_revision - snapshot.revision for event in events] == list(range(1, 1501))


async def test_watch_keeps_to_its_prefix(subject: Subject, prefix: str) -> None:
    """Changes under other prefixes are not delivered."""
    watch = subject.store.watch(prefix + "x/", after=await subject.store.range(prefix + "x/"))
    for key in ("x", "x0", "x/1", "w"):
        await subject.store.txn(put(prefix + key))
    events = await events_until_end(watch, subject.store, prefix + "x/")
    assert shown(events) == [("1", b"")]


async def test_watch_survives_compaction(subject: Subject, prefix: str) -> None:
    """After compaction a watch delivers the difference: last values and all deletions, each once."""
    for key in ("changed", "deleted", "kept", "reborn"):
        await subject.store.txn(put(prefix + key, b"old"))
    snapshot = await subject.store.range(prefix)
    for key in ("changed", "made"):
        await subject.store.txn(put(prefix + key, b"between"))
        await subject.store.txn(put(prefix + key, b"new"))
    await subject.store.txn(delete(prefix + "reborn"))
    await subject.store.txn(put(prefix + "reborn", b"new"))
    last = await subject.store.txn(delete(prefix + "deleted"))
    await subject.compact(last.revision)
    watch = subject.store.watch(prefix, after=snapshot)
    events = await events_until_end(watch, subject.store, prefix)
    assert shown(events) == [
        ("changed", b"new"),
        ("made", b"new"),
        ("reborn", None),
        ("reborn", b"new"),
        ("deleted", None),
    ]


async def test_watch_at_the_compacted_revision_needs_no_listing(subject: Subject, prefix: str) -> None:
    """A watch after the compacted revision itself loses nothing and delivers every value."""
    await subject.store.txn(put(prefix + "a", b"0"))
    snapshot = await subject.store.range(prefix)
    for value in (b"1", b"2"):
        await subject.store.txn(put(prefix + "a", value))
    await subject.compact(snapshot.revision)
    watch = subject.store.watch(prefix, after=snapshot)
    assert shown(await events_until_end(watch, subject.store, prefix)) == [("a", b"1"), ("a", b"2")]


async def test_deletion_at_the_compacted_revision_is_seen(subject: Subject, prefix: str) -> None:
    """A deletion that is the first change past the snapshot and the compacted revision is not lost."""
    await subject.store.txn(put(prefix + "a", b"0"))
    snapshot = await subject.store.range(prefix)
    deletion = await subject.store.txn(delete(prefix + "a"))
    await subject.compact(deletion.revision)
    watch = subject.store.watch(prefix, after=snapshot)
    assert shown(await events_until_end(watch, subject.store, prefix)) == [("a", None)]


async def test_watch_reports_progress(subject: Subject, prefix: str, etcd_binary: EtcdBinary) -> None:
    """A watch of an unchanged prefix reports the store's progress without events."""
    if etcd_binary.version < (3, 5, 8):
        pytest.skip("before 3.5.8, what etcd answers about its progress cannot be relied on (etcd #15220)")
    watch = subject.store.watch(prefix, after=await subject.store.range(prefix))
    elsewhere = await subject.store.txn(put(prefix[:-1] + "-elsewhere"))
    async with asyncio.timeout(TIMEOUT):
        batch = await anext(watch)
    assert batch.events == ()
    assert batch.revision >= elsewhere.revision


async def test_two_watches_see_the_same(subject: Subject, prefix: str) -> None:
    """Each watch receives all events."""
    snapshot = await subject.store.range(prefix)
    watches = [subject.store.watch(prefix, after=snapshot) for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        seen = [tasks.create_task(events_until(watch, lambda event: event.key.endswith("9"))) for watch in watches]
        for number in range(10):
            await subject.store.txn(put(f"{prefix}{number}"))
    assert shown(seen[0].result()) == shown(seen[1].result()) == [(str(number), b"") for number in range(10)]


async def test_revoking_a_lease_deletes_its_keys(subject: Subject, prefix: str) -> None:
    """Revoking a lease deletes the keys bound to it in one revision, in key order."""
    lease = await subject.store.lease(60)
    for key in ("b", "a"):
        await subject.store.txn(put(prefix + key, b"", lease=lease.id))
    await subject.store.txn(put(prefix + "free"))
    watch = subject.store.watch(prefix, after=await subject.store.range(prefix))
    await lease.revoke()
    assert [kv.key for kv in (await subject.store.range(prefix)).kvs] == [prefix + "free"]
    events = await events_until_end(watch, subject.store, prefix)
    assert shown(events) == [("a", None), ("b", None)]
    assert len({event.mod_revision for event in events}) == 1


async def test_key_put_again_leaves_its_lease(subject: Subject, prefix: str) -> None:
    """A key belongs to the lease of its last put, or to none."""
    first, second = await subject.store.lease(60), await subject.store.lease(60)
    await subject.store.txn(put(prefix + "none", lease=first.id))
    await subject.store.txn(put(prefix + "none"))
    await subject.store.txn(put(prefix + "other", lease=first.id))
    await subject.store.txn(put(prefix + "other", lease=second.id))
    await first.revoke()
    assert [kv.lease for kv in (await subject.store.range(prefix)).kvs] == [0, second.id]
    await second.revoke()


async def test_lost_lease(subject: Subject, prefix: str) -> None:
    """A lease that no longer exists cannot be refreshed or used; revoking it again does nothing."""
    lease = await subject.store.lease(60)
    assert await lease.refresh()
    await lease.revoke()
    await lease.revoke()
    assert not await lease.refresh()
    with pytest.raises(LeaseNotFoundError):
        await subject.store.txn(Txn(success=(Put(prefix + "a", b""), Put(prefix + "b", b"", lease=lease.id))))
    assert (await subject.store.range(prefix)).kvs == ()
    unused = Txn((absent(prefix + "a"),), (), (Put(prefix + "b", b"", lease=lease.id),))
    assert (await subject.store.txn(unused)).succeeded


async def test_cluster_id_is_stable(subject: Subject) -> None:
    """The cluster's identity is constant."""
    assert await subject.store.cluster_id() == await subject.store.cluster_id() != 0


async def test_many_transactions_at_once(subject: Subject, prefix: str) -> None:
    """Concurrent increments by compare-and-swap are not lost."""

    async def increment() -> None:
        while True:
            kv = await subject.store.get(prefix + "n")
            value = str(int(kv.value if kv else b"0") + 1).encode()
            if (await subject.store.txn(Txn((unchanged(prefix + "n", kv),), (Put(prefix + "n", value),)))).succeeded:
                return

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(increment())
    kv = await subject.store.get(prefix + "n")
    assert kv is not None
    assert kv.value == b"20"


async def test_close_ends_watches_and_refuses_requests(subject: Subject, prefix: str) -> None:
    """Closing ends every watch and makes later requests fail at once."""
    watch = subject.store.watch(prefix, after=await subject.store.range(prefix))

    async def follow() -> list[WatchBatch]:
        return [batch async for batch in watch if batch.events]

    following = asyncio.create_task(follow())
    await persistent_txn(subject.store, put(prefix + "a"))
    await subject.store.close()
    async with asyncio.timeout(TIMEOUT):
        await following
    with pytest.raises(MetastoreError, match="closed"):
        await subject.store.get(prefix + "a")


async def test_abandoned_watch_leaves_nothing_behind(subject: Subject, prefix: str) -> None:
    """A watch that is cancelled while it waits ends, and the metastore continues to work."""
    empty = Snapshot(prefix, (await subject.store.range(prefix)).revision, ())
    waiting = asyncio.create_task(events_until(subject.store.watch(prefix, after=empty), lambda _: False))
    await subject.store.txn(put(prefix + "a"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await subject.store.get(prefix + "a") is not None
