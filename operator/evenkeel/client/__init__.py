"""The Python client: tables read and written through whatever store can answer.

    from evenkeel.client import Client, col

    with Client(["grpc://127.0.0.1:7500"]) as client:
        orders = client.table("orders")
        orders.upsert([{"id": 1, "customer": "anna"}])
        orders.scan(["id", "customer"], col("customer") == "anna")      # a pyarrow.Table

    client      where to begin: connections, tables, SQL over several of them
    table       one table: upsert, append, delete, scan, get, changes, pins
    aio         the same for asyncio
    routes      which store leads which partition, asked of any store and asked again when it was wrong
    attempts    calls that find the right store, and are made again until their deadline
    lanes       writes to one partition: those that come at the same time go together
    streams     rows of one partition as they come
    queries     SQL, in this process
    verifying   whether all replicas have the same rows
    writes      rows split by partition, with tokens, so that a batch that is sent again is not written twice
    filters     `col("amount") > 5`, as stores understand it
    frames      what may be written: Arrow, pandas, dicts

Needs pyarrow; SQL needs duckdb too (`pip install 'evenkeel-operator[client]'`).
"""

from evenkeel.client.cluster_client import Client
from evenkeel.client.filters import Filter, col
from evenkeel.client.table_client import TableClient

__all__ = ["Client", "Filter", "TableClient", "col"]
