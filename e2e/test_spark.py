"""A Spark job with driver and executors in pods, on a table."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from e2e.cluster.provider import Cluster
from e2e.shop import Shop
from e2e.spark_application import SparkApplication, install_spark_operator, load_spark_images

ROWS = 50_000


@pytest.fixture
def application(cluster: Cluster, shop: Shop) -> Iterator[SparkApplication]:
    load_spark_images(cluster)
    operator = install_spark_operator(cluster, namespace=shop.namespace)
    application = SparkApplication(shop)
    yield application
    application.close()
    operator.uninstall()


def checksum(rows: int) -> int:
    return sum(zlib.crc32(f"{number},customer-{number}".encode()) for number in range(rows))


def test_a_job_loads_and_reads_a_table(shop: Shop, application: SparkApplication) -> None:
    """Executors and a client read exactly what executors wrote, though a store is down in between."""
    shop.open()
    application.start("orders", str(ROWS), executors=2)
    shop.kubectl.wait("executors have come", application.executors, within=180)
    shop.run("delete", "pod/main-1", "--wait=false")
    read = application.wait()
    wanted = {"rows": ROWS, "distinct": ROWS, "checksum": checksum(ROWS)}
    assert {name: read[name] for name in wanted} == wanted
    assert all("-exec-" in host for host in read["hosts"]), read
    shop.settle()
    assert shop.ask_client("sum") == wanted
