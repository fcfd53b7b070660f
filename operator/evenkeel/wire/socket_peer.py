"""What both ends of the state-machine socket share: the connection to the other end and the requests made over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.pending_calls import PendingCalls
from evenkeel.wire.socket_messages import MAX_ENTRY_BYTES, MAX_PROPOSED_BYTES, Busy, TooLarge

__all__ = ["SocketPeer"]

Out = TypeVar("Out")
In = TypeVar("In")


class SocketPeer(Generic[Out, In]):
    """The other end of the socket; `connection` is None unless a handshake has succeeded.

    `encode` makes a payload of a number, a group, a replica and a message.
    """

    def __init__(self, encode: Callable[[int, int, int, Out], bytes]) -> None:
        self._encode = encode
        self.connection: FrameConnection | None = None
        self.calls: PendingCalls[In] = PendingCalls()
        self.proposed_bytes = 0
        """Bytes of proposals without an answer."""

    def attach(self, connection: FrameConnection) -> None:
        """Use a connection from now on; request numbers start over."""
        self.connection, self.calls, self.proposed_bytes = connection, PendingCalls(), 0

    def detach(self) -> None:
        """Settle all requests without an answer: the connection is lost."""
        self.connection = None
        self.calls.abandon()

    def send(self, connection: FrameConnection, number: int, group: int, replica: int, body: Out) -> None:
        """Send a message over a connection, which may be one that is not attached."""
        connection.send(self._encode(number, group, replica, body))

    def notify(self, group: int, replica: int, body: Out) -> None:
        """Send a message that has no answer; it is lost if the other end is not connected."""
        if self.connection is not None:
            self.send(self.connection, 0, group, replica, body)

    def request(
        self,
        group: int,
        replica: int,
        body: Out,
        *,
        accepts: tuple[type[Any], ...],
        settle: Callable[[Any], None],
    ) -> None:
        """Send a request; `settle` receives the answer, or None if the connection is lost before it arrives."""
        if self.connection is None:
            settle(None)
        else:
            number = self.calls.begin(group, replica, accepts=accepts, settle=settle)
            self.send(self.connection, number, group, replica, body)

    def proposal_refusal(self, size: int) -> TooLarge | Busy | None:
        """Return why a proposal of this size cannot be accepted now; None if it can."""
        if size > MAX_ENTRY_BYTES:
            return TooLarge()
        return Busy() if self.proposed_bytes + size > MAX_PROPOSED_BYTES else None
