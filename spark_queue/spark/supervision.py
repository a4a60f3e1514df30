"""What a driver does with its queries beside starting them."""

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

#: Seconds between two looks at a query that runs.
LOOK = 1

#: So many queries start their reader processes at a time: more may take longer than Spark waits for one of them.
STARTING = 3

#: Seconds for which a query may take up one of these places, and between two looks whether it still does.
PLACE, PLACE_GLANCE = 10.0, 0.05

_first, _places = threading.Lock(), threading.Semaphore(STARTING)
_started: WeakSet[SparkSession] = WeakSet()


def start_in_turn(
    spark: SparkSession, start: Callable[[], StreamingQuery], hurry: Callable[[], bool] = lambda: False
) -> StreamingQuery:
    """Start a query that reads a queue, and give it when its reader answers, or has not for a while, or has ended.

    For many at a time: the first of a session starts alone, for all readers of a session share a map of Java that
    Spark changes without a lock when the first of them starts. The others start a few at a time. `hurry`: whether
    to wait for the reader no longer.
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
    """Spark's version, as far as it matters: (4, 2) is the first that runs `availableNow` to its end."""
    return tuple(int(part) for part in spark.version.split(".")[:2])


def had_batch(query: StreamingQuery) -> bool:
    """Whether this run of a query had a batch, be it one without rows."""
    sources = [source for progress in query.recentProgress for source in progress["sources"]]
    return any(source["startOffset"] != source["endOffset"] for source in sources)


def _answers(query: StreamingQuery) -> bool:
    """Whether its source has been asked for messages and has answered."""
    said = query.status
    return bool(query.lastProgress or said["isDataAvailable"] or said["message"].startswith("Waiting"))


def delivery_hash(df: DataFrame, batch_id: int) -> str:
    """The hash of a whole micro-batch, for `foreachBatch`: 64 hex digits, the same whenever the batch is replayed.

    It is SHA-256 over the number of the batch and the least of its rows' `delivery_hash`, each of which is SHA-256
    over consumer, sequence and message id. So batches of other queries, other checkpoints or other messages have
    other hashes. `df` must still have the column `delivery_hash`; this runs a Spark job that reads the batch once
    more. Raises `SchemaError` where the column is missing.
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
    """Run a query to its end, starting it again whenever it fails, and give the one that ended well.

    `start` starts the query, with the same checkpoint each time. `pause` seconds lie before the second start, twice
    as many before each after that, `longest` at most, until a batch has succeeded. After `restarts` failures in a row
    (`None`: never) what it failed with is raised, and at once where that would come again for sure: a `UsageError`, a
    `CheckpointError`. Each failure is noted in the store at `url`, which the query reads: a message that makes its
    batch fail (option `isolateFailures`) becomes a dead letter with that error in the header `x-error`.

    `by_batch`: the query has the trigger `availableNow`, with which Spark 4.0 and 4.1 end it after one batch: it is
    started again until there was none.

    `look` is called with the query every second while it runs, and once more when it has ended. `wait` is called in
    place of a pause, with its seconds and the failure, and says whether the query is to start again.
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
    """Wait until the query ends, commit the last batch it finished, and give the number of messages removed.

    Spark 4.0 and 4.1 never ask a source for more after the last batch of a run, so its messages stay reserved until
    the query starts again or their lease ends; this settles them at once. On Spark 4.2 and later there is nothing
    left to do after `availableNow`. `url` is the store that the query reads (its progress does not tell it, for it
    may hold a password), or stores by name as in the option `urls`; `history` (ms) as in the option. Raises what made
    the query fail; a batch that Spark did not finish is left alone.
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
    """The offset that a query's progress shows; empty where it is none of ours.

    It comes as JSON, and on Spark 4.0 and 4.1 as what Python prints of a dict.
    """
    for read in (json.loads, ast.literal_eval):
        try:
            offset = read(str(shown))
        except (ValueError, SyntaxError):
            continue
        return offset if isinstance(offset, dict) else {}
    return {}
