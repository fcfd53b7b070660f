"""Takes snapshots in.

A connection brings one snapshot. Frames are taken off it as they come, and carried out one after the other on a thread;
when that, or the budget, does not keep up, the connection is not read any more and TCP slows the sender down.

A replica receives one snapshot at a time: the one of the newest term and index. Others are declined, or two leaders,
one of whom does not know yet that it is none, would take turns in hanging up on each other. The same one offered again
takes over: its sender knows that the connection before is dead.

A leader that lost its state may be sent one by several members. Each writes files of its own, so one cannot continue
what another began: the first is received to its end, and the others are declined.

Whoever has the last word does not hang up: a connection that is closed while the other end is still sending may take
the last word with it. The sender hangs up when it has heard it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from evenkeel.errors import FrameError, InvalidInputError
from evenkeel.runtime.clock import Timer
from evenkeel.runtime.directories import make_directory
from evenkeel.wire.frame_connection import FrameConnection, Owner
from evenkeel.wire.framing import SMALL_FRAME_BYTES, Reason
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.net.files.meter import CopyMeter
from evenkeel_raft.net.files.partial_snapshot import PARTIAL, Partial, key_of, parse_key, remove
from evenkeel_raft.net.files.snapshot_manifest import Manifest, check_manifest
from evenkeel_raft.net.keepalive import Keepalive
from evenkeel_raft.net.peer_endpoint import Endpoint, say
from evenkeel_raft.net.peer_frames import (
    PEER_CODEC,
    Alive,
    AnyFrame,
    Cancelled,
    Chunk,
    Corrupt,
    Declined,
    Finished,
    Offer,
    Resume,
    Stored,
)

__all__ = ["FileHandler", "FileReceiver"]

TakeBytes = Callable[[int, int], Awaitable[None]]

_UNREAD_BYTES: Final = 8 << 20
_SUPERSEDED: Final = Declined("a newer snapshot is on its way")
_TAKEN: Final = Declined("another member's snapshot is on its way")
_Result = TypeVar("_Result")


class FileHandler(Protocol):
    """What a sidecar does with snapshots."""

    def offered(self, store: str, message: InstallSnapshot, manifest: Manifest, /) -> str:
        """Return why a snapshot is not wanted, or nothing to have it."""
        ...

    def stored(self, store: str, message: InstallSnapshot, directory: Path, manifest: Manifest, /) -> None:
        """A snapshot is there, durable and verified. Whoever is told owns the directory.

        It may be told again: a sender that did not hear of it asks once more.
        """
        ...


class FileReceiver:
    """All snapshots that one store takes in, in a directory of its own."""

    def __init__(self, root: Path, *, endpoint: Endpoint, handler: FileHandler, take: TakeBytes) -> None:
        """`take` waits until so many bytes of a group may come in."""
        try:
            make_directory(root)
        except OSError as error:
            raise InvalidInputError(f"cannot keep snapshots in {root}: {error.strerror}; choose another") from error
        self.root = root
        self.endpoint = endpoint
        self.handler = handler
        self.take = take
        self.meter = CopyMeter(endpoint.clock)
        self.partials: dict[str, Partial] = {}
        self.incoming: dict[tuple[int, int], Incoming] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def owner_of(self, store: str) -> Owner:
        """Return who takes a connection that a peer dialled."""
        return Incoming(self, store)

    def receiving(self, group: int, replica: int, *, term: int) -> bool:
        """Whether a snapshot that was announced in this term is coming in for a replica."""
        active = self.incoming.get((group, replica))
        return active is not None and active.term == term

    async def cancel(self, group: int, replica: int) -> None:
        """End what comes in for a replica, tell the sender, and delete what arrived."""
        active = self.incoming.get((group, replica))
        if active is not None:
            active.conclude(Declined("cancelled"))
            await active.ended()
        await self.sweep(lambda *key: key != (group, replica))

    async def sweep(self, keep: Callable[[int, int], bool]) -> None:
        """Delete what arrived in part for replicas that are not kept; what is coming in stays."""
        for path in await _on_thread(lambda: list(self.root.glob(f"*{PARTIAL}"))):
            key = parse_key(path.name)
            if key is not None and not keep(key.group, key.replica) and key[:2] not in self.incoming:
                self.partials.pop(path.name.removesuffix(PARTIAL), None)
                await _on_thread(remove, path)

    async def close(self) -> None:
        """Hang up; what arrived in part stays for the next time."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Incoming:
    """One connection that brings a snapshot."""

    def __init__(self, receiver: FileReceiver, store: str) -> None:
        self._receiver = receiver
        self._store = store
        self._connection: FrameConnection | None = None
        self._keepalive: Keepalive | None = None
        self._frames: deque[AnyFrame] = deque()
        self._unread = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._concluded: Timer | None = None
        self.term = 0
        self._rank = (0, 0)

    # What happens to the connection

    def made(self, connection: FrameConnection) -> None:
        """Wait for the offer."""
        endpoint = self._receiver.endpoint
        self._connection = connection
        self._keepalive = Keepalive(connection, clock=endpoint.clock, settings=endpoint.settings)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Queue what is to be done."""
        frame = PEER_CODEC.decode(payload)
        if isinstance(frame, Alive) or self._concluded is not None:
            return
        if self._task is None:
            self._begin(connection, frame)
            return
        if not isinstance(frame, Chunk | Finished | Cancelled):
            raise FrameError(Reason.UNEXPECTED, f"{type(frame).__name__} from a sender")
        if isinstance(frame, Chunk) and len(payload) <= SMALL_FRAME_BYTES:
            frame = Chunk(frame.file, frame.offset, memoryview(bytes(frame.data)))
        self._frames.append(frame)
        self._unread += len(payload)
        if self._unread > _UNREAD_BYTES:
            connection.transport.pause_reading()
        self._news.set()

    def lost(self, connection: FrameConnection) -> None:
        """Stop; what arrived stays."""
        for timer in (self._keepalive, self._concluded):
            if timer is not None:
                timer.cancel()
        self._news.set()

    def hang_up(self) -> None:
        """Give up this connection, and what is under way."""
        if self._connection is not None:
            self._connection.drop(Reason.REPLACED, "another connection brings the snapshot")
        if self._task is not None:
            self._task.cancel()

    def conclude(self, last: Declined | Corrupt | Stored) -> None:
        """Say the last word; nothing is done or listened to any more."""
        connection, endpoint = self._connection, self._receiver.endpoint
        if connection is not None and not connection.closing and self._concluded is None:
            say(connection, last)
            patience = endpoint.clock.now() + endpoint.settings.hello_seconds
            self._concluded = endpoint.clock.call_at(patience, connection.close)
            self._frames.clear()
            connection.transport.resume_reading()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until nothing is written any more."""
        if self._task is not None:
            await asyncio.wait([self._task])

    # Receiving

    def _begin(self, connection: FrameConnection, frame: AnyFrame) -> None:
        if not isinstance(frame, Offer):
            raise FrameError(Reason.UNEXPECTED, f"{type(frame).__name__} before the offer")
        problem = check_manifest(frame.manifest)
        if problem:
            raise FrameError(Reason.UNDECODABLE, problem)
        self._task = asyncio.get_running_loop().create_task(self._run(connection, frame))
        self._receiver.tasks.add(self._task)
        self._task.add_done_callback(self._receiver.tasks.discard)

    async def _run(self, connection: FrameConnection, offer: Offer) -> None:
        receiver, replica = self._receiver, (offer.message.group, offer.message.receiver)
        self.term = offer.message.term
        self._rank = (self.term, offer.message.meta.index)
        while (other := receiver.incoming.get(replica)) is not None:
            if offer.message.repair and self._store != other._store and self.term == other.term:
                self.conclude(_TAKEN)
                return
            if self._rank < other._rank:
                self.conclude(_SUPERSEDED)
                return
            if self._rank == other._rank:
                other.hang_up()
            else:
                other.conclude(_SUPERSEDED)
            await other.ended()
        receiver.incoming[replica] = self
        try:
            await self._receive(connection, offer)
        except OSError as error:
            self.conclude(Declined(f"{receiver.root}: {error.strerror}"))
        finally:
            del receiver.incoming[replica]
            if self._concluded is None:
                connection.close()

    async def _receive(self, connection: FrameConnection, offer: Offer) -> None:
        receiver = self._receiver
        unwanted = receiver.handler.offered(self._store, offer.message, offer.manifest)
        if unwanted:
            self.conclude(Declined(unwanted))
            return
        key = key_of(offer.message, offer.manifest)
        await self._forget_others(offer.message, key)
        files = await self._partial(key, offer.manifest)
        if files is None:
            self._report(offer, receiver.root / key)
            return
        say(connection, Resume(files.verified))
        try:
            with receiver.meter.receiving():
                await self._take_in(connection, offer, files)
        except OSError:
            if files.spoiled:
                del receiver.partials[key]
                await _on_thread(files.discard)
            raise

    async def _take_in(self, connection: FrameConnection, offer: Offer, files: Partial) -> None:
        """Write chunks as they come, while those before them are being synced."""
        syncing: asyncio.Task[None] | None = None
        try:
            while chunks := await self._next_chunks(connection):
                if not await self._write(connection, offer.message.group, files, chunks):
                    return
                due = files.due()
                if due:
                    if syncing is not None:
                        await syncing
                    syncing = asyncio.create_task(_on_thread(files.sync, due))
        finally:
            if syncing is not None:
                await syncing
        await self._conclude(connection, offer, files)

    async def _conclude(self, connection: FrameConnection, offer: Offer, files: Partial) -> None:
        """Do what the sender's last word asks for; none where the connection was lost."""
        key = key_of(offer.message, offer.manifest)
        match self._frames.popleft() if self._frames else None:
            case Cancelled():
                del self._receiver.partials[key]
                await _on_thread(files.discard)
            case Finished() if files.whole:
                await _on_thread(files.finish)
                del self._receiver.partials[key]
                self._report(offer, files.final)
            case Finished():
                connection.drop(Reason.UNEXPECTED, "the end came before the files were complete")

    async def _partial(self, key: str, manifest: Manifest) -> Partial | None:
        """Return what there is of a snapshot; None if all of it is."""
        known = self._receiver.partials.get(key)
        if known is None:
            known = Partial(self._receiver.root, key, manifest)
            if await _on_thread(known.complete):
                return None
            await _on_thread(known.prepare)
            self._receiver.partials[key] = known
        return known

    async def _write(self, connection: FrameConnection, group: int, files: Partial, chunks: list[Chunk]) -> bool:
        for chunk in chunks:
            await self._receiver.take(group, len(chunk.data))
            self._receiver.meter.bytes += len(chunk.data)
        try:
            corrupt = await _on_thread(_write_chunks, files, chunks)
        except FrameError as error:
            connection.drop(error.reason, error.detail)
            return False
        if corrupt is not None:
            self._receiver.endpoint.drops[Reason.CORRUPT] += 1
            self.conclude(Corrupt(corrupt.file, corrupt.offset))
        return corrupt is None

    def _report(self, offer: Offer, directory: Path) -> None:
        self._receiver.handler.stored(self._store, offer.message, directory, offer.manifest)
        self.conclude(Stored())

    async def _forget_others(self, message: InstallSnapshot, key: str) -> None:
        """Delete what arrived of other snapshots for the same replica: this one supersedes them."""
        pattern = f"{message.group}-{message.receiver}-*{PARTIAL}"
        for path in await _on_thread(lambda: list(self._receiver.root.glob(pattern))):
            if path.name != key + PARTIAL:
                self._receiver.partials.pop(path.name.removesuffix(PARTIAL), None)
                await _on_thread(remove, path)

    async def _next_chunks(self, connection: FrameConnection) -> list[Chunk]:
        """Return the chunks that are there; none when something else comes next, or nothing."""
        while not self._frames and not connection.closing:
            self._news.clear()
            await self._news.wait()
        chunks: list[Chunk] = []
        while self._frames and isinstance(chunk := self._frames[0], Chunk):
            chunks.append(chunk)
            self._frames.popleft()
        self._unread = 0
        if not connection.closing:
            connection.transport.resume_reading()
        return chunks


async def _on_thread(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Have something done on a thread; whoever is cancelled meanwhile waits for its end, so nobody writes unseen."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise


def _write_chunks(files: Partial, chunks: list[Chunk]) -> Chunk | None:
    """Write chunks, on a thread; returns the first that is corrupt."""
    for chunk in chunks:
        if not files.expects(chunk.file, chunk.offset, len(chunk.data)):
            raise FrameError(Reason.UNEXPECTED, "a chunk that is not the next of its file")
        if not files.write(chunk.file, chunk.offset, chunk.data):
            return chunk
    return None
