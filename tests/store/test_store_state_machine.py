"""The state machine on an event loop: ordered requests, snapshots beside writes, atomic restores."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.socket_messages import (
    Applied,
    Apply,
    Done,
    Failed,
    LoggedEntry,
    Open,
    Opened,
    Restore,
    SnapshotTaken,
)
from evenkeel_store.engine.log_entries import Expire, Fence, Hash, LogTime, Pin, encode_entry
from evenkeel_store.engine.row_reader import Query
from evenkeel_store.engine.snapshot_files import load_tables, write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.engine.table_engine import Request
from evenkeel_store.engine.table_layout import TableLayout
from evenkeel_store.state_machine.store_state_machine import StoreStateMachine
from tests.store.support import GROUP, KEYED, PLAIN, REPLICA, WIDER, append, columns, conditional, delete, upsert

A, B = {"id": 1, "name": "a", "amount": Decimal("1.00")}, {"id": 2, "name": "b", "amount": None}


class SidecarStub:
    """Sends requests like a sidecar and returns futures of the answers."""

    def __init__(self, state_machine: StoreStateMachine) -> None:
        self.state_machine = state_machine
        state_machine.connected("vol-1")

    def ask(self, method: str, *arguments: Any, group: int = GROUP, replica: int = REPLICA) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        getattr(self.state_machine, method)(group, replica, *arguments, future.set_result)
        return future

    def open(self, group: int = GROUP, replica: int = REPLICA) -> asyncio.Future[Any]:
        return self.ask("open", Open("orders.1", group), group=group, replica=replica)

    def apply(self, first: int, *entries: bytes, group: int = GROUP, replica: int = REPLICA) -> asyncio.Future[Any]:
        logged = [LoggedEntry(first + place, entry) for place, entry in enumerate(entries)]
        return self.ask("apply", Apply(first, first + len(entries) - 1, logged), group=group, replica=replica)

    async def snapshot(self, directory: Path, group: int = GROUP, replica: int = REPLICA) -> SnapshotTaken:
        directory.mkdir()  # noqa: ASYNC240
        taken = await self.ask("snapshot", directory, group=group, replica=replica)
        assert isinstance(taken, SnapshotTaken), taken
        return taken

    async def rows(self, group: int = GROUP, *, at: int | None = None) -> list[dict[str, Any]]:
        def read() -> list[dict[str, Any]]:
            known = self.state_machine.engine.groups[group]
            layout, found = self.state_machine.rows.read(
                known,
                lambda layout: Query(
                    f"SELECT {', '.join(layout.columns)} FROM ({layout.source(layout.columns, at=at)})"
                ),
            )
            rows: list[dict[str, Any]] = found.rename_columns(layout.schema.names).to_pylist()
            return sorted(rows, key=str)

        return await asyncio.to_thread(read)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., SidecarStub]]:
    machines: list[StoreStateMachine] = []

    def run(name: str = "data", *, stopped: SidecarStub | None = None, **options: Any) -> SidecarStub:
        if stopped is not None:
            machines.remove(stopped.state_machine)
        machines.append(StoreStateMachine(tmp_path / name, **options))
        return SidecarStub(machines[-1])

    yield run
    for state_machine in machines:
        await state_machine.stop()


async def test_requests_in_order(start: Callable[..., SidecarStub]) -> None:
    """Requests of a group run one after the other, whatever their kind."""
    store = start()
    futures = [
        store.open(),
        store.apply(1, columns(), upsert([A])),
        store.apply(3, upsert([B])),
        store.ask("destroy"),
        store.open(),
        store.apply(1, columns()),
        store.ask("close"),
    ]
    assert await asyncio.gather(*futures) == [
        Opened(0, "empty"),
        Applied(3),
        Applied(3),
        Done(),
        Opened(0, "empty"),
        Applied(1),
        Done(),
    ]
    assert store.state_machine.volume == "vol-1"


async def test_waiting_for_an_index(start: Callable[..., SidecarStub]) -> None:
    """Waiting for an index ends when it is applied, and is cancelled when the group is closed."""
    store = start()
    await store.open()
    second = asyncio.create_task(store.state_machine.queue.until_applied(GROUP, 2))
    never = asyncio.create_task(store.state_machine.queue.until_applied(GROUP, 99))
    await store.apply(1, columns())
    assert not second.done()
    await store.apply(2, upsert([A]))
    await second
    await store.state_machine.queue.until_applied(GROUP, 1)
    await store.ask("close")
    with pytest.raises(asyncio.CancelledError):
        await never


async def _pausing(
    start: Callable[..., SidecarStub], monkeypatch: pytest.MonkeyPatch
) -> tuple[SidecarStub, VirtualClock]:
    """Return a store that pauses after a round of four milliseconds."""
    clock = VirtualClock()
    store = start(clock=clock)
    engine, loop = store.state_machine.engine, asyncio.get_running_loop()
    apply = engine.apply

    def slowly(requests: Sequence[Request]) -> list[Applied | Failed]:
        asyncio.run_coroutine_threadsafe(asyncio.to_thread(clock.advance, 0.004), loop).result()
        return apply(requests)

    await store.open()
    monkeypatch.setattr(engine, "apply", slowly)
    await store.apply(1, columns())
    return store, clock


async def test_pause_collects_entries(start: Callable[..., SidecarStub], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round entries are collected for twenty times as long as it took, and applied in one transaction."""
    store, clock = await _pausing(start, monkeypatch)
    before = store.state_machine.counters["transactions"]
    gathered = [store.apply(2, upsert([A])), store.apply(3, upsert([B]))]
    clock.advance(0.079)
    await asyncio.sleep(0)
    assert not store.state_machine.queue.applied(GROUP) > 1
    clock.advance(0.001)
    assert await asyncio.gather(*gathered) == [Applied(3), Applied(3)]
    assert store.state_machine.counters["transactions"] == before + 1


@pytest.mark.parametrize("reason", ["a reader", "another request", "a large batch"])
async def test_pause_ends_early(
    start: Callable[..., SidecarStub], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """A waiting reader, a request of another kind or a large batch ends the pause at once."""
    store, _ = await _pausing(start, monkeypatch)
    rows = [{**A, "id": number, "name": "long" * 1000} for number in range(100 if reason == "a large batch" else 1)]
    applied = store.apply(2, upsert(rows))
    if reason == "a reader":
        await store.state_machine.queue.until_applied(GROUP, 2)
    elif reason == "another request":
        await store.ask("close")
    assert await applied == Applied(2)


async def test_partitions_are_found(start: Callable[..., SidecarStub]) -> None:
    """A partition is found by table and number while it is open."""
    store = start()
    await store.open()
    assert store.state_machine.groups.find("orders.1", GROUP) is store.state_machine.engine.groups[GROUP]
    assert store.state_machine.groups.find("orders.1", 8) is None
    await store.ask("close")
    assert store.state_machine.groups.find("orders.1", GROUP) is None


async def test_hashes_are_taken_at_their_barrier(start: Callable[..., SidecarStub]) -> None:
    """Two replicas that apply the same log in different portions have the same hashes at the barriers."""
    one, two = start("one"), start("two")
    log = [columns(), upsert([A]), encode_entry(Hash()), upsert([B]), delete([1]), encode_entry(Hash()), upsert([A])]
    await asyncio.gather(one.open(), two.open())
    await one.apply(1, *log)
    await one.state_machine.background.fold()
    for index, entry in enumerate(log, start=1):
        await two.apply(index, entry)
        await two.state_machine.background.fold()
    hashes = [[await store.state_machine.until_hashed(GROUP, index) for index in (3, 6)] for store in (one, two)]
    assert hashes[0] == hashes[1]
    assert [value.partition(":")[0] for value in hashes[0]] == ["1", "1"]
    assert len(set(hashes[0])) == 2


async def test_hash_while_tables_change(start: Callable[..., SidecarStub], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a barrier before new columns covers the rows as they were, even if it is taken later."""
    one, two = start("one"), start("two")
    log = [columns(), upsert([A, B]), encode_entry(Hash()), columns(WIDER), upsert([A])]
    await asyncio.gather(one.open(), two.open())
    await one.apply(1, *log[:3])
    expected = await one.state_machine.until_hashed(GROUP, 3)
    loop, seen = asyncio.get_running_loop(), list[Any]()
    source = TableLayout.source

    def late(layout: TableLayout, *arguments: Any, **options: Any) -> str:
        if not seen:
            seen.append(layout)
            asyncio.run_coroutine_threadsafe(moved.wait(), loop).result()
        return source(layout, *arguments, **options)

    moved = asyncio.Event()
    monkeypatch.setattr(TableLayout, "source", late)
    await two.apply(1, *log[:3])
    await two.apply(4, *log[3:])
    moved.set()
    assert await two.state_machine.until_hashed(GROUP, 3) == expected
    assert seen[0] is not two.state_machine.engine.groups[GROUP].layout


async def test_snapshot_contains_the_whole_group(start: Callable[..., SidecarStub], tmp_path: Path) -> None:
    """A restored replica has the rows, pins, tokens, fences and changes of the original."""
    one, two = start("one"), start("two")
    log = [
        columns(changes=True),
        upsert([A, B], token=("w", 1)),
        encode_entry(Pin("p", 9, 0)),
        conditional([A | {"name": "new"}], Fence("f", 4), token=("w", 2)),
        delete([2]),
    ]
    await asyncio.gather(one.open(), two.open())
    await one.apply(1, *log[:4])
    await one.state_machine.background.fold()
    await one.apply(5, log[4])
    taken = await one.snapshot(tmp_path / "snapshot")
    assert taken == SnapshotTaken(
        5, ["about", "rows-0.parquet", "old-0.parquet", "changes-0.parquet", "log.parquet", "state"]
    )
    assert await two.ask("restore", Restore(str(tmp_path / "snapshot"), 5)) == Applied(5)
    assert await two.open() == Opened(5, "ok")
    restored = two.state_machine.engine.groups[GROUP]
    assert (restored.unfolded, restored.folded) == (1, 2)
    assert await two.rows() == await one.rows() == [A | {"name": "new"}]
    assert await two.rows(at=3) == await one.rows(at=3) == [A, B]
    metadata = [store.state_machine.engine.groups[GROUP].metadata for store in (one, two)]
    assert metadata[0].pins == metadata[1].pins
    assert metadata[0].fences == metadata[1].fences
    for store in (one, two):
        assert await store.apply(6, upsert([A], token=("w", 1)), encode_entry(Hash())) == Applied(7)
    assert await one.state_machine.until_hashed(GROUP, 7) == await two.state_machine.until_hashed(GROUP, 7)


@pytest.mark.parametrize("kept", [False, True])
async def test_snapshot_with_log_time(start: Callable[..., SidecarStub], tmp_path: Path, kept: bool) -> None:
    """A snapshot with log time has a format that the first release refuses; one without has the old format."""
    one, two = start("one"), start("two")
    await asyncio.gather(one.open(), two.open())
    began = encode_entry(LogTime(70) if kept else Hash())
    await one.apply(1, columns(), upsert([A], token=("w", 1), at=50), began, upsert([B], token=("w", 2), at=80))
    await one.snapshot(tmp_path / "snapshot")
    about = msgspec.json.decode((tmp_path / "snapshot" / "about").read_bytes())
    assert about["format"] == (3 if kept else 2)
    assert await two.ask("restore", Restore(str(tmp_path / "snapshot"), 4)) == Applied(4)
    for store in (one, two):
        group = store.state_machine.engine.groups[GROUP]
        assert group.metadata.time == (80 if kept else 0)
        assert [use.at for use in group.tokens.all()] == [80, 80]


@pytest.mark.parametrize("schema", [KEYED, PLAIN, None])
async def test_snapshot_of_nothing(start: Callable[..., SidecarStub], tmp_path: Path, schema: Any) -> None:
    """A group without rows, or without columns, can be restored elsewhere too."""
    store = start()
    await store.open()
    await store.apply(1, columns(schema) if schema else encode_entry(Expire()))
    assert (await store.snapshot(tmp_path / "snapshot")).index == 1
    await store.open(8, 1)
    assert await store.ask("restore", Restore(str(tmp_path / "snapshot"), 1), group=8, replica=1) == Applied(1)
    if schema:
        assert await store.rows(8) == []


async def test_snapshot_does_not_block_writes(
    start: Callable[..., SidecarStub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While files are written the group applies and folds; the files contain the rows as of the request."""
    proceed = asyncio.Event()
    store = start()
    await store.open()
    await store.apply(1, columns(), upsert([A, B]))
    loop = asyncio.get_running_loop()

    def slow_write(*arguments: Any, throttle: SnapshotThrottle) -> list[str]:
        asyncio.run_coroutine_threadsafe(proceed.wait(), loop).result()
        return write_files(*arguments, throttle=throttle)

    monkeypatch.setattr("evenkeel_store.state_machine.snapshot_jobs.write_files", slow_write)
    (tmp_path / "snapshot").mkdir()
    taking = store.ask("snapshot", tmp_path / "snapshot")
    assert await store.apply(3, delete([1])) == Applied(3)
    await store.state_machine.background.fold()
    assert await store.rows() == [B]
    assert not taking.done()
    proceed.set()
    assert (await taking).index == 2
    await store.open(8, 1)
    await store.ask("restore", Restore(str(tmp_path / "snapshot"), 2), group=8, replica=1)
    assert await store.rows(8) == [A, B]


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "about", "index", "format", "state"])
async def test_damaged_snapshot_changes_nothing(start: Callable[..., SidecarStub], tmp_path: Path, damage: str) -> None:
    """A snapshot that is damaged, incomplete or at another index is refused before anything is replaced."""
    store, directory = start(), tmp_path / "snapshot"
    await store.open()
    await store.apply(1, columns(), upsert([A]))
    await store.snapshot(directory)
    await store.apply(3, upsert([B]))
    rows, about = directory / "rows-0.parquet", directory / "about"
    match damage:
        case "flip":
            rows.write_bytes(bytes([*rows.read_bytes()[:-1], rows.read_bytes()[-1] ^ 1]))
        case "cut":
            rows.write_bytes(rows.read_bytes()[:-1])
        case "missing":
            rows.unlink()
        case "format":
            about.write_text(about.read_text().replace('"format":2', '"format":9'))
        case "about":
            about.write_bytes(b"\xff")
        case "state":
            state = directory / "state"
            state.write_bytes(state.read_bytes().replace(b"orders.1", b"orders.2"))
    answer = await store.ask("restore", Restore(str(directory), 5 if damage == "index" else 2))
    assert isinstance(answer, Failed)
    assert "snapshot" in answer.detail
    assert await store.rows() == [A, B]
    assert await store.apply(4, delete([1])) == Applied(4)


async def test_snapshot_that_cannot_be_loaded(start: Callable[..., SidecarStub], tmp_path: Path) -> None:
    """Files with valid checksums but other columns leave the group unchanged and no tables behind."""
    store = start()
    await store.open()
    await store.apply(1, columns(PLAIN), append([{"text": "x"}]))
    await store.open(8, 1)
    await store.apply(1, columns(), upsert([A]), group=8, replica=1)
    for group, replica, name in ((GROUP, REPLICA, "plain"), (8, 1, "keyed")):
        await store.snapshot(tmp_path / name, group, replica)
    (tmp_path / "keyed" / "rows-0.parquet").write_bytes((tmp_path / "plain" / "rows-0.parquet").read_bytes())
    about = tmp_path / "keyed" / "about"
    text = about.read_text()
    old = text.partition('"rows-0.parquet":"')[2][:64]
    about.write_text(
        text.replace(old, hashlib.sha256((tmp_path / "keyed" / "rows-0.parquet").read_bytes()).hexdigest())
    )
    answer = await store.ask("restore", Restore(str(tmp_path / "keyed"), 2), group=8, replica=1)
    assert "cannot be loaded" in answer.detail
    assert await store.rows(8) == [A]


async def test_steps_of_a_snapshot(
    start: Callable[..., SidecarStub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is written to several files, each one step when it is written and loaded; no row is lost."""
    monkeypatch.setattr("evenkeel_store.engine.snapshot_files.STEP_ROWS", 10)
    steps: list[object] = []
    run_step = SnapshotThrottle.step

    def step(self: SnapshotThrottle, work: Callable[[], object]) -> object:
        steps.append(work)
        return run_step(self, work)

    monkeypatch.setattr(SnapshotThrottle, "step", step)
    store = start()
    await store.open()
    await store.apply(1, columns(), upsert([{"id": n, "name": "x"} for n in range(35)]))
    await store.state_machine.background.fold()
    taken = await store.snapshot(tmp_path / "snapshot")
    assert [name for name in taken.files if name.startswith("rows")] == [f"rows-{n}.parquet" for n in range(4)]
    assert len(steps) == 6
    await store.open(8, 1)
    restore = Restore(str(tmp_path / "snapshot"), 2)
    assert await store.ask("restore", restore, group=8, replica=1) == Applied(2)
    assert len(steps) == 11
    assert sorted(row["id"] for row in await store.rows(8)) == list(range(35))


async def test_number_of_steps_is_bounded(
    start: Callable[..., SidecarStub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table has larger steps instead of more files."""
    monkeypatch.setattr("evenkeel_store.engine.snapshot_files.STEP_ROWS", 10)
    monkeypatch.setattr("evenkeel_store.engine.snapshot_files._MAX_STEPS", 3)
    store = start()
    await store.open()
    await store.apply(1, columns(), upsert([{"id": n, "name": "x"} for n in range(35)]))
    await store.state_machine.background.fold()
    taken = await store.snapshot(tmp_path / "snapshot")
    assert [name for name in taken.files if name.startswith("rows")] == ["rows-0.parquet", "rows-1.parquet"]


async def test_writes_throttle_snapshots(start: Callable[..., SidecarStub], monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying counts as client activity, which slows the copying of snapshots."""
    noted: list[SnapshotThrottle] = []

    def note(throttle: SnapshotThrottle) -> None:
        noted.append(throttle)

    monkeypatch.setattr(SnapshotThrottle, "note_client", note)
    store = start()
    await store.open()
    await store.apply(1, columns())
    assert noted == [store.state_machine.throttle]


async def test_other_groups_go_on_while_one_is_restored(
    start: Callable[..., SidecarStub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a restore the group's own requests wait in order, and other groups go on."""
    store = start()
    await store.open()
    await store.apply(1, columns(), upsert([A]))
    await store.snapshot(tmp_path / "snapshot")
    await store.open(8, 1)
    proceed, loop = asyncio.Event(), asyncio.get_running_loop()

    def slow_load(*arguments: Any, throttle: SnapshotThrottle) -> None:
        asyncio.run_coroutine_threadsafe(proceed.wait(), loop).result()
        load_tables(*arguments, throttle=throttle)

    monkeypatch.setattr("evenkeel_store.state_machine.snapshot_jobs.load_tables", slow_load)
    restoring = store.ask("restore", Restore(str(tmp_path / "snapshot"), 2), group=8, replica=1)
    waiting = store.apply(3, upsert([B]), group=8, replica=1)
    assert await store.apply(3, upsert([B])) == Applied(3)
    assert not waiting.done()
    proceed.set()
    assert (await restoring, await waiting) == (Applied(2), Applied(3))
    assert await store.rows(8) == [A, B]


async def test_restore_of_a_closed_group(start: Callable[..., SidecarStub], tmp_path: Path) -> None:
    """A restore for a replica that is not open is refused and leaves no tables behind."""
    store = start()
    await store.open()
    await store.apply(1, columns(), upsert([A]))
    await store.snapshot(tmp_path / "snapshot")
    answer = await store.ask("restore", Restore(str(tmp_path / "snapshot"), 2), group=8, replica=1)
    assert answer == Failed("group 8 is not open for replica 1: open it first")
    with store.state_machine.engine.database.cursor() as cursor:
        listing = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'rows_%'").fetchall()
    assert len(listing) == 1


async def test_damaged_database_is_set_aside(start: Callable[..., SidecarStub], tmp_path: Path) -> None:
    """An unreadable file is kept for inspection; its groups are damaged until they are restored."""
    store = start()
    await store.open()
    await store.apply(1, columns(), upsert([A]))
    await store.snapshot(tmp_path / "snapshot")
    await store.state_machine.stop()
    file = tmp_path / "data" / "tables.duckdb"
    file.write_bytes(b"\xff" * 100 + file.read_bytes()[100:])
    again = start(stopped=store)
    opened = await again.open()
    assert (opened.applied, opened.state) == (0, "damaged")
    assert "tables.duckdb" in opened.detail
    assert (tmp_path / "data" / "tables.duckdb.damaged").exists()
    assert isinstance(await again.apply(3, upsert([B])), Failed)
    assert await again.ask("restore", Restore(str(tmp_path / "snapshot"), 2)) == Applied(2)
    assert await again.open() == Opened(2, "ok")
    assert await again.rows() == [A]


async def test_two_processes_never_share_a_directory(start: Callable[..., SidecarStub], tmp_path: Path) -> None:
    """A second process fails because the directory is in use."""
    start()
    with pytest.raises(InvalidInputError, match="locked by another process"):
        StoreStateMachine(tmp_path / "data")


async def test_full_disk(start: Callable[..., SidecarStub]) -> None:
    """A store with less free space than its reserve refuses to apply, and says why."""
    store = start(reserve=1 << 60)
    await store.open()
    answer = await store.apply(1, columns())
    assert "which is less than the reserve of" in answer.detail
