"""Start streaming queries a few at a time, in the order in which they asked for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from spark_queue.spark.read.limits import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: How long (s) a starting query counts as starting, at most, and the time between two checks (s).
READER_START_TIMEOUT, READER_CHECK_INTERVAL = 15.0, 0.05


class StartTurns:
    """Turns for starts that take a processor each: `at_once` of them, first come, first served."""

    def __init__(self, at_once: int) -> None:
        self._lock = threading.Lock()
        self._free = at_once
        self._waiting: deque[threading.Event] = deque()

    def ask(self) -> threading.Event:
        """Ask for a turn, and return an event that is set when it comes. Call `end` after it."""
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._pass_on()
        return turn

    def end(self) -> None:
        """End a turn."""
        with self._lock:
            self._free += 1
            self._pass_on()

    def _pass_on(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()


#: A query that starts needs a processor for its reader process and one for Spark. With more at once
#: than that, Spark may give up on a process: "Python worker failed to connect back".
_turns = StartTurns(max(1, cores() // 2))

_first_start = threading.Lock()
_started_sessions: WeakSet[SparkSession] = WeakSet()


def ask_turn() -> threading.Event:
    """Ask for the turn of a query, for `start_in_turn`, which must be called then."""
    return _turns.ask()


def start_in_turn(
    spark: SparkSession,
    start: Callable[[], StreamingQuery],
    stop_waiting: Callable[[], bool] = lambda: False,
    turn: threading.Event | None = None,
) -> StreamingQuery:
    """Start a query that reads a queue, and return it once its reader answers.

    Also returns if the reader takes too long, or the query has ended. Use it to start many queries
    from several threads: they start one for each two processors at a time, first come, first
    served. The first of a session starts alone: all readers of a session share a map in Java, which
    Spark changes without a lock at the first start. `stop_waiting`: whether to stop waiting for the
    reader. `turn`: that of an earlier `ask_turn`, used once.
    """
    (turn or ask_turn()).wait()
    try:
        with _first_start:
            if spark not in _started_sessions:
                query = _start_and_wait(start, stop_waiting)
                _started_sessions.add(spark)
                return query
        return _start_and_wait(start, stop_waiting)
    finally:
        _turns.end()


def _start_and_wait(start: Callable[[], StreamingQuery], stop_waiting: Callable[[], bool]) -> StreamingQuery:
    query, end = start(), time.monotonic() + READER_START_TIMEOUT
    while query.isActive and time.monotonic() < end and not (stop_waiting() or _has_answered(query)):
        time.sleep(READER_CHECK_INTERVAL)
    return query


def _has_answered(query: StreamingQuery) -> bool:
    """Return whether the source of a query has answered a request for messages."""
    status = query.status
    return bool(query.lastProgress or status["message"].startswith("Waiting"))
