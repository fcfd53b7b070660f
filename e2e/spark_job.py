"""Runs in Spark's driver: writes COUNT rows to a table and reads them back, by the data source alone.

spark-submit spark_job.py TABLE COUNT
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

SECRET = "/secret"
CHECKSUM = "sum(crc32(cast(concat(id, ',', customer) as binary)))"
"""Checksum that does not depend on the order of rows."""


def main() -> None:
    """Print the result of the read as one line of JSON."""
    table, count = sys.argv[1], int(sys.argv[2])
    spark = SparkSession.builder.getOrCreate()
    new = spark.range(count).selectExpr("id", "concat('customer-', id) as customer")
    new.write.format("evenkeel").option("secret", SECRET).mode("append").save(table)
    found = spark.read.format("evenkeel").option("secret", SECRET).load(table)
    [read] = found.selectExpr("count(*)", "count(distinct id)", CHECKSUM).collect()
    hosts = found.select("id").rdd.mapPartitions(lambda _: [_host()]).distinct().collect()
    print(json.dumps({"rows": read[0], "distinct": read[1], "checksum": read[2], "hosts": sorted(hosts)}))
    spark.stop()


def _host() -> str:
    import socket  # noqa: PLC0415 - on the executor

    return socket.gethostname()


if __name__ == "__main__":
    main()
