"""The results of a function of a link: see `spark_queue.graph.model.Link`.

    def clean(message):
        if message.payload["cancelled"]:
            return DROP
        return Forward(message.payload | {"clean": True}, headers={"by": "clean"})

The function gets one `Message` per call. It returns `None` to move the message on unchanged, `DROP`
to end it, or a `Forward` with the changes. If it raises an error, the message is retried later.
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
    """The type of `DROP`: the message ends."""

    DROP = "drop"


class Unchanged(Enum):
    """The type of `UNCHANGED`: a value stays as it is."""

    UNCHANGED = "unchanged"


DROP: Final = Dropped.DROP
UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Forward:
    """The changes of a message that moves on.

    `payload`: any value of JSON. `headers`: they are added to those of the message; the value
    `None` removes a header. `to`: the destination of a link with several, as the name of its queue,
    or its number from 0. The message can be reserved from the moment `mature`, or `delay` seconds
    later, else at once. `tries`: its new number of tries.
    """

    payload: Json | Unchanged = UNCHANGED
    headers: Mapping[str, str | None] | None = None
    to: str | int | None = None
    mature: datetime | None = None
    delay: float | None = None
    tries: int = 0


#: A function that works on the messages of a link.
LinkFunction = Callable[[Message], Forward | Dropped | None]
