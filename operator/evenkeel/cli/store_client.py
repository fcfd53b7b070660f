"""A table client for the cluster a command is for."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from evenkeel.cli.cluster_session import run_in_session
from evenkeel.cli.target_cluster import KubeTarget, LocalTarget, Target
from evenkeel.client import Client

__all__ = ["connect_client"]


@contextmanager
def connect_client(target: Target, store_cluster: str, *, deadline: float = 30.0) -> Iterator[Client]:
    """Connect to the stores of a StoreCluster; `deadline` is the timeout of each call in seconds."""
    match target:
        case LocalTarget():
            from evenkeel.cli.local_session import LocalSession  # noqa: PLC0415 - needs etcd's client

            def endpoints(session: LocalSession) -> Awaitable[list[str]]:
                return session.endpoints(store_cluster)

            with Client(run_in_session(target, endpoints), deadline=deadline) as client:
                yield client
        case KubeTarget():
            from evenkeel.cli.forwarded_client import forwarded_client  # noqa: PLC0415 - needs Kubernetes' client

            with forwarded_client(target, store_cluster, deadline=deadline) as client:
                yield client
