"""Signals in MongoDB: one cursor on the capped collection, for all queues of a namespace.

The server sends it the signals of all these queues, since the filter of an open cursor cannot
change. That is cheaper than a cursor per queue: each would read every signal and keep a connection.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo import CursorType
from pymongo.collection import Collection

from spark_queue.stores.services.listener import Signal, SignalsLost, Subscription

#: Seconds by which the clocks of senders may differ.
MAX_CLOCK_SKEW = 60


class MongoSubscription(Subscription):
    """A subscription by a tailable cursor."""

    receives_all = True

    def __init__(self, signals: Collection[dict[str, Any]], prefix: str, now: int, heartbeat: float) -> None:
        """Open the cursor on events that begin with `prefix`; the rest of an event is its queue.

        `now` is the server's time (ms). `heartbeat`: how long one `next` waits, at most (s).
        """
        self._prefix = prefix
        recent = ObjectId.from_datetime(datetime.fromtimestamp(now / 1000 - MAX_CLOCK_SKEW, UTC))
        query = {"_id": {"$gt": recent}, "event": {"$regex": f"^{re.escape(prefix)}"}}
        self._cursor = signals.find(query, cursor_type=CursorType.TAILABLE_AWAIT)
        self._cursor.max_await_time_ms(round(heartbeat * 1000))

    def next(self, timeout: float) -> list[Signal]:
        document = next(self._cursor, None)
        if document is None:
            if not self._cursor.alive:  # it was too slow for the capped collection, or the server ended it
                raise SignalsLost
            return []
        return [Signal(str(document["event"]).removeprefix(self._prefix), str(document["message"]))]

    def close(self) -> None:
        """Close the cursor."""
        self._cursor.close()
