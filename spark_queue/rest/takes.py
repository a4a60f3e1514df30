"""Take messages for a request: pop or reserve them, and wait until one comes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from fastapi import Request

from spark_queue.rest.bound_queue import POP_LEASE, BoundQueue
from spark_queue.rest.lanes import Lane
from spark_queue.rest.receipts import new_tag
from spark_queue.rest.service import Service
from spark_queue.rest.waiters import DISCONNECTED, Waiter
from spark_queue.stores.queue import Consumed


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants: up to `limit` messages, the first within `wait` ms.

    Popped messages are removed. Reserved ones are held for `lease` ms, by default as long as the
    namespace says. `tid` names the request while it waits.
    """

    reserve: bool
    limit: int = 1
    wait: int = 0
    lease: int | None = None
    consumer: str | None = None
    tid: str | None = None

    @property
    def act(self) -> str:
        """The name of the act in metrics."""
        return "reserve" if self.reserve else "pop"


async def take(
    request: Request, service: Service, bound: BoundQueue, wanted: Wanted
) -> tuple[Consumed | None, Waiter]:
    """Pop or reserve messages: `None` if none came in time. Return the entry of its wait, too.

    Raises `Cancelled` or `ShuttingDown` if the wait has ended, and `OptionError` if another request
    waits with the same `tid`.
    """
    lease: int | None = POP_LEASE
    if wanted.reserve:
        lease = wanted.lease if wanted.lease is not None else bound.options.reserve_timeout
    tag = new_tag(wanted.consumer)
    with service.wait_list.register(bound.ns, bound.queue, wanted.reserve, wanted.tid) as waiter:
        watching = asyncio.ensure_future(_watch_disconnect(request, waiter)) if wanted.wait else None
        try:
            with bound.count_errors(wanted.act):
                taken = await service.take(bound, waiter, tag, wanted.limit, wanted.wait, lease)
                if taken is not None and not wanted.reserve:
                    await service.run_in_thread(bound.remove_popped, taken, lane=Lane.WRITE)
        finally:
            if watching is not None:
                watching.cancel()
    if taken is None:
        bound.count(wanted.act, "timeout")
    else:
        bound.count(wanted.act, "ok", taken.rows)
    return taken, waiter


async def _watch_disconnect(request: Request, waiter: Waiter) -> None:
    """End the wait of a request when its caller disconnects."""
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        waiter.end(DISCONNECTED)
