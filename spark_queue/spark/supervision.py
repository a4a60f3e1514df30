"""Start, supervise and drain streaming queries in the driver."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from spark_queue.errors import SchemaError
from spark_queue.spark.failures import ERROR_CHARACTERS, forget, note
from spark_queue.spark.read.multi_input import Offsets, views
from spark_queue.spark.read.offsets import READ, Offset, commit_named
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores.named import NamedStores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: Seconds between two checks of a running query.
LOOK = 1

#: How many queries may start their reader processes at once: more may exceed Spark's timeout.
STARTING = 3

#: How long (s) a starting query counts as starting, at most, and the seconds between two checks.
PLACE, PLACE_GLANCE = 10.0, 0.05

_first, _places = threading.Lock(), threading.Semaphore(STARTING)
_started: WeakSet[SparkSession] = WeakSet()


def start_in_turn(
    spark: SparkSession, start: Callable[[], StreamingQuery], hurry: Callable[[], bool] = lambda: False
) -> StreamingQuery:
    """Start a query that reads a queue, and return it once its reader answers.

    Also returns if the reader takes too long, or the query has ended. Use it to start many queries
    from several threads. The first of a session starts alone: all readers of a session share a map
    in Java, which Spark changes without a lock at the first start. The others start a few at a
    time. `stop_waiting`: whether to stop waiting for the reader.
    """

    def started() -> StreamingQuery:
        query, end = start(), time.monotonic() + PLACE
        while query.isActive and time.monotonic() < end and not (hurry() or _answers(query)):
            time.sleep(PLACE_GLANCE)
        return query

    with _first:
        if spark not in _started:
            query = started()
            _started.add(spark)
            return query
    with _places:
        return started()


def version(spark: SparkSession) -> tuple[int, ...]:
    """Return the version of Spark. (4, 2) is the first that runs `availableNow` to its end."""
    return tuple(int(part) for part in spark.version.split(".")[:2])


def had_batch(query: StreamingQuery) -> bool:
    """Return whether this run of a query had a batch, even one without rows."""
    sources = [source for progress in query.recentProgress for source in progress["sources"]]
    return any(source["startOffset"] != source["endOffset"] for source in sources)


def _answers(query: StreamingQuery) -> bool:
    """Return whether the source of a query has answered a request for messages."""
    said = query.status
    return bool(query.lastProgress or said["isDataAvailable"] or said["message"].startswith("Waiting"))


def delivery_hash(df: DataFrame, batch_id: int) -> str:
    """Return the hash of a micro-batch in `foreachBatch`: 64 hex digits, the same at each replay.

    It is the SHA-256 of the batch number and the lowest `delivery_hash` of its rows. That of a row
    is the SHA-256 of consumer, sequence and message id. So batches of other queries, checkpoints
    or messages have other hashes. `df` must still have the column `delivery_hash`. This runs a
    Spark job, which reads the batch once more. Raises `SchemaError` if the column is missing.
    """
    if "delivery_hash" not in df.columns:
        raise SchemaError(
            f"the DataFrame has no column 'delivery_hash' (it has {', '.join(df.columns)}): pass the one that "
            "foreachBatch got, before columns were dropped",
            column="delivery_hash",
        )
    row = df.agg(F.min("delivery_hash").alias("least")).first()
    least = row["least"] if row is not None else None
    return hashlib.sha256(f"{batch_id}\0{least or ''}".encode()).hexdigest()


def supervise(
    start: Callable[[], StreamingQuery],
    url: str,
    *,
    restarts: int | None = None,
    pause: float = 1.0,
    longest: float = 60.0,
    by_batch: bool = False,
    look: Callable[[StreamingQuery], None] = lambda _: None,
    wait: Callable[[float, str], bool] | None = None,
) -> StreamingQuery:
    """Run a query until it ends without an error, and return it; restart it after each failure.

    `start` starts the query, each time with the same checkpoint. The first restart waits
    `initial_backoff` seconds. The wait doubles with each failure, up to `max_backoff`, until a
    batch succeeds. After `restarts` restarts in a row (`None`: no limit) the next failure is
    raised. A failure that would repeat (`UsageError`, `CheckpointError`) is raised at once. The
    exception is Spark's `StreamingQueryException`.

    Each failure is recorded in the store at `url`, which the query reads. A message that makes its
    batch fail (option `isolateFailures`) becomes a dead letter with that error in the header
    `x-error`.

    `by_batch`: the query has the trigger `availableNow`, and Spark 4.0 or 4.1 ends it after one
    batch. It is then restarted until a run has no batch.

    `on_check` is called with the query every second while it runs, and once after it has ended.
    `wait` replaces the sleep before a restart. It gets the seconds and the error text, and returns
    whether to restart; if not, the failed query is returned.
    """
    failures = 0
    while True:
        query = start()
        try:
            try:
                while not query.awaitTermination(LOOK):
                    look(query)
            finally:
                look(query)
        except StreamingQueryException as error:
            failures = 1 if query.lastProgress else failures + 1
            failure = failure_of(error)
            note(query, error, url)
            if failure.lasting or (restarts is not None and failures > restarts):
                raise
            told = failure.text[:ERROR_CHARACTERS]
            delay = min(pause * 2 ** min(failures - 1, 30), longest)
            log.warning("query %s has failed and starts again in %.1f s: %s", query.name or query.id, delay, told)
            if wait is None:
                time.sleep(delay)
            elif not wait(delay, told):
                return query
        else:
            failures = 0
            if by_batch and had_batch(query):
                continue
            forget(query, url)
            return query


def drain(query: StreamingQuery, url: str | Mapping[str, str], *, history: int = 0) -> int:
    """Wait until a query ends, commit its last batch, and return the number of messages removed.

    After the last batch of a run, Spark 4.0 and 4.1 do not call the source again. Its messages stay
    reserved until the query starts again or their lease ends. This function commits them at once.
    On Spark 4.2 and later, nothing is left to commit after `availableNow`.

    `url`: the store that the query reads, or stores by name as in the option `urls`. The query's
    progress does not contain it, since it may hold a password. `history` (ms): as in the option.
    Raises the error of the query. A batch that Spark did not finish does not change.
    """
    query.awaitTermination()
    progress = query.lastProgress
    done = 0
    with NamedStores({"": url} if isinstance(url, str) else url) as stores:
        for source in progress["sources"] if progress else ():
            offset = _offset(source["endOffset"])
            if offset.get("v") not in READ or "consumer" not in offset:
                continue
            for binding, view in views(cast("Offsets", offset)).items() if "inputs" in offset else [("", offset)]:
                ns = offset["inputs"][binding].get("ns") if binding else None
                store = stores["" if isinstance(url, str) else ns or ""]
                done += commit_named(store, cast("Offset", view), history)
    return done


def _offset(shown: Any) -> dict[str, Any]:
    """Return the offset in a query's progress, or an empty dict if it is not a JSON object.

    It is JSON; on Spark 4.0 and 4.1 it is the text of a Python dict.
    """
    for read in (json.loads, ast.literal_eval):
        try:
            offset = read(str(shown))
        except (ValueError, SyntaxError):
            continue
        return offset if isinstance(offset, dict) else {}
    return {}
