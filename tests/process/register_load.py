"""A load of reads and writes on registers whose history is checked for linearizability.

Every write carries a write token and is retried until it is answered, so it takes effect once, between its call and its
answer. Each register has a few hundred operations, because the cost of the checker grows with the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, Self

from evenkeel.errors import DisconnectedError
from evenkeel.protocol.keys import group_number
from evenkeel.wire.socket_messages import NotLeader
from evenkeel_reference.reference_client import ReferenceClient
from evenkeel_reference.reference_entries import Barrier, Conditional, Entry, Upsert
from evenkeel_reference.reference_server import Held, StatusIs, Written
from tests.process.process_cluster import LOOPBACK, TABLE, ProcessCluster
from tests.raft.check.linearizability import Operation, linearizable

_PER_REGISTER: Final = 200
_TIMEOUT: Final = 2.0


class Connections:
    """A connection to each store, opened on first use."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster
        self._clients: dict[str, ReferenceClient] = {}

    async def to(self, store: str) -> ReferenceClient | None:
        """Return a connection, or None if the store does not answer."""
        known = self._clients.get(store)
        if known is not None:
            return known
        port = self._cluster.stores[store].front
        try:
            async with asyncio.timeout(_TIMEOUT):
                client = await ReferenceClient.connect(LOOPBACK, port)
        except (OSError, TimeoutError):
            return None
        return self._clients.setdefault(store, client)

    async def drop(self, store: str) -> None:
        """Close the connection to a store that did not answer in time."""
        client = self._clients.pop(store, None)
        if client is not None:
            with contextlib.suppress(OSError):
                await client.close()

    async def close(self) -> None:
        for store in list(self._clients):
            await self.drop(store)


class Load:
    """Workers that write, compare-and-set and read; a context manager that stops them."""

    def __init__(self, cluster: ProcessCluster, *, workers: int = 6, seed: int = 1) -> None:
        self.cluster = cluster
        self.history: dict[tuple[int, str], list[Operation]] = {}
        self.answered = 0
        self._rng = Random(seed)
        self._connections = Connections(cluster)
        self._leaders: dict[int, str] = {}
        self._count = 0
        self._values = itertools.count(1)
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._answered_changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work(f"w{number}")) for number in range(self._workers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connections.close()
        if error is None:
            for outcome in ended:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def goes_on(self, count: int = 30, *, within: float = 30.0) -> None:
        """Wait until `count` more operations are answered."""
        goal = self.answered + count
        try:
            async with asyncio.timeout(within), self._answered_changed:
                await self._answered_changed.wait_for(lambda: self.answered >= goal)
        except TimeoutError:
            missing = goal - self.answered
            raise AssertionError(
                f"{missing} of {count} operations were not answered in {within} s\n{await self.cluster.describe()}"
            ) from None

    # Working

    async def _work(self, writer: str) -> None:
        for sequence in itertools.count(1):
            if self._stopping:
                return
            partition = self._rng.randrange(self.cluster.partitions)
            self._count += 1
            key = f"r{self._count // _PER_REGISTER}"
            operation = self._operation(key)
            # Recorded before it is sent, because it may take effect even if the answer is lost.
            operation.called = time.perf_counter_ns()
            self.history.setdefault((partition, key), []).append(operation)
            await self._carry_out(partition, operation, writer, sequence)
            operation.returned = time.perf_counter_ns()
            self.answered += 1
            async with self._answered_changed:
                self._answered_changed.notify_all()

    def _operation(self, key: str) -> Operation:
        kind = self._rng.choice(("write", "read", "cas"))
        return Operation(kind, key, 0, value=next(self._values) if kind != "read" else 0, old=self._recent(key))

    def _recent(self, key: str) -> int:
        """Return a recent value, which a compare-and-set is likely to match."""
        seen = [op.value for (_, name), ops in self.history.items() if name == key for op in ops[-2:]]
        return self._rng.choice([0, *seen])

    async def _carry_out(self, partition: int, operation: Operation, writer: str, sequence: int) -> None:
        key = operation.key.encode()
        if operation.kind == "read":
            held = await self.get(partition, key)
            operation.value = int(held.value) if held.value is not None else 0
            return
        entry: Entry = Upsert(writer, sequence, key, str(operation.value).encode())
        if operation.kind == "cas":
            expected = str(operation.old).encode() if operation.old else None
            entry = Conditional(writer, sequence, key, expected, str(operation.value).encode())
        written = await self.write(partition, entry)
        operation.ok = written.ok

    async def write(self, partition: int, entry: Entry) -> Written:
        """Retry a write until it is answered."""
        group = group_number(TABLE, partition)
        while True:
            store = self._guess(partition)
            outcome = None
            client = await self._connections.to(store)
            if client is not None:
                outcome = await self._answer(store, partial(client.write, group, entry))
            if isinstance(outcome, Written):
                self._leaders[partition] = store
                return outcome
            await self._choose_next_store(partition, store, outcome)

    async def get(self, partition: int, key: bytes) -> Held:
        """Read linearizably from any store that answers."""
        group = group_number(TABLE, partition)
        while True:
            store = self._guess(partition)
            outcome = None
            client = await self._connections.to(store)
            if client is not None:
                outcome = await self._answer(store, partial(client.get, group, key))
            if isinstance(outcome, Held):
                return outcome
            await self._choose_next_store(partition, store, outcome)

    async def _answer(self, store: str, ask: Callable[[], Awaitable[object]]) -> object:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await ask()
        except (TimeoutError, DisconnectedError):
            await self._connections.drop(store)
            return None

    def _guess(self, partition: int) -> str:
        guess = self._leaders.get(partition)
        return guess if guess in self.cluster.stores else self._rng.choice(sorted(self.cluster.stores))

    async def _choose_next_store(self, partition: int, store: str, outcome: object) -> None:
        if isinstance(outcome, NotLeader) and outcome.hint and outcome.hint != store:
            self._leaders[partition] = outcome.hint
        elif self._leaders.get(partition) == store or partition not in self._leaders:
            self._leaders[partition] = self._rng.choice(sorted(self.cluster.stores))
        await asyncio.sleep(0.02)

    async def fill(self, partition: int, *, megabytes: int) -> None:
        """Write rows of 8 KiB, so that there is something to copy."""
        value = self._rng.randbytes(8192)
        for row in range(0, megabytes * 128, 16):
            entries = [Upsert("filler", row + n + 1, f"fill{row + n}".encode(), value) for n in range(16)]
            await asyncio.gather(*(self.write(partition, entry) for entry in entries))

    # Checking

    async def check(self) -> None:
        """Read every register once more and check that every history is linearizable."""
        for (partition, key), history in self.history.items():
            called = time.perf_counter_ns()
            held = await self.get(partition, key.encode())
            value = int(held.value) if held.value is not None else 0
            history.append(Operation("read", key, called, time.perf_counter_ns(), value))
        await self._connections.close()
        for (partition, key), history in self.history.items():
            assert linearizable(history), f"partition {partition}, register {key}: {history}"

    async def check_replicas(self) -> None:
        """Check that all replicas of a partition have the same state at one index."""
        snapshot = await self.cluster.snapshot()
        for partition in range(self.cluster.partitions):
            written = await self.write(partition, Barrier())
            stable = snapshot.partition(partition).stable
            assert stable is not None
            for peer in stable.peers:
                assert await self._hash(peer.store, partition, written.index) == written.hash, peer
        await self._connections.close()

    async def _hash(self, store: str, partition: int, index: int) -> str:
        group = group_number(TABLE, partition)
        async with asyncio.timeout(30):
            while True:
                client = await self._connections.to(store)
                status = await client.status(group) if client is not None else None
                if isinstance(status, StatusIs) and status.applied >= index and index in status.barriers:
                    return status.barriers[index]
                await asyncio.sleep(0.02)
