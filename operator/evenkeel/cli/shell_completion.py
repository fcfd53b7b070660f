"""Names that a shell completes: tables, stores and resources of the cluster; none where it is unreachable."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from evenkeel.cli.lazy_module import LazyModule
from evenkeel.cli.target_cluster import KubeTarget, LocalTarget, Target
from evenkeel.errors import EvenkeelError

__all__ = ["resource_names", "store_names", "table_names"]

cluster_session: Any = LazyModule("evenkeel.cli.cluster_session")
_KINDS = ("tables", "storeclusters", "partitionassignments", "rebalanceplans")


def table_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a table."""
    return _complete(context, incomplete, _tables)


def store_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a store."""
    return _complete(context, incomplete, _stores)


def resource_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete KIND/NAME of a table or a StoreCluster; for `get`, also a kind."""
    listed = _KINDS if context.info_name == "get" else ()
    return [*(kind for kind in listed if kind.startswith(incomplete)), *_complete(context, incomplete, _resources)]


def _complete(context: typer.Context, incomplete: str, list_: Callable[[Any], Awaitable[Iterable[str]]]) -> list[str]:
    # An error message would end up in the user's command line.
    with contextlib.suppress(EvenkeelError, OSError, ImportError):
        names = cluster_session.run_in_session(_target(context), list_)
        return [name for name in names if name.startswith(incomplete)]
    return []


def _target(context: typer.Context) -> Target:
    given = context.params
    if "namespace" in given:
        kubeconfig = given.get("kubeconfig")
        found = Path(kubeconfig) if kubeconfig else None
        return KubeTarget(given.get("namespace") or "", given.get("context") or "", found)
    directory = given.get("directory")
    return LocalTarget(Path(directory) if directory else None)


async def _tables(session: Any) -> list[str]:
    from evenkeel.model.table import Table  # noqa: PLC0415 - imported on use

    return sorted(table.metadata.name for table in await session.resources.all_of(Table))


async def _clusters(session: Any) -> list[Any]:
    from evenkeel.model.storecluster import StoreCluster  # noqa: PLC0415 - imported on use

    return sorted(await session.resources.all_of(StoreCluster), key=lambda cluster: str(cluster.metadata.name))


async def _stores(session: Any) -> list[str]:
    clusters = await _clusters(session)
    return [f"{cluster.metadata.name}-{number}" for cluster in clusters for number in range(cluster.spec.stores)]


async def _resources(session: Any) -> list[str]:
    clusters = [f"storecluster/{cluster.metadata.name}" for cluster in await _clusters(session)]
    return [*(f"table/{name}" for name in await _tables(session)), *clusters]
