"""Turns: what waits, of many callers, in the order in which it goes on.

Callers take turns, and so do the parts of each. So a caller with a thousand calls delays another
one by one call at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)
Part = TypeVar("Part", bound=Hashable)

#: A call that waits: its result is set when it is its turn.
Turn = asyncio.Future[None]


class Turns(Generic[Who, Part]):
    """Calls that wait. Each belongs to a caller, and to a part of it, such as an address."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Who, OrderedDict[Part, deque[Turn]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, who: Who, part: Part) -> Turn:
        """Return the turn of a new call."""
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, OrderedDict()).setdefault(part, deque()).append(turn)
        return turn

    def give(self, may: Callable[[Who], bool] = lambda _: True) -> Who | None:
        """Give the next call its turn, and return its caller.

        Return `None` if no call waits of those callers that `may`.
        """
        while (who := next((one for one in self._waiting if may(one)), None)) is not None:
            part, turns = next(iter(self._waiting[who].items()))
            turn = turns.popleft()
            if turn.done():  # its caller has gone
                self._drop_empty(who, part)
                continue
            self._waiting[who].move_to_end(part)
            self._waiting.move_to_end(who)
            self._drop_empty(who, part)
            turn.set_result(None)
            return who
        return None

    def remove(self, who: Who, part: Part, turn: Turn) -> None:
        """Forget a call that waits no more, if it is still here."""
        parts = self._waiting.get(who, OrderedDict())
        if part in parts and turn in parts[part]:
            parts[part].remove(turn)
            self._drop_empty(who, part)

    def _drop_empty(self, who: Who, part: Part) -> None:
        if not self._waiting[who][part]:
            del self._waiting[who][part]
        if not self._waiting[who]:
            del self._waiting[who]
