"""The Python client: read and write tables through any store of a StoreCluster.

    from evenkeel.client import Client, col

    with Client(["grpc://127.0.0.1:7500"]) as client:
        orders = client.table("orders")
        orders.upsert([{"id": 1, "customer": "anna"}])
        orders.scan(["id", "customer"], col("customer") == "anna")      # a pyarrow.Table

Needs pyarrow; SQL also needs duckdb (`pip install 'evenkeel-operator[client]'`).

Modules:
    cluster_client       the entry point: connections, tables, SQL
    table_client         one table: upsert, append, delete, scan, get, changes, pins
    aio                  the same API for asyncio
    table_writer         the write path: rows are split by partition, queued and sent with write tokens
    row_input            Arrow, pandas and dicts as batches of a table
    row_streams          the rows of one partition as a stream
    filters              conditions such as `col("amount") > 5`
    sql_queries          SQL over tables, run by DuckDB in this process
    verification         compares the replicas of a partition
    retries              calls that find the right store and are retried until their deadline
    route_cache          which store leads which partition
    store_connections    one Flight connection to each store
"""

from evenkeel.client.cluster_client import Client
from evenkeel.client.filters import Filter, col
from evenkeel.client.table_client import TableClient

__all__ = ["Client", "Filter", "TableClient", "col"]
