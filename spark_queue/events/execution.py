"""Execute events: call a function for each within its time limit, and settle the outcome.

A function is called at least once. An event gets exactly one status. A commit or rollback by the
tag that still holds the event sets it, so a process that lost an event changes nothing.
"""

from __future__ import annotations

import ctypes
import operator
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.event import EXECUTING, FAILED, FINISHED, NEW, PENDING, Event, short_status
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.origin import EventRefused
from spark_queue.events.settings import EventSettings
from spark_queue.messages.json_text import clean_text
from spark_queue.stores.base import Store
from spark_queue.stores.services.retry import exponential, retry_delay
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


class TimeLimitExceeded(BaseException):
    """A function exceeded its time limit. Its own `except Exception` does not catch this."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an event: its status, its error, and the delay of its retry (ms), if any."""

    event: Event
    status: str
    error: str = ""
    retry_delay: int | None = None


def run_event(event: Event, executors: Executors, settings: EventSettings, limiter: TimeLimiter) -> Result:
    """Call the function for an event and return the outcome, which may be the function's error."""
    executor = executors.find(event)
    if executor is None:
        return Result(event, FAILED, f"there is no executor for events {event.type} of {event.source}")
    limit = executor.time_limit or settings.execute_timeout
    try:
        returned = limiter(limit / 1000, executors.function_of(executor), event, executor.config)
        return Result(event, _parse_status(returned, settings))
    except EventRefused as error:
        return Result(event, FAILED, str(error))
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
        delay = retry_delay(exponential(executor.backoff, LONGEST_BACKOFF), event.tries)
        return Result(event, NEW, error, delay)
    return Result(event, FAILED, error)


@dataclass(frozen=True)
class Settler:
    """Settles the events that a tag holds, and writes that into the log of their queue."""

    store: Store
    queue: str
    tag: str
    log: AuditLog
    settings: EventSettings

    def fail_invalid(self, invalid: Mapping[str, str]) -> None:
        """Fail messages that are not events: their ids, each with the reason."""
        if not invalid:
            return
        ids, text = list(invalid), "Messages that are not events"
        self.log.write_record(text, ids, transaction=self.tag, went=FAILED, errors=invalid)
        self.store.commit(self.queue, self.tag, ids, history=self.settings.keep, outcome=FAILED)

    def settle(self, results: Iterable[Result], submit: Submit = operator.call) -> dict[str, str]:
        """Settle results as they come, and return the status of each event by its id.

        They are settled together if MAX_SETTLE_EVENTS wait, or MAX_SETTLE_WAIT has passed. `submit`
        runs each settlement, one after the other; by default at once.
        """
        statuses: dict[str, str] = {}
        waiting: list[Result] = []
        last = time.monotonic()
        for one in results:
            statuses[one.event.id] = one.status
            waiting.append(one)
            now = time.monotonic()
            if len(waiting) >= MAX_SETTLE_EVENTS or now - last > MAX_SETTLE_WAIT:
                submit(partial(self._settle, waiting))
                waiting, last = [], now
        submit(partial(self._settle, waiting))
        return statuses

    def _settle(self, results: list[Result]) -> None:
        """Write the log, then settle.

        An event that was executed and not settled is executed again; the log records both.
        """
        groups: dict[tuple[str, int | None], list[Result]] = {}
        for one in results:
            groups.setdefault((one.status, one.retry_delay), []).append(one)
        for (status, _), group in groups.items():
            ids = [one.event.id for one in group]
            errors = {one.event.id: one.error for one in group if one.error}
            self.log.add("Event executed", ids, transaction=self.tag, came=EXECUTING, went=status, errors=errors)
        self.log.write()
        for (status, delay), group in groups.items():
            ids = [one.event.id for one in group]
            if status == NEW:
                done = self.store.rollback(self.queue, self.tag, ids, delay=delay, failed=delay is not None)
            else:
                done = self.store.commit(self.queue, self.tag, ids, history=self.settings.keep, outcome=status)
            if done < len(ids):
                lost = f"{len(ids) - done} of these events were no longer held: they keep their status"
                self.log.add(lost, ids, transaction=self.tag)
        self.log.write()


# --- a time limit ---------------------------------------------------------------------------------


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
    previous_handler = signal.signal(signal.SIGALRM, on_alarm)
    seconds_left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
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
