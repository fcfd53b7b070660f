"""Access tokens: with a token file, each call must send `authorization: Bearer <token>`."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyarrow import flight

from evenkeel.errors import AccessError
from evenkeel_store.serving.loop_bridge import flight_error

__all__ = ["AccessTokenFile", "AccessTokenMiddleware"]

_SCHEME = "bearer "


class AccessTokenFile:
    """The access tokens in a file, one per line; read again when the file changes, as mounted Secrets do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, int] | None = None
        self._tokens: list[bytes] = []
        self.tokens()

    def tokens(self) -> list[bytes]:
        """Return the accepted tokens; the last known ones if the file cannot be read."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._read_at:
                self._tokens = [line.encode() for line in self._path.read_text().split()]
                self._read_at = stamp
        except OSError:
            if self._read_at is None:
                raise
        return self._tokens


class _NoMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    """Does nothing more with an authenticated call."""


class AccessTokenMiddleware(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Rejects calls without an accepted token."""

    def __init__(self, tokens: Callable[[], list[bytes]]) -> None:
        self._tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> flight.ServerMiddleware:
        """Authenticate a call."""
        given = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), "")
        if not given:
            raise flight_error(AccessError("no access token was sent: send the header `authorization: Bearer <token>`"))
        token = given[len(_SCHEME) :] if given.lower().startswith(_SCHEME) else ""
        if not any(hmac.compare_digest(token.encode(), expected) for expected in self._tokens()):
            raise flight_error(
                AccessError("the access token is not valid for this store: use one from its --token-file")
            )
        return _NoMiddleware()
