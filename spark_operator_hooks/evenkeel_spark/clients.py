"""One client to a StoreCluster in each of Spark's Python processes, which serve one task after the other."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evenkeel.client import Client, TableClient
from evenkeel_spark.options import Connection, SourceOptions

__all__ = ["open_table"]


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
