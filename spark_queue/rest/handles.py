"""Handles: what a caller gets for what he holds, and settles it by, in another request, on another server, next week.

A handle tells the tag of the reservation and perhaps the id of one message, in base64url. It is as good as the tag:
what the tag no longer holds it cannot settle. Tags that were not made here are refused, so no handle reaches what a
query holds.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid

from spark_queue.errors import OptionError
from spark_queue.message import LONGEST_ID
from spark_queue.options import name_of_consumer

#: Who holds what was reserved here, unless a caller adds a name of his own: `rest:desk`.
CONSUMER = "rest"

_TAG = re.compile(rf"{CONSUMER}(:[A-Za-z0-9_.:@-]{{1,100}})?/[0-9a-f]{{16}}")


def new_tag(consumer: str | None = None) -> str:
    """The tag of a new reservation. Raises `OptionError`."""
    try:
        name = CONSUMER if consumer is None else f"{CONSUMER}:{name_of_consumer(consumer)}"
    except ValueError as error:
        raise OptionError(f"consumer {consumer!r} must be {error}", option="consumer") from None
    return f"{name}/{uuid.uuid4().hex[:16]}"


def handle_of(tag: str, id: str | None = None) -> str:
    """The handle of a reservation, or of one message of it."""
    text = tag if id is None else f"{tag}\0{id}"
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def held_by(handle: str) -> tuple[str, str | None]:
    """The tag, and the id of the message if it is one's. Raises `OptionError` for what is no handle of ours."""
    try:
        text = base64.b64decode(handle + "=" * (-len(handle) % 4), altchars=b"-_", validate=True).decode()
        tag, nul, id = text.partition("\0")
    except (binascii.Error, ValueError):  # UnicodeDecodeError is one
        tag, nul, id = "", "", ""
    if not _TAG.fullmatch(tag) or bool(nul) != bool(id) or len(id.encode()) > LONGEST_ID:
        raise OptionError(
            f"{handle[:100]!r} is no handle: settle by what a reservation gave as x-ks-id, or as `handle`",
            option="handle",
        )
    return tag, id if nul else None


def by_tag(handles: list[str]) -> dict[str, list[str] | None]:
    """What is to be settled under each tag: these ids, or (`None`) all that it holds. Raises `OptionError`."""
    found: dict[str, list[str] | None] = {}
    for tag, id in map(held_by, handles):
        ids = found.setdefault(tag, [])
        if id is None or ids is None:
            found[tag] = None
        elif id not in ids:
            ids.append(id)
    return found
