"""Rows applied and read by a store, compared with a plain DuckDB on the same machine in the same run.

Applying is measured on the state machine itself, without raft: entries sent one at a time, and 64 at once, as a busy
log sends them. The time includes folding everything at the end. The plain DuckDB upserts the same batches into one
table with a primary key, in one transaction each. Scans go through Flight on loopback; the reference is DuckDB
returning the same rows as Arrow.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from bench._store_cluster import cluster_rows
from bench._store_moves import move_rows
from bench._store_rows import KEYS, SCHEMA, batches_of, open_plain, upsert_plain
from bench.report import Row
from evenkeel.protocol.keys import Keys
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.wire.socket_messages import Applied, Apply, LoggedEntry, Open, ReadAt
from evenkeel_store.engine.log_entries import AddColumns, Upsert, encode_entry
from evenkeel_store.serving.flight_server import FlightServer
from evenkeel_store.serving.store_service import StoreService
from evenkeel_store.state_machine.store_state_machine import StoreStateMachine

ROUNDS: Final = 3
AMOUNTS: Final = {256: 60_000, 4_096: 400_000, 65_536: 800_000}
GROUP, REPLICA = 1, 1


def rows() -> Iterator[Row]:
    """Yield the rows of a single store, then those of a cluster of three."""
    yield from asyncio.run(_measure())
    yield from cluster_rows()
    yield from move_rows()


async def _measure() -> list[Row]:
    found = []
    for size, amount in AMOUNTS.items():
        batches = batches_of(size, max(3, amount // size))
        pairs = []
        for _ in range(ROUNDS):
            plain = _timed_plain(batches)
            pairs.append((plain, await _timed_apply(batches, at_once=1), await _timed_apply(batches, at_once=64)))
        total = size * len(batches)
        for place, how in ((1, "one at a time"), (2, "64 at once")):
            reference, seconds = sorted(((p[0], p[place]) for p in pairs), key=lambda pair: pair[0] / pair[1])[
                ROUNDS // 2
            ]
            case = f"upserts of {size} rows, applied {how}, vs plain DuckDB"
            found.append(Row("store", case, total / seconds, "rows/s", total / reference, reference / seconds))
    found.append(await _scan())
    return found


def _timed_plain(batches: Sequence[pa.RecordBatch]) -> float:
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory, open_plain(Path(directory)) as con:
        return upsert_plain(con, batches)


async def _timed_apply(batches: Sequence[pa.RecordBatch], *, at_once: int) -> float:
    entries = [encode_entry(Upsert("w", n, SCHEMA.version, 0), batch) for n, batch in enumerate(batches)]
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        machine = await _machine(Path(directory))
        started = time.perf_counter()
        for begin in range(0, len(entries), at_once):
            asked = [
                _apply(machine, begin + place + 2, entry)
                for place, entry in enumerate(entries[begin : begin + at_once])
            ]
            await asyncio.gather(*asked)
        await machine.background.fold()
        seconds = time.perf_counter() - started
        await machine.stop()
    return seconds


async def _machine(directory: Path) -> StoreStateMachine:
    machine = StoreStateMachine(directory)
    machine.connected("bench")
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    machine.open(GROUP, REPLICA, Open("t.1", 0), opened.set_result)
    await opened
    await _apply(machine, 1, encode_entry(AddColumns(SCHEMA)))
    return machine


def _apply(machine: StoreStateMachine, index: int, entry: bytes) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(body: object) -> None:
        assert isinstance(body, Applied), body
        future.set_result(body)

    machine.apply(GROUP, REPLICA, Apply(index, index, [LoggedEntry(index, entry)]), answer)
    return future


class _NoSidecar:
    """Answers that everything applied is everything committed."""

    def __init__(self, machine: StoreStateMachine) -> None:
        self._machine = machine

    async def read_index(self, group: int, replica: int) -> ReadAt:
        return ReadAt(self._machine.queue.applied(group))


async def _scan() -> Row:
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        machine = await _machine(Path(directory))
        whole = pa.Table.from_batches([pa.concat_batches(batches_of(KEYS, 1))])
        for place, batch in enumerate(whole.to_batches(max_chunksize=65_536)):
            await _apply(machine, place + 2, encode_entry(Upsert("", 0, SCHEMA.version, 0), batch))
        await machine.background.fold()
        routes = RoutingTable(Keys(namespace="bench", store_cluster="bench"))
        service = StoreService(machine, _NoSidecar(machine), routes, store="bench")  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        server = FlightServer(service, host="127.0.0.1", port=0, loop=loop)
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")

        def through_flight() -> pa.Table:
            return client.do_get(flight.Ticket(b'{"table":"t.1","partition":0}')).read_all()

        def locally() -> pa.Table:
            with machine.engine.database.cursor() as cursor:
                layout = machine.engine.groups[GROUP].layout
                assert layout is not None
                return cursor.sql(f"SELECT * FROM {layout.rows}").to_arrow_table()

        size = (await asyncio.to_thread(locally)).nbytes / 1e6
        pairs = [
            (await asyncio.to_thread(_timed, locally), await asyncio.to_thread(_timed, through_flight))
            for _ in range(7)
        ]
        local, served = sorted(pairs, key=lambda pair: pair[0] / pair[1])[3]
        client.close()
        await asyncio.to_thread(server.close)
        await machine.stop()
    case = f"scan of {KEYS} rows through Flight, vs DuckDB to Arrow"
    return Row("store", case, size / served, "MB/s", size / local, local / served)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
