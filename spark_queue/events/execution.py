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
from spark_queue.events.event import EXECUTING, FAILED, FINISHED, NEW, PENDING, Event, short
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.settings import EventSettings
from spark_queue.messages.json_text import cleaned
from spark_queue.stores.base import Store
from spark_queue.stores.types import check_outcome

#: Results are settled together: the longest time between (s), and the maximum number.
SETTLE_WAIT, SETTLE_MOST = 0.5, 2_500

#: How long a thread has to end after its time limit (s); then it is abandoned.
THREAD_GRACE = 0.5

#: Maximum number of characters of an error in the log; its end is kept.
LOGGED_LENGTH = 8_000

#: The longest delay of a retry (ms).
LONGEST_BACKOFF = 86_400_000


#: Runs a task, now or later.
Do = Callable[[Callable[[], None]], None]


def at_once(act: Callable[[], None]) -> None:
    """Run a task now."""
    act()


class TimeIsUp(BaseException):
    """A function exceeded its time limit. Its own `except Exception` does not catch this."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an event: its status, its error, and the delay of its retry (ms), if any."""

    event: Event
    status: str
    error: str = ""
    again: int | None = None

    @property
    def first(self) -> str:
        """The last line of the error."""
        lines = self.error.strip().splitlines()
        return lines[-1] if lines else ""


def run(event: Event, executors: Executors, settings: EventSettings, within: Within) -> Result:
    """Call the function for an event and return the outcome, which may be the function's error."""
    executor = executors.of(event)
    if executor is None:
        return Result(event, FAILED, f"there is no executor for events {event.type} of {event.source}")
    limit = executor.time_limit or settings.execute_timeout
    try:
        said = within(limit / 1000, executors.work(executor), event, executor.config)
        return Result(event, _status(said, settings))
    except TimeIsUp:
        return _failed(event, executor, f"{executor} took longer than {limit / 1000:g} s")
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a function raises is a failure of this event
        return _failed(event, executor, _trace(error))


def _trace(error: BaseException) -> str:
    """Return the traceback of an error without the frames of this module."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None and at.tb_frame.f_code.co_filename == __file__:
        at = at.tb_next
    return cleaned("".join(traceback.format_exception(error.with_traceback(at)))[-LOGGED_LENGTH:])


def _status(said: object, settings: EventSettings) -> str:
    if said is None or said == "":
        return FINISHED
    if not isinstance(said, str):
        raise TypeError(f"an executor must return the new status as a text, or None, not {said!r}")
    status = short(said, settings.status_prefix)
    if status in (PENDING, EXECUTING):
        raise ValueError(f"an executor cannot return the status {status!r}: return new, finished, failed or your own")
    check_outcome(status)
    return status


def _failed(event: Event, executor: Executor, error: str) -> Result:
    if event.tries < executor.retries:
        return Result(event, NEW, error, min(executor.backoff * 2**event.tries, LONGEST_BACKOFF))
    return Result(event, FAILED, error)


class Round:
    """A collector of the results of events that a tag holds; it settles them together.

    `submit` runs each settlement, one after the other; by default at once.
    """

    def __init__(
        self, store: Store, queue: str, tag: str, log: AuditLog, settings: EventSettings, do: Do = at_once
    ) -> None:
        self._store = store
        self._queue = queue
        self._tag = tag
        self._log = log
        self._settings = settings
        self._do = do
        self._results: list[Result] = []
        self._since = time.monotonic()

    def add(self, result: Result) -> None:
        """Add a result. Settle all if MAX_SETTLE_EVENTS wait, or MAX_SETTLE_WAIT has passed."""
        self._results.append(result)
        if len(self._results) >= SETTLE_MOST or time.monotonic() - self._since > SETTLE_WAIT:
            self.settle()

    def settle(self) -> None:
        """Settle all added results."""
        some, self._results, self._since = self._results, [], time.monotonic()
        self._do(lambda: self._settle(some))

    def _settle(self, results: list[Result]) -> None:
        """Write the log, then settle.

        An event that was executed and not settled is executed again; the log records both.
        """
        groups: dict[tuple[str, int | None], list[Result]] = {}
        for one in results:
            groups.setdefault((one.status, one.again), []).append(one)
        for (status, _), some in groups.items():
            errors = {one.event.id: one.error for one in some if one.error}
            self._note("Event executed", [one.event.id for one in some], came=EXECUTING, went=status, errors=errors)
        self._log.write()
        for (status, again), some in groups.items():
            ids = [one.event.id for one in some]
            if status == NEW:
                done = self._store.rollback(self._queue, self._tag, ids, delay=again, failed=again is not None)
            else:
                keep = self._settings.keep
                done = self._store.commit(self._queue, self._tag, ids, history=keep, outcome=status)
            if done < len(ids):
                self._note(f"{len(ids) - done} of these events were no longer held: they keep their status", ids)
        self._log.write()

    def _note(self, message: str, ids: list[str], **facts: Any) -> None:
        self._log.note(message, ids, transaction=self._tag, **facts)


def run_all(events: Iterable[Event], executors: Executors, settings: EventSettings, round: Round) -> list[Result]:
    """Execute events one after the other, settle them, and return the results."""
    results = []
    with time_limit() as within:
        for event in events:
            result = run(event, executors, settings, within)
            results.append(result)
            round.add(result)
        round.settle()
    return results


# --- a time limit ---------------------------------------------------------------------------------------------------


#: Calls a function with arguments, for some seconds at most; else raises `TimeLimitExceeded`.
Within = Callable[..., Any]


@contextmanager
def time_limit() -> Iterator[Within]:
    """Yield a function that calls others, and raises `TimeLimitExceeded` if one takes too long.

    In the main thread, where Spark's workers call functions, an alarm ends any function. In another
    thread only Python code can be ended: a call into C, such as a long sleep, continues in an
    abandoned thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _by_thread
        return

    def ring(_: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    began = time.monotonic()
    before, (left, _) = signal.signal(signal.SIGALRM, ring), signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield _by_alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # an alarm that was set before
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)))


def _by_alarm(seconds: float, function: Callable[..., Any], *arguments: object) -> Any:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _by_thread(seconds: float, function: Callable[..., Any], *arguments: object) -> Any:
    said: list[Any] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            said.append(function(*arguments))
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it again
            failed.append(error)

    calling = threading.Thread(target=call, name="event", daemon=True)
    calling.start()
    calling.join(seconds)
    if calling.is_alive() and calling.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(calling.ident), ctypes.py_object(TimeIsUp))
        calling.join(THREAD_GRACE)
        raise TimeIsUp
    if failed:
        raise failed[0]
    return said[0]
