"""Coalesce concurrent calls with the same key into one.

A call runs at once if no other call with its key is running. Calls that arrive meanwhile run
together, as the next one. So a single caller never waits for others, and many share the cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Coalescer(Generic[Key, Asked, Answered]):
    """A coalescer of concurrent calls.

    `run_batch` runs up to `limit` calls with the same key, and returns the result or error of each.
    """

    def __init__(
        self, run_batch: Callable[[Key, list[Asked]], Awaitable[Sequence[Answered | Exception]]], limit: int
    ) -> None:
        self._run_batch, self._limit = run_batch, limit
        self._waiting: dict[Key, list[tuple[Asked, asyncio.Future[Answered]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, key: Key, one: Asked) -> Answered:
        """Return the result of one call, or raise its error."""
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            self._waiting[key].append((one, answer))
        else:
            self._waiting[key] = [(one, answer)]
            task = asyncio.ensure_future(self._run(key))
            self._tasks.add(task)  # the event loop keeps no reference
            task.add_done_callback(self._tasks.discard)
        return await answer

    async def _run(self, key: Key) -> None:
        while calls := self._waiting[key][: self._limit]:
            del self._waiting[key][: self._limit]
            try:
                results = await self._run_batch(key, [one for one, _ in calls])
            except Exception as error:  # noqa: BLE001  each caller gets it
                results = [error] * len(calls)
            for (_, answer), one in zip(calls, results, strict=True):
                if answer.done():  # its caller was cancelled
                    continue
                if isinstance(one, Exception):
                    answer.set_exception(one)
                else:
                    answer.set_result(one)
        del self._waiting[key]
