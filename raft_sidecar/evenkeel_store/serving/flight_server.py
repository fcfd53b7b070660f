"""The Arrow Flight server of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import flight

from evenkeel.errors import InvalidInputError
from evenkeel.wire.flight import ACTIONS
from evenkeel_store.serving.access_tokens import AccessTokenMiddleware
from evenkeel_store.serving.flight_actions import FlightActions
from evenkeel_store.serving.flight_reads import FlightReads
from evenkeel_store.serving.flight_writes import FlightWrites
from evenkeel_store.serving.loop_bridge import LoopBridge, translate_errors
from evenkeel_store.serving.scans import Scanner
from evenkeel_store.serving.store_service import StoreService

__all__ = ["FlightServer", "ServerTls"]


class ServerTls(NamedTuple):
    """Paths of a certificate, its key, and the CA that must have signed client certificates, if any."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens as soon as it is constructed; `close` stops it."""

    def __init__(
        self,
        service: StoreService,
        *,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        tls: ServerTls | None = None,
        tokens: Callable[[], list[bytes]] | None = None,
    ) -> None:
        bridge = LoopBridge(loop)
        self._calls = service.state_machine.calls
        self.scanner = Scanner(service.state_machine.rows)
        self._reads = FlightReads(service, bridge, self.scanner)
        self._writes = FlightWrites(service, bridge)
        self._actions = FlightActions(service, bridge)
        scheme = "grpc+tls" if tls else "grpc"
        where = f"[{host}]" if ":" in host else host
        try:
            super().__init__(
                f"{scheme}://{where}:{port}",
                middleware={"token": AccessTokenMiddleware(tokens)} if tokens is not None else None,
                **_tls_options(tls),
            )
        except Exception as error:
            detail = str(error).partition("\n")[0]
            raise InvalidInputError(
                f"cannot serve Flight on {host}:{port}: {detail}; choose another --listen"
            ) from error

    def close(self) -> None:
        """Refuse new calls and wait for those under way."""
        self.shutdown()
        self.wait()

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Return rows, aggregates or changes of one partition."""
        with translate_errors(self._calls, "do_get"):
            return self._reads.get(ticket.ticket)

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Write rows."""
        with translate_errors(self._calls, "do_put"):
            self._writes.put(descriptor.command or b"", reader, writer)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Run an action: lookups, pins, status and others."""
        with translate_errors(self._calls, "do_action"):
            return self._actions.act(action.type, action.body.to_pybytes())

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions."""
        return list(ACTIONS.items())

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Return where a table's rows are."""
        with translate_errors(self._calls, "get_flight_info"):
            return self._reads.info(descriptor)

    def get_schema(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return a table's columns."""
        with translate_errors(self._calls, "get_schema"):
            return self._reads.schema(descriptor)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Return all tables."""
        with translate_errors(self._calls, "list_flights"):
            return iter(list(self._reads.list()))


def _tls_options(tls: ServerTls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    try:
        pair = (tls.cert.read_bytes(), tls.key.read_bytes())
        options: dict[str, Any] = {"tls_certificates": [pair]}
        if tls.client_ca is not None:
            options |= {"verify_client": True, "root_certificates": tls.client_ca.read_bytes()}
    except OSError as error:
        raise InvalidInputError(f"cannot read TLS file {error.filename}: {error.strerror}") from error
    return options
