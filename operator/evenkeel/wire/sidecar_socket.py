"""The sidecar's end of the state-machine socket: it listens, and serves one store at a time.

The store may disconnect and reconnect. When it disconnects, all pending requests fail with `DisconnectedError`,
although the store may have carried them out. When it reconnects, the sidecar opens its groups again, and the answers to
`open` report what the store has applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from evenkeel.errors import DisconnectedError, FrameError, InvalidInputError, StateMachineError
from evenkeel.runtime.clock import Clock, SystemClock, Timer
from evenkeel.versions import FIRST, SUPPORTED
from evenkeel.wire.credit_queue import CreditQueue
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops, Reason
from evenkeel.wire.socket_messages import (
    SIDECAR_CODEC,
    VERSION,
    Applied,
    Apply,
    Close,
    Destroy,
    Done,
    Doubt,
    Drain,
    Drained,
    Failed,
    FromSidecar,
    FromStore,
    Hello,
    LoggedEntry,
    Open,
    Opened,
    Propose,
    ProposeOutcome,
    ReadIndex,
    ReadOutcome,
    Refused,
    Restore,
    Role,
    SidecarMessage,
    Size,
    Snapshot,
    SnapshotTaken,
    StoreMessage,
    Version,
    apply_payload,
)
from evenkeel.wire.socket_peer import SocketPeer
from evenkeel.wire.unix_paths import check_socket_path, enlarge_send_buffer, remove_stale_socket

__all__ = ["SidecarHandler", "SidecarSocket"]

_Body = TypeVar("_Body")
_HELLO_TIMEOUT: Final = 5.0
_ENTRY_OVERHEAD: Final = 16


class SidecarHandler(Protocol):
    """What a sidecar does for its store. Each `answer` is called once, now or later, from the event loop."""

    def connected(self, hello: Hello) -> None:
        """A store connected: open the groups."""
        ...

    def disconnected(self) -> None:
        """The store disconnected; all requests to it have failed already."""
        ...

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Log an entry."""
        ...

    def read_index(self, group: int, replica: int, answer: Callable[[ReadOutcome], None]) -> None:
        """Find the index that must be applied before a read that starts now can be answered."""
        ...

    def doubt(self, group: int, replica: int, doubt: Doubt) -> None:
        """Note that the state of a group may be wrong."""
        ...

    def size(self, group: int, replica: int, size: int) -> None:
        """Note the approximate size of a snapshot of a group, in bytes."""
        ...

    def drain(self, answer: Callable[[Drained], None]) -> None:
        """Hand over all leaderships."""
        ...


class _PendingApply:
    __slots__ = ("bytes", "future", "group", "replica", "request")

    def __init__(self, group: int, replica: int, request: Apply, future: asyncio.Future[int]) -> None:
        self.group = group
        self.replica = replica
        self.request = request
        self.future = future
        self.bytes = _ENTRY_OVERHEAD + sum(len(entry.data) + _ENTRY_OVERHEAD for entry in request.entries)


class SidecarSocket:
    """Listens for the store and passes its requests to a `SidecarHandler`."""

    def __init__(
        self,
        path: Path,
        *,
        volume: str,
        handler: SidecarHandler,
        clock: Clock | None = None,
        drops: Drops | None = None,
    ) -> None:
        check_socket_path(path)
        self.path = path
        self.drops: Drops = Drops() if drops is None else drops
        self._volume = volume
        self._handler = handler
        self._clock = clock or SystemClock()
        self._server: asyncio.Server | None = None
        self._handshakes: dict[FrameConnection, Timer] = {}
        self._store: SocketPeer[SidecarMessage, StoreMessage] = SocketPeer(_encode)
        self._applies: CreditQueue[_PendingApply] = CreditQueue()
        self._takes_version = False
        """Whether the store knows the message `Version`."""
        self.cluster_version = FIRST

    async def start(self) -> None:
        """Listen. A socket that a dead sidecar left behind is replaced."""
        remove_stale_socket(self.path)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(lambda: FrameConnection(self, drops=self.drops), self.path)
        except OSError as error:
            raise InvalidInputError(
                f"cannot listen for the state machine on {self.path}: {error.strerror}; choose another path"
            ) from error
        # The containers of a pod share a group, but may run as different users.
        self.path.chmod(0o660)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)
        store = self._store.connection
        connections = [*self._handshakes, *([] if store is None else [store])]
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    @property
    def connected(self) -> bool:
        """Whether a store is connected."""
        return self._store.connection is not None

    def flush(self) -> None:
        """Send now what would be sent at the end of this iteration of the event loop."""
        if self._store.connection is not None:
            self._store.connection.flush()

    @property
    def unapplied_bytes(self) -> int:
        """Bytes of entries that the store has not confirmed, whether sent or waiting for credit."""
        return self._applies.bytes

    # Requests to the store

    def open(self, group: int, replica: int, *, table: str = "", partition: int = 0) -> asyncio.Future[Opened]:
        """Open a group; the answer reports the applied index."""
        self._cancel_queued_applies(group)
        return self._request(group, replica, Open(table, partition), (Opened, Failed))

    def apply(
        self, group: int, replica: int, *, first: int, last: int, entries: Sequence[LoggedEntry]
    ) -> asyncio.Future[int]:
        """Apply entries; the future holds the index up to which the state is durable, at least `last`.

        Requests beyond the store's credit are queued. Opening, restoring, closing or destroying their group cancels
        them. Cancelling the future does not withdraw the request.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._store.connection is None:
            _fail(future, _disconnected())
            return future
        item = _PendingApply(group, replica, Apply(first, last, list(entries)), future)
        self._applies.add(item, item.bytes)
        self._send_applies(self._store.connection)
        return future

    def snapshot(self, group: int, replica: int, directory: Path) -> asyncio.Future[SnapshotTaken]:
        """Write a snapshot into an empty directory of the shared volume."""
        return self._request(group, replica, Snapshot(str(directory)), (SnapshotTaken, Failed))

    def restore(self, group: int, replica: int, directory: Path, *, index: int) -> asyncio.Future[Applied]:
        """Replace the state with a snapshot."""
        self._cancel_queued_applies(group)
        return self._request(group, replica, Restore(str(directory), index), (Applied, Failed))

    def close_group(self, group: int, replica: int) -> asyncio.Future[Done]:
        """Stop a group and keep its data."""
        self._cancel_queued_applies(group)
        return self._request(group, replica, Close(), (Done, Failed))

    def destroy(self, group: int, replica: int) -> asyncio.Future[Done]:
        """Delete the data of a group."""
        self._cancel_queued_applies(group)
        return self._request(group, replica, Destroy(), (Done, Failed))

    def role(self, group: int, replica: int, *, leader: bool, term: int, hint: str = "") -> None:
        """Report who leads. It is lost if no store is connected, so call it again after each `open`."""
        self._store.notify(group, replica, Role(leader, term, hint))

    def set_cluster_version(self, version: int) -> None:
        """Report the cluster version to the store, now and whenever a store connects."""
        if version != self.cluster_version:
            self.cluster_version = version
            if self._takes_version:
                self._store.notify(0, 0, Version(version))

    def _request(
        self, group: int, replica: int, body: SidecarMessage, accepts: tuple[type[_Body], type[Failed]]
    ) -> asyncio.Future[_Body]:
        future: asyncio.Future[_Body] = asyncio.get_running_loop().create_future()
        self._store.request(group, replica, body, accepts=accepts, settle=partial(_settle, future))
        return future

    def _cancel_queued_applies(self, group: int) -> None:
        """Cancel applies that wait for credit: they must not arrive after the request that replaces their state."""
        for item in self._applies.drop_if(lambda item: item.group == group):
            item.future.cancel()

    def _send_applies(self, store: FrameConnection) -> None:
        for item in self._applies.ready():
            settle = partial(self._applied, item)
            number = self._store.calls.begin(item.group, item.replica, accepts=(Applied, Failed), settle=settle)
            store.send(*apply_payload(number, item.group, item.replica, item.request))

    def _applied(self, item: _PendingApply, body: StoreMessage | None) -> None:
        self._applies.answered(item.bytes)
        if isinstance(body, Applied):
            _settle_applied(item, body.index)
        else:
            _settle(item.future, body)
        if self._store.connection is not None:
            self._send_applies(self._store.connection)

    # Requests from the store

    def made(self, connection: FrameConnection) -> None:
        """Wait for the hello."""
        enlarge_send_buffer(connection.transport.get_extra_info("socket"))
        timed_out = partial(connection.drop, Reason.SILENT, f"no hello within {_HELLO_TIMEOUT:g} s")
        self._handshakes[connection] = self._clock.call_at(self._clock.now() + _HELLO_TIMEOUT, timed_out)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Handle a hello, a request or an answer."""
        frame = SIDECAR_CODEC.decode(payload)
        if connection is not self._store.connection:
            self._handshake(connection, frame)
        elif isinstance(frame.body, Propose):
            self._propose(connection, frame, frame.body.data)
        elif isinstance(frame.body, ReadIndex):
            self._handler.read_index(frame.group, frame.replica, partial(self._answer, connection, frame))
        elif isinstance(frame.body, Doubt):
            self._handler.doubt(frame.group, frame.replica, frame.body)
        elif isinstance(frame.body, Size):
            self._handler.size(frame.group, frame.replica, frame.body.bytes)
        elif isinstance(frame.body, Drain):
            self._handler.drain(partial(self._answer, connection, frame))
        else:
            self._store.calls.answered(frame.id, frame.group, frame.replica, frame.body)

    def lost(self, connection: FrameConnection) -> None:
        """Fail all pending requests."""
        timer = self._handshakes.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection is not self._store.connection:
            return
        self._store.detach()
        for item in self._applies.drop():
            _fail(item.future, _disconnected())
        self._handler.disconnected()

    def _handshake(self, connection: FrameConnection, frame: FromStore) -> None:
        hello = frame.body
        if not isinstance(hello, Hello):
            raise FrameError(Reason.UNEXPECTED, f"{type(hello).__name__} before the hello")
        self._handshakes.pop(connection).cancel()
        refusal = self._refusal(hello)
        if refusal is not None:
            self._store.send(connection, 0, 0, 0, refusal)
            connection.dismiss(refusal.reason, refusal.detail)
            return
        self._store.attach(connection)
        self._applies = CreditQueue(hello.credit)
        self._takes_version = hello.supported.newest > FIRST
        ours = Hello(VERSION, self._volume, sizes=True, supported=SUPPORTED, cluster=self.cluster_version)
        self._store.send(connection, 0, 0, 0, ours)
        self._handler.connected(hello)

    def _refusal(self, hello: Hello) -> Refused | None:
        if hello.version != VERSION:
            return Refused(
                Reason.VERSION,
                f"the sidecar speaks version {VERSION} of the state-machine socket and the store version "
                f"{hello.version}; run both from one release",
            )
        if not hello.supported.includes(self.cluster_version):
            return Refused(
                Reason.VERSION,
                f"the cluster version is {self.cluster_version}, but the store supports {hello.supported}; run a "
                "release of the store that supports it",
            )
        if hello.volume not in ("", self._volume):
            return Refused(
                Reason.VOLUME,
                f"the sidecar's volume is {self._volume} and the store's is {hello.volume}: their directories do not "
                "belong together; give the store an empty directory, and the leaders of its groups send it snapshots",
            )
        if self.connected:
            return Refused(Reason.OCCUPIED, f"another store is connected to {self.path}; stop it first")
        return None

    def _propose(self, connection: FrameConnection, frame: FromStore, data: bytes) -> None:
        size = len(data)
        refusal = self._store.proposal_refusal(size)
        if refusal is not None:
            self._answer(connection, frame, refusal)
        else:
            self._store.proposed_bytes += size
            self._handler.propose(frame.group, frame.replica, data, partial(self._proposed, connection, frame, size))

    def _proposed(self, connection: FrameConnection, frame: FromStore, size: int, outcome: ProposeOutcome) -> None:
        if connection is self._store.connection:
            self._store.proposed_bytes -= size
            self._answer(connection, frame, outcome)

    def _answer(self, connection: FrameConnection, frame: FromStore, body: SidecarMessage) -> None:
        self._store.send(connection, frame.id, frame.group, frame.replica, body)


def _encode(number: int, group: int, replica: int, body: SidecarMessage) -> bytes:
    return SIDECAR_CODEC.encode(FromSidecar(number, group, replica, body))


def _disconnected() -> DisconnectedError:
    return DisconnectedError("no store is connected to the sidecar; requests in progress may have been carried out")


def _settle(future: asyncio.Future[Any], body: StoreMessage | None) -> None:
    if body is None:
        _fail(future, _disconnected())
    elif isinstance(body, Failed):
        _fail(future, StateMachineError(body.detail))
    elif not future.done():
        future.set_result(body)


def _settle_applied(item: _PendingApply, index: int) -> None:
    if index < item.request.last:
        detail = f"group {item.group}: the sidecar asked to apply up to {item.request.last}, the store answered {index}"
        _fail(item.future, StateMachineError(detail))
    elif not item.future.done():
        item.future.set_result(index)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Fail a future without a warning from asyncio if its exception is never retrieved."""
    if not future.done():
        future.set_exception(error)
        future.exception()
