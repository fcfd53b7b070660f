"""Column pruning, filter pushdown and columnar reads, which Spark supports only for Java data sources.

Spark does not tell a Python source which columns a query needs, does not separate the conditions of different queries,
and converts the columns that it receives to rows. `Source.java` is a Java source that wraps the Python source. Spark's
own compiler builds a jar of it at run time.

It depends on internal classes of Spark. If they differ, and in Spark Connect, which has no access to the JVM, tables
are read without it: the rows are the same, but reads are slower.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["accelerate"]

_SOURCE: Final = Path(__file__).with_name("Source.java")
_CLASS: Final = "dev.evenkeel.spark.Source"
_REGISTER: Final = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_RUNNER: Final = "org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory$MapInBatchEvaluator$$anon$1"
_UNSUPPORTED: Final = (AttributeError, Py4JError, PySparkException, TypeError)


def accelerate(spark: SparkSession) -> bool:
    """Make this Spark read tables by columns, and only the rows and columns that a query needs.

    Returns False, with a warning that gives the reason, if this Spark does not support it: reads are slower then.
    """
    try:
        jar = Path(spark.sparkContext._temp_dir) / "evenkeel-spark.jar"
        if not jar.exists():
            _write_jar(spark._jvm, jar)
        _load(spark, jar)
    except _UNSUPPORTED as error:
        why = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"tables are read row by row, because this Spark does not support columnar reads: {why}", stacklevel=2
        )
        return False
    return True


def _write_jar(jvm: Any, jar: Path) -> None:
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    jvm.java.lang.Class.forName(_RUNNER, False, loader)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    with zipfile.ZipFile(jar, "w") as file:
        for name, code in dict(compiler.getBytecodes()).items():
            file.writestr(f"{name.replace('.', '/')}.class", bytes(code))
        file.writestr(_REGISTER, f"{_CLASS}\n")


def _load(spark: SparkSession, jar: Path) -> None:
    """Do what `ADD JAR` does, which fails for a path with a space."""
    spark.sparkContext._jsc.sc().addJar(str(jar))
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    loader.addURL(spark._jvm.java.io.File(str(jar)).toURI().toURL())
    # Spark looks for sources in the context class loader of the calling thread.
    spark._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)
