"""What a function says that works on the messages of a link: see `spark_queue.graph.model.Link`.

    def clean(message):
        if message.payload["cancelled"]:
            return DROP
        return Forward(message.payload | {"clean": True}, headers={"by": "clean"})

It gets a `Message` at a time. `None` lets it go on as it is, `DROP` ends it, and `Forward` tells what changes. What
it raises is a failure: the message comes again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json


class Dropped(Enum):
    """That a message does not go on."""

    DROP = "drop"


class Unchanged(Enum):
    """That something stays what it is."""

    UNCHANGED = "unchanged"


DROP: Final = Dropped.DROP
UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Forward:
    """The message goes on, changed.

    `payload`: any value of JSON; `headers`: set beside those it has, and where `None` is the value, taken away. `to`:
    the destination, by the name of its queue or by its number from 0, where a link has several. It can be reserved
    there from the moment `mature`, or `delay` seconds later, else at once; `tries`: what it counts as failures.
    """

    payload: Json | Unchanged = UNCHANGED
    headers: Mapping[str, str | None] | None = None
    to: str | int | None = None
    mature: datetime | None = None
    delay: float | None = None
    tries: int = 0


#: A function that works on messages.
LinkFunction = Callable[[Message], Forward | Dropped | None]
