"""The queue of the reference state machine: which applies share a transaction, and what ends the wait for more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evenkeel.wire.socket_messages import Applied, Apply, Failed, LoggedEntry, Open, Opened, Restore, SnapshotTaken
from evenkeel_reference.reference_entries import Upsert, encode_entry
from evenkeel_reference.reference_machine import ReferenceMachine

GROUP, REPLICA = 7, 3


class SlowBatching:
    """A machine that would batch applies for a minute, with one open group, and its answers."""

    def __init__(self, directory: Path) -> None:
        self.machine = ReferenceMachine(directory, batch_seconds=60.0)
        self.answers: asyncio.Queue[Applied | Failed] = asyncio.Queue()
        self._last = 0

    async def open(self) -> None:
        opened: asyncio.Future[Opened | Failed] = asyncio.get_running_loop().create_future()
        self.machine.open(GROUP, REPLICA, Open(), opened.set_result)
        assert await opened == Opened(0, "empty")

    def apply(self, *, size: int = 1, skip: int = 0) -> None:
        """Request to apply one more entry, after indexes that belong to raft."""
        first, self._last = self._last + 1, self._last + 1 + skip
        entry = LoggedEntry(self._last, encode_entry(Upsert("", 0, b"k", bytes(size))))
        self.machine.apply(GROUP, REPLICA, Apply(first, self._last, [entry]), self.answers.put_nowait)

    async def answered(self, count: int) -> list[Applied | Failed]:
        async with asyncio.timeout(20):
            return [await self.answers.get() for _ in range(count)]


@pytest.fixture
async def batching(tmp_path: Path) -> AsyncIterator[SlowBatching]:
    slow = SlowBatching(tmp_path)
    await slow.open()
    yield slow
    await slow.machine.stop()


async def test_a_waiting_client_ends_the_batch(batching: SlowBatching) -> None:
    """Applies are batched until a client waits for one; then all of them are applied together."""
    for _ in range(3):
        batching.apply()
        await asyncio.sleep(0)
    await batching.machine.query(lambda _: None)
    assert batching.answers.empty()
    await batching.machine.until_applied(GROUP, 2)
    assert await batching.answered(3) == [Applied(1), Applied(2), Applied(3)]


async def test_a_client_that_waits_already_prevents_batching(batching: SlowBatching) -> None:
    """If a client already waits when an entry arrives, the entry is applied at once."""
    waiting = asyncio.create_task(batching.machine.until_applied(GROUP, 2))
    await asyncio.sleep(0)
    batching.apply()
    assert await batching.answered(1) == [Applied(1)]
    batching.apply()
    await waiting
    assert await batching.answered(1) == [Applied(2)]


async def test_raft_is_not_kept_waiting(batching: SlowBatching) -> None:
    """An index without an entry belongs to raft, which may wait for it: it is applied at once."""
    batching.apply()
    batching.apply(skip=1)
    assert await batching.answered(2) == [Applied(1), Applied(3)]


async def test_much_is_applied_at_once(batching: SlowBatching) -> None:
    """A megabyte of entries is applied without waiting for more."""
    for _ in range(3):
        batching.apply(size=400_000)
    assert await batching.answered(3) == [Applied(1), Applied(2), Applied(3)]


async def test_other_requests_end_the_batch(batching: SlowBatching) -> None:
    """Requests run in order, so a request that is not an apply ends the batch before it."""
    batching.apply()
    opened: asyncio.Future[Opened | Failed] = asyncio.get_running_loop().create_future()
    batching.machine.open(GROUP, REPLICA, Open(), opened.set_result)
    batching.apply()
    async with asyncio.timeout(20):
        assert await opened == Opened(1, "ok")
    assert await batching.answered(1) == [Applied(1)]


async def test_stopping_does_not_wait(tmp_path: Path) -> None:
    """`stop` first carries out the queued requests."""
    batching = SlowBatching(tmp_path)
    await batching.open()
    batching.apply()
    async with asyncio.timeout(20):
        await batching.machine.stop()
    assert batching.answers.get_nowait() == Applied(1)


async def test_a_restore_is_answered_before_the_checkpoint(
    batching: SlowBatching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restored data is durable in SQLite's write-ahead log; the checkpoint runs when the queue is empty."""
    always = "pragma wal_autocheckpoint = 1"
    monkeypatch.setattr("evenkeel_reference.reference_state._AUTOCHECKPOINT", always)
    await batching.machine.query(lambda state: state._db.execute(always))
    batching.apply(size=2 << 20)
    await batching.answered(1)
    snapshot, database = tmp_path / "snapshot", tmp_path / "state.db"
    snapshot.mkdir()
    taken: asyncio.Future[SnapshotTaken | Failed] = asyncio.get_running_loop().create_future()
    batching.machine.snapshot(GROUP, REPLICA, snapshot, taken.set_result)
    assert await taken == SnapshotTaken(1, ["about", "rows"])
    state, asked, loop = batching.machine._state, asyncio.Event(), asyncio.get_running_loop()
    monkeypatch.setattr(state, "checkpoint", lambda: asyncio.run_coroutine_threadsafe(_set(asked), loop))
    before = database.stat().st_mtime_ns
    batching.machine.restore(GROUP, REPLICA, Restore(str(snapshot), 1), batching.answers.put_nowait)
    assert await batching.answered(1) == [Applied(1)]
    async with asyncio.timeout(20):
        await asked.wait()
    assert database.stat().st_mtime_ns == before
    monkeypatch.undo()
    state.checkpoint()
    assert database.stat().st_mtime_ns > before
    assert not state.needs_checkpoint


async def _set(event: asyncio.Event) -> None:
    event.set()
