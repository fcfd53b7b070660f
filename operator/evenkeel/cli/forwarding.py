"""A client outside of the cluster: stores name each other by pod names, which nobody resolves here.

So every address that a store names is taken for what it says, a pod, and reached by a local port that the API server
forwards to it. The Secret `<name>-client` has what stores want to see.
"""

from __future__ import annotations

import asyncio
import threading
from base64 import b64decode
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from evenkeel.cli.kube_session import KubeSession, kube_session
from evenkeel.cli.place import Cluster
from evenkeel.client import Client
from evenkeel.errors import ApiForbiddenError, InvalidInputError, KubernetesError, UnavailableError
from evenkeel.kube.object_kinds import POD, SECRET
from evenkeel.kube.port_forward import Forwarder
from evenkeel.model.storecluster import StoreCluster

__all__ = ["forwarded_client"]

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own, for as long as the block lasts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarding", daemon=True)

    def __enter__(self) -> _Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Way(NamedTuple):
    """What leads to the stores, until it is closed."""

    forwarder: Forwarder
    endpoints: list[str]
    token: str
    ca: bytes | None
    stack: AsyncExitStack


@contextmanager
def forwarded_client(place: Cluster, store_cluster: str, *, deadline: float) -> Iterator[Client]:
    """A client whose every connection goes through the API server."""
    with _Loop() as loop:
        way = loop.do(_open(place, store_cluster))

        def via(address: str) -> str:
            scheme, pod = _parts(address)
            return f"{scheme}://127.0.0.1:{loop.do(way.forwarder.listen(pod))}"

        try:
            with Client(way.endpoints, token=way.token, ca=way.ca, deadline=deadline, via=via) as client:
                yield client
        except UnavailableError as error:
            raise UnavailableError("; ".join([str(error), *way.forwarder.problems.values()])) from None
        finally:
            loop.do(way.stack.aclose())


async def _open(place: Cluster, store_cluster: str) -> _Way:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(kube_session(place))
        secret = await _client_secret(session, store_cluster)
        endpoints = secret["endpoints"].split(",")
        forwarder = Forwarder(session.kube, namespace=session.namespace, port=urlsplit(endpoints[0]).port or 0)
        stack.push_async_callback(forwarder.close)
        first = await _first(session, forwarder, endpoints)
        ca = secret["ca.crt"].encode() if "ca.crt" in secret else None
        others = [endpoint for endpoint in endpoints if endpoint != first]
        return _Way(forwarder, [first, *others], secret.get("token", ""), ca, stack.pop_all())


async def _client_secret(session: KubeSession, store_cluster: str) -> dict[str, str]:
    await session.resources.need(StoreCluster, store_cluster)
    found = await session.kube.get(SECRET, f"{store_cluster}-client", session.namespace)
    if found is None:
        raise InvalidInputError(
            f"StoreCluster {store_cluster}: the operator has not made its Secret {store_cluster}-client yet; "
            f"see `kubectl describe storecluster/{store_cluster}`"
        )
    return {name: b64decode(value).decode() for name, value in found["data"].items()}


async def _first(session: KubeSession, forwarder: Forwarder, endpoints: Sequence[str]) -> str:
    """A store that can be reached; else why none can."""
    problem: KubernetesError | None = None
    for endpoint in endpoints:
        _, pod = _parts(endpoint)
        found = await session.kube.get(POD, pod, session.namespace)
        if found is None or found.get("status", {}).get("phase") != "Running":
            continue
        try:
            await forwarder.check(pod)
        except ApiForbiddenError as error:
            raise ApiForbiddenError(f"ports of pods may not be forwarded: {error}", status=error.status) from None
        except KubernetesError as error:
            problem = error
            continue
        return endpoint
    if problem is not None:
        raise problem
    raise InvalidInputError("no store's pod runs; see `kubectl get pods` and `kubectl evenkeel status`")


def _parts(address: str) -> tuple[str, str]:
    """An address's scheme and the pod that it names: `grpc+tls://main-0.main.shop.svc:7410` is pod main-0."""
    scheme, _, host = address.partition("://")
    return scheme, host.partition(".")[0].partition(":")[0]
