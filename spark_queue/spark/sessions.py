"""Get a SparkSession that has `format("queue")` and whose workers can import this package."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkImportError, PySparkRuntimeError
from pyspark.sql import SparkSession, SQLContext
from pyspark.sql.udf import UserDefinedFunction

from spark_queue.errors import UsageError
from spark_queue.spark.checkpoints import checkpoint_conf
from spark_queue.spark.data_source import QueueDataSource
from spark_queue.spark.failures import add_listener
from spark_queue.spark.not_null import read_as_nullable
from spark_queue.spark.pickling import portable_source
from spark_queue.spark.read.limits import cores
from spark_queue.spark.task_context import TIME_ZONE
from spark_queue.stores.services.owner import Owner

#: The environment variable and the conf that name the interpreter of Spark's Python workers.
_PYTHON, _PYTHON_CONF = "PYSPARK_PYTHON", "spark.pyspark.python"

#: The time limit (s) for an interpreter to import this package.
_IMPORT_TIMEOUT = 60


def session(**conf: object) -> SparkSession:
    """Return a SparkSession with `format("queue")`: the existing one, or a new one with `conf`.

    Example: `spark_queue.session(**{"spark.master": "local[4]"})`.

    With a local master, the workers of a new session run the interpreter of this program, unless
    PYSPARK_PYTHON or the conf `spark.pyspark.python` names another. Its checkpoints are written in
    less time, by the conf of `checkpoint_conf`. Under spark-submit, with Spark Connect and on
    Databricks neither changes. Raises `UsageError` if the workers of a local master
    cannot import this package, or if Java or packages of Spark Connect are missing.
    """
    settings = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()}
    if _is_local(settings):
        os.environ.setdefault(_PYTHON, settings.get(_PYTHON_CONF, sys.executable))
        settings = checkpoint_conf() | settings
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkImportError as error:  # pyspark does not install the packages of Spark Connect
        message = re.sub(r"^\[\w+\] ", "", str(error))
        raise UsageError(f"{message} Install it with: pip install 'spark-queue[connect]'") from None
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise UsageError(
            "Spark does not start: its Java process has ended. It needs Java 17 or later: install it, or set "
            "JAVA_HOME; spark-queue doctor looks for it"
        ) from None
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `format("queue")` in a session, and activate the session in this thread.

    From then on, errors of the session's queries are recorded for the header `x-error` of dead
    letters. And by default, a micro-batch has as many partitions as the cluster has cores now,
    instead of the driver. Times without a time zone have that of the session, and fields that a
    schema calls NOT NULL may be NULL. `session` calls this. If you create the session yourself,
    call it for these, or if Spark does not find the format. Raises `UsageError` if the workers of a
    local master cannot import this package.
    """
    _check_interpreter(spark)
    activate(spark)
    add_listener(spark)
    read_as_nullable(spark)
    try:
        source = portable_source(
            QueueDataSource,
            cores=_cluster_cores(spark),
            zone=spark.conf.get(TIME_ZONE),
            program=asdict(Owner.current("", 0)),
        )
        spark.dataSource.register(source)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 raises this if it has found the format itself
            raise


def _cluster_cores(spark: SparkSession) -> int | None:
    """Return the cores of the cluster of a session; `None` with Spark Connect, which hides them."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    known: int = context.defaultParallelism
    # A cluster may still be starting its executors.
    return known if str(context.master).startswith("local") else max(known, cores())


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread.

    Spark looks in the active session for the data sources of writes. In the thread that created
    the session it is active already. Creating a DataFrame is the only public way to activate it.
    """
    spark.createDataFrame([], "id INT")


def is_running(spark: SparkSession) -> bool:
    """Return whether a session can be used: its Java process lives, and has not stopped it.

    Always true with Spark Connect, whose process is elsewhere.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return True
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def forget_session(spark: SparkSession) -> None:
    """Forget a session that `is_running` no more, so that `session` creates a new one.

    Its Java process is killed if it still lives. Raises `UsageError` if this program did not start
    that process, since it could not start another one.
    """
    # pyspark keeps its session and its connection to Java in private class attributes. Its public
    # `stop` calls Java to clear the former, and nothing clears the latter.
    context, gateway = spark.sparkContext, SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        raise UsageError("Spark's Java process has died, and another program had started it: restart this program")
    folders = _temporary_folders(context)
    process.kill()
    process.wait()
    with suppress(OSError):
        process.stdin.close()
    context._jsc = None  # else `stop` calls Java
    context.stop()  # ends threads of pyspark
    if gateway is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = SQLContext._instantiatedContext = None
    for function in gc.get_objects():  # functions of modules, which keep what Java made of them
        if type(function) is UserDefinedFunction:
            function._judf_placeholder = None
    for folder in folders:  # a process that ends by itself removes them
        shutil.rmtree(folder, ignore_errors=True)


def _temporary_folders(context: SparkContext) -> list[Path]:
    """Return the folder below which Spark keeps temporary files of this program."""
    folder = Path(str(getattr(context, "_temp_dir", ""))).parent
    return [folder] if folder.name.startswith("spark-") else []


def _is_local(conf: Mapping[str, str]) -> bool:
    """Return whether a new session would start Spark on this machine."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "spark.remote" in conf or "SPARK_REMOTE" in os.environ:
        return False
    submit = re.search(r"--master[ =](\S+)", os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    master = conf.get("spark.master") or (submit[1] if submit else "") or _default_master() or "local"
    return master.startswith("local") and not master.startswith("local-cluster")


def _default_master() -> str:
    """Return the master in `spark-defaults.conf`, or an empty text if it has none."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    path = Path(folder or "", "spark-defaults.conf")
    found = re.search(r"^\s*spark\.master[\s=:]+(\S+)", path.read_text(), re.M) if folder and path.exists() else None
    return found[1] if found else ""


def _check_interpreter(spark: SparkSession) -> None:
    """Raise `UsageError` if the workers of a local master cannot import this package."""
    context = getattr(spark, "_sc", None)  # none with Spark Connect
    if context is None or not str(context.master).startswith("local"):
        return
    interpreter = context.pythonExec
    found = shutil.which(interpreter)
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return
    problem = "it does not exist" if found is None else _find_import_error(found)
    if problem:
        raise UsageError(
            f"Spark's Python workers run {found or interpreter!r}: {problem}. Create the session with "
            f"spark_queue.session(), or set {_PYTHON} before Spark starts, to {sys.executable} for example"
        )


def _find_import_error(interpreter: str) -> str:
    """Return why an interpreter cannot import our code, or an empty text if it can."""
    command = [interpreter, "-c", "import pyspark, spark_queue.spark"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT, check=False)
    if result.returncode == 0:
        return ""
    return (result.stderr.strip().splitlines() or ["it fails without a message"])[-1]
