"""Record why queries fail, in the stores that they read, for the dead letters of bad messages.

The listener that does it also passes on what Spark has read of each batch (`unread.py`).

A message that makes its batch fail is found when the query starts again (`services/poison.py`).
A new reader process finds it, but only the driver has the exception. `supervise` records the
exception, since it restarts the query itself. For all other programs a listener records it: Spark
calls the listener when a query starts or ends.

Spark calls it late. Once `awaitTermination` has raised, the program may restart the query, or end,
before the listener is called. So a failure is recorded at the first of three events: Spark reports
it, the query starts again, or the program ends.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from py4j.protocol import Py4JNetworkError
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_queue.errors import QueueError
from spark_queue.options.masking import mask_words, scrub
from spark_queue.spark.output_modes import translate_mode_error
from spark_queue.spark.query_sources import execution_of, source_options
from spark_queue.spark.spark_errors import failure_of
from spark_queue.spark.task_context import LISTENER_PROPERTY
from spark_queue.spark.unread import UnreadWatch
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.poison import delete_failure, note_failure

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: How many characters of an error are kept.
ERROR_CHARACTERS = 2_000

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]+")
_URL_WITH_LOGIN = re.compile(r"\w[\w+.-]*://[^\s'\"]*@[^\s'\"]*")

_sessions_with_listener: WeakSet[SparkSession] = WeakSet()

#: The runs of queries about which Spark reports to a listener of this program.
_heard_runs: set[str] = set()


def is_run_heard(query: StreamingQuery) -> bool:
    """Return whether Spark reports to a listener of ours about this run of a query."""
    return str(query.runId) in _heard_runs


def record_failure(query: StreamingQuery, error: StreamingQueryException, url: str) -> None:
    """Record the error of a query in the store at `url`. Logs a warning if the store fails."""
    with _open_failure_store(query, url) as store:
        note_failure(store, str(query.id), str(query.runId), failure_reason(error, url))


def failure_reason(error: StreamingQueryException, url: str) -> str:
    """Return an error as a dead letter has it: in one line, without passwords."""
    failure = failure_of(error)
    return without_secrets(_CONTROL_CHARACTERS.sub(" ", failure.python or failure.text), url)


def without_secrets(text: str, url: str) -> str:
    """Return an error text without the secrets of the URL, and of all URLs in it. It may be cut."""
    return mask_words(scrub(text, url), _URL_WITH_LOGIN.findall(text))[:ERROR_CHARACTERS]


def clear_failure(query: StreamingQuery, url: str) -> None:
    """Remove the recorded error of a query that succeeded. Logs a warning if the store fails."""
    with _open_failure_store(query, url) as store:
        delete_failure(store, str(query.id))


@contextmanager
def _open_failure_store(query: StreamingQuery, url: str) -> Iterator[Store]:
    """Yield the store. If it fails, only log that: the store may be why the query fails."""
    try:
        with open_store(url, create=False) as store:
            yield store
    except QueueError as error:
        log.warning("could not record the failure of query %s: %s", query.name or query.id, error)


def add_listener(spark: SparkSession) -> None:
    """Record the errors of a session's queries from now on. Does nothing with Spark Connect."""
    if getattr(spark, "_sc", None) is None or spark in _sessions_with_listener:
        return
    listener = QueryListener(spark)
    spark.streams.addListener(listener)
    atexit.register(listener.close)
    _sessions_with_listener.add(spark)


class _QueryRun:
    """One run of a query. Its failure is recorded once. `watch`: see `UnreadWatch`."""

    def __init__(self, query: StreamingQuery) -> None:
        self.id = query.id
        self._query = query
        self.watch = UnreadWatch(query, replayed=_unfinished_batch(query))
        self._lock = threading.Lock()
        self._recorded = False

    def catch_up(self) -> None:
        """Take the reports of batches that Spark has not passed on yet: the program ends."""
        for progress in self._query.recentProgress:
            self.watch.note(json.loads(progress.json))
        self.watch.close()

    def record(self) -> None:
        """Record the error of the run, if it failed. Waits if another thread is doing so."""
        with self._lock:
            if not self._recorded and (error := self._query.exception()) is not None:
                if refused := translate_mode_error(str(error)):
                    log.error("query %s: %s", self._query.name or self.id, refused)
                for url in _isolating_urls(self._query):
                    record_failure(self._query, error, url)
                self._recorded = True


def _unfinished_batch(query: StreamingQuery) -> int | None:
    """Return the batch with which a run begins that starts now, if it did not finish before."""
    execution = execution_of(query)
    planned, finished = (one.getLatestBatchId() for one in (execution.offsetLog(), execution.commitLog()))
    if planned.isEmpty() or (finished.isDefined() and finished.get() >= planned.get()):
        return None
    number: int = planned.get()
    return number


class QueryListener(StreamingQueryListener):
    """Records the errors of one session's queries when Spark reports their start or end.

    By default Spark converts each event to Python, with dozens of calls for each micro-batch. This
    listener takes the event of Java, and reads only the id of its query, or its report as JSON.
    """

    class Java:
        """The Java interface that py4j implements with this object."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._streams = spark.streams
        jvm: Any = spark._jvm
        self._jlistenerobj = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._runs: dict[str, _QueryRun] = {}

    def onQueryStarted(self, event: Any) -> None:
        # Spark calls this in the thread of the query, which all its jobs inherit.
        self._context.setLocalProperty(LISTENER_PROPERTY, "true")
        query = self._streams.get(event.id().toString())
        assert query is not None
        new_run = _QueryRun(query)
        for run in [one for one in self._runs.values() if one.id == new_run.id]:
            run.record()
        self._runs[str(query.runId)] = new_run
        _heard_runs.add(str(query.runId))

    def onQueryProgress(self, event: Any) -> None:
        progress = json.loads(event.progress().json())
        if run := self._runs.get(progress["runId"]):
            run.watch.note(progress)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        number = event.runId().toString()
        if run := self._runs.pop(number, None):
            run.watch.close()
            run.record()
        _heard_runs.discard(number)

    def close(self) -> None:
        """Record what Spark has not reported yet, before the program and the JVM end."""
        with suppress(Py4JNetworkError, OSError):  # the JVM was killed with its queries: there is no error to record
            self._streams.removeListener(self)
            for run in [*self._runs.values()]:
                run.catch_up()
                run.record()


def _isolating_urls(query: StreamingQuery) -> set[str]:
    """Return the URL of each store that the query reads with the option `isolateFailures`."""
    found = set()
    for options in source_options(query):
        if options.isolate_failures:
            found |= {options.for_input(one).url for one in options.inputs} if options.inputs else {options.url}
    return found
