"""Handles: the id or the receipt by which a caller settles one reserved message."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from spark_queue.messages.ids import MAX_ID_BYTES
from spark_queue.options.values import REST
from spark_queue.rest.bound_queue import BoundQueue
from spark_queue.rest.receipts import parse_receipt

#: Messages whose tags a server remembers. For others, it looks in all reservations over HTTP.
MAX_REMEMBERED = 20_000


class Handles:
    """Finds the reserved message that a handle names.

    It remembers the tags of the last messages that this server has reserved, by their ids: to find
    a message by its tag takes a database less time. Call it from one thread.
    """

    def __init__(self) -> None:
        self._tags: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def remember(self, bound: BoundQueue, id: str, tag: str) -> None:
        """Remember that a tag holds this message, and nothing else."""
        self._tags[bound.ns, bound.queue, id] = tag
        if len(self._tags) > MAX_REMEMBERED:
            self._tags.popitem(last=False)

    def settle(
        self, bound: BoundQueue, handle: str, act: Callable[[str, list[str] | None], tuple[int, ...]]
    ) -> Callable[[], tuple[int, ...]]:
        """Return a function that settles the message of a handle, and may block.

        `act` gets a tag and ids (`None`: all that the tag holds), and returns numbers of messages.
        They are all 0 if the handle holds no message. An id stands for the message with it, held by
        any caller over HTTP.
        """
        places: list[tuple[str, list[str] | None]]
        if (parsed := parse_receipt(handle)) is not None:
            tag, id = parsed
            places = [(tag, None if id is None else [id])]
        else:
            remembered = self._tags.pop((bound.ns, bound.queue, handle), None)
            places = [] if remembered is None else [(remembered, None)]
            places.append((REST, [handle] if is_id(handle) else []))

        def run() -> tuple[int, ...]:
            for tag, ids in places:
                counts = act(tag, ids)
                if any(counts):
                    break
            return counts

        return run


def is_id(text: str) -> bool:
    """Return whether a text can be the id of a message."""
    return 0 < len(text.encode(errors="replace")) <= MAX_ID_BYTES and "\0" not in text
