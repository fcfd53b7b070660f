"""One Flight connection to each store, shared by all threads, with access token and certificates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyarrow import flight

from evenkeel.errors import InvalidInputError, StoreError, UnavailableError
from evenkeel.wire.flight import decode_error

__all__ = ["Connections", "store_error"]

_KEEPALIVE: Final = [("grpc.keepalive_time_ms", 600_000), ("grpc.keepalive_timeout_ms", 10_000)]
"""Close a connection if sent data is not acknowledged within ten seconds. A pod that was moved or whose node lost power
does not close its connections, and calls would hang until their deadline. Pings are rare, because stores reject clients
that send many."""


class Connections:
    """Connections by address."""

    def __init__(
        self,
        *,
        token: str = "",
        ca: Path | str | bytes | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        server_name: str = "",
        via: Callable[[str], str] = lambda address: address,
    ) -> None:
        """`via` maps an address that a store reports to the address to connect to."""
        self._headers = [(b"authorization", f"Bearer {_checked(token)}".encode())] if token else []
        self._via = via
        self._options: dict[str, Any] = {"generic_options": _KEEPALIVE}
        if ca is not None:
            self._options["tls_root_certs"] = _read(ca)
        if cert is not None and key is not None:
            self._options |= {"cert_chain": _read(cert), "private_key": _read(key)}
        if server_name:
            self._options["override_hostname"] = server_name
        self._clients: dict[str, flight.FlightClient] = {}
        self._lock = threading.Lock()

    def to(self, address: str) -> flight.FlightClient:
        """Return the connection to an address."""
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = flight.FlightClient(self._via(address), **self._options)
            return client

    def options(self, timeout: float | None) -> flight.FlightCallOptions:
        """Return the options of a call; None means no timeout."""
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()


def _checked(token: str) -> str:
    """Reject a token that is not a valid header, often because of a line break; the error does not show the token."""
    if not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise InvalidInputError(
            "token: got one with non-printable or non-ASCII characters; allowed: the token alone, without a line break"
        )
    return token


def _read(file: Path | str | bytes) -> bytes:
    try:
        return file if isinstance(file, bytes) else Path(file).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"certificate file {file!s}: {error.strerror}") from error


def store_error(error: Exception, *, at: str = "") -> StoreError:
    """Return the error that a store raised, or `UnavailableError` if it was not reached."""
    info = getattr(error, "extra_info", None)
    if info:
        return decode_error(bytes(info))
    where = f"{at}: " if at else ""
    if isinstance(error, flight.FlightTimedOutError):
        return UnavailableError(f"{where}no answer in time")
    return UnavailableError(where + str(error).partition(". gRPC")[0].rpartition(", with message: ")[2])
