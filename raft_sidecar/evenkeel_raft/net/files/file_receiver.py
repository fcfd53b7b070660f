"""Receives snapshots from other stores.

A connection carries one snapshot. Its frames are queued and processed in order on a thread. When the thread or the
budget falls behind, the connection is no longer read and TCP slows the sender down.

A replica receives one snapshot at a time, the one with the newest term and index. Others are declined; otherwise two
leaders, one of them deposed without knowing it, would keep closing each other's connections. The same snapshot offered
again takes over, because its sender knows that the previous connection is dead.

A leader that lost its state may be offered snapshots by several members. Their files differ, so one cannot continue
another's transfer: the first is received to its end and the others are declined.

The end that sends the last frame does not close the connection: closing while the other end is still sending could
destroy that frame. The sender closes the connection once it has received it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from evenkeel.errors import FrameError, InvalidInputError
from evenkeel.runtime.clock import Clock, Timer
from evenkeel.runtime.directories import make_directory
from evenkeel.wire.frame_connection import FrameConnection, Owner
from evenkeel.wire.framing import SMALL_FRAME_BYTES, Reason
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.net.files.partial_snapshot import PARTIAL, Partial, key_of, parse_key, remove
from evenkeel_raft.net.files.snapshot_manifest import Manifest, check_manifest
from evenkeel_raft.net.keepalive import Keepalive
from evenkeel_raft.net.peer_endpoint import Endpoint, send_frame
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
_SUPERSEDED: Final = Declined("superseded by a newer snapshot")
_TAKEN: Final = Declined("already receiving another member's snapshot")
_Result = TypeVar("_Result")


class FileHandler(Protocol):
    """Decides about offered snapshots and takes over received ones."""

    def offered(self, store: str, message: InstallSnapshot, manifest: Manifest, /) -> str:
        """Return why a snapshot is declined, or an empty string to accept it."""
        ...

    def stored(self, store: str, message: InstallSnapshot, directory: Path, manifest: Manifest, /) -> None:
        """Take over a durable, verified snapshot; the handler owns the directory from now on.

        May be called twice for one snapshot: a sender that missed the confirmation offers it again.
        """
        ...


class CopyMeter:
    """Counts received bytes, and the seconds during which at least one snapshot was being received."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active = 0
        self._since = 0.0
        self._seconds = 0.0
        self.bytes = 0

    @property
    def seconds(self) -> float:
        """Seconds since the process started during which at least one snapshot was being received."""
        return self._seconds + (self._clock.now() - self._since if self._active else 0.0)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Count the time in which this context is entered."""
        if not self._active:
            self._since = self._clock.now()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._seconds += self._clock.now() - self._since


class FileReceiver:
    """Receives all snapshots of one store into one directory."""

    def __init__(self, root: Path, *, endpoint: Endpoint, handler: FileHandler, take: TakeBytes) -> None:
        """`take` waits until that many bytes of a group may be received."""
        try:
            make_directory(root)
        except OSError as error:
            raise InvalidInputError(
                f"cannot create snapshot directory {root}: {error.strerror}; change --data"
            ) from error
        self.root = root
        self.endpoint = endpoint
        self.handler = handler
        self.take = take
        self.meter = CopyMeter(endpoint.clock)
        self.partials: dict[str, Partial] = {}
        self.incoming: dict[tuple[int, int], Incoming] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def owner_of(self, store: str) -> Owner:
        """Return the owner of a connection that a peer dialled."""
        return Incoming(self, store)

    def receiving(self, group: int, replica: int, *, term: int) -> bool:
        """Whether a snapshot announced in this term is being received for a replica."""
        active = self.incoming.get((group, replica))
        return active is not None and active.term == term

    async def cancel(self, group: int, replica: int) -> None:
        """Stop receiving for a replica, inform the sender and delete what arrived."""
        active = self.incoming.get((group, replica))
        if active is not None:
            active.conclude(Declined("cancelled"))
            await active.ended()
        await self.sweep(lambda *key: key != (group, replica))

    async def sweep(self, keep: Callable[[int, int], bool]) -> None:
        """Delete partial snapshots of replicas that are not kept, except those being received."""
        for path in await _on_thread(lambda: list(self.root.glob(f"*{PARTIAL}"))):
            key = parse_key(path.name)
            if key is not None and not keep(key.group, key.replica) and key[:2] not in self.incoming:
                self.partials.pop(path.name.removesuffix(PARTIAL), None)
                await _on_thread(remove, path)

    async def close(self) -> None:
        """Stop receiving; partial snapshots stay and can be resumed."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Incoming:
    """One connection that carries a snapshot."""

    def __init__(self, receiver: FileReceiver, store: str) -> None:
        self._receiver = receiver
        self._store = store
        self._connection: FrameConnection | None = None
        self._keepalive: Keepalive | None = None
        self._frames: deque[AnyFrame] = deque()
        self._unread = 0
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._concluded: Timer | None = None
        self.term = 0
        self._rank = (0, 0)

    # Connection events

    def made(self, connection: FrameConnection) -> None:
        """Adopt the connection and wait for the offer."""
        endpoint = self._receiver.endpoint
        self._connection = connection
        self._keepalive = Keepalive(connection, clock=endpoint.clock, settings=endpoint.settings)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Queue a frame for processing."""
        frame = PEER_CODEC.decode(payload)
        if isinstance(frame, Alive) or self._concluded is not None:
            return
        if self._task is None:
            self._begin(connection, frame)
            return
        if not isinstance(frame, Chunk | Finished | Cancelled):
            raise FrameError(Reason.UNEXPECTED, f"unexpected {type(frame).__name__} from a snapshot sender")
        if isinstance(frame, Chunk) and len(payload) <= SMALL_FRAME_BYTES:
            frame = Chunk(frame.file, frame.offset, memoryview(bytes(frame.data)))
        self._frames.append(frame)
        self._unread += len(payload)
        if self._unread > _UNREAD_BYTES:
            connection.transport.pause_reading()
        self._wakeup.set()

    def lost(self, connection: FrameConnection) -> None:
        """Stop; what arrived stays."""
        for timer in (self._keepalive, self._concluded):
            if timer is not None:
                timer.cancel()
        self._wakeup.set()

    def abort(self) -> None:
        """Drop the connection and cancel processing."""
        if self._connection is not None:
            self._connection.drop(Reason.REPLACED, "a newer connection sends the same snapshot")
        if self._task is not None:
            self._task.cancel()

    def conclude(self, last: Declined | Corrupt | Stored) -> None:
        """Send the last frame and ignore everything received after it."""
        connection, endpoint = self._connection, self._receiver.endpoint
        if connection is not None and not connection.closing and self._concluded is None:
            send_frame(connection, last)
            deadline = endpoint.clock.now() + endpoint.settings.hello_seconds
            self._concluded = endpoint.clock.call_at(deadline, connection.close)
            self._frames.clear()
            connection.transport.resume_reading()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until no thread writes files any more."""
        if self._task is not None:
            await asyncio.wait([self._task])

    # Receiving

    def _begin(self, connection: FrameConnection, frame: AnyFrame) -> None:
        if not isinstance(frame, Offer):
            raise FrameError(Reason.UNEXPECTED, f"received {type(frame).__name__} before the offer")
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
                other.abort()
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
        reason = receiver.handler.offered(self._store, offer.message, offer.manifest)
        if reason:
            self.conclude(Declined(reason))
            return
        key = key_of(offer.message, offer.manifest)
        await self._delete_superseded(offer.message, key)
        files = await self._partial(key, offer.manifest)
        if files is None:
            self._report(offer, receiver.root / key)
            return
        send_frame(connection, Resume(files.verified))
        try:
            with receiver.meter.receiving():
                await self._write_incoming(connection, offer, files)
        except OSError:
            if files.spoiled:
                del receiver.partials[key]
                await _on_thread(files.discard)
            raise

    async def _write_incoming(self, connection: FrameConnection, offer: Offer, files: Partial) -> None:
        """Write chunks as they arrive, while earlier ones are being synced."""
        sync: asyncio.Task[None] | None = None
        try:
            while chunks := await self._next_chunks(connection):
                if not await self._write(connection, offer.message.group, files, chunks):
                    return
                due = files.due()
                if due:
                    if sync is not None:
                        await sync
                    sync = asyncio.create_task(_on_thread(files.sync, due))
        finally:
            if sync is not None:
                await sync
        await self._conclude(connection, offer, files)

    async def _conclude(self, connection: FrameConnection, offer: Offer, files: Partial) -> None:
        """Act on the sender's last frame; there is none if the connection was lost."""
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
                connection.drop(Reason.UNEXPECTED, "finished before all files were complete")

    async def _partial(self, key: str, manifest: Manifest) -> Partial | None:
        """Return the partial snapshot; None if it is complete already."""
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

    async def _delete_superseded(self, message: InstallSnapshot, key: str) -> None:
        """Delete partial snapshots for the same replica that this one supersedes."""
        pattern = f"{message.group}-{message.receiver}-*{PARTIAL}"
        for path in await _on_thread(lambda: list(self._receiver.root.glob(pattern))):
            if path.name != key + PARTIAL:
                self._receiver.partials.pop(path.name.removesuffix(PARTIAL), None)
                await _on_thread(remove, path)

    async def _next_chunks(self, connection: FrameConnection) -> list[Chunk]:
        """Wait for chunks and return them; empty if another frame is next or the connection is lost."""
        while not self._frames and not connection.closing:
            self._wakeup.clear()
            await self._wakeup.wait()
        chunks: list[Chunk] = []
        while self._frames and isinstance(chunk := self._frames[0], Chunk):
            chunks.append(chunk)
            self._frames.popleft()
        self._unread = 0
        if not connection.closing:
            connection.transport.resume_reading()
        return chunks


async def _on_thread(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run a function on a thread; when cancelled, wait for its end so that it does not write unnoticed."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise


def _write_chunks(files: Partial, chunks: list[Chunk]) -> Chunk | None:
    """Write chunks on a thread; return the first corrupt one."""
    for chunk in chunks:
        if not files.expects(chunk.file, chunk.offset, len(chunk.data)):
            raise FrameError(Reason.UNEXPECTED, "chunk out of order")
        if not files.write(chunk.file, chunk.offset, chunk.data):
            return chunk
    return None
