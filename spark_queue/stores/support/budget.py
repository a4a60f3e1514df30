"""A budget for reading: how many records, how many bytes and how much time one look may take.

The code that looks sets it, and stores spend it as they read, so no call in between has to pass it
on. It belongs to the thread, or the task, that set it. Without a budget, reading has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from spark_queue.errors import QueueError

_current: ContextVar[ReadBudget | None] = ContextVar("read budget", default=None)


class BudgetExceeded(QueueError):
    """A look would read more than its budget allows."""


class ReadBudget:
    """What one look may read: records that it examines, bytes that it holds, and seconds."""

    def __init__(self, records: int, size: int, seconds: float) -> None:
        self._records, self._size, self._seconds = records, size, seconds
        self._records_left, self._size_left = records, size
        self._end = time.monotonic() + seconds

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply this budget to what is read within the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @property
    def seconds_left(self) -> float:
        """The seconds until it ends; 0 or less: it has ended."""
        return self._end - time.monotonic()

    def spend(self, records: int, size: int) -> None:
        """Spend records and bytes. Raises `BudgetExceeded` if there are not enough left."""
        self._records_left -= records
        self._size_left -= size
        if self._records_left < 0:
            raise BudgetExceeded(f"this call would examine more than {self._records:,} records{_WHAT_TO_DO}")
        if self._size_left < 0:
            raise BudgetExceeded(f"this call would hold more than {self._size:,} bytes{_WHAT_TO_DO}")
        if self.seconds_left <= 0:
            raise BudgetExceeded(f"this call took more than {self._seconds:g} s{_WHAT_TO_DO}")


_WHAT_TO_DO = ", the limit of one look: ask for fewer messages or queues, or filter by id"


def current_budget() -> ReadBudget | None:
    """Return the budget that applies here, `None` if there is none."""
    return _current.get()


def spend(records: int = 0, size: int = 0) -> None:
    """Spend the budget that applies here, before or after something is read.

    Raises `BudgetExceeded` if it does not suffice, also if its time has ended.
    """
    if (budget := _current.get()) is not None:
        budget.spend(records, size)
