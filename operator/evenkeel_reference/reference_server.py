"""The TCP server for clients of the reference state machine.

Requests and answers are frames `[id, group, [kind, ...]]`, and requests are pipelined. Writes go through the log. They
are answered at commit, except conditional writes and barriers, which are answered when this replica has applied them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Final

from msgspec import Struct

from evenkeel.errors import FrameError
from evenkeel.wire.frame_codec import Codec, kinds_of
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops, Reason
from evenkeel.wire.socket_messages import (
    Busy,
    Committed,
    NotLeader,
    ProposeOutcome,
    ReadAt,
    TooLarge,
    Unavailable,
    Unknown,
)
from evenkeel.wire.store_socket import StoreSocket
from evenkeel_reference.reference_entries import Batch, Conditional, Delete, Entry, Upsert, encode_entry
from evenkeel_reference.reference_machine import ReferenceMachine

__all__ = [
    "CLIENT_CODEC",
    "SERVER_CODEC",
    "ClientFrame",
    "ClientMessage",
    "Get",
    "Held",
    "ReferenceServer",
    "ServerFrame",
    "ServerMessage",
    "Status",
    "StatusIs",
    "Write",
    "Written",
]


class Write(Struct, tag="write", array_like=True, frozen=True):
    """Log an entry."""

    entry: Entry


class Get(Struct, tag="get", array_like=True, frozen=True):
    """Read a key; `stale` reads from this replica without a read index."""

    key: bytes
    stale: bool = False


class Status(Struct, tag="status", array_like=True, frozen=True):
    """Request the status of the group."""


class Written(Struct, tag="written", array_like=True, frozen=True):
    """The entry is committed. `ok`: whether its condition held. `hash`: the hash of the state, for a barrier."""

    index: int
    term: int
    ok: bool = True
    hash: str = ""


class Held(Struct, tag="held", array_like=True, frozen=True):
    """The value of a key (None: no value) at an applied index of at least `index`."""

    value: bytes | None
    version: int
    index: int


class StatusIs(Struct, tag="status_is", array_like=True, frozen=True):
    """The status of a group; `replica` is 0 if the group is not open."""

    replica: int
    applied: int
    leader: bool
    term: int
    hint: str
    barriers: dict[int, str]


ClientMessage = Write | Get | Status
ServerMessage = Written | Held | StatusIs | NotLeader | Unknown | Busy | TooLarge | Unavailable


class ClientFrame(Struct, array_like=True):
    """A frame that a client sends."""

    id: int
    group: int
    body: ClientMessage


class ServerFrame(Struct, array_like=True):
    """A frame that the server sends."""

    id: int
    group: int
    body: ServerMessage


_BODY: Final = (2, 0)
_ANSWERS: Final = kinds_of(Written, Held, StatusIs, NotLeader, Unknown, Busy, TooLarge, Unavailable)

SERVER_CODEC: Final = Codec[ServerFrame, ClientFrame](ClientFrame, kinds=kinds_of(Write, Get, Status), path=_BODY)
CLIENT_CODEC: Final = Codec[ClientFrame, ServerFrame](ServerFrame, kinds=_ANSWERS, path=_BODY)


class ReferenceServer:
    """Serves clients from a state machine and its sidecar."""

    def __init__(self, machine: ReferenceMachine, sidecar: StoreSocket) -> None:
        self.drops: Drops = Drops()
        self._machine = machine
        self._sidecar = sidecar
        self._server: asyncio.Server | None = None
        self._clients: dict[FrameConnection, set[asyncio.Task[None]]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FrameConnection(self, drops=self.drops), host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        clients = list(self._clients)
        for client in clients:
            client.close()
        await asyncio.gather(*(client.wait_closed() for client in clients))

    def made(self, connection: FrameConnection) -> None:
        """A client connected."""
        self._clients[connection] = set()

    def lost(self, connection: FrameConnection) -> None:
        """Cancel the requests of a client that disconnected."""
        for task in self._clients.pop(connection):
            task.cancel()

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Start a request; it is answered when its result is known."""
        request = SERVER_CODEC.decode(payload)
        match request.body:
            case Write(Upsert() | Delete() | Batch() as entry):
                answer = partial(self._committed, connection, request)
                self._sidecar.propose_to(request.group, self._replica(request.group), encode_entry(entry), answer)
            case Write(Conditional(writer="")):
                raise FrameError(
                    Reason.UNDECODABLE, "a conditional write needs a writer: its result is stored under its token"
                )
            case Write(entry):
                self._spawn(connection, request, self._write_and_wait(request.group, entry))
            case Get(key, stale):
                self._spawn(connection, request, self._get(request.group, key, stale=stale))
            case Status():
                self._spawn(connection, request, self._status(request.group))

    def _spawn(
        self, connection: FrameConnection, request: ClientFrame, work: Coroutine[None, None, ServerMessage]
    ) -> None:
        async def serve() -> None:
            self._answer(connection, request, await work)

        tasks = self._clients[connection]
        task = asyncio.get_running_loop().create_task(serve())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _committed(self, connection: FrameConnection, request: ClientFrame, outcome: ProposeOutcome) -> None:
        if isinstance(outcome, Committed):
            self._answer(connection, request, Written(outcome.index, outcome.term))
        else:
            self._answer(connection, request, outcome)

    async def _write_and_wait(self, group: int, entry: Entry) -> ServerMessage:
        outcome = await self._sidecar.propose(group, self._replica(group), encode_entry(entry))
        if not isinstance(outcome, Committed):
            return outcome
        await self._machine.until_applied(group, outcome.index)
        if isinstance(entry, Conditional):
            ok = await self._machine.query(lambda state: state.outcome(group, entry.writer, entry.sequence))
            return Written(outcome.index, outcome.term, bool(ok))
        hashes = await self._machine.query(lambda state: state.barriers(group))
        return Written(outcome.index, outcome.term, True, hashes.get(outcome.index, ""))

    def _replica(self, group: int) -> int:
        """Return 0 if the group is not open; the sidecar answers `NotLeader` to replica 0, which never exists."""
        return self._machine.replica(group) or 0

    async def _get(self, group: int, key: bytes, *, stale: bool) -> ServerMessage:
        index = 0
        if not stale:
            outcome = await self._sidecar.read_index(group, self._replica(group))
            if not isinstance(outcome, ReadAt):
                return outcome
            index = outcome.index
            await self._machine.until_applied(group, index)
        held = await self._machine.query(lambda state: state.get(group, key))
        return Held(None, 0, index) if held is None else Held(held.value, held.version, index)

    async def _status(self, group: int) -> ServerMessage:
        role = self._machine.role_of(group)
        barriers = await self._machine.query(lambda state: state.barriers(group))
        replica, applied = self._replica(group), self._machine.groups().get(group, 0)
        return StatusIs(replica, applied, role.leader, role.term, role.hint, barriers)

    def _answer(self, connection: FrameConnection, request: ClientFrame, body: ServerMessage) -> None:
        connection.send(SERVER_CODEC.encode(ServerFrame(request.id, request.group, body)))
