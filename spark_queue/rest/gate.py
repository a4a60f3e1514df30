"""A gate: how many calls of a lane run at the same time, how many wait, and whose turn it is.

Callers take turns (see `turns.py`): the credentials, and the addresses of each.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from spark_queue.rest.errors import Overloaded
from spark_queue.rest.guard.caller import CallerKey
from spark_queue.rest.lanes import LaneLimits
from spark_queue.rest.turns import Turns


class Gate:
    """The gate of a lane. Call it from one thread, that of the event loop."""

    def __init__(self, name: str, limits: LaneLimits) -> None:
        self._name, self._limits = name, limits
        self._running_of: Counter[bytes] = Counter()
        self._waiting_of: Counter[bytes] = Counter()
        self._turns: Turns[bytes, str] = Turns()

    async def enter(self, caller: CallerKey) -> None:
        """Wait for the turn of a call. `leave` must be called at its end.

        Raises `Overloaded` if too many calls wait, or the turn does not come in time.
        """
        who, limits = caller.credential, self._limits
        if not self.is_busy(caller):
            self._running_of[who] += 1  # no other call could run: `leave` would have admitted it
            return
        if self._waiting_of.total() >= limits.waiting or self._waiting_of[who] >= limits.waiting_of_one:
            raise Overloaded(f"too many calls of the class {self._name!r} wait already: try again later")
        turn = self._turns.add(who, caller.address)
        self._waiting_of[who] += 1
        try:
            async with asyncio.timeout(limits.patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave(caller)  # its turn has just come
            else:
                self._turns.remove(who, caller.address, turn)
                self._take_from(self._waiting_of, who)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"other calls of the class {self._name!r} took longer than {limits.patience:g} s: try again later"
                ) from None
            raise

    def is_busy(self, caller: CallerKey) -> bool:
        """Return whether a call of this caller would wait for its turn."""
        return self._running_of.total() >= self._limits.running or not self._may_run(caller.credential)

    def leave(self, caller: CallerKey) -> None:
        """End a call, and admit the next ones."""
        self._take_from(self._running_of, caller.credential)
        while self._running_of.total() < self._limits.running and self._admit_next():
            pass

    def _may_run(self, who: bytes) -> bool:
        return self._running_of[who] < self._limits.running_of_one

    def _admit_next(self) -> bool:
        who = self._turns.give(self._may_run)
        if who is None:
            return False
        self._take_from(self._waiting_of, who)
        self._running_of[who] += 1
        return True

    @staticmethod
    def _take_from(counter: Counter[bytes], who: bytes) -> None:
        counter[who] -= 1
        if not counter[who]:
            del counter[who]
