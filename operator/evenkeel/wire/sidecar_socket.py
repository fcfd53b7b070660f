"""The sidecar's end of the state-machine socket: it listens, and works with one store at a time.

The store may come and go. When it goes, everything that was asked of it fails with `DisconnectedError` (it may have
been done all the same), and when it comes the sidecar opens its groups again: `open` says what was done.
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
from evenkeel.wire.pending_calls import Calls
from evenkeel.wire.socket_messages import (
    MAX_ENTRY_BYTES,
    MAX_PROPOSED_BYTES,
    SIDECAR_CODEC,
    VERSION,
    Applied,
    Apply,
    Busy,
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
    SidecarSays,
    Size,
    Snapshot,
    SnapshotTaken,
    StoreSays,
    TooLarge,
    Version,
    apply_payload,
)
from evenkeel.wire.unix_paths import check_path, clear_path, widen

__all__ = ["SidecarSocket", "SidecarHandler"]

_Body = TypeVar("_Body")
_HELLO_SECONDS: Final = 5.0
_ENTRY_OVERHEAD: Final = 16


class SidecarHandler(Protocol):
    """What a sidecar does when its store asks. Each `answer` is called once, now or later, from the event loop."""

    def connected(self, hello: Hello) -> None:
        """A store is there: open the groups."""
        ...

    def disconnected(self) -> None:
        """It is gone; what it was asked has failed already."""
        ...

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Log an entry."""
        ...

    def read_index(self, group: int, replica: int, answer: Callable[[ReadOutcome], None]) -> None:
        """Find the index from which on a read that begins now may be answered."""
        ...

    def doubt(self, group: int, replica: int, doubt: Doubt) -> None:
        """Know that a group's state may be wrong."""
        ...

    def size(self, group: int, replica: int, size: int) -> None:
        """Know how many bytes a snapshot of a group would have."""
        ...

    def drain(self, answer: Callable[[Drained], None]) -> None:
        """Hand over all leaderships."""
        ...


class _Apply:
    """An apply on its way."""

    __slots__ = ("bytes", "future", "group", "replica", "request")

    def __init__(self, group: int, replica: int, request: Apply, future: asyncio.Future[int]) -> None:
        self.group = group
        self.replica = replica
        self.request = request
        self.future = future
        self.bytes = _ENTRY_OVERHEAD + sum(len(entry.data) + _ENTRY_OVERHEAD for entry in request.entries)


class SidecarSocket:
    """Listens for the store; see `SidecarHandler` for what it asks."""

    def __init__(
        self,
        path: Path,
        *,
        volume: str,
        handler: SidecarHandler,
        clock: Clock | None = None,
        drops: Drops | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self.drops: Drops = Drops() if drops is None else drops
        self._volume = volume
        self._handler = handler
        self._clock = clock or SystemClock()
        self._server: asyncio.Server | None = None
        self._greeting: dict[FrameConnection, Timer] = {}
        self._store: FrameConnection | None = None
        self._calls: Calls[StoreSays] = Calls()
        self._applies: CreditQueue[_Apply] = CreditQueue()
        self._proposed = 0
        self._told_versions = False
        """Whether the store understands `Version`."""
        self.cluster_version = FIRST

    async def start(self) -> None:
        """Listen. A socket left behind by a dead sidecar is replaced."""
        clear_path(self.path)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(lambda: FrameConnection(self, drops=self.drops), self.path)
        except OSError as error:
            raise InvalidInputError(
                f"cannot listen for the state machine on {self.path}: {error.strerror}; choose another path"
            ) from error
        # Both containers of a pod run with the pod's group, not necessarily as one user.
        self.path.chmod(0o660)

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)
        connections = [*self._greeting, *([self._store] if self._store else [])]
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.ended() for connection in connections))

    @property
    def connected(self) -> bool:
        """Whether a store is there."""
        return self._store is not None

    def flush(self) -> None:
        """Send at once what waits for the end of this turn of the loop: for callers that know to be done."""
        if self._store is not None:
            self._store.flush()

    @property
    def unapplied_bytes(self) -> int:
        """Bytes of entries that the store has not confirmed, sent or waiting for credit."""
        return self._applies.bytes

    # What the sidecar asks

    def open(self, group: int, replica: int, *, table: str = "", partition: int = 0) -> asyncio.Future[Opened]:
        """How far is the store?"""
        self._forget_applies(group)
        return self._ask(group, replica, Open(table, partition), (Opened, Failed))

    def apply(
        self, group: int, replica: int, *, first: int, last: int, entries: Sequence[LoggedEntry]
    ) -> asyncio.Future[int]:
        """Apply; the future holds the index up to which the state is durable, at least `last`.

        What exceeds the store's credit waits here; it is cancelled if its group is opened, replaced or ended meanwhile.
        Cancelling the future does not take the request back.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._store is None:
            _fail(future, _gone())
            return future
        item = _Apply(group, replica, Apply(first, last, list(entries)), future)
        self._applies.add(item, item.bytes)
        self._send_applies(self._store)
        return future

    def snapshot(self, group: int, replica: int, directory: Path) -> asyncio.Future[SnapshotTaken]:
        """Write a snapshot into an empty directory of the shared volume."""
        return self._ask(group, replica, Snapshot(str(directory)), (SnapshotTaken, Failed))

    def restore(self, group: int, replica: int, directory: Path, *, index: int) -> asyncio.Future[Applied]:
        """Replace the state by a snapshot."""
        self._forget_applies(group)
        return self._ask(group, replica, Restore(str(directory), index), (Applied, Failed))

    def close_group(self, group: int, replica: int) -> asyncio.Future[Done]:
        """Stop a group and keep its data."""
        self._forget_applies(group)
        return self._ask(group, replica, Close(), (Done, Failed))

    def destroy(self, group: int, replica: int) -> asyncio.Future[Done]:
        """Delete a group's data."""
        self._forget_applies(group)
        return self._ask(group, replica, Destroy(), (Done, Failed))

    def role(self, group: int, replica: int, *, leader: bool, term: int, hint: str = "") -> None:
        """Tell who leads; lost where no store is connected, so it is told again after each `open`."""
        if self._store is not None:
            self._send(self._store, 0, group, replica, Role(leader, term, hint))

    def set_cluster_version(self, version: int) -> None:
        """Tell the store by which version to work, now and whenever one connects."""
        if version != self.cluster_version:
            self.cluster_version = version
            if self._store is not None and self._told_versions:
                self._send(self._store, 0, 0, 0, Version(version))

    def _ask(
        self, group: int, replica: int, body: SidecarSays, accepts: tuple[type[_Body], type[Failed]]
    ) -> asyncio.Future[_Body]:
        future: asyncio.Future[_Body] = asyncio.get_running_loop().create_future()
        if self._store is None:
            _fail(future, _gone())
            return future
        number = self._calls.begin(group, replica, accepts=accepts, settle=partial(_settle, future))
        self._send(self._store, number, group, replica, body)
        return future

    def _forget_applies(self, group: int) -> None:
        """See that nothing of before, which waits for credit, follows what is said of its group now."""
        for item in self._applies.drop_if(lambda item: item.group == group):
            item.future.cancel()

    def _send_applies(self, store: FrameConnection) -> None:
        for item in self._applies.ready():
            settle = partial(self._applied, item)
            number = self._calls.begin(item.group, item.replica, accepts=(Applied, Failed), settle=settle)
            store.send(*apply_payload(number, item.group, item.replica, item.request))

    def _applied(self, item: _Apply, body: StoreSays | None) -> None:
        self._applies.answered(item.bytes)
        if isinstance(body, Applied):
            _settle_applied(item, body.index)
        else:
            _settle(item.future, body)
        if self._store is not None:
            self._send_applies(self._store)

    def _send(self, store: FrameConnection, number: int, group: int, replica: int, body: SidecarSays) -> None:
        store.send(SIDECAR_CODEC.encode(FromSidecar(number, group, replica, body)))

    # What the store asks

    def made(self, connection: FrameConnection) -> None:
        """Wait for the hello."""
        widen(connection.transport.get_extra_info("socket"))
        silent = partial(connection.drop, Reason.SILENT, "no hello came")
        self._greeting[connection] = self._clock.call_at(self._clock.now() + _HELLO_SECONDS, silent)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Greet, answer, or take in an answer."""
        frame = SIDECAR_CODEC.decode(payload)
        if connection is not self._store:
            self._greet(connection, frame)
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
            self._calls.answered(frame.id, frame.group, frame.replica, frame.body)

    def lost(self, connection: FrameConnection) -> None:
        """Fail what nobody will answer any more."""
        timer = self._greeting.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection is not self._store:
            return
        self._store = None
        self._calls.abandon()
        for item in self._applies.drop():
            _fail(item.future, _gone())
        self._handler.disconnected()

    def _greet(self, connection: FrameConnection, frame: FromStore) -> None:
        hello = frame.body
        if not isinstance(hello, Hello):
            raise FrameError(Reason.UNEXPECTED, f"{type(hello).__name__} before the hello")
        self._greeting.pop(connection).cancel()
        refusal = self._refusal(hello)
        if refusal is not None:
            self._send(connection, 0, 0, 0, refusal)
            connection.dismiss(refusal.reason, refusal.detail)
            return
        self._store, self._calls, self._applies = connection, Calls(), CreditQueue(hello.credit)
        self._proposed = 0
        self._told_versions = hello.supported.newest > FIRST
        ours = Hello(VERSION, self._volume, sizes=True, supported=SUPPORTED, cluster=self.cluster_version)
        self._send(connection, 0, 0, 0, ours)
        self._handler.connected(hello)

    def _refusal(self, hello: Hello) -> Refused | None:
        if hello.version != VERSION:
            return Refused(
                Reason.VERSION,
                f"the sidecar speaks version {VERSION} of the state-machine socket and the store version "
                f"{hello.version}: run both from one release",
            )
        if not hello.supported.includes(self.cluster_version):
            return Refused(
                Reason.VERSION,
                f"the cluster version is {self.cluster_version}, and the store supports {hello.supported}: run a "
                "release of the store that supports it",
            )
        if hello.volume not in ("", self._volume):
            return Refused(
                Reason.VOLUME,
                f"the sidecar's volume is {self._volume} and the store's is {hello.volume}: their directories do not "
                "belong together; give the store an empty one, and its groups will be filled from their leaders",
            )
        if self._store is not None:
            return Refused(Reason.OCCUPIED, f"another store is connected to {self.path}: stop it first")
        return None

    def _propose(self, connection: FrameConnection, frame: FromStore, data: bytes) -> None:
        size = len(data)
        if size > MAX_ENTRY_BYTES:
            self._answer(connection, frame, TooLarge())
        elif self._proposed + size > MAX_PROPOSED_BYTES:
            self._answer(connection, frame, Busy())
        else:
            self._proposed += size
            self._handler.propose(frame.group, frame.replica, data, partial(self._proposal, connection, frame, size))

    def _proposal(self, connection: FrameConnection, frame: FromStore, size: int, outcome: ProposeOutcome) -> None:
        if connection is self._store:
            self._proposed -= size
            self._answer(connection, frame, outcome)

    def _answer(self, connection: FrameConnection, frame: FromStore, body: SidecarSays) -> None:
        self._send(connection, frame.id, frame.group, frame.replica, body)


def _gone() -> DisconnectedError:
    return DisconnectedError("no store is connected to the sidecar: what was asked of it may or may not have been done")


def _settle(future: asyncio.Future[Any], body: StoreSays | None) -> None:
    if body is None:
        _fail(future, _gone())
    elif isinstance(body, Failed):
        _fail(future, StateMachineError(body.detail))
    elif not future.done():
        future.set_result(body)


def _settle_applied(item: _Apply, index: int) -> None:
    if index < item.request.last:
        detail = f"group {item.group}: asked to apply up to {item.request.last}, the store answered {index}"
        _fail(item.future, StateMachineError(detail))
    elif not item.future.done():
        item.future.set_result(index)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Nobody has to be interested: an exception that is never fetched is no accident here."""
    if not future.done():
        future.set_exception(error)
        future.exception()
