"""What clients of the reference state machine connect to: frames over TCP, pipelined.

A request is `[id, group, [kind, ...]]` and so is its answer. Writes go through the log; what they answer is said at
commit, except for conditional writes and barriers, whose answer is known once they are applied here.
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
from evenkeel_reference.reference_machine import Machine

__all__ = [
    "CLIENT_CODEC",
    "FRONT_CODEC",
    "ClientSays",
    "Front",
    "FrontAnswer",
    "FrontRequest",
    "FrontSays",
    "Get",
    "Held",
    "Status",
    "StatusIs",
    "Write",
    "Written",
]


class Write(Struct, tag="write", array_like=True, frozen=True):
    """Log an entry."""

    entry: Entry


class Get(Struct, tag="get", array_like=True, frozen=True):
    """Read a key; `stale` reads whatever this replica has applied, without asking who leads."""

    key: bytes
    stale: bool = False


class Status(Struct, tag="status", array_like=True, frozen=True):
    """Ask about the group."""


class Written(Struct, tag="written", array_like=True, frozen=True):
    """Committed. `ok`: whether the condition held. `hash`: of the state, where the entry was a barrier."""

    index: int
    term: int
    ok: bool = True
    hash: str = ""


class Held(Struct, tag="held", array_like=True, frozen=True):
    """What a key holds (None: nothing) at an applied index of at least `index`."""

    value: bytes | None
    version: int
    index: int


class StatusIs(Struct, tag="status_is", array_like=True, frozen=True):
    """Replica 0: not open here."""

    replica: int
    applied: int
    leader: bool
    term: int
    hint: str
    barriers: dict[int, str]


ClientSays = Write | Get | Status
FrontSays = Written | Held | StatusIs | NotLeader | Unknown | Busy | TooLarge | Unavailable


class FrontRequest(Struct, array_like=True):
    """A frame a client sends."""

    id: int
    group: int
    body: ClientSays


class FrontAnswer(Struct, array_like=True):
    """A frame a client receives."""

    id: int
    group: int
    body: FrontSays


_BODY: Final = (2, 0)
_ANSWERS: Final = kinds_of(Written, Held, StatusIs, NotLeader, Unknown, Busy, TooLarge, Unavailable)

FRONT_CODEC: Final = Codec[FrontAnswer, FrontRequest](FrontRequest, kinds=kinds_of(Write, Get, Status), path=_BODY)
CLIENT_CODEC: Final = Codec[FrontRequest, FrontAnswer](FrontAnswer, kinds=_ANSWERS, path=_BODY)


class Front:
    """Serves clients from a machine and its sidecar."""

    def __init__(self, machine: Machine, sidecar: StoreSocket) -> None:
        self.drops: Drops = Drops()
        self._machine = machine
        self._sidecar = sidecar
        self._server: asyncio.Server | None = None
        self._clients: dict[FrameConnection, set[asyncio.Task[None]]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FrameConnection(self, drops=self.drops), host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Hang up."""
        if self._server is not None:
            self._server.close()
        clients = list(self._clients)
        for client in clients:
            client.close()
        await asyncio.gather(*(client.ended() for client in clients))

    def made(self, connection: FrameConnection) -> None:
        """A client is there."""
        self._clients[connection] = set()

    def lost(self, connection: FrameConnection) -> None:
        """It is gone, and nobody waits for its answers."""
        for task in self._clients.pop(connection):
            task.cancel()

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Answer when the answer is known; other requests go on meanwhile."""
        request = FRONT_CODEC.decode(payload)
        match request.body:
            case Write(Upsert() | Delete() | Batch() as entry):
                answer = partial(self._committed, connection, request)
                self._sidecar.propose_to(request.group, self._replica(request.group), encode_entry(entry), answer)
            case Write(Conditional(writer="")):
                raise FrameError(Reason.UNDECODABLE, "a conditional write without a writer: its result has no name")
            case Write(entry):
                self._spawn(connection, request, self._write_and_wait(request.group, entry))
            case Get(key, stale):
                self._spawn(connection, request, self._get(request.group, key, stale=stale))
            case Status():
                self._spawn(connection, request, self._status(request.group))

    def _spawn(
        self, connection: FrameConnection, request: FrontRequest, work: Coroutine[None, None, FrontSays]
    ) -> None:
        async def serve() -> None:
            self._answer(connection, request, await work)

        tasks = self._clients[connection]
        task = asyncio.get_running_loop().create_task(serve())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _committed(self, connection: FrameConnection, request: FrontRequest, outcome: ProposeOutcome) -> None:
        if isinstance(outcome, Committed):
            self._answer(connection, request, Written(outcome.index, outcome.term))
        else:
            self._answer(connection, request, outcome)

    async def _write_and_wait(self, group: int, entry: Entry) -> FrontSays:
        outcome = await self._sidecar.propose(group, self._replica(group), encode_entry(entry))
        if not isinstance(outcome, Committed):
            return outcome
        await self._machine.until_applied(group, outcome.index)
        if isinstance(entry, Conditional):
            ok = await self._machine.look(lambda state: state.outcome(group, entry.writer, entry.sequence))
            return Written(outcome.index, outcome.term, bool(ok))
        hashes = await self._machine.look(lambda state: state.barriers(group))
        return Written(outcome.index, outcome.term, True, hashes.get(outcome.index, ""))

    def _replica(self, group: int) -> int:
        """Nobody is replica 0: where the group is not open, the sidecar says that it was never appended."""
        return self._machine.replica(group) or 0

    async def _get(self, group: int, key: bytes, *, stale: bool) -> FrontSays:
        index = 0
        if not stale:
            outcome = await self._sidecar.read_index(group, self._replica(group))
            if not isinstance(outcome, ReadAt):
                return outcome
            index = outcome.index
            await self._machine.until_applied(group, index)
        held = await self._machine.look(lambda state: state.get(group, key))
        return Held(None, 0, index) if held is None else Held(held.value, held.version, index)

    async def _status(self, group: int) -> FrontSays:
        role = self._machine.role_of(group)
        barriers = await self._machine.look(lambda state: state.barriers(group))
        replica, applied = self._replica(group), self._machine.groups().get(group, 0)
        return StatusIs(replica, applied, role.leader, role.term, role.hint, barriers)

    def _answer(self, connection: FrameConnection, request: FrontRequest, body: FrontSays) -> None:
        connection.send(FRONT_CODEC.encode(FrontAnswer(request.id, request.group, body)))
