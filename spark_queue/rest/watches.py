"""Watch queues for waiting requests: no thread waits, however many queues are waited for.

The store reports signals. Two threads of each store ask it when a message can be reserved: at once
if a signal names the queue, when one is due, and now and then, since signals may be lost. Callers
take turns, so the queues of one caller do not delay those of another.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from spark_queue.errors import QueueError, StoreUnavailable
from spark_queue.rest.guard.caller import CallerKey
from spark_queue.stores.base import Store
from spark_queue.stores.support.waiting import NextCheck, is_ready

#: Threads of each store that ask, and queues that one asks for at a time.
WATCH_THREADS, ASKED_TOGETHER = 2, 32

#: Queues of a store that are asked for in a second only because signals may be lost.
POLLS_PER_SECOND = 400

#: The shortest time between two rounds over all queues, after changes that name no queue (s).
ROUND_PAUSE = 0.01

#: The ms until a message can be reserved, `None` if there is none, or the error of the store.
Answer = int | None | QueueError


class _Watched:
    """A queue that requests wait for."""

    def __init__(self, queue: str, caller: CallerKey) -> None:
        self.queue, self.caller = queue, caller
        self.waits: set[asyncio.Future[None]] = set()
        self.queued = self.asked = self.ask_again = False
        self.timer: asyncio.TimerHandle | None = None
        self.polled = False  # whether it is asked only since signals may be lost
        self.end: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return bool(self.waits)


class StoreWatch:
    """Watches the queues of one store. Call it from one thread, that of the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(WATCH_THREADS, "rest waits")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[str, _Watched] = {}
        self._watched_of: Counter[CallerKey] = Counter()
        self._first: deque[_Watched] = deque()  # to ask for before the others: a signal named them
        self._turns: OrderedDict[CallerKey, deque[_Watched]] = OrderedDict()
        self._jobs = 0
        self._round_end = 0.0  # when the last round over all queues may be followed by another one
        self._round: asyncio.TimerHandle | None = None

    async def wait(self, queue: str, seconds: float, caller: CallerKey) -> bool:
        """Wait until a message of the queue can be reserved, and return whether one can.

        Raises the error of the store.
        """
        self._loop = loop = asyncio.get_running_loop()
        one = self._watched.get(queue)
        if one is None:
            one = self._watched[queue] = _Watched(queue, caller)
            self._watched_of[caller] += 1
            one.end = self._store.watch(queue, self._on_signal)
        found = loop.create_future()
        one.waits.add(found)
        self._ask(one)
        try:
            async with asyncio.timeout(seconds):
                await found
            return True
        except TimeoutError:
            return False
        finally:
            one.waits.discard(found)
            if not one:
                self._forget(one)

    def _forget(self, one: _Watched) -> None:
        del self._watched[one.queue]
        self._watched_of[one.caller] -= 1
        if not self._watched_of[one.caller]:
            del self._watched_of[one.caller]
        if one.timer is not None:
            one.timer.cancel()
        one.end()

    # --- what to ask for --------------------------------------------------------------------------

    def _on_signal(self, queue: str | None) -> None:
        """Take a signal of the store, in any thread."""
        with suppress(RuntimeError):  # the event loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._take_signal, queue)

    def _take_signal(self, queue: str | None) -> None:
        if queue is None:
            self._ask_all()
        elif (one := self._watched.get(queue)) is not None:
            one.polled = False
            self._ask(one, first=True)

    def _ask_all(self) -> None:
        """Ask for all queues, soon: not more often than it takes time."""
        assert self._loop is not None
        if self._round is None:
            self._round = self._loop.call_at(max(self._round_end, self._loop.time()), self._begin_round)

    def _begin_round(self) -> None:
        assert self._loop is not None
        if self._turns:  # the last one still goes on
            self._round = self._loop.call_later(ROUND_PAUSE, self._begin_round)
            return
        self._round = None
        self._round_end = self._loop.time() + ROUND_PAUSE
        for one in self._watched.values():
            self._ask(one, start=False)
        self._start_jobs()

    def _ask(self, one: _Watched, *, first: bool = False, start: bool = True) -> None:
        """Ask when a message of a queue can be reserved, when it is its turn, or before others."""
        if one.asked:
            one.ask_again = True  # the answer may be older than the signal
        elif first:
            one.queued = True  # if it has a turn, too, that finds nothing to do
            self._first.append(one)
        elif not one.queued:
            one.queued = True
            self._turns.setdefault(one.caller, deque()).append(one)
        if start:
            self._start_jobs()

    def _next(self) -> _Watched | None:
        if self._first:
            return self._first.popleft()
        if not self._turns:
            return None
        caller, queues = next(iter(self._turns.items()))
        one = queues.popleft()
        if queues:
            self._turns.move_to_end(caller)
        else:
            del self._turns[caller]
        return one

    # --- asking -----------------------------------------------------------------------------------

    def _start_jobs(self) -> None:
        while self._jobs < WATCH_THREADS and (self._first or self._turns):
            some: list[_Watched] = []
            while len(some) < ASKED_TOGETHER and (one := self._next()) is not None:
                if one and one.queued:
                    one.queued, one.asked = False, True
                    some.append(one)
            if some:
                assert self._loop is not None
                self._jobs += 1
                job = self._loop.run_in_executor(self._threads, self._read, [one.queue for one in some])
                job.add_done_callback(lambda done, some=some: self._end_job(some, done))  # type: ignore[misc]

    def _read(self, queues: Sequence[str]) -> list[Answer]:
        answers: list[Answer] = []
        for queue in queues:
            try:
                answers.append(self._store.next_reservable(queue))
            except StoreUnavailable as error:  # it was tried again, and would be for each
                return answers + [error] * (len(queues) - len(answers))
            except QueueError as error:
                answers.append(error)
        return answers

    def _end_job(self, some: Sequence[_Watched], job: asyncio.Future[list[Answer]]) -> None:
        self._jobs -= 1
        if job.cancelled():
            return
        for one, answer in zip(some, job.result(), strict=True):
            again, one.asked, one.ask_again = one.ask_again, False, False
            if one:
                self._take_answer(one, answer)
            if one and again:
                self._ask(one, first=True, start=False)
        self._start_jobs()

    def _take_answer(self, one: _Watched, answer: Answer) -> None:
        if not isinstance(answer, QueueError) and not is_ready(answer):
            polls = self._watched_of[one.caller] * len(self._watched_of) / POLLS_PER_SECOND
            check = NextCheck.after(answer, max(self._store.poll_interval(one.queue), polls))
            one.polled = check.polled
            if one.timer is not None:
                one.timer.cancel()
            assert self._loop is not None
            one.timer = self._loop.call_later(check.pause, self._ask, one)
            return
        if one.polled and isinstance(answer, int):
            self._store.missed_signal(one.queue)
        one.polled = False
        for found in one.waits:
            if found.done():
                continue
            if isinstance(answer, QueueError):
                found.set_exception(answer)
            else:
                found.set_result(None)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


class Watches:
    """The watches of all stores."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._watches: dict[str, StoreWatch] = {}

    async def wait(self, ns: str, queue: str, seconds: float, caller: CallerKey) -> bool:
        """Wait until a message can be reserved: see `StoreWatch.wait`."""
        if ns not in self._watches:
            self._watches[ns] = StoreWatch(self._stores[ns])
        return await self._watches[ns].wait(queue, seconds, caller)

    def close(self) -> None:
        """End all threads."""
        for one in self._watches.values():
            one.close()
