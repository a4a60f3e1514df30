"""Reserve messages for a client, and note what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from spark_queue.consuming.holdings import Holdings
from spark_queue.messages.message import Message
from spark_queue.stores.base import Store
from spark_queue.stores.queue import StoredQueue


@dataclass(frozen=True)
class MessageReserver:
    """Reserves messages of one queue for one client."""

    stored: StoredQueue[Store]
    holdings: Holdings

    @property
    def store(self) -> Store:
        """The store of the queue."""
        return self.stored.store

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self.stored.name

    @property
    def lease(self) -> int | None:
        """How long a reservation lasts (ms); `None`: until it is settled."""
        return self.stored.lease

    def reserve(self, limit: int, timeout: float) -> list[Message]:
        """Reserve up to `limit` messages; wait up to `timeout` seconds for the first."""
        found = self.stored.consume(limit, timeout=timeout, tag=self.holdings.new_tag())
        taken = found.messages
        if taken:
            self.holdings.add(found.tag, [one.id for one in taken], complete=found.whole)
        return taken

    def reserve_ahead(self, limit: int, timeout: float) -> tuple[str, list[Message]]:
        """Reserve messages ahead; return the tag above theirs, and the messages."""
        tag = self.holdings.new_tag()
        found = self.stored.consume(limit, timeout=timeout, tag=tag, ahead=True, singly=True)
        return found.tag, found.messages
