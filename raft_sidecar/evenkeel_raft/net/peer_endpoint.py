"""Dials and accepts connections between stores, up to the exchange of hellos.

Before its hello, an unidentified client costs one connection, a few kilobytes and a few seconds at most.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from evenkeel.errors import DisconnectedError, FrameError, HandshakeError, InvalidInputError
from evenkeel.runtime.clock import Clock, Timer
from evenkeel.versions import FIRST
from evenkeel.wire.frame_connection import FrameConnection, Owner
from evenkeel.wire.framing import Drops, Reason
from evenkeel_raft.net.peer_frames import PEER_CODEC, AnyFrame, Hello, Purpose, Refused
from evenkeel_raft.net.peer_handshake import check_answer, check_cluster_version, check_hello, make_hello
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings

__all__ = ["Endpoint", "OwnerFactory", "send_frame"]

_HELLO_BYTES: Final = 4096
_MAX_UNIDENTIFIED: Final = 256
_ACCEPT_RETRY_SECONDS: Final = 0.1


class OwnerFactory(Protocol):
    """Chooses the owner of an accepted connection."""

    def __call__(self, store: str, purpose: Purpose, /) -> Owner:
        """Return the owner; its `made` is called immediately."""
        ...


def send_frame(connection: FrameConnection, frame: AnyFrame) -> None:
    """Encode and send a frame."""
    connection.send(PEER_CODEC.encode(frame))


class Endpoint:
    """Dials and accepts the connections of one store."""

    def __init__(
        self,
        me: Identity,
        *,
        clock: Clock,
        settings: LinkSettings,
        tls: TlsFiles | None = None,
        drops: Drops | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.me = me
        self.clock = clock
        self.wall_clock = wall_clock
        """Seconds since 1970; only sent to peers and compared with theirs."""
        self.settings = settings
        self.peers: Mapping[str, Address] = {}
        self.version = FIRST
        """The cluster version; peers that do not support it are refused."""
        self.drops: Drops = Drops() if drops is None else drops
        self.refusals: dict[str, str] = {}
        """Why there is no connection, by peer; removed once there is one."""
        self._tls = tls
        self._connections: WeakSet[FrameConnection] = WeakSet()
        self._hellos: WeakKeyDictionary[FrameConnection, Hello] = WeakKeyDictionary()
        self._unidentified: set[FrameConnection] = set()
        self._listeners: list[socket.socket] = []
        self._accept_retry: Timer | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        if tls is not None:
            tls.server_context()  # report unusable files at startup

    # Accepting

    async def listen(self, host: str, port: int, *, owner_of: OwnerFactory) -> int:
        """Start accepting connections; return the port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise InvalidInputError(
                f"cannot listen for peers on {host}:{port}: {error.strerror}; free the port or change --listen"
            ) from error
        listener.setblocking(False)
        self._listeners.append(listener)
        self._start_accepting(listener, owner_of)
        bound: int = listener.getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and cancel pending handshakes."""
        if self._accept_retry is not None:
            self._accept_retry.cancel()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for task in list(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    async def close_connections(self) -> None:
        """Close all connections and wait until they are closed."""
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    def set_version(self, version: int) -> None:
        """Require a cluster version: close connections to stores that do not support it, and refuse new ones."""
        self.version = version
        for connection, hello in list(self._hellos.items()):
            refusal = check_cluster_version(hello, version=version)
            if refusal is not None:
                self.refusals[hello.store] = refusal.detail
                connection.dismiss(refusal.reason, refusal.detail)

    def on_hello_accepted(self, connection: FrameConnection, hello: Hello) -> None:
        """Register an identified connection."""
        self.refusals.pop(hello.store, None)
        self._hellos[connection] = hello

    def _start_accepting(self, listener: socket.socket, owner_of: OwnerFactory) -> None:
        # A task with `sock_accept` could leak the accepted socket when it is cancelled.
        asyncio.get_running_loop().add_reader(listener, self._accept, listener, owner_of)

    def _accept(self, listener: socket.socket, owner_of: OwnerFactory) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError):  # the client has disconnected already
            return
        except OSError:  # for example out of file descriptors: retry later
            asyncio.get_running_loop().remove_reader(listener)
            again = partial(self._start_accepting, listener, owner_of)
            self._accept_retry = self.clock.call_at(self.clock.now() + _ACCEPT_RETRY_SECONDS, again)
            return
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._handshake(accepted, owner_of))
        self._accepting.add(task)
        task.add_done_callback(partial(self._accept_done, accepted))

    def _accept_done(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._accepting.discard(task)
        if task.cancelled():  # possibly before it started
            accepted.close()

    async def _handshake(self, accepted: socket.socket, owner_of: OwnerFactory) -> None:
        make_protocol = partial(self._connection, _Accepted(self, owner_of))
        loop = asyncio.get_running_loop()
        try:
            context = self._tls.server_context() if self._tls else None
            timeout = self.settings.hello_seconds if context else None
            await loop.connect_accepted_socket(make_protocol, accepted, ssl=context, ssl_handshake_timeout=timeout)
        except (OSError, InvalidInputError) as error:
            # A connection that failed during the TLS handshake has no owner to notify.
            self._note_tls(error)
            accepted.close()

    # Dialling

    async def dial(self, store: str, purpose: Purpose, *, owner: Owner) -> FrameConnection:
        """Connect to a peer and exchange hellos; then call the owner's `made`.

        Raises `HandshakeError` (one end refuses the other), `DisconnectedError` (the peer closed the connection),
        `InvalidInputError` (invalid address, or unusable certificates) or `OSError`.
        """
        address = self.peers.get(store)
        if address is None:
            raise HandshakeError(Reason.UNKNOWN_PEER, f"{self.me.store} has no peer named {store}")
        greeter = _Dialled(self, store, purpose, owner)
        try:
            return await self._dial(address, greeter)
        except (HandshakeError, InvalidInputError, OSError) as error:
            self.refusals[store] = str(error) or type(error).__name__
            raise
        finally:
            greeter.release()

    async def _dial(self, address: Address, greeter: _Dialled) -> FrameConnection:
        loop = asyncio.get_running_loop()
        context = self._tls.client_context() if self._tls else None
        name = (self._tls.server_name or address.host) if self._tls else None
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                await loop.create_connection(
                    partial(self._connection, greeter), address.host, address.port, ssl=context, server_hostname=name
                )
        except OSError as error:
            self._note_tls(error)
            raise
        except (ValueError, OverflowError) as error:  # the host name or port is malformed
            raise InvalidInputError(f"invalid peer address {address.host}:{address.port}: {error}") from error
        return await greeter.connected

    def _connection(self, owner: Owner) -> FrameConnection:
        return FrameConnection(owner, drops=self.drops, limit=_HELLO_BYTES)

    def _note_tls(self, error: Exception) -> None:
        if self._tls is not None and not isinstance(error, ConnectionRefusedError | TimeoutError):
            self.drops[Reason.TLS] += 1

    # Unidentified connections

    def add_unidentified(self, connection: FrameConnection) -> Timer | None:
        """Start the timeout for a connection's hello; drop the connection and return None if there are too many."""
        self._connections.add(connection)
        if len(self._unidentified) >= _MAX_UNIDENTIFIED:
            connection.drop(Reason.OCCUPIED, f"{_MAX_UNIDENTIFIED} connections are waiting for a hello")
            return None
        self._unidentified.add(connection)
        on_timeout = partial(connection.drop, Reason.SILENT, f"no hello within {self.settings.hello_seconds:g} s")
        return self.clock.call_at(self.clock.now() + self.settings.hello_seconds, on_timeout)

    def remove_unidentified(self, connection: FrameConnection, timer: Timer | None) -> None:
        """Stop the timeout: the connection is identified or lost."""
        self._unidentified.discard(connection)
        if timer is not None:
            timer.cancel()


class _Accepted:
    """Owns an accepted connection until the peer has identified itself."""

    def __init__(self, endpoint: Endpoint, owner_of: OwnerFactory) -> None:
        self._endpoint = endpoint
        self._owner_of = owner_of
        self._timer: Timer | None = None

    def made(self, connection: FrameConnection) -> None:
        self._timer = self._endpoint.add_unidentified(connection)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        endpoint = self._endpoint
        hello = _expect_hello(payload)
        endpoint.remove_unidentified(connection, self._timer)
        refusal = check_hello(hello, me=endpoint.me, peers=endpoint.peers, version=endpoint.version)
        if refusal is not None:
            if hello.store in endpoint.peers:
                endpoint.refusals[hello.store] = refusal.detail
            send_frame(connection, refusal)
            connection.dismiss(refusal.reason, refusal.detail)
            return
        endpoint.on_hello_accepted(connection, hello)
        purpose: Purpose = "files" if hello.purpose == "files" else "raft"
        send_frame(connection, make_hello(endpoint.me, hello.store, purpose))
        owner = self._owner_of(hello.store, purpose)
        connection.set_owner(owner)
        owner.made(connection)

    def lost(self, connection: FrameConnection) -> None:
        self._endpoint.remove_unidentified(connection, self._timer)


class _Dialled:
    """Owns a dialled connection until the peer has identified itself."""

    def __init__(self, endpoint: Endpoint, store: str, purpose: Purpose, owner: Owner) -> None:
        self._endpoint = endpoint
        self._store = store
        self._purpose = purpose
        self._owner = owner
        self._timer: Timer | None = None
        self._connection: FrameConnection | None = None
        self.connected: asyncio.Future[FrameConnection] = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Close the connection unless the handshake succeeded."""
        if not self.connected.done():
            self.connected.cancel()
        if self._connection is not None and (self.connected.cancelled() or self.connected.exception() is not None):
            self._connection.close()

    def made(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._timer = self._endpoint.add_unidentified(connection)
        send_frame(connection, make_hello(self._endpoint.me, self._store, self._purpose))

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        answer = self._check_answer(payload)
        self._endpoint.remove_unidentified(connection, self._timer)
        if isinstance(answer, Refused):
            connection.dismiss(answer.reason, answer.detail)
            self._settle(HandshakeError(answer.reason, answer.detail))
        elif not self.connected.done():
            self._endpoint.on_hello_accepted(connection, answer)
            self.connected.set_result(connection)
            connection.set_owner(self._owner)
            self._owner.made(connection)

    def _check_answer(self, payload: memoryview) -> Hello | Refused:
        """Return the peer's hello, or the refusal from either end."""
        endpoint, answer = self._endpoint, PEER_CODEC.decode(payload)
        if isinstance(answer, Refused):
            return answer
        hello = _expect_hello(payload)
        refusal = check_answer(
            hello, me=endpoint.me, peers=endpoint.peers, dialled=self._store, version=endpoint.version
        )
        return refusal or hello

    def lost(self, connection: FrameConnection) -> None:
        self._endpoint.remove_unidentified(connection, self._timer)
        self._settle(
            DisconnectedError(
                f"{self._store} closed the connection before its hello; {connection.dropped}".rstrip("; ")
            )
        )

    def _settle(self, error: Exception) -> None:
        if not self.connected.done():
            self.connected.set_exception(error)
            self.connected.exception()  # mark as retrieved: the caller may have given up


def _expect_hello(payload: memoryview) -> Hello:
    frame = PEER_CODEC.decode(payload)
    if not isinstance(frame, Hello):
        raise FrameError(Reason.UNEXPECTED, f"received {type(frame).__name__} before the hello")
    return frame
