"""Start, supervise and drain streaming queries in the driver."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from spark_queue.errors import SchemaError
from spark_queue.options.values import FAIL
from spark_queue.spark.checkpoints import NOT_EMPTY, remove_unfinished_offset
from spark_queue.spark.failures import ERROR_CHARACTERS, clear_failure, is_run_heard, record_failure
from spark_queue.spark.progress import parse_offset
from spark_queue.spark.read.delivery import ON_UNREAD
from spark_queue.spark.read.leftovers import log_what_is_left
from spark_queue.spark.read.offsets import READABLE_VERSIONS, commit_offset, input_offsets
from spark_queue.spark.read.proof import check_drained
from spark_queue.spark.spark_errors import failure_of
from spark_queue.spark.unread import UnreadWatch
from spark_queue.stores.named import NamedStores
from spark_queue.stores.services.retry import exponential, retry_delay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: Seconds between two checks of a running query.
CHECK_INTERVAL = 1


def spark_version(spark: SparkSession) -> tuple[int, ...]:
    """Return the version of Spark. (4, 2) is the first that runs `availableNow` to its end."""
    return tuple(int(part) for part in spark.version.split(".")[:2])


def had_batch(query: StreamingQuery) -> bool:
    """Return whether this run of a query had a batch, even one without rows."""
    sources = [source for progress in query.recentProgress for source in progress["sources"]]
    return any(source["startOffset"] != source["endOffset"] for source in sources)


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
    lowest = row["least"] if row is not None else None
    return hashlib.sha256(f"{batch_id}\0{lowest or ''}".encode()).hexdigest()


def supervise(
    start: Callable[[], StreamingQuery],
    url: str,
    *,
    restarts: int | None = None,
    initial_backoff: float = 1.0,
    max_backoff: float = 60.0,
    by_batch: bool = False,
    on_check: Callable[[StreamingQuery], None] = lambda _: None,
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
        watch = None if is_run_heard(query) else UnreadWatch(query)  # no listener: Spark Connect, for example
        try:
            try:
                while not query.awaitTermination(CHECK_INTERVAL):
                    _look(watch, query)
                    on_check(query)
            finally:
                _look(watch, query)
                on_check(query)
        except StreamingQueryException as error:
            failures = 1 if query.lastProgress else failures + 1
            failure = failure_of(error)
            record_failure(query, error, url)
            if NOT_EMPTY in failure.text and remove_unfinished_offset(query):
                log.warning("query %s was stopped within its first write: its checkpoint is empty again", query.id)
            if failure.permanent or (restarts is not None and failures > restarts):
                raise
            text = failure.text[:ERROR_CHARACTERS]
            delay = retry_delay(exponential(initial_backoff, max_backoff), failures - 1)
            log.warning("query %s has failed and starts again in %.1f s: %s", query.name or query.id, delay, text)
            if wait is None:
                time.sleep(delay)
            elif not wait(delay, text):
                return query
        else:
            failures = 0
            if by_batch and had_batch(query):
                continue
            clear_failure(query, url)
            return query


def _look(watch: UnreadWatch | None, query: StreamingQuery) -> None:
    """Pass on what Spark has reported, but for the first batch of the run.

    It may be one that comes again, of which a part was set aside.
    """
    if watch is not None:
        for progress in query.recentProgress[1:]:
            watch.note(json.loads(progress.json))


def drain(query: StreamingQuery, url: str | Mapping[str, str], *, history: int = 0) -> int:
    """Wait until a query ends, commit its last batch, and return the number of messages removed.

    After the last batch of a run, Spark 4.0 and 4.1 do not call the source again. Its messages stay
    reserved until the query starts again or their lease ends. This function commits them at once.
    On Spark 4.2 and later, nothing is left to commit after `availableNow`.

    What stays in the queues is logged: messages that are due later or were pushed meanwhile, and
    those of one input without a partner in the others. Messages that others hold are a warning.

    `url`: the store that the query reads, or stores by name as in the option `urls`. The query's
    progress does not contain it, since it may hold a password. `history` (ms): as in the option.
    Raises the error of the query. A batch that Spark did not finish does not change. Raises
    `UnreadError` if the query has `onUnread=fail` and did not read the batch to its end.
    """
    query.awaitTermination()
    progress = query.lastProgress
    removed = 0
    with NamedStores({"": url} if isinstance(url, str) else url) as stores:
        for source in progress["sources"] if progress else ():
            offset = parse_offset(source["endOffset"])
            if offset.get("v") not in READABLE_VERSIONS or "consumer" not in offset:
                continue
            views = input_offsets(offset) if "inputs" in offset else {"": offset}
            names = {one: offset["inputs"][one].get("ns", "") if one else "" for one in views}
            found = {one: stores["" if isinstance(url, str) else names[one]] for one in views}
            if offset.get(ON_UNREAD) == FAIL:
                check_drained(offset, views, found, source["numInputRows"])
            for binding, view in views.items():
                store = found[binding]
                removed += commit_offset(store, view, history)
                log_what_is_left(store, view["queue"])
    return removed
