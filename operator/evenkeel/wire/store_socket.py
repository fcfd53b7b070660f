"""The store's end of the state-machine socket: it connects to the sidecar, and reconnects when the connection is lost.

A state machine must carry out the requests of one group in the order in which they arrive, also across connections.
After a reconnect the sidecar opens the group again, and the answer must cover all requests of the earlier connection.
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
from evenkeel.wire.socket_messages import (
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
    SidecarMessage,
    Size,
    Snapshot,
    SnapshotTaken,
    StoreMessage,
    TooLarge,
    Unavailable,
    Unknown,
    Version,
    propose_payload,
)
from evenkeel.wire.socket_peer import SocketPeer
from evenkeel.wire.unix_paths import check_socket_path, enlarge_send_buffer

__all__ = ["DEFAULT_CREDIT", "StateMachine", "StoreSocket"]

DEFAULT_CREDIT: Final = 16 << 20

_PROPOSE_ANSWERS: Final = (Committed, NotLeader, Unknown, Busy, TooLarge)
_READ_ANSWERS: Final = (ReadAt, Unavailable)


class StateMachine(Protocol):
    """What a store does for its sidecar. Each `answer` is called once, now or later, from the event loop."""

    def connected(self, volume: str) -> None:
        """The sidecar of this volume is connected; a store without a volume adopts it."""
        ...

    def disconnected(self) -> None:
        """The sidecar is disconnected; answers to its requests are discarded."""
        ...

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Opened | Failed], None]) -> None:
        """Prepare a group, and answer with the index up to which its state is durable."""
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
        """Replace the state with a snapshot."""
        ...

    def close(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Stop a group."""
        ...

    def destroy(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Delete a group."""
        ...

    def role(self, group: int, replica: int, role: Role) -> None:
        """Note who leads."""
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
        check_socket_path(path)
        self.path = path
        self.drops: Drops = Drops() if drops is None else drops
        self._hello = Hello(VERSION, volume, credit, supported=SUPPORTED)
        self.cluster_version = FIRST
        """The version that all parts of the cluster can read, as the sidecar last reported it: `evenkeel.versions`."""
        self._state_machine = state_machine
        self._backoff = Backoff(clock=clock or SystemClock(), rng=rng or random.Random())
        self._sidecar: SocketPeer[StoreMessage, SidecarMessage] = SocketPeer(_encode)
        self._takes_sizes = False
        self._lost: asyncio.Future[None] | None = None
        self._refused: HandshakeError | None = None

    @property
    def connected(self) -> bool:
        """Whether the sidecar is connected."""
        return self._sidecar.connection is not None

    async def run(self) -> None:
        """Connect and reconnect until cancelled; `HandshakeError` if the sidecar refuses this store for good."""
        while True:
            connection = await self._connect()
            if connection is not None:
                await self._until_lost(connection)
            if self._refused is not None and self._refused.reason != Reason.OCCUPIED:
                raise self._refused
            await self._backoff.wait()

    async def _connect(self) -> FrameConnection | None:
        loop = asyncio.get_running_loop()
        self._lost, self._refused = loop.create_future(), None
        try:
            _, connection = await loop.create_unix_connection(
                lambda: FrameConnection(self, drops=self.drops), str(self.path)
            )
        except OSError:
            return None
        return connection

    async def _until_lost(self, connection: FrameConnection) -> None:
        assert self._lost is not None
        try:
            await self._lost
        finally:
            connection.close()
            await connection.wait_closed()

    # Requests to the sidecar

    def propose(self, group: int, replica: int, data: bytes) -> asyncio.Future[ProposeOutcome]:
        """Propose an entry. The future never fails: if the outcome is unknown, it is `Unknown`."""
        future: asyncio.Future[ProposeOutcome] = asyncio.get_running_loop().create_future()
        self.propose_to(group, replica, data, partial(_settle, future, Unknown()))
        return future

    def propose_to(self, group: int, replica: int, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Propose an entry with a callback, which is cheaper than a future and may be called before this returns."""
        refusal = self._sidecar.proposal_refusal(len(data))
        if refusal is not None:
            answer(refusal)
        elif self._sidecar.connection is None:
            answer(NotLeader())
        else:
            self._sidecar.proposed_bytes += len(data)
            settle = partial(self._proposed, answer, len(data))
            number = self._sidecar.calls.begin(group, replica, accepts=_PROPOSE_ANSWERS, settle=settle)
            self._sidecar.connection.send(*propose_payload(number, group, replica, data))

    def read_index(self, group: int, replica: int) -> asyncio.Future[ReadOutcome]:
        """Ask for the index that must be applied before a read that starts now can be answered."""
        return self._request(group, replica, ReadIndex(), _READ_ANSWERS, if_lost=Unavailable())

    def doubt(self, group: int, replica: int, detail: str, *, unfit: bool = False) -> None:
        """Report why the state of a group may be wrong, "" if it no longer is; lost if no sidecar is connected."""
        self._sidecar.notify(group, replica, Doubt(detail, unfit))

    def size(self, group: int, replica: int, size: int) -> None:
        """Report the approximate size of a snapshot of a group; lost if no sidecar that supports it is connected."""
        if self._takes_sizes:
            self._sidecar.notify(group, replica, Size(size))

    def drain(self) -> asyncio.Future[Drained]:
        """Ask the sidecar to hand over all leaderships; done when it has, or when it is disconnected."""
        return self._request(0, 0, Drain(), (Drained,), if_lost=Drained())

    def _request(
        self, group: int, replica: int, body: StoreMessage, accepts: tuple[type[Any], ...], *, if_lost: SidecarMessage
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._sidecar.request(group, replica, body, accepts=accepts, settle=partial(_settle, future, if_lost))
        return future

    def _proposed(self, answer: Callable[[ProposeOutcome], None], size: int, body: ProposeOutcome | None) -> None:
        self._sidecar.proposed_bytes -= size
        answer(Unknown() if body is None else body)

    # Requests from the sidecar

    def made(self, connection: FrameConnection) -> None:
        """Send the hello."""
        enlarge_send_buffer(connection.transport.get_extra_info("socket"))
        self._sidecar.send(connection, 0, 0, 0, self._hello)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Handle a hello, a refusal, a request or an answer."""
        frame = STORE_CODEC.decode(payload)
        if connection is not self._sidecar.connection:
            self._handshake(connection, frame.body)
        elif isinstance(frame.body, Apply):
            self._state_machine.apply(frame.group, frame.replica, frame.body, self._answer(connection, frame))
        elif not self._handle_request(connection, frame):
            self._sidecar.calls.answered(frame.id, frame.group, frame.replica, frame.body)

    def lost(self, connection: FrameConnection) -> None:
        """Settle all pending requests."""
        if connection is self._sidecar.connection:
            self._sidecar.detach()
            self._state_machine.disconnected()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    def _handle_request(self, connection: FrameConnection, frame: FromSidecar) -> bool:
        """Pass a request to the state machine; False if the frame is not a request."""
        machine, group, replica = self._state_machine, frame.group, frame.replica
        answer = self._answer(connection, frame)
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
        """Adopt a cluster version; if this store does not support it, refuse the sidecar and return False."""
        if SUPPORTED.includes(version):
            self.cluster_version = version
            return True
        detail = (
            f"the cluster version is {version}, but this store supports {SUPPORTED}; run a release that supports it"
        )
        self._refuse(connection, Reason.VERSION, detail)
        return False

    def _answer(self, connection: FrameConnection, frame: FromSidecar) -> Callable[[StoreMessage], None]:
        return partial(self._sidecar.send, connection, frame.id, frame.group, frame.replica)

    def _handshake(self, connection: FrameConnection, body: SidecarMessage) -> None:
        if isinstance(body, Refused):
            return self._refuse(connection, body.reason, body.detail)
        if not isinstance(body, Hello):
            raise FrameError(Reason.UNEXPECTED, f"{type(body).__name__} before the hello")
        if body.version != VERSION:
            detail = (
                f"the store speaks version {VERSION} of the state-machine socket and the sidecar version "
                f"{body.version}; run both from one release"
            )
            return self._refuse(connection, Reason.VERSION, detail)
        if not self._set_version(connection, body.cluster):
            return None
        self._hello = Hello(VERSION, body.volume, self._hello.credit, supported=SUPPORTED)
        self._sidecar.attach(connection)
        self._takes_sizes = body.sizes
        self._backoff.reset()
        return self._state_machine.connected(body.volume)

    def _refuse(self, connection: FrameConnection, reason: str, detail: str) -> None:
        self._refused = HandshakeError(reason, detail)
        connection.dismiss(reason, detail)


def _encode(number: int, group: int, replica: int, body: StoreMessage) -> bytes:
    return STORE_CODEC.encode(FromStore(number, group, replica, body))


def _settle(future: asyncio.Future[Any], if_lost: SidecarMessage, body: SidecarMessage | None) -> None:
    if not future.done():
        future.set_result(if_lost if body is None else body)
