"""The entrance: how many requests start in one round of the event loop, and whose turn it is.

To start a request takes about a millisecond of the thread of the event loop: its middleware, its
credentials, its parameters. If a caller sends thousands at once, those of others would wait for all
of them. So requests start in turns: the addresses, and the credentials of each, which are not
checked yet. New connections of an address take turns with those that had a request before.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from spark_queue.rest.guard.caller import network_of
from spark_queue.rest.turns import Turns

#: How many requests start in a round.
STARTED_TOGETHER = 8

#: The key of a scope that says whether its connection had a request before.
KNOWN = "spark_queue.known"


class Entrance:
    """Middleware that lets requests start in turns, if there are many."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns: Turns[tuple[str, bool], str] = Turns()
        self._started = 0  # in this round

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it is its turn."""
        if scope["type"] == "http":
            if self._started < STARTED_TOGETHER and not self._turns:
                self._count_start()
            else:
                await self._wait(scope)
        await self._app(scope, receive, send)

    async def _wait(self, scope: Scope) -> None:
        address = network_of(scope["client"][0] if scope["client"] else "")
        who, part = (address, scope.get(KNOWN, False)), Headers(scope=scope).get("authorization", "")
        turn = self._turns.add(who, part)
        try:
            await turn
        except asyncio.CancelledError:
            self._turns.remove(who, part, turn)
            raise

    def _count_start(self) -> None:
        if not self._started:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._started += 1

    def _begin_round(self) -> None:
        self._started = 0
        while self._started < STARTED_TOGETHER and self._turns.give() is not None:
            self._count_start()
