"""Watches of the API server, run by kopf, which handles disconnects, expired versions and silent connections.

kopf runs in its own thread with its own event loop, because it cancels every task in its loop when it stops, and
installs signal handlers. Its handlers only deliver events. They keep no progress in annotations: reconciliation is
level-based.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import aiohttp
import kopf
from kubernetes.aio.client.configuration import Configuration

from evenkeel.errors import KubernetesError
from evenkeel.kube.api_connections import Connector
from evenkeel.kube.object_kinds import Kind, Object

__all__ = ["Watch", "Watches"]

log = logging.getLogger(__name__)

_IDENTITY: Final[Any] = "evenkeel-operator"
"""kopf does not export the type."""

Deliver = Callable[[Kind, bool, Object], None]
"""Receives the kind and object of an event; the flag is True if the object was deleted."""


class Watch(NamedTuple):
    """A kind to watch."""

    kind: Kind
    selector: str = ""
    """Label selector; empty selects all objects."""


class Watches:
    """Watches of several kinds, in the given namespaces or in all."""

    def __init__(
        self,
        watches: Sequence[Watch],
        *,
        namespaces: Sequence[str],
        configuration: Callable[[], Awaitable[Configuration]],
        deliver: Deliver,
    ) -> None:
        """`configuration` is loaded again when the API server rejects the credentials."""
        self._watches = watches
        self._namespaces = namespaces
        self._configuration = configuration
        self._deliver = deliver
        self._stop = threading.Event()
        self._connectors: list[Connector] = []

    async def run(self) -> None:
        """Watch until cancelled; KubernetesError if kopf stops."""
        self._stop.clear()
        self._connectors.clear()
        ended = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=self._in_thread, args=(asyncio.get_running_loop(), ended), name="watches")
        thread.start()
        try:
            await asyncio.shield(ended)
        finally:
            self._stop.set()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        raise KubernetesError("the watches have stopped")

    def _in_thread(self, home: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        try:
            asyncio.run(self._operate(home))
        except Exception as error:
            log.exception("the watches failed")
            problem: Exception | None = KubernetesError(f"the watches failed: {error}")
        else:
            problem = None

        def finish() -> None:
            if ended.done():
                return
            if problem is not None:
                ended.set_exception(problem)
            else:
                ended.set_result(None)

        home.call_soon_threadsafe(finish)

    async def _operate(self, home: asyncio.AbstractEventLoop) -> None:
        await kopf.operator(
            registry=self._registry(home),
            settings=self._settings(),
            standalone=True,
            # The default is the user's name, and the user of a pod has none.
            identity=_IDENTITY,
            clusterwide=not self._namespaces,
            namespaces=list(self._namespaces),
            stop_flag=self._stop,
        )
        for connector in self._connectors:
            await connector.abort_all()

    def _registry(self, home: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        for watch in self._watches:
            self._observe(registry, home, watch.kind)
        return registry

    def _observe(self, registry: kopf.OperatorRegistry, home: asyncio.AbstractEventLoop, kind: Kind) -> None:
        async def handle(event: Any, **_: Any) -> None:
            home.call_soon_threadsafe(self._deliver, kind, event["type"] == "DELETED", dict(event["object"]))

        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(handle)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        # The kinds exist before the operator starts, and the namespaces are given: no discovery is needed.
        settings.scanning.disabled = True
        settings.process.ultimate_exiting_timeout = None
        settings.networking.request_timeout = 30
        settings.watching.chunk_size = 500
        for watch in self._watches:
            if watch.selector:
                kind = watch.kind
                settings.watching.label_selectors[kind.group, kind.version, kind.plural] = watch.selector
        return settings

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        found = await self._configuration()
        scheme, _space, token = str(found.api_key.get("BearerToken", "")).strip().rpartition(" ")
        info = kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            ca_data=found.ca_cert_data,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=scheme.capitalize() or None,
            token=token.strip() or None,
        )
        connector = Connector(limit=0, ssl=info.as_ssl_context())
        self._connectors = [*(known for known in self._connectors if not known.closed), connector]
        session = aiohttp.ClientSession(connector=connector, headers=info.as_http_headers())
        return kopf.AiohttpSession(server=info.server, aiohttp_session=session)
