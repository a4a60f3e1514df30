"""Reserve messages for a client: wait for the first, leave out those that failed too often."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_queue.consuming.holdings import Holdings
from spark_queue.messages.message import Message, messages
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import dead_letter_exhausted
from spark_queue.stores.support.bucket_split import unpack
from spark_queue.stores.types import seen_tag, unseen_tag


@dataclass(frozen=True)
class MessageReserver:
    """Reserves messages of one queue. `lease` and `history`: ms; a lease of `None` never ends."""

    store: Store
    queue: str
    dead_queue: str
    holdings: Holdings
    lease: int | None
    max_tries: int | None
    history: int

    def reserve(self, limit: int, timeout: float) -> list[Message]:
        """Reserve up to `limit` messages; wait up to `timeout` seconds for the first."""
        return self._take(timeout, lambda tag: self._reserve(tag, limit))[1]

    def reserve_ahead(self, limit: int, timeout: float) -> tuple[str, list[Message]]:
        """Reserve messages ahead; return the tag above theirs, and the messages."""

        def reserve(tag: str) -> tuple[int, list[Message]]:
            rows = sum(self.store.reserve(self.queue, tag, limit, lease=self.lease, unseen=True))
            if rows > 1:  # a single one is handed out next, as a whole
                unpack(self.store, self.queue, unseen_tag(tag))
            return rows, self._fetch(tag, unseen_tag(tag), rows)[1]

        return self._take(timeout, reserve)

    def _take(self, timeout: float, reserve: Callable[[str], tuple[int, list[Message]]]) -> tuple[str, list[Message]]:
        """Call `reserve` with a new tag until it returns messages; else wait, then return none.

        Return the last tag, too.
        """
        end = time.monotonic() + timeout
        while True:
            tag = self.holdings.new_tag()
            rows, taken = reserve(tag)
            if taken:
                return tag, taken
            if rows:
                continue  # all of them are dead letters now
            left = end - time.monotonic()
            if left <= 0 or not self.store.wait(self.queue, round(left * 1000), hint=True):
                return tag, []

    def _reserve(self, tag: str, limit: int) -> tuple[int, list[Message]]:
        reserved = sum(self.store.reserve(self.queue, tag, limit, lease=self.lease))
        rows, taken = self._fetch(tag, seen_tag(tag), reserved)
        self.holdings.add(tag, [one.id for one in taken], complete=len(taken) == rows)
        return reserved, taken

    def _fetch(self, tag: str, part: str, rows: int) -> tuple[int, list[Message]]:
        """Return how many messages the tag holds after dead letters have left it, and these."""
        if not rows:
            return 0, []
        if self.max_tries is not None:
            rows -= dead_letter_exhausted(self.store, self.queue, tag, self.max_tries, self.dead_queue, self.history)
        taken: list[Message] = []
        batches = self.store.fetch(self.queue, part, dead=self.dead_queue, history=self.history, check_json=True)
        for batch in batches:
            taken += messages(batch)
            if len(taken) >= rows:  # saves the request that would return no more rows
                break
        return rows, taken
