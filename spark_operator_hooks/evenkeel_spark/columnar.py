"""Reads by columns, and conditions that reach the stores: the few lines of Java that Spark has no words for in Python.

Spark asks a Python source neither which columns a query wants nor lets it keep a condition apart from those of other
queries, and makes rows of the columns that it gets. A source in Java is asked all that. So `Source.java` is one, around
the Python source, which still does the work; Spark's own compiler makes a jar of it when a session is told to.

It leans on classes that Spark does not promise to keep. Where they are not as expected, and in Spark Connect, where
there is no Java to talk to, reads stay what they are without it: the same rows, by a longer way.
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
_REFUSALS: Final = (AttributeError, Py4JError, PySparkException, TypeError)


def accelerate(spark: SparkSession) -> bool:
    """Read tables by columns in this Spark from now on, and only the rows and columns that a query asks for.

    False, with a warning that says why, where that cannot be: reads are slower then, and no different otherwise.
    """
    try:
        jar = Path(spark.sparkContext._temp_dir) / "evenkeel-spark.jar"
        if not jar.exists():
            _write_jar(spark._jvm, jar)
        _load(spark, jar)
    except _REFUSALS as error:
        why = str(error).strip().partition("\n")[0]
        warnings.warn(f"tables are read row by row, for this Spark does not do otherwise: {why}", stacklevel=2)
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
    """What `ADD JAR` does, which fails at a path with a space."""
    spark.sparkContext._jsc.sc().addJar(str(jar))
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    loader.addURL(spark._jvm.java.io.File(str(jar)).toURI().toURL())
    # Spark looks for sources where the thread that asks for one finds classes.
    spark._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)
