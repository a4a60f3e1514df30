"""Time the micro-batches of a query, and keep the size of the next one in its offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from spark_queue.spark.read.batch_size import FIRST_ROWS, BatchSize

#: The fields of an offset that keep the size: that of its batch, and whether the batch was a full
#: one, and the first of its process. An offset may lack them.
SIZE_FIELDS = SIZE, FIRST_FULL = "size", "firstFull"

#: The shortest time that is measured (s): a clock may be coarse, or have been set back.
SHORTEST = 0.001

#: How late Spark may be after the moment of a trigger (s).
TRIGGER_DELAY = 0.1

#: The intervals (s) that users choose for a trigger: those that divide an hour.
USUAL_INTERVALS = [seconds for seconds in range(1, 3601) if 3600 % seconds == 0]

#: How much of the interval of a trigger batches may take.
TRIGGER_SHARE = 0.6

#: After this number of batches that did not wait for it, a trigger is forgotten.
UNSEEN_TRIGGER = 8


class Stopwatch:
    """Measures how long a planner waits for messages: use it as a context manager."""

    def __init__(self) -> None:
        self.seconds = 0.0  #: the total so far
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._began


class _Running(NamedTuple):
    """A batch at work: its end offset, its rows, and the moments of its call and its beginning."""

    end: Any
    rows: int
    called: float
    began: float


class Pacer:
    """Finds the sizes of the batches of one query.

    Spark plans a batch when the one before is finished. So a batch lasts from the moment when it
    was planned to the next call, without the time during which it waited for a message.
    """

    def __init__(self, target: int, first_rows: int = FIRST_ROWS, now: Callable[[], float] = time.time) -> None:
        """Aim at batches that take `target` ms. `now` returns s since 1970."""
        self._target, self._first_rows, self._now = target / 1000, first_rows, now
        self._trigger = Trigger()
        self._size: BatchSize | None = None
        self._called = self._began = now()  # when the last batch was planned, and when it began
        self._running: _Running | None = None
        self._first = True  # whether no batch of this process is finished

    def next_size(self, start: Mapping[str, Any], max_rows: int) -> BatchSize:
        """Return the size of the batch after `start`, which Spark has finished."""
        self._called = self._now()
        if self._size is None:
            self._size = self._size_after(start)
            if start.get(FIRST_FULL):
                self._size.learn_first(self._size.rows, self._target)
        self._size.max_rows = max_rows
        if self._running is not None:
            self._learn(self._size, self._running, self._called)
            self._running, self._first = None, False
        return self._size

    def _size_after(self, offset: Mapping[str, Any]) -> BatchSize:
        return BatchSize(self._target, offset.get(SIZE, self._first_rows), chosen=SIZE in offset)

    def _learn(self, size: BatchSize, batch: _Running, now: float) -> None:
        known = self._trigger.interval
        delayed = self._trigger.delayed(batch.called, now)
        if self._trigger.interval != known:
            size.forget()  # until now, waits for the trigger may have looked like work
        target = max(self._target, TRIGGER_SHARE * self._trigger.interval)
        seconds = max(now - batch.began, SHORTEST)
        if self._first:
            size.learn_first(batch.rows, seconds, certain=not _may_have_waited(seconds, now))
        elif delayed:
            size.grow(batch.rows, target)  # it is unknown when the batch ended
        else:
            size.learn(batch.rows, seconds, target)

    def keep(self, end: MutableMapping[str, Any], rows: int, waited: float) -> None:
        """Keep the size of a planned batch in its end offset. It waited `waited` s."""
        assert self._size is not None
        self._began = self._called + waited
        end[SIZE] = self._size.rows
        if self._first and self._size.is_full(rows):
            end[FIRST_FULL] = True

    def start(self, end: Mapping[str, Any], rows: int) -> None:
        """Note that the tasks of a batch start. Spark may say so several times."""
        if self._size is None:  # the batch is replayed
            self._size = self._size_after(end)
            self._called = self._began = self._now()
        if self._running is None or self._running.end != end:
            self._running = _Running(end, rows, self._called, self._began)


class Trigger:
    """Detects a trigger of time: Spark then plans batches at multiples of its interval."""

    def __init__(self) -> None:
        self.interval = 0.0  #: the interval (s) once it is certain; else 0
        self._last, self._unseen = 0, 0

    def delayed(self, last: float, now: float) -> bool:
        """Return whether the batch planned at `last` seems to have waited for the trigger."""
        if self.interval:
            delayed = _is_multiple(now, self.interval)
            self._unseen = 0 if delayed else self._unseen + 1
            if self._unseen == UNSEEN_TRIGGER:
                self.interval = 0.0
            return delayed
        seconds = round(now - last)
        delayed = seconds >= 1 and _is_multiple(now - last, seconds) and _is_multiple(now, seconds)
        if delayed and seconds == self._last:
            self.interval, self._unseen = float(seconds), 0
        self._last = seconds if delayed else 0
        return delayed


def _may_have_waited(seconds: float, now: float) -> bool:
    """Return whether a trigger may be why the first batch of a process seems to take `seconds`."""
    return any(_is_multiple(now, interval) for interval in USUAL_INTERVALS if interval > seconds)


def _is_multiple(moment: float, seconds: float) -> bool:
    """Return whether a moment is a multiple of `seconds`, or up to TRIGGER_DELAY later."""
    return (moment + TRIGGER_DELAY / 2) % seconds < 1.5 * TRIGGER_DELAY
