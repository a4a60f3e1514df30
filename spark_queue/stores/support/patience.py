"""For how long calls of stores are retried here, if not as long as their store says.

A program that ends, or answers a person, has less time than a query. It says so around its calls,
and changes no store: others may use the same one. The limit belongs to the thread, or the task,
that set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[int | None] = ContextVar("retry timeout", default=None)


@contextmanager
def retrying_for(timeout: int) -> Iterator[None]:
    """Retry the calls of stores within the block for `timeout` ms."""
    token = _current.set(timeout)
    try:
        yield
    finally:
        _current.reset(token)


def retry_timeout_or(default: int) -> int:
    """Return for how long calls are retried here (ms): `default` outside of `retrying_for`."""
    timeout = _current.get()
    return default if timeout is None else timeout
