"""A gate: how many calls of a lane run at the same time, how many wait, and whose turn it is.

Callers take turns: first the credentials, then the addresses of each. So a caller with a thousand
calls delays another one by one call at most.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from spark_queue.rest.errors import Overloaded
from spark_queue.rest.guard.caller import CallerKey
from spark_queue.rest.lanes import LaneLimits

Turn = asyncio.Future[None]


class Gate:
    """The gate of a lane. Call it from one thread, that of the event loop."""

    def __init__(self, name: str, limits: LaneLimits) -> None:
        self._name, self._limits = name, limits
        self._running_of: Counter[bytes] = Counter()
        self._waiting_of: Counter[bytes] = Counter()
        # Credentials, and the addresses of each, in the order of their next turns.
        self._turns: OrderedDict[bytes, OrderedDict[str, deque[Turn]]] = OrderedDict()

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
        turn: Turn = asyncio.get_running_loop().create_future()
        self._turns.setdefault(who, OrderedDict()).setdefault(caller.address, deque()).append(turn)
        self._waiting_of[who] += 1
        try:
            async with asyncio.timeout(limits.patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave(caller)  # its turn has just come
            else:
                self._forget(caller, turn)
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
        who = next((one for one in self._turns if self._may_run(one)), None)
        if who is None:
            return False
        addresses = self._turns[who]
        address, turns = next(iter(addresses.items()))
        turn = turns.popleft()
        self._turns.move_to_end(who)
        addresses.move_to_end(address)
        self._drop_empty(who, address)
        self._take_from(self._waiting_of, who)
        self._running_of[who] += 1
        turn.set_result(None)
        return True

    def _forget(self, caller: CallerKey, turn: Turn) -> None:
        self._turns[caller.credential][caller.address].remove(turn)
        self._drop_empty(caller.credential, caller.address)
        self._take_from(self._waiting_of, caller.credential)

    def _drop_empty(self, who: bytes, address: str) -> None:
        if not self._turns[who][address]:
            del self._turns[who][address]
        if not self._turns[who]:
            del self._turns[who]

    @staticmethod
    def _take_from(counter: Counter[bytes], who: bytes) -> None:
        counter[who] -= 1
        if not counter[who]:
            del counter[who]
