"""Connections to and from other stores, up to the exchange of hellos.

Until the hello a stranger can cost us one connection, a few kilobytes and a few seconds, nothing more.
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
from evenkeel_raft.net.peer_handshake import greeting, judge_answer, judge_hello, judge_version
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings

__all__ = ["Endpoint", "Welcome", "say"]

_HELLO_BYTES: Final = 4096
_MAX_STRANGERS: Final = 256
_ACCEPT_RETRY_SECONDS: Final = 0.1


class Welcome(Protocol):
    """Says who goes on with a connection that was accepted."""

    def __call__(self, store: str, purpose: Purpose, /) -> Owner:
        """Return the new owner; it is told `made` now."""
        ...


def say(connection: FrameConnection, frame: AnyFrame) -> None:
    """Send a frame."""
    connection.send(PEER_CODEC.encode(frame))


class Endpoint:
    """Dials and accepts on behalf of one store."""

    def __init__(
        self,
        me: Identity,
        *,
        clock: Clock,
        settings: LinkSettings,
        tls: TlsFiles | None = None,
        drops: Drops | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.me = me
        self.clock = clock
        self.wall = wall
        """Seconds since 1970, as far as this machine knows; only told to peers and compared with theirs."""
        self.settings = settings
        self.peers: Mapping[str, Address] = {}
        self.version = FIRST
        """The cluster's: whoever does not support it is refused."""
        self.drops: Drops = Drops() if drops is None else drops
        self.refusals: dict[str, str] = {}
        """By peer, why it and we do not talk; gone once we do."""
        self._tls = tls
        self._connections: WeakSet[FrameConnection] = WeakSet()
        self._greeted_by: WeakKeyDictionary[FrameConnection, Hello] = WeakKeyDictionary()
        self._strangers: set[FrameConnection] = set()
        self._listeners: list[socket.socket] = []
        self._accepting_again: Timer | None = None
        self._greeting: set[asyncio.Task[None]] = set()
        if tls is not None:
            tls.server_context()  # unusable files are found at the start, not by the first peer

    # Accepting

    async def listen(self, host: str, port: int, *, welcome: Welcome) -> int:
        """Accept connections; returns the port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise InvalidInputError(f"cannot listen for peers on {host}:{port}: {error.strerror}") from error
        listener.setblocking(False)
        self._listeners.append(listener)
        self._wait_for_callers(listener, welcome)
        bound: int = listener.getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and accepting."""
        if self._accepting_again is not None:
            self._accepting_again.cancel()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for task in list(self._greeting):
            task.cancel()
        await asyncio.gather(*self._greeting, return_exceptions=True)

    async def hang_up(self) -> None:
        """End every connection."""
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.ended() for connection in connections))

    def set_version(self, version: int) -> None:
        """Talk only to stores that support this cluster version: connections to others end, and are refused."""
        self.version = version
        for connection, hello in list(self._greeted_by.items()):
            refusal = judge_version(hello, version=version)
            if refusal is not None:
                self.refusals[hello.store] = refusal.detail
                connection.dismiss(refusal.reason, refusal.detail)

    def welcomed(self, connection: FrameConnection, hello: Hello) -> None:
        """A store has said who it is, and we talk to it."""
        self.refusals.pop(hello.store, None)
        self._greeted_by[connection] = hello

    def _wait_for_callers(self, listener: socket.socket, welcome: Welcome) -> None:
        # Not by a task: what `sock_accept` has accepted is nobody's when its caller is cancelled.
        asyncio.get_running_loop().add_reader(listener, self._accept, listener, welcome)

    def _accept(self, listener: socket.socket, welcome: Welcome) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError):  # whoever called has hung up already
            return
        except OSError:  # out of file descriptors, for instance: others may free some
            asyncio.get_running_loop().remove_reader(listener)
            again = partial(self._wait_for_callers, listener, welcome)
            self._accepting_again = self.clock.call_at(self.clock.now() + _ACCEPT_RETRY_SECONDS, again)
            return
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._greet(accepted, welcome))
        self._greeting.add(task)
        task.add_done_callback(partial(self._greeted, accepted))

    def _greeted(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._greeting.discard(task)
        if task.cancelled():  # perhaps before it began
            accepted.close()

    async def _greet(self, accepted: socket.socket, welcome: Welcome) -> None:
        make = partial(self._connection, _Accepted(self, welcome))
        loop = asyncio.get_running_loop()
        try:
            context = self._tls.server_context() if self._tls else None
            timeout = self.settings.hello_seconds if context else None
            await loop.connect_accepted_socket(make, accepted, ssl=context, ssl_handshake_timeout=timeout)
        except (OSError, InvalidInputError) as error:
            # A connection that died before its session was up has no owner to tell.
            self._note_tls(error)
            accepted.close()

    # Dialling

    async def dial(self, store: str, purpose: Purpose, *, owner: Owner) -> FrameConnection:
        """Connect to a peer, hellos included; then the owner is told `made`.

        Raises `HandshakeError` (we do not fit together), `DisconnectedError` (it hung up), `InvalidInputError` (its
        address is none, or our certificates cannot be used) or `OSError`.
        """
        address = self.peers.get(store)
        if address is None:
            raise HandshakeError(Reason.UNKNOWN_PEER, f"{self.me.store} knows no store called {store}")
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
        except (ValueError, OverflowError) as error:  # a name or a port that cannot even be asked for
            raise InvalidInputError(f"{address.host}:{address.port} is no address: {error}") from error
        return await greeter.greeted

    def _connection(self, owner: Owner) -> FrameConnection:
        return FrameConnection(owner, drops=self.drops, limit=_HELLO_BYTES)

    def _note_tls(self, error: Exception) -> None:
        if self._tls is not None and not isinstance(error, ConnectionRefusedError | TimeoutError):
            self.drops[Reason.TLS] += 1

    # Strangers

    def meet(self, connection: FrameConnection) -> Timer | None:
        """Give a stranger time for its hello; none where there are too many of them."""
        self._connections.add(connection)
        if len(self._strangers) >= _MAX_STRANGERS:
            connection.drop(Reason.OCCUPIED, f"{_MAX_STRANGERS} connections have not said hello yet")
            return None
        self._strangers.add(connection)
        silent = partial(connection.drop, Reason.SILENT, "no hello came")
        return self.clock.call_at(self.clock.now() + self.settings.hello_seconds, silent)

    def part(self, connection: FrameConnection, timer: Timer | None) -> None:
        """It is no stranger any more, or gone."""
        self._strangers.discard(connection)
        if timer is not None:
            timer.cancel()


class _Accepted:
    """Owns a connection that somebody dialled, until it has said who it is."""

    def __init__(self, endpoint: Endpoint, welcome: Welcome) -> None:
        self._endpoint = endpoint
        self._welcome = welcome
        self._timer: Timer | None = None

    def made(self, connection: FrameConnection) -> None:
        self._timer = self._endpoint.meet(connection)

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        endpoint = self._endpoint
        hello = _expect_hello(payload)
        endpoint.part(connection, self._timer)
        refusal = judge_hello(hello, me=endpoint.me, peers=endpoint.peers, version=endpoint.version)
        if refusal is not None:
            if hello.store in endpoint.peers:
                endpoint.refusals[hello.store] = refusal.detail
            say(connection, refusal)
            connection.dismiss(refusal.reason, refusal.detail)
            return
        endpoint.welcomed(connection, hello)
        purpose: Purpose = "files" if hello.purpose == "files" else "raft"
        say(connection, greeting(endpoint.me, hello.store, purpose))
        owner = self._welcome(hello.store, purpose)
        connection.hand_over(owner)
        owner.made(connection)

    def lost(self, connection: FrameConnection) -> None:
        self._endpoint.part(connection, self._timer)


class _Dialled:
    """Owns a connection that we dialled, until the other end has said who it is."""

    def __init__(self, endpoint: Endpoint, store: str, purpose: Purpose, owner: Owner) -> None:
        self._endpoint = endpoint
        self._store = store
        self._purpose = purpose
        self._owner = owner
        self._timer: Timer | None = None
        self._connection: FrameConnection | None = None
        self.greeted: asyncio.Future[FrameConnection] = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Nobody waits any more: a connection that was not greeted by now is not wanted."""
        if not self.greeted.done():
            self.greeted.cancel()
        if self._connection is not None and (self.greeted.cancelled() or self.greeted.exception() is not None):
            self._connection.close()

    def made(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._timer = self._endpoint.meet(connection)
        say(connection, greeting(self._endpoint.me, self._store, self._purpose))

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        answer = self._judged(payload)
        self._endpoint.part(connection, self._timer)
        if isinstance(answer, Refused):
            connection.dismiss(answer.reason, answer.detail)
            self._settle(HandshakeError(answer.reason, answer.detail))
        elif not self.greeted.done():
            self._endpoint.welcomed(connection, answer)
            self.greeted.set_result(connection)
            connection.hand_over(self._owner)
            self._owner.made(connection)

    def _judged(self, payload: memoryview) -> Hello | Refused:
        """The other end's hello, or why one end does not talk to the other."""
        endpoint, answer = self._endpoint, PEER_CODEC.decode(payload)
        if isinstance(answer, Refused):
            return answer
        hello = _expect_hello(payload)
        refusal = judge_answer(
            hello, me=endpoint.me, peers=endpoint.peers, dialled=self._store, version=endpoint.version
        )
        return refusal or hello

    def lost(self, connection: FrameConnection) -> None:
        self._endpoint.part(connection, self._timer)
        self._settle(DisconnectedError(f"{self._store} hung up before its hello; {connection.dropped}".rstrip("; ")))

    def _settle(self, error: Exception) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()  # whoever dialled may have given up


def _expect_hello(payload: memoryview) -> Hello:
    frame = PEER_CODEC.decode(payload)
    if not isinstance(frame, Hello):
        raise FrameError(Reason.UNEXPECTED, f"{type(frame).__name__} before the hello")
    return frame
