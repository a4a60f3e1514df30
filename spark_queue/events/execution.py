"""Execute events: call a function for each within its time limit, and settle the outcome.

A function is called at least once. An event gets exactly one status. A commit or rollback by the
tag that still holds the event sets it, so a process that lost an event changes nothing.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.event import EXECUTING, FAILED, FINISHED, NEW, PENDING, Event, short_status
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.settings import EventSettings
from spark_queue.messages.json_text import clean_text
from spark_queue.stores.base import Store
from spark_queue.stores.types import check_outcome

#: Results are settled together: the longest time between (s), and the maximum number.
MAX_SETTLE_WAIT, MAX_SETTLE_EVENTS = 0.5, 2_500

#: How long a thread has to end after its time limit (s); then it is abandoned.
THREAD_GRACE = 0.5

#: Maximum number of characters of an error in the log; its end is kept.
MAX_ERROR_LENGTH = 8_000

#: The longest delay of a retry (ms).
LONGEST_BACKOFF = 86_400_000


#: Runs a task, now or later.
Submit = Callable[[Callable[[], None]], None]


def run_now(task: Callable[[], None]) -> None:
    """Run a task now."""
    task()


class TimeLimitExceeded(BaseException):
    """A function exceeded its time limit. Its own `except Exception` does not catch this."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an event: its status, its error, and the delay of its retry (ms), if any."""

    event: Event
    status: str
    error: str = ""
    retry_delay: int | None = None

    @property
    def error_line(self) -> str:
        """The last line of the error."""
        lines = self.error.strip().splitlines()
        return lines[-1] if lines else ""


def run_event(event: Event, executors: Executors, settings: EventSettings, limiter: TimeLimiter) -> Result:
    """Call the function for an event and return the outcome, which may be the function's error."""
    executor = executors.find(event)
    if executor is None:
        return Result(event, FAILED, f"there is no executor for events {event.type} of {event.source}")
    limit = executor.time_limit or settings.execute_timeout
    try:
        returned = limiter(limit / 1000, executors.function_of(executor), event, executor.config)
        return Result(event, _parse_status(returned, settings))
    except TimeLimitExceeded:
        return _failure(event, executor, f"{executor} took longer than {limit / 1000:g} s")
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a function raises is a failure of this event
        return _failure(event, executor, _format_trace(error))


def _format_trace(error: BaseException) -> str:
    """Return the traceback of an error without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return clean_text("".join(traceback.format_exception(error.with_traceback(trace)))[-MAX_ERROR_LENGTH:])


def _parse_status(returned: object, settings: EventSettings) -> str:
    if returned is None or returned == "":
        return FINISHED
    if not isinstance(returned, str):
        raise TypeError(f"an executor must return the new status as a text, or None, not {returned!r}")
    status = short_status(returned, settings.status_prefix)
    if status in (PENDING, EXECUTING):
        raise ValueError(f"an executor cannot return the status {status!r}: return new, finished, failed or your own")
    check_outcome(status)
    return status


def _failure(event: Event, executor: Executor, error: str) -> Result:
    if event.tries < executor.retries:
        return Result(event, NEW, error, min(executor.backoff * 2**event.tries, LONGEST_BACKOFF))
    return Result(event, FAILED, error)


class Settler:
    """A collector of the results of events that a tag holds; it settles them together.

    `submit` runs each settlement, one after the other; by default at once.
    """

    def __init__(
        self, store: Store, queue: str, tag: str, log: AuditLog, settings: EventSettings, submit: Submit = run_now
    ) -> None:
        self._store = store
        self._queue = queue
        self._tag = tag
        self._log = log
        self._settings = settings
        self._submit = submit
        self._results: list[Result] = []
        self._last_settled = time.monotonic()

    def add(self, result: Result) -> None:
        """Add a result. Settle all if MAX_SETTLE_EVENTS wait, or MAX_SETTLE_WAIT has passed."""
        self._results.append(result)
        if len(self._results) >= MAX_SETTLE_EVENTS or time.monotonic() - self._last_settled > MAX_SETTLE_WAIT:
            self.settle()

    def settle(self) -> None:
        """Settle all added results."""
        results, self._results, self._last_settled = self._results, [], time.monotonic()
        self._submit(lambda: self._settle(results))

    def _settle(self, results: list[Result]) -> None:
        """Write the log, then settle.

        An event that was executed and not settled is executed again; the log records both.
        """
        groups: dict[tuple[str, int | None], list[Result]] = {}
        for one in results:
            groups.setdefault((one.status, one.retry_delay), []).append(one)
        for (status, _), group in groups.items():
            errors = {one.event.id: one.error for one in group if one.error}
            self._note("Event executed", [one.event.id for one in group], came=EXECUTING, went=status, errors=errors)
        self._log.write()
        for (status, retry_delay), group in groups.items():
            ids = [one.event.id for one in group]
            if status == NEW:
                done = self._store.rollback(
                    self._queue, self._tag, ids, delay=retry_delay, failed=retry_delay is not None
                )
            else:
                keep = self._settings.keep
                done = self._store.commit(self._queue, self._tag, ids, history=keep, outcome=status)
            if done < len(ids):
                self._note(f"{len(ids) - done} of these events were no longer held: they keep their status", ids)
        self._log.write()

    def _note(self, message: str, ids: list[str], **facts: Any) -> None:
        self._log.add(message, ids, transaction=self._tag, **facts)


def run_all(events: Iterable[Event], executors: Executors, settings: EventSettings, settler: Settler) -> list[Result]:
    """Execute events one after the other, settle them, and return the results."""
    results = []
    with time_limit() as limiter:
        for event in events:
            result = run_event(event, executors, settings, limiter)
            results.append(result)
            settler.add(result)
        settler.settle()
    return results


# --- a time limit ---------------------------------------------------------------------------------------------------


#: Calls a function with arguments, for some seconds at most; else raises `TimeLimitExceeded`.
TimeLimiter = Callable[..., Any]


@contextmanager
def time_limit() -> Iterator[TimeLimiter]:
    """Yield a function that calls others, and raises `TimeLimitExceeded` if one takes too long.

    In the main thread, where Spark's workers call functions, an alarm ends any function. In another
    thread only Python code can be ended: a call into C, such as a long sleep, continues in an
    abandoned thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _call_in_thread
        return

    def on_alarm(_: int, frame: FrameType | None) -> None:
        raise TimeLimitExceeded

    started = time.monotonic()
    previous_handler, (seconds_left, _) = (
        signal.signal(signal.SIGALRM, on_alarm),
        signal.setitimer(signal.ITIMER_REAL, 0),
    )
    try:
        yield _call_with_alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        if seconds_left:  # an alarm that was set before
            signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds_left - (time.monotonic() - started)))


def _call_with_alarm(seconds: float, function: Callable[..., Any], *arguments: object) -> Any:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _call_in_thread(seconds: float, function: Callable[..., Any], *arguments: object) -> Any:
    returned: list[Any] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            returned.append(function(*arguments))
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it again
            failed.append(error)

    thread = threading.Thread(target=call, name="event", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeLimitExceeded))
        thread.join(THREAD_GRACE)
        raise TimeLimitExceeded
    if failed:
        raise failed[0]
    return returned[0]
