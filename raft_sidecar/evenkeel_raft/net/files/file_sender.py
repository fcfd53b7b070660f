"""Streams a snapshot to a peer, over as many connections as needed.

Each attempt asks the receiver what it has verified and continues from there. The sender verifies its own file only
when the receiver reports a corrupt chunk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from evenkeel.errors import DisconnectedError, EvenkeelError, FrameError
from evenkeel.runtime.backoff import Backoff, Rng
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Reason
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.net.files.snapshot_manifest import Manifest
from evenkeel_raft.net.keepalive import Keepalive
from evenkeel_raft.net.peer_endpoint import Endpoint, send_frame
from evenkeel_raft.net.peer_frames import (
    PEER_CODEC,
    Alive,
    Cancelled,
    Corrupt,
    Declined,
    Finished,
    Offer,
    Resume,
    Stored,
    chunk_head,
)

__all__ = ["FileSender", "Outcome", "Sent"]

_Answer = Resume | Declined | Corrupt | Stored
_Place = tuple[int, int]
_READ_BYTES: Final = 4 << 20


class Outcome(Enum):
    """How a snapshot transfer ended."""

    STORED = "all files are durable and verified at the receiver"
    DECLINED = "declined by the receiver"
    DAMAGED = "a source file does not match its manifest"


class Sent(NamedTuple):
    """The result of a snapshot transfer."""

    outcome: Outcome
    detail: str = ""


class FileSender:
    """Sends the snapshots of one store; any number at once, within the rate limits."""

    def __init__(self, endpoint: Endpoint, *, rng: Rng, take: Callable[[int, int], Awaitable[None]]) -> None:
        """`take` waits until that many bytes of a group may be sent."""
        self._endpoint = endpoint
        self._rng = rng
        self._take = take

    async def send(
        self,
        store: str,
        *,
        message: InstallSnapshot,
        manifest: Manifest,
        directory: Path,
        progress: Callable[[int], None] | None = None,
    ) -> Sent:
        """Send a snapshot, with retries until it succeeds or is rejected; cancelling informs the receiver.

        `progress` is called with the number of bytes that were sent or that the receiver already had.
        """
        settings, clock = self._endpoint.settings, self._endpoint.clock
        backoff = Backoff(clock=clock, rng=self._rng, first=settings.first_retry, longest=settings.last_retry)
        source = _Source(directory, manifest)
        while True:
            attempt = _Attempt(self._endpoint, partial(self._take, message.group), source, progress or _ignore)
            try:
                await self._endpoint.dial(store, "files", owner=attempt)
                sent = await attempt.run(Offer(message, manifest))
            except (EvenkeelError, OSError):
                sent = None
            if sent is not None:
                return sent
            if attempt.progressed:
                backoff.reset()
            await backoff.wait()


class _SourceError(Exception):
    """A source file cannot be sent."""


class _Source:
    """Reads the snapshot's files on threads."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._directory = directory

    async def chunks(self, offsets: list[int]) -> AsyncGenerator[tuple[_Place, bytes], None]:
        """Yield all chunks from these offsets on, reading ahead by one portion."""
        portions = self._portions(offsets)
        reading = self._start_reading(next(portions, []))
        try:
            while found := await reading:
                reading = self._start_reading(next(portions, []))
                for chunk in found:
                    yield chunk
        finally:
            reading.cancel()

    async def check(self, number: int, offset: int) -> None:
        """Raise `_SourceError` if a chunk does not match the manifest."""
        if not await asyncio.to_thread(lambda: self.manifest.verifies(number, offset, self._read(number, offset))):
            raise _SourceError(f"{self._path(number)} is damaged at byte {offset}")

    def _portions(self, offsets: list[int]) -> Iterator[list[_Place]]:
        """Split the missing chunks into portions large enough for one thread call."""
        portion: list[_Place] = []
        size = 0
        for number, start in enumerate(offsets):
            for offset in range(start, self.manifest.files[number].size, self.manifest.chunk_bytes):
                portion.append((number, offset))
                size += self.manifest.length_at(number, offset)
                if size >= _READ_BYTES:
                    yield portion
                    portion, size = [], 0
        if portion:
            yield portion

    def _start_reading(self, places: list[_Place]) -> asyncio.Future[list[tuple[_Place, bytes]]]:
        read = partial(self._read_all, places)
        return asyncio.ensure_future(asyncio.to_thread(read))

    def _read_all(self, places: list[_Place]) -> list[tuple[_Place, bytes]]:
        return [(place, self._read(*place)) for place in places]

    def _read(self, number: int, offset: int) -> bytes:
        length = self.manifest.length_at(number, offset)
        try:
            opened = os.open(self._path(number), os.O_RDONLY)
            try:
                data = os.pread(opened, length, offset)
            finally:
                os.close(opened)
        except OSError as error:
            raise _SourceError(f"cannot read {self._path(number)}: {error.strerror}") from error
        if len(data) != length:
            raise _SourceError(f"{self._path(number)} was truncated")
        return data

    def _path(self, number: int) -> Path:
        return self._directory / self.manifest.files[number].name


class _Attempt:
    """One connection of a transfer."""

    def __init__(
        self,
        endpoint: Endpoint,
        take: Callable[[int], Awaitable[None]],
        source: _Source,
        progress: Callable[[int], None],
    ) -> None:
        self.progressed = False
        self._endpoint = endpoint
        self._take = take
        self._source = source
        self._progress = progress
        self._connection: FrameConnection | None = None
        self._keepalive: Keepalive | None = None
        self._answers: asyncio.Queue[_Answer | None] = asyncio.Queue()

    # Connection events

    def made(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._keepalive = Keepalive(connection, clock=self._endpoint.clock, settings=self._endpoint.settings)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        frame = PEER_CODEC.decode(payload)
        if isinstance(frame, Alive):
            return
        if not isinstance(frame, Resume | Declined | Corrupt | Stored):
            raise FrameError(Reason.UNEXPECTED, f"unexpected {type(frame).__name__} from a snapshot receiver")
        self._answers.put_nowait(frame)

    def lost(self, connection: FrameConnection) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        self._answers.put_nowait(None)

    # Sending

    async def run(self, offer: Offer) -> Sent | None:
        """Send the snapshot; None means try again."""
        connection = self._connection
        assert connection is not None
        try:
            return await self._offer(connection, offer)
        except _SourceError as error:
            send_frame(connection, Cancelled())
            return Sent(Outcome.DAMAGED, str(error))
        except asyncio.CancelledError:
            send_frame(connection, Cancelled())
            raise
        finally:
            connection.close()

    async def _offer(self, connection: FrameConnection, offer: Offer) -> Sent | None:
        send_frame(connection, offer)
        answer = await self._next_answer()
        if isinstance(answer, Resume):
            if not self._is_valid(answer):
                connection.drop(Reason.UNEXPECTED, "resume offsets do not match the files")
                return None
            await self._stream(connection, answer.offsets)
            answer = await self._next_answer()
        match answer:
            case Stored():
                return Sent(Outcome.STORED)
            case Declined(detail):
                return Sent(Outcome.DECLINED, detail)
            case Corrupt(file, offset) if self._is_chunk_start(file, offset):
                await self._source.check(file, offset)
        return None

    async def _stream(self, connection: FrameConnection, offsets: list[int]) -> None:
        """Send the missing chunks; stop early when the receiver sends a frame."""
        sent = sum(offsets)
        self._progress(sent)
        async with aclosing(self._source.chunks(offsets)) as chunks:
            async for place, data in chunks:
                await self._take(len(data))
                if not self._answers.empty():
                    return
                connection.write(chunk_head(*place, len(data)), data)
                await connection.drain()
                self.progressed = True
                sent += len(data)
                self._progress(sent)
        send_frame(connection, Finished())

    async def _next_answer(self) -> _Answer:
        answer = await self._answers.get()
        if answer is None:
            raise DisconnectedError("the receiver closed the connection")
        return answer

    def _is_valid(self, resume: Resume) -> bool:
        manifest = self._source.manifest
        return len(resume.offsets) == len(manifest.files) and all(
            offset == file.size or self._is_chunk_start(number, offset)
            for number, (offset, file) in enumerate(zip(resume.offsets, manifest.files, strict=True))
        )

    def _is_chunk_start(self, number: int, offset: int) -> bool:
        """Whether a chunk of the file starts at this offset."""
        manifest = self._source.manifest
        known = 0 <= number < len(manifest.files)
        return known and 0 <= offset < manifest.files[number].size and offset % manifest.chunk_bytes == 0


def _ignore(_: int) -> None:
    pass
