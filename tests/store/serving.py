"""A store that serves Flight in this process, on a sidecar without peers; and a plain Flight client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from evenkeel.errors import StoreError
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Leader, Peer, Stable, StoreRecord, TableRecord, TableState, encode
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.flight import PutResult, decode_error, pack
from evenkeel.wire.store_socket import StoreSocket
from evenkeel_store.maintenance.leader_maintenance import LeaderMaintenance
from evenkeel_store.serving.flight_server import FlightServer
from evenkeel_store.serving.store_service import StoreService
from evenkeel_store.state_machine.store_state_machine import StoreStateMachine
from tests.store.single_sidecar import Sidecar
from tests.wire.support import wait_until

KEYS = Keys(namespace="default", store_cluster="main")
_T = TypeVar("_T")


def table_record(columns: Sequence[dict[str, Any]], **spec: Any) -> bytes:
    """Return a table's record as the operator writes it."""
    schema = {"columns": columns, "primaryKey": spec.pop("primary_key", ["id"])}
    whole: dict[str, Any] = {"storeCluster": "main", "partitions": 1, "replicas": 1, "schema": schema} | spec
    record = TableRecord(
        partitions=whole["partitions"],
        replicas=1,
        consensus_size=1,
        state=TableState.READY,
        spec=msgspec.Raw(msgspec.json.encode(whole)),
    )
    return encode(record)


ORDERS: list[dict[str, Any]] = [
    {"name": "id", "type": "int64", "nullable": False},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "decimal(12,2)", "default": "0.00"},
]


class Store:
    """One store in this process."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "main-0",
        timeout: float = 10.0,
        keeps_time: bool = False,
        **server: Any,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.name = name
        self.clock = VirtualClock()
        self.now = 1_000_000
        self.sidecar = Sidecar(directory / "raft.sock")
        self.routes = RoutingTable(KEYS)
        self.state_machine = StoreStateMachine(directory / "data", clock=self.clock)
        self.end = StoreSocket(directory / "raft.sock", volume="", state_machine=self.state_machine)
        self.service = StoreService(
            self.state_machine, self.end, self.routes, store=name, wall_clock=lambda: self.now, timeout=timeout
        )
        self.maintenance = LeaderMaintenance(self.service, clock=self.clock, keeps_time=lambda: keeps_time)
        self._server_options = server
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.sidecar.end.start()
        self._running = asyncio.create_task(self.end.run())
        loop = asyncio.get_running_loop()
        self.server = FlightServer(self.service, host="127.0.0.1", port=0, loop=loop, **self._server_options)
        self.routes.put(KEYS.store(self.name), encode(StoreRecord(volume="v", flight=self.address)))
        await self.sidecar.ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.server.close)
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.sidecar.end.close()
        await self.state_machine.stop()

    @property
    def address(self) -> str:
        scheme = "grpc+tls" if self._server_options.get("tls") else "grpc"
        return f"{scheme}://127.0.0.1:{self.server.port}"

    async def table(self, record: bytes, *, key: str = "orders.1", partitions: Sequence[int] = (0,)) -> None:
        """Create a table whose given partitions are on this store and led by it."""
        self.routes.put(KEYS.table(key), record)
        for partition in partitions:
            self.routes.put(KEYS.leader(key, partition), encode(Leader(self.name, 1)))
            self.routes.put(KEYS.partition(key, partition).stable, encode(Stable((Peer(self.name, "v", 3),))))
            group = self.sidecar.group(key, partition)
            await group.open()
            await wait_until(lambda number=group.number: self.state_machine.groups.role(number).leader)  # type: ignore[misc]
        await self.maintenance.reconcile(self.state_machine.groups.replicas())

    async def settled(self) -> None:
        """Wait until everything logged is applied."""
        for group in self.sidecar.groups.values():
            await self.state_machine.queue.until_applied(group.number, group.last)


class Client:
    """Plain pyarrow Flight on threads, so that the store's loop runs; raises the errors that the store raised."""

    def __init__(self, address: str, *, token: str = "", **options: Any) -> None:
        self._client = flight.connect(address, **options)
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self._options = flight.FlightCallOptions(headers=headers, timeout=60)

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def _try(self, work: Any, *arguments: Any) -> Any:
        def attempt() -> Any:
            try:
                return work(*arguments)
            except flight.FlightError as error:
                if not error.extra_info:
                    raise
                raise decode_error(error.extra_info) from None

        return await asyncio.to_thread(attempt)

    async def put(self, rows: Any, **request: Any) -> list[PutResult]:
        """Send batches, or one list of rows, and return the result of each."""
        batches = rows if isinstance(rows, list) and rows and isinstance(rows[0], pa.RecordBatch) else None
        if isinstance(rows, pa.RecordBatch):
            batches = [rows]
        elif batches is None:
            batches = [pa.RecordBatch.from_pylist(rows)]
        found: list[PutResult] = await self._try(self._put, batches, {"table": "orders"} | request)
        return found

    def _put(self, batches: Sequence[pa.RecordBatch], request: dict[str, Any]) -> list[PutResult]:
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(request))
        writer, reader = self._client.do_put(descriptor, batches[0].schema, self._options)
        results = []
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        while (data := reader.read()) is not None:
            results.append(msgspec.json.decode(data.to_pybytes(), type=PutResult))
        self.results = results
        writer.close()
        return results

    async def get(self, table: str = "orders", **request: Any) -> pa.Table:
        """Read a partition."""
        ticket = flight.Ticket(msgspec.json.encode({"table": table} | request))
        return await self._try(lambda: self._client.do_get(ticket, self._options).read_all())

    async def rows(self, table: str = "orders", **request: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get(table, **request)).to_pylist()
        return sorted(found, key=str)

    async def act(self, kind: str, body: bytes = b"", **request: Any) -> Any:
        """Run an action."""
        action = flight.Action(kind, body or msgspec.json.encode(request))
        results = await self._try(lambda: [r.body.to_pybytes() for r in self._client.do_action(action, self._options)])
        return msgspec.json.decode(results[0]) if results[0] else None

    async def lookup(self, keys: pa.Table, request: Any) -> pa.Table:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as writer:
            writer.write_table(keys)
        action = flight.Action("lookup", pack(request, sink.getvalue().to_pybytes()))
        [body] = await self._try(lambda: [result.body for result in self._client.do_action(action, self._options)])
        return pa.ipc.open_stream(body).read_all()

    async def info(self, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        return await self._try(self._client.get_flight_info, descriptor, self._options)


__all__ = ["KEYS", "ORDERS", "Client", "Store", "StoreError", "table_record"]
