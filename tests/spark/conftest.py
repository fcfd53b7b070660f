"""Fixtures: a local Spark for all tests, and stores for each module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Must precede imports of Spark: workers use this Python, and the host's name is not resolved.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrameReader, SparkSession

from evenkeel.wire.flight import ReadRequest
from evenkeel_spark import EvenkeelDataSource, accelerate
from evenkeel_store.serving.scans import Scanner
from tests.spark.stores import Stores


@pytest.fixture(scope="session", params=["rows", "columns"])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session, once without and once with `accelerate`."""
    folder = tmp_path_factory.mktemp("spark with spaces")
    builder = SparkSession.builder.master("local[2, 3]").appName("evenkeel")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if " " in sys.executable:
        # To look for sources, Spark starts Python in a shell without quotes.
        session.dataSource.register(EvenkeelDataSource)
    session.sparkContext.setLogLevel("OFF")
    thread = session._jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    assert request.param == "rows" or accelerate(session)
    yield session
    # The next session of this thread must not use this class loader.
    thread.setContextClassLoader(loader)
    session.stop()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with Stores(tmp_path_factory.mktemp("stores")) as made:
        yield made


@pytest.fixture
def source(spark: SparkSession, stores: Stores) -> DataFrameReader:
    return spark.read.format("evenkeel").option("endpoints", stores.endpoints)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ReadRequest]:
    """The read requests that stores receive."""
    requests: list[ReadRequest] = []
    scan = Scanner.scan

    def recording(self: Scanner, group: Any, request: ReadRequest, **more: Any) -> Any:
        requests.append(request)
        return scan(self, group, request, **more)

    monkeypatch.setattr(Scanner, "scan", recording)
    return requests
