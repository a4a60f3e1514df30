"""The threads of the lanes: a call runs in those of its own lane, when its turn comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from spark_queue.rest.errors import Overloaded
from spark_queue.rest.gate import Gate
from spark_queue.rest.lanes import (
    LIMITS,
    REFUSAL_PAUSE,
    Lane,
    current_call,
)
from spark_queue.stores.support.budget import BudgetExceeded

T = TypeVar("T")


class LaneThreads:
    """The threads of a server, by lane, and the gates before them."""

    def __init__(self) -> None:
        self._gates = {lane: Gate(lane, limits) for lane, limits in LIMITS.items()}
        self._threads = {lane: ThreadPoolExecutor(limits.running, f"rest {lane}") for lane, limits in LIMITS.items()}

    async def run(self, lane: Lane | None, act: Callable[..., T], *args: Any) -> T:
        """Run a call that may block: see `Service.run_in_thread`."""
        try:
            return await self._run(lane, act, *args)
        except (BudgetExceeded, Overloaded):
            await asyncio.sleep(REFUSAL_PAUSE)
            raise

    async def _run(self, lane: Lane | None, act: Callable[..., T], *args: Any) -> T:
        request = current_call()
        lane, caller = lane or request.lane, request.caller
        call = partial(act, *args)
        gate = self._gates[lane]
        await gate.enter(caller)
        try:
            if lane is Lane.LOOK and await request.has_gone():
                raise Overloaded("the caller has gone before its turn")
            running = asyncio.get_running_loop().run_in_executor(self._threads[lane], call)
        except BaseException:
            gate.leave(caller)
            raise
        running.add_done_callback(lambda _: gate.leave(caller))
        return await asyncio.shield(running)  # a cancelled caller does not free the thread

    def is_busy(self, lane: Lane) -> bool:
        """Return whether a call of this request would wait for its turn."""
        return self._gates[lane].is_busy(current_call().caller)

    def close(self) -> None:
        """End the threads, after their calls."""
        for one in self._threads.values():
            one.shutdown()
