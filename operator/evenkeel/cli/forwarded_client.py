"""A table client outside of Kubernetes, over ports that the API server forwards.

Stores refer to each other by pod names, which do not resolve outside of Kubernetes. Every such address is replaced by a
local port that is forwarded to the pod. The Secret `<name>-client` provides the access token and the CA.
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
from evenkeel.cli.target_cluster import KubeTarget
from evenkeel.client import Client
from evenkeel.errors import ApiForbiddenError, InvalidInputError, KubernetesError, UnavailableError
from evenkeel.kube.object_kinds import POD, SECRET
from evenkeel.kube.port_forward import Forwarder
from evenkeel.model.storecluster import StoreCluster

__all__ = ["forwarded_client"]

T = TypeVar("T")


class _LoopThread:
    """An event loop in its own thread; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarding", daemon=True)

    def __enter__(self) -> _LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Access(NamedTuple):
    """A forwarder and the credentials of the stores; closing `stack` ends it."""

    forwarder: Forwarder
    endpoints: list[str]
    token: str
    ca: bytes | None
    stack: AsyncExitStack


@contextmanager
def forwarded_client(target: KubeTarget, store_cluster: str, *, deadline: float) -> Iterator[Client]:
    """Connect a client whose connections all go through the API server."""
    with _LoopThread() as loop:
        access = loop.run(_open(target, store_cluster))

        def via(address: str) -> str:
            scheme, pod = _parts(address)
            return f"{scheme}://127.0.0.1:{loop.run(access.forwarder.listen(pod))}"

        try:
            with Client(access.endpoints, token=access.token, ca=access.ca, deadline=deadline, via=via) as client:
                yield client
        except UnavailableError as error:
            raise UnavailableError("; ".join([str(error), *access.forwarder.problems.values()])) from None
        finally:
            loop.run(access.stack.aclose())


async def _open(target: KubeTarget, store_cluster: str) -> _Access:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(kube_session(target))
        secret = await _client_secret(session, store_cluster)
        endpoints = secret["endpoints"].split(",")
        forwarder = Forwarder(session.kube, namespace=session.namespace, port=urlsplit(endpoints[0]).port or 0)
        stack.push_async_callback(forwarder.close)
        first = await _first_reachable(session, forwarder, endpoints)
        ca = secret["ca.crt"].encode() if "ca.crt" in secret else None
        others = [endpoint for endpoint in endpoints if endpoint != first]
        return _Access(forwarder, [first, *others], secret.get("token", ""), ca, stack.pop_all())


async def _client_secret(session: KubeSession, store_cluster: str) -> dict[str, str]:
    await session.resources.need(StoreCluster, store_cluster)
    found = await session.kube.get(SECRET, f"{store_cluster}-client", session.namespace)
    if found is None:
        raise InvalidInputError(
            f"StoreCluster {store_cluster}: the operator has not created the Secret {store_cluster}-client yet; "
            f"see `kubectl describe storecluster/{store_cluster}`"
        )
    return {name: b64decode(value).decode() for name, value in found["data"].items()}


async def _first_reachable(session: KubeSession, forwarder: Forwarder, endpoints: Sequence[str]) -> str:
    """Return the endpoint of a store to which ports can be forwarded; raise the last error where there is none."""
    problem: KubernetesError | None = None
    for endpoint in endpoints:
        _, pod = _parts(endpoint)
        found = await session.kube.get(POD, pod, session.namespace)
        if found is None or found.get("status", {}).get("phase") != "Running":
            continue
        try:
            await forwarder.check(pod)
        except ApiForbiddenError as error:
            raise ApiForbiddenError(f"not allowed to forward ports to pods: {error}", status=error.status) from None
        except KubernetesError as error:
            problem = error
            continue
        return endpoint
    if problem is not None:
        raise problem
    raise InvalidInputError("no pod of a store is running; see `kubectl get pods` and `kubectl evenkeel status`")


def _parts(address: str) -> tuple[str, str]:
    """Split an address into scheme and pod: `grpc+tls://main-0.main.shop.svc:7410` has pod main-0."""
    scheme, _, host = address.partition("://")
    return scheme, host.partition(".")[0].partition(":")[0]
