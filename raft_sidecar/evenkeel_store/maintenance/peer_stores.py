"""How a store asks other stores, as a Flight client; requests are rare, so each opens its own connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct
from pyarrow import flight

from evenkeel.client.store_connections import Connections, store_error
from evenkeel.wire.flight import GroupStatus, RebuildRequest, StatusRequest, StatusResult, decode, encode

__all__ = ["Credentials", "PeerStoreClient"]

_TIMEOUT: Final = 15.0


class Credentials(Struct, frozen=True, kw_only=True):
    """The tokens and certificates that a store presents to other stores, and the CA that it trusts."""

    tokens: Callable[[], list[bytes]] | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def connections(self) -> Connections:
        """Return connections with the present tokens and files; Secrets may change."""
        tokens = self.tokens() if self.tokens is not None else []
        return Connections(token=tokens[0].decode() if tokens else "", ca=self.ca, cert=self.cert, key=self.key)


class PeerStoreClient:
    """Implements `evenkeel_store.maintenance.replica_repair.PeerStores` over Flight."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def status(self, address: str, table: str, partition: int) -> GroupStatus | None:
        """Return the status of a store's replica of a partition; None if it has none."""
        request = StatusRequest(table=table, partition=partition)
        found = decode(StatusResult, await self._ask(address, "status", encode(request)))
        return next(iter(found.groups), None)

    async def rebuild(self, address: str, request: RebuildRequest) -> None:
        """Make a store discard and restore its replica."""
        await self._ask(address, "rebuild", encode(request))

    async def _ask(self, address: str, action: str, body: bytes) -> bytes:
        def ask() -> bytes:
            with contextlib.closing(self._credentials.connections()) as connections:
                try:
                    [result] = connections.to(address).do_action(
                        flight.Action(action, body), connections.options(_TIMEOUT)
                    )
                except (pa.ArrowException, OSError) as error:
                    raise store_error(error) from None
                answer: bytes = result.body.to_pybytes()
                return answer

        return await asyncio.to_thread(ask)
