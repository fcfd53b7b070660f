"""One client per StoreCluster in each of Spark's Python processes, which run one task after the other."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

from evenkeel.client import Client, TableClient
from evenkeel_spark.source_options import Connection, SourceOptions

__all__ = ["freeze_loaded_objects", "open_table"]


def open_table(options: SourceOptions) -> TableClient:
    """Return the table that the options name."""
    return _client(options.connection()).table(options.table)


@cache
def _client(connection: Connection) -> Client:
    # Not closed, so that the next task of this process reuses its connections.
    return Client(
        connection.endpoints,
        token=connection.token,
        ca=Path(connection.ca) if connection.ca else None,
        server_name=connection.server_name,
        deadline=connection.deadline,
    )


@cache
def freeze_loaded_objects() -> None:
    """Exclude all loaded objects from the garbage collection that Spark runs after each task, which saves 25 ms."""
    gc.collect()
    gc.freeze()
