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


class Together(Generic[Key, Asked, Answered]):
    """A coalescer of concurrent calls.

    `run_batch` runs up to `limit` calls with the same key, and returns the result or error of each.
    """

    def __init__(
        self, act: Callable[[Key, list[Asked]], Awaitable[Sequence[Answered | Exception]]], most: int
    ) -> None:
        self._act, self._most = act, most
        self._waiting: dict[Key, list[tuple[Asked, asyncio.Future[Answered]]]] = {}
        self._working: set[asyncio.Task[None]] = set()

    async def ask(self, key: Key, one: Asked) -> Answered:
        """Return the result of one call, or raise its error."""
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            self._waiting[key].append((one, answer))
        else:
            self._waiting[key] = [(one, answer)]
            working = asyncio.ensure_future(self._work(key))
            self._working.add(working)  # the event loop keeps no reference
            working.add_done_callback(self._working.discard)
        return await answer

    async def _work(self, key: Key) -> None:
        while asked := self._waiting[key][: self._most]:
            del self._waiting[key][: self._most]
            try:
                told = await self._act(key, [one for one, _ in asked])
            except Exception as error:  # noqa: BLE001  each caller gets it
                told = [error] * len(asked)
            for (_, answer), one in zip(asked, told, strict=True):
                if answer.done():  # its caller was cancelled
                    continue
                if isinstance(one, Exception):
                    answer.set_exception(one)
                else:
                    answer.set_result(one)
        del self._waiting[key]
