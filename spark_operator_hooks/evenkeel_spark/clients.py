"""One client to a StoreCluster in each of Spark's Python processes, which serve one task after the other."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

from evenkeel.client import Client, TableClient
from evenkeel_spark.options import Connection, SourceOptions

__all__ = ["open_table", "spare_what_is_loaded"]


def open_table(options: SourceOptions) -> TableClient:
    """The table that the options name."""
    return _client(options.connection()).table(options.table)


@cache
def _client(connection: Connection) -> Client:
    # Never closed: it ends with its process, and a task that begins next finds it warm.
    return Client(
        connection.endpoints,
        token=connection.token,
        ca=Path(connection.ca) if connection.ca else None,
        server_name=connection.server_name,
        deadline=connection.deadline,
    )


@cache
def spare_what_is_loaded() -> None:
    """Let the collection of garbage that Spark has after each task pass over all that is imported: 25 ms of work."""
    gc.collect()
    gc.freeze()
