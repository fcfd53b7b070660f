"""kopf, for what it does best: watching objects through disconnects, expired versions and silence.

It runs in a thread with an event loop of its own. When kopf stops it cancels whatever tasks it finds in its loop, and
it takes the process's signals for itself; neither may happen to the rest of the operator. Its handlers hand events
over and return nothing: no progress is kept in annotations, for what is to be done is worked out from what there is.
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
"""Takes the object of an event; True where it is gone."""


class Watch(NamedTuple):
    """A kind of objects to be watched."""

    kind: Kind
    selector: str = ""
    """Labels, as kubectl takes them; all objects where it is empty."""


class Watches:
    """Watches of several kinds, in some namespaces or in all."""

    def __init__(
        self,
        watches: Sequence[Watch],
        *,
        namespaces: Sequence[str],
        configuration: Callable[[], Awaitable[Configuration]],
        deliver: Deliver,
    ) -> None:
        """`configuration` is asked again whenever the API server no longer knows us."""
        self._watches = watches
        self._namespaces = namespaces
        self._configuration = configuration
        self._deliver = deliver
        self._stop = threading.Event()
        self._connectors: list[Connector] = []

    async def run(self) -> None:
        """Watch until cancelled; KubernetesError where kopf gives up."""
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
        raise KubernetesError("the watches have ended")

    def _in_thread(self, home: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        try:
            asyncio.run(self._operate(home))
        except Exception as error:
            log.exception("the watches have failed")
            problem: Exception | None = KubernetesError(f"the watches have failed: {error}")
        else:
            problem = None

        def tell() -> None:
            if ended.done():
                return
            if problem is not None:
                ended.set_exception(problem)
            else:
                ended.set_result(None)

        home.call_soon_threadsafe(tell)

    async def _operate(self, home: asyncio.AbstractEventLoop) -> None:
        await kopf.operator(
            registry=self._registry(home),
            settings=self._settings(),
            standalone=True,
            # Else it makes one up from the user's name, and a pod's user has none.
            identity=_IDENTITY,
            clusterwide=not self._namespaces,
            namespaces=list(self._namespaces),
            stop_flag=self._stop,
        )
        for connector in self._connectors:
            await connector.hang_up()

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
        # The kinds are there before we are, and the namespaces are given: nothing has to be looked for.
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
        known = kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            ca_data=found.ca_cert_data,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=scheme.capitalize() or None,
            token=token.strip() or None,
        )
        connector = Connector(limit=0, ssl=known.as_ssl_context())
        self._connectors = [*(made for made in self._connectors if not made.closed), connector]
        session = aiohttp.ClientSession(connector=connector, headers=known.as_http_headers())
        return kopf.AiohttpSession(server=known.server, aiohttp_session=session)
