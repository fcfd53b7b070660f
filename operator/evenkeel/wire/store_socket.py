"""The store's end of the state-machine socket: it connects to the sidecar, again and again.

Requests of one group are to be carried out in the order in which they arrive, also across connections: when the
sidecar comes back it opens the group anew, and the answer must tell of everything that was asked before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from evenkeel.errors import FrameError, HandshakeError
from evenkeel.runtime.backoff import Backoff, Rng
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.versions import FIRST, SUPPORTED
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops, Reason
from evenkeel.wire.pending_calls import Calls
from evenkeel.wire.socket_messages import (
    MAX_ENTRY_BYTES,
    MAX_PROPOSED_BYTES,
    STORE_CODEC,
    VERSION,
    Applied,
    Apply,
    Busy,
    Close,
    Committed,
    Destroy,
    Done,
    Doubt,
    Drain,
    Drained,
    Failed,
    FromSidecar,
    FromStore,
    Hello,
    NotLeader,
    Open,
    Opened,
    ProposeOutcome,
    ReadAt,
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
    Unavailable,
    Unknown,
    Version,
    propose_payload,
)
from evenkeel.wire.unix_paths import check_path, widen

__all__ = ["DEFAULT_CREDIT", "StateMachine", "StoreSocket"]

DEFAULT_CREDIT: Final = 16 << 20

_PROPOSE_ANSWERS: Final = (Committed, NotLeader, Unknown, Busy, TooLarge)
_READ_ANSWERS: Final = (ReadAt, Unavailable)


class StateMachine(Protocol):
    """What a store does when its sidecar asks. Each `answer` is called once, now or later, from the event loop."""

    def connected(self, volume: str) -> None:
        """The sidecar is there, and this is its volume: a store without one takes it as its own."""
        ...

    def disconnected(self) -> None:
        """It is gone; answers to what it asked go nowhere."""
        ...

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Opened | Failed], None]) -> None:
        """Get ready, and tell how far the state is durable."""
        ...

    def apply(self, group: int, replica: int, request: Apply, answer: Callable[[Applied | Failed], None]) -> None:
        """Apply entries, and answer when state and applied index are durable together."""
        ...

    def snapshot(
        self, group: int, replica: int, directory: Path, answer: Callable[[SnapshotTaken | Failed], None]
    ) -> None:
        """Write the state to files."""
        ...

    def restore(self, group: int, replica: int, request: Restore, answer: Callable[[Applied | Failed], None]) -> None:
        """Replace the state by a snapshot's."""
        ...

    def close(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Stop a group."""
        ...

    def destroy(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Delete a group."""
        ...

    def role(self, group: int, replica: int, role: Role) -> None:
        """Know who leads."""
        ...


class StoreSocket:
    """Keeps a connection to the sidecar while `run` runs."""

    def __init__(
        self,
        path: Path,
        *,
        volume: str,
        state_machine: StateMachine,
        credit: int = DEFAULT_CREDIT,
        clock: Clock | None = None,
        rng: Rng | None = None,
        drops: Drops | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self.drops: Drops = Drops() if drops is None else drops
        self._hello = Hello(VERSION, volume, credit, supported=SUPPORTED)
        self.cluster_version = FIRST
        """What all parts of the cluster can read, by the sidecar's last word; see `evenkeel.versions`."""
        self._state_machine = state_machine
        self._backoff = Backoff(clock=clock or SystemClock(), rng=rng or random.Random())
        self._sidecar: FrameConnection | None = None
        self._calls: Calls[SidecarSays] = Calls()
        self._proposed = 0
        self._takes_sizes = False
        self._ended: asyncio.Future[None] | None = None
        self._refused: HandshakeError | None = None

    @property
    def connected(self) -> bool:
        """Whether the sidecar is there."""
        return self._sidecar is not None

    async def run(self) -> None:
        """Connect, and connect again, until cancelled; `HandshakeError` where no attempt can ever succeed."""
        while True:
            connection = await self._connect()
            if connection is not None:
                await self._until_lost(connection)
            if self._refused is not None and self._refused.reason != Reason.OCCUPIED:
                raise self._refused
            await self._backoff.wait()

    async def _connect(self) -> FrameConnection | None:
        loop = asyncio.get_running_loop()
        self._ended, self._refused = loop.create_future(), None
        try:
            _, connection = await loop.create_unix_connection(
                lambda: FrameConnection(self, drops=self.drops), str(self.path)
            )
        except OSError:
            return None
        return connection

    async def _until_lost(self, connection: FrameConnection) -> None:
        assert self._ended is not None
        try:
            await self._ended
        finally:
            connection.close()
            await connection.ended()

    # What the store asks

    def propose(self, group: int, replica: int, data: bytes) -> asyncio.Future[ProposeOutcome]:
        """Have an entry logged. Never fails: an outcome nobody knows is `Unknown`."""
        future: asyncio.Future[ProposeOutcome] = asyncio.get_running_loop().create_future()
        self.propose_to(group, replica, data, partial(_settle, future, Unknown()))
        return future

    def propose_to(self, group: int, replica: int, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """The same for those who have thousands of proposals under way; `answer` may be called at once."""
        size = len(data)
        if size > MAX_ENTRY_BYTES:
            answer(TooLarge())
        elif self._sidecar is None:
            answer(NotLeader())
        elif self._proposed + size > MAX_PROPOSED_BYTES:
            answer(Busy())
        else:
            self._proposed += size
            settle = partial(self._outcome, answer, size)
            number = self._calls.begin(group, replica, accepts=_PROPOSE_ANSWERS, settle=settle)
            self._sidecar.send(*propose_payload(number, group, replica, data))

    def read_index(self, group: int, replica: int) -> asyncio.Future[ReadOutcome]:
        """Ask from which applied index on a read that begins now may be answered."""
        return self._ask(group, replica, ReadIndex(), _READ_ANSWERS, lost=Unavailable())

    def doubt(self, group: int, replica: int, detail: str, *, unfit: bool = False) -> None:
        """Tell why a group's state may be wrong, "" where it is not; lost where no sidecar is connected."""
        if self._sidecar is not None:
            self._send(self._sidecar, 0, group, replica, Doubt(detail, unfit))

    def size(self, group: int, replica: int, size: int) -> None:
        """Tell about how many bytes a snapshot of a group would have; lost where no sidecar is there that takes it."""
        if self._sidecar is not None and self._takes_sizes:
            self._send(self._sidecar, 0, group, replica, Size(size))

    def drain(self) -> asyncio.Future[Drained]:
        """Ask for all leaderships to be handed over; done when they are, or the sidecar is gone."""
        return self._ask(0, 0, Drain(), (Drained,), lost=Drained())

    def _ask(
        self, group: int, replica: int, body: StoreSays, accepts: tuple[type[Any], ...], *, lost: SidecarSays
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._sidecar is None:
            future.set_result(lost)
            return future
        number = self._calls.begin(group, replica, accepts=accepts, settle=partial(_settle, future, lost))
        self._send(self._sidecar, number, group, replica, body)
        return future

    def _outcome(self, answer: Callable[[ProposeOutcome], None], size: int, body: ProposeOutcome | None) -> None:
        self._proposed -= size
        answer(Unknown() if body is None else body)

    def _send(self, sidecar: FrameConnection, number: int, group: int, replica: int, body: StoreSays) -> None:
        sidecar.send(STORE_CODEC.encode(FromStore(number, group, replica, body)))

    # What the sidecar asks

    def made(self, connection: FrameConnection) -> None:
        """Introduce ourselves."""
        widen(connection.transport.get_extra_info("socket"))
        self._send(connection, 0, 0, 0, self._hello)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Take in a request, an answer or a refusal."""
        frame = STORE_CODEC.decode(payload)
        if connection is not self._sidecar:
            self._greeted(connection, frame.body)
        elif isinstance(frame.body, Apply):
            self._state_machine.apply(frame.group, frame.replica, frame.body, self._answer(connection, frame))
        elif not self._request(connection, frame):
            self._calls.answered(frame.id, frame.group, frame.replica, frame.body)

    def lost(self, connection: FrameConnection) -> None:
        """Settle what nobody will answer any more."""
        if connection is self._sidecar:
            self._sidecar = None
            self._calls.abandon()
            self._state_machine.disconnected()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _request(self, connection: FrameConnection, frame: FromSidecar) -> bool:
        """Whether the frame asks something of the state machine."""
        machine, group, replica, answer = (
            self._state_machine,
            frame.group,
            frame.replica,
            self._answer(connection, frame),
        )
        match frame.body:
            case Open():
                machine.open(group, replica, frame.body, answer)
            case Snapshot(directory):
                machine.snapshot(group, replica, Path(directory), answer)
            case Restore():
                machine.restore(group, replica, frame.body, answer)
            case Close():
                machine.close(group, replica, answer)
            case Destroy():
                machine.destroy(group, replica, answer)
            case Role():
                machine.role(group, replica, frame.body)
            case Version(cluster):
                self._set_version(connection, cluster)
            case _:
                return False
        return True

    def _set_version(self, connection: FrameConnection, version: int) -> bool:
        """Whether the store can work by this cluster version; it hangs up for good where it cannot."""
        if SUPPORTED.includes(version):
            self.cluster_version = version
            return True
        detail = (
            f"the cluster version is {version}, and this store supports {SUPPORTED}: run a release that supports it"
        )
        self._refuse(connection, Reason.VERSION, detail)
        return False

    def _answer(self, connection: FrameConnection, frame: FromSidecar) -> Callable[[StoreSays], None]:
        return partial(self._send, connection, frame.id, frame.group, frame.replica)

    def _greeted(self, connection: FrameConnection, body: SidecarSays) -> None:
        if isinstance(body, Refused):
            return self._refuse(connection, body.reason, body.detail)
        if not isinstance(body, Hello):
            raise FrameError(Reason.UNEXPECTED, f"{type(body).__name__} before the hello")
        if body.version != VERSION:
            detail = (
                f"the store speaks version {VERSION} of the state-machine socket and the sidecar version "
                f"{body.version}: run both from one release"
            )
            return self._refuse(connection, Reason.VERSION, detail)
        if not self._set_version(connection, body.cluster):
            return None
        self._hello = Hello(VERSION, body.volume, self._hello.credit, supported=SUPPORTED)
        self._sidecar, self._calls, self._proposed = connection, Calls(), 0
        self._takes_sizes = body.sizes
        self._backoff.reset()
        return self._state_machine.connected(body.volume)

    def _refuse(self, connection: FrameConnection, reason: str, detail: str) -> None:
        self._refused = HandshakeError(reason, detail)
        connection.dismiss(reason, detail)


def _settle(future: asyncio.Future[Any], lost: SidecarSays, body: SidecarSays | None) -> None:
    if not future.done():
        future.set_result(lost if body is None else body)
