"""The reference state machine's queue: what shares a transaction, and who makes it hurry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evenkeel.wire.socket_messages import Applied, Apply, Failed, LoggedEntry, Open, Opened, Restore, SnapshotTaken
from evenkeel_reference.reference_entries import Upsert, encode_entry
from evenkeel_reference.reference_machine import Machine

GROUP, REPLICA = 7, 3


class Patient:
    """A machine that would gather for a minute, with one group open, and what it answered."""

    def __init__(self, directory: Path) -> None:
        self.machine = Machine(directory, gather_seconds=60.0)
        self.answers: asyncio.Queue[Applied | Failed] = asyncio.Queue()
        self._last = 0

    async def open(self) -> None:
        opened: asyncio.Future[Opened | Failed] = asyncio.get_running_loop().create_future()
        self.machine.open(GROUP, REPLICA, Open(), opened.set_result)
        assert await opened == Opened(0, "empty")

    def apply(self, *, size: int = 1, skip: int = 0) -> None:
        """Ask for one more entry to be applied, after some indexes that are raft's own."""
        first, self._last = self._last + 1, self._last + 1 + skip
        entry = LoggedEntry(self._last, encode_entry(Upsert("", 0, b"k", bytes(size))))
        self.machine.apply(GROUP, REPLICA, Apply(first, self._last, [entry]), self.answers.put_nowait)

    async def answered(self, count: int) -> list[Applied | Failed]:
        async with asyncio.timeout(20):
            return [await self.answers.get() for _ in range(count)]


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Patient]:
    patient = Patient(tmp_path)
    await patient.open()
    yield patient
    await patient.machine.stop()


async def test_a_waiting_client_ends_the_gathering(patient: Patient) -> None:
    """Entries nobody waits for gather; once somebody does, all that have come are applied together."""
    for _ in range(3):
        patient.apply()
        await asyncio.sleep(0)
    await patient.machine.look(lambda _: None)
    assert patient.answers.empty()
    await patient.machine.until_applied(GROUP, 2)
    assert await patient.answered(3) == [Applied(1), Applied(2), Applied(3)]


async def test_a_client_that_was_there_before_is_not_kept(patient: Patient) -> None:
    """Whoever waits for an entry that has yet to arrive does not wait any longer than for it."""
    waiting = asyncio.create_task(patient.machine.until_applied(GROUP, 2))
    await asyncio.sleep(0)
    patient.apply()
    assert await patient.answered(1) == [Applied(1)]
    patient.apply()
    await waiting
    assert await patient.answered(1) == [Applied(2)]


async def test_raft_is_not_kept_waiting(patient: Patient) -> None:
    """An index without an entry is raft's own, and it may wait for it."""
    patient.apply()
    patient.apply(skip=1)
    assert await patient.answered(2) == [Applied(1), Applied(3)]


async def test_much_is_applied_at_once(patient: Patient) -> None:
    """Bytes that have gathered are applied without waiting for more."""
    for _ in range(3):
        patient.apply(size=400_000)
    assert await patient.answered(3) == [Applied(1), Applied(2), Applied(3)]


async def test_other_requests_push_what_is_before_them(patient: Patient) -> None:
    """Requests are carried out in their order, so whatever is before one that is not an apply goes with it."""
    patient.apply()
    opened: asyncio.Future[Opened | Failed] = asyncio.get_running_loop().create_future()
    patient.machine.open(GROUP, REPLICA, Open(), opened.set_result)
    patient.apply()
    async with asyncio.timeout(20):
        assert await opened == Opened(1, "ok")
    assert await patient.answered(1) == [Applied(1)]


async def test_stopping_does_not_wait(tmp_path: Path) -> None:
    """What was asked for is done first."""
    patient = Patient(tmp_path)
    await patient.open()
    patient.apply()
    async with asyncio.timeout(20):
        await patient.machine.stop()
    assert patient.answers.get_nowait() == Applied(1)


async def test_a_restore_is_answered_before_sqlite_s_log_is_tidied_up(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is restored is durable in that log; it is copied to its place once nothing else is asked."""
    always = "pragma wal_autocheckpoint = 1"
    monkeypatch.setattr("evenkeel_reference.reference_state._TIDY_UP", always)
    await patient.machine.look(lambda state: state._db.execute(always))
    patient.apply(size=2 << 20)
    await patient.answered(1)
    snapshot, database = tmp_path / "snapshot", tmp_path / "state.db"
    snapshot.mkdir()
    taken: asyncio.Future[SnapshotTaken | Failed] = asyncio.get_running_loop().create_future()
    patient.machine.snapshot(GROUP, REPLICA, snapshot, taken.set_result)
    assert await taken == SnapshotTaken(1, ["about", "rows"])
    state, asked, loop = patient.machine._state, asyncio.Event(), asyncio.get_running_loop()
    monkeypatch.setattr(state, "tidy", lambda: asyncio.run_coroutine_threadsafe(_set(asked), loop))
    before = database.stat().st_mtime_ns
    patient.machine.restore(GROUP, REPLICA, Restore(str(snapshot), 1), patient.answers.put_nowait)
    assert await patient.answered(1) == [Applied(1)]
    async with asyncio.timeout(20):
        await asked.wait()
    assert database.stat().st_mtime_ns == before
    monkeypatch.undo()
    state.tidy()
    assert database.stat().st_mtime_ns > before
    assert not state.untidy


async def _set(event: asyncio.Event) -> None:
    event.set()
