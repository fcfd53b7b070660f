"""A client of the stores of a StoreCluster, wherever that is."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from evenkeel.cli.place import Cluster, Local, Place
from evenkeel.cli.session import in_session
from evenkeel.client import Client

__all__ = ["client_of"]


@contextmanager
def client_of(place: Place, store_cluster: str, *, deadline: float = 30.0) -> Iterator[Client]:
    """Connect, for the thread that asks; `deadline` is in seconds, for each call."""
    match place:
        case Local():
            from evenkeel.cli.local_session import LocalSession  # noqa: PLC0415 - only what is needed

            def where(session: LocalSession) -> Awaitable[list[str]]:
                return session.endpoints(store_cluster)

            with Client(in_session(place, where), deadline=deadline) as client:
                yield client
        case Cluster():
            from evenkeel.cli.forwarding import forwarded_client  # noqa: PLC0415 - only what is needed

            with forwarded_client(place, store_cluster, deadline=deadline) as client:
                yield client
