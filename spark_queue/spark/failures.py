"""What queries fail with, noted in the stores that they read, for the dead letter of the message that is the cause.

A message that makes its batch fail is found when the query starts again (`services/poison.py`), by a reader process
that does not know why it failed before: only the driver has the exception. `supervise` notes it, as it starts the
query again itself. For all other programs a listener does: Spark calls it when a query starts or ends.

Spark calls it late: when `awaitTermination` has raised, the program may start the query again, or end, before that.
So a failure is noted when Spark says so, when the query starts again, or when the program ends: what comes first.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_queue.errors import QueueError
from spark_queue.options.masking import masked_in, scrub
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.poison import forget_failure, note_failure

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: Characters kept of what a query failed with.
ERROR_CHARACTERS = 2_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_WITH_LOGIN = re.compile(r"\w[\w+.-]*://[^\s'\"]*@[^\s'\"]*")

_heard: WeakSet[SparkSession] = WeakSet()


def note(query: StreamingQuery, error: StreamingQueryException, url: str) -> None:
    """Note in the store at `url` what a query has failed with."""
    with _noting(query, url) as store:
        note_failure(store, str(query.id), str(query.runId), reason(error, url))


def reason(error: StreamingQueryException, url: str) -> str:
    """Return what a dead letter says of a failure: in one line, without passwords."""
    failure = failure_of(error)
    text = _CONTROL.sub(" ", failure.python or failure.text)
    return masked_in(scrub(text, url), _WITH_LOGIN.findall(text))[:ERROR_CHARACTERS]


def forget(query: StreamingQuery, url: str) -> None:
    """Remove what was noted: the query has succeeded."""
    with _noting(query, url) as store:
        forget_failure(store, str(query.id))


@contextmanager
def _noting(query: StreamingQuery, url: str) -> Iterator[Store]:
    """Return the store. If it fails, only log that: it may be the very thing that makes the query fail."""
    try:
        with open_store(url, create=False) as store:
            yield store
    except QueueError as error:
        log.warning("the failure of query %s could not be noted: %s", query.name or query.id, error)


def listen(spark: SparkSession) -> None:
    """Note from now on what the queries of a session fail with. With Spark Connect this does nothing."""
    if getattr(spark, "_sc", None) is None or spark in _heard:
        return
    listener = QueryListener(spark)
    spark.streams.addListener(listener)
    atexit.register(listener.close)
    _heard.add(spark)


class _Run:
    """One run of a query. Its failure is noted once."""

    def __init__(self, query: StreamingQuery) -> None:
        self.id = query.id
        self._query = query
        self._lock = threading.Lock()
        self._noted = False

    def note(self) -> None:
        """Note what it has failed with, if it has. Return when that is done, perhaps by another thread."""
        with self._lock:
            if not self._noted and (error := self._query.exception()) is not None:
                for url in _suspecting(self._query):
                    note(self._query, error, url)
                self._noted = True


class QueryListener(StreamingQueryListener):
    """Hears the queries of one session start and end.

    By default Spark makes a Python object of each event, with dozens of calls for each micro-batch. This takes an
    event as it is, and reads nothing of it but which query it is about.
    """

    class Java:
        """What py4j calls it as."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, spark: SparkSession) -> None:
        self._streams = spark.streams
        jvm: Any = spark._jvm
        self._jlistenerobj = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._runs: dict[str, _Run] = {}

    def onQueryStarted(self, event: Any) -> None:
        query = self._streams.get(event.id().toString())
        assert query is not None
        started = _Run(query)
        for run in [one for one in self._runs.values() if one.id == started.id]:
            run.note()
        self._runs[str(query.runId)] = started

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        if run := self._runs.pop(event.runId().toString(), None):
            run.note()

    def close(self) -> None:
        """Note what Spark has not said yet. The program ends, and the JVM after it."""
        with suppress(Py4JNetworkError):  # the JVM was killed, and its queries with it: there is no error
            self._streams.removeListener(self)
            for run in [*self._runs.values()]:
                run.note()


def _suspecting(query: StreamingQuery) -> Iterator[str]:
    """Yield the URLs of the stores in which a message may be suspected of a failure of this query."""
    leaves = query._jsq.streamingQuery().analyzedPlan().collectLeaves()
    found = set()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName().lower() == "queue":
            options = QueueOptions.parse(dict(leaf.extraOptions()), "stream")
            if options.isolate_failures:
                found |= {options.of(one).url for one in options.inputs} if options.inputs else {options.url}
    yield from found
