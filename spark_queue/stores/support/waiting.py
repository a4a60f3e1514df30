"""The one way to wait for messages: for one queue or several, in one store or several.

A wait asks when a message can be reserved, and sleeps until then, or until a signal. Signals may be
lost, so it also asks now and then. The server of `rest/` waits for many queues without a thread for
each: it sleeps in another way, and follows the same rule (`NextCheck`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol, Self


class SignalStore(Protocol):
    """The part of `Store` that a wait needs."""

    @property
    def url(self) -> str: ...
    @property
    def close_count(self) -> int: ...
    def next_reservable(self, queue: str) -> int | None: ...
    def poll_interval(self, queue: str) -> float: ...
    def missed_signal(self, queue: str) -> None: ...
    def watch(self, queue: str, on_signal: Callable[[str | None], None]) -> Callable[[], None]: ...
    def _signal_version(self, queue: str) -> int: ...
    def _wait_signal(self, queue: str, version: int, timeout: float) -> None: ...
    def _signalled_for(self, queue: str, version: int) -> bool: ...


class NextCheck(NamedTuple):
    """When to ask again: in `pause` seconds. `polled`: only since signals may be lost."""

    pause: float
    polled: bool

    @classmethod
    def after(cls, answer: int | None, interval: float) -> Self:
        """Return it for the ms until a message can be reserved, `None` if there is no message.

        `interval`: after how many seconds to ask again in any case.
        """
        due = math.inf if answer is None else answer / 1000
        return cls(min(due, interval), due > interval)


def is_ready(answer: int | None) -> bool:
    """Return whether a message can be reserved now, by the ms until then."""
    return answer is not None and answer <= 0


class Awaited(Protocol):
    """What a wait is for: messages of one queue, or of a log after a position."""

    @property
    def store(self) -> SignalStore: ...
    @property
    def queue(self) -> str: ...
    def due(self) -> int | None:
        """Return the ms until there is a message; 0 or less: now. `None`: no message is known."""

    def missed_signal(self) -> None:
        """Note that a poll found a message that no signal has announced."""


class AwaitedQueue(NamedTuple):
    """Messages of a queue that can be reserved."""

    store: SignalStore
    queue: str

    def due(self) -> int | None:
        """Return the ms until a message can be reserved: see `Store.next_reservable`."""
        return self.store.next_reservable(self.queue)

    def missed_signal(self) -> None:
        """Note that a poll found a message that no signal has announced."""
        self.store.missed_signal(self.queue)


class Sleeper(Protocol):
    """A way to sleep until a signal."""

    def version(self) -> int:
        """Return a number that changes with each signal."""

    def sleep(self, version: int, seconds: float) -> None:
        """Sleep until that number differs from `version`, at most `seconds`."""


class OneQueue(NamedTuple):
    """Sleeps until a signal of one queue, in the calling thread."""

    store: SignalStore
    queue: str

    def version(self) -> int:
        """Return a number that changes with each signal; the first call begins to listen."""
        return self.store._signal_version(self.queue)

    def sleep(self, version: int, seconds: float) -> None:
        """Sleep until that number differs from `version`, at most `seconds`."""
        self.store._wait_signal(self.queue, version, seconds)


class Bell:
    """Sleeps until a signal of any of several queues, which its `listening` block watches.

    Queues of one database are watched by one of their stores. So there is one connection for each
    database, and no thread for each queue.
    """

    def __init__(self, queues: Iterable[Awaited]) -> None:
        self._queues = list(queues)
        self._rung = threading.Condition()
        self._version = 0

    @contextmanager
    def listening(self) -> Iterator[Self]:
        """Watch the queues within the block."""
        stores: dict[str, SignalStore] = {}
        with ExitStack() as watches:
            for one in self._queues:
                store = stores.setdefault(one.store.url, one.store)
                watches.callback(store.watch(one.queue, self._ring))
            yield self

    def _ring(self, _: str | None) -> None:
        with self._rung:
            self._version += 1
            self._rung.notify_all()

    def version(self) -> int:
        """Return the number of signals so far."""
        with self._rung:
            return self._version

    def sleep(self, version: int, seconds: float) -> None:
        """Sleep until that number differs from `version`, at most `seconds`."""
        with self._rung:
            self._rung.wait_for(lambda: self._version != version, seconds)


class Waited(NamedTuple):
    """The end of a wait: whether it has found a message, when one is due, and the last signal.

    `due`: monotonic s. `version`: as the sleeper counts signals.
    """

    found: bool
    due: float
    version: int


def wait(
    awaited: Sequence[Awaited],
    sleeper: Sleeper,
    end: float,
    *,
    enough: Callable[[Iterable[bool]], bool] = any,
    is_hint: Callable[[int], bool] = lambda version: False,
) -> Waited:
    """Sleep until there is a message of any of these, or of `all`, at most until `end`.

    `end`: monotonic s. `Store.close` ends the sleep. `is_hint` gets the number of the last signal
    before a sleep, and returns whether a signal since then is enough, without another check.
    """
    closings = sum(one.store.close_count for one in awaited)
    polled = [False] * len(awaited)  # what is asked only since signals may be lost
    found = [False] * len(awaited)
    slept_at = 0  # the number of the last signal before the sleep
    while True:
        version = sleeper.version()  # before the check, so that no later signal is lost
        now, due, pause = time.monotonic(), math.inf, math.inf
        for number, one in enumerate(awaited):
            if found[number]:
                continue
            answer = one.due()
            found[number] = is_ready(answer)
            if found[number] and polled[number] and slept_at == version == sleeper.version():
                one.missed_signal()
            now = time.monotonic()
            if not found[number]:
                check = NextCheck.after(answer, one.store.poll_interval(one.queue))
                polled[number] = check.polled
                due = min(due, now + (math.inf if answer is None else answer / 1000))
                pause = min(pause, check.pause)
        if enough(found):
            return Waited(True, due, version)
        if now >= end:
            return Waited(False, due, version)
        slept_at = version
        sleeper.sleep(version, max(0.0, min(end - now, pause)))
        if sum(one.store.close_count for one in awaited) != closings:
            return Waited(False, due, version)
        if is_hint(version):
            return Waited(True, due, version)


def wait_for_queues(
    awaited: Sequence[Awaited], timeout: int, *, enough: Callable[[Iterable[bool]], bool] = any
) -> bool:
    """Sleep until there is a message of any of these, or of `all`, at most `timeout` ms.

    Return whether there is. Takes one thread, the caller's.
    """
    end = time.monotonic() + timeout / 1000
    with Bell(awaited).listening() as bell:
        return wait(awaited, bell, end, enough=enough).found
