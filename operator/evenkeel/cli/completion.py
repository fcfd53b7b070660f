"""Names that a shell completes: tables and stores as the cluster has them; nothing where it cannot be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from evenkeel.cli.lazy import Later
from evenkeel.cli.place import Cluster, Local, Place
from evenkeel.errors import EvenkeelError

__all__ = ["resource_names", "store_names", "table_names"]

session: Any = Later("evenkeel.cli.session")
_KINDS = ("tables", "storeclusters", "partitionassignments", "rebalanceplans")


def table_names(context: typer.Context, incomplete: str) -> list[str]:
    """Tables."""
    return _asked(context, incomplete, _tables)


def store_names(context: typer.Context, incomplete: str) -> list[str]:
    """Stores of all StoreClusters."""
    return _asked(context, incomplete, _stores)


def resource_names(context: typer.Context, incomplete: str) -> list[str]:
    """Tables and StoreClusters, with their kinds; and the kinds alone, for commands that list."""
    listed = _KINDS if context.info_name == "get" else ()
    return [*(kind for kind in listed if kind.startswith(incomplete)), *_asked(context, incomplete, _resources)]


def _asked(context: typer.Context, incomplete: str, ask: Callable[[Any], Awaitable[Iterable[str]]]) -> list[str]:
    # Whatever is in the way, a shell wants an answer and no message.
    with contextlib.suppress(EvenkeelError, OSError, ImportError):
        return [name for name in session.in_session(_place(context), ask) if name.startswith(incomplete)]
    return []


def _place(context: typer.Context) -> Place:
    given = context.params
    if "namespace" in given:
        kubeconfig = given.get("kubeconfig")
        found = Path(kubeconfig) if kubeconfig else None
        return Cluster(given.get("namespace") or "", given.get("context") or "", found)
    directory = given.get("directory")
    return Local(Path(directory) if directory else None)


async def _tables(found: Any) -> list[str]:
    from evenkeel.model.table import Table  # noqa: PLC0415 - only what is needed

    return sorted(table.metadata.name for table in await found.resources.all_of(Table))


async def _clusters(found: Any) -> list[Any]:
    from evenkeel.model.storecluster import StoreCluster  # noqa: PLC0415

    return sorted(await found.resources.all_of(StoreCluster), key=lambda cluster: str(cluster.metadata.name))


async def _stores(found: Any) -> list[str]:
    clusters = await _clusters(found)
    return [f"{cluster.metadata.name}-{number}" for cluster in clusters for number in range(cluster.spec.stores)]


async def _resources(found: Any) -> list[str]:
    clusters = [f"storecluster/{cluster.metadata.name}" for cluster in await _clusters(found)]
    return [*(f"table/{name}" for name in await _tables(found)), *clusters]
