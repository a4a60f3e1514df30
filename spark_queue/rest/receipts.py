"""Receipts: a caller settles reserved messages by them, in a later request, also at another server.

A receipt (`handle` in the API) is the tag of a reservation, and possibly the id of one message, in
base64url. It is fenced like the tag: it cannot settle messages that the tag no longer holds. Other
tags than those of this module are refused, so a receipt cannot settle messages that a query holds.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid

from spark_queue.errors import OptionError
from spark_queue.messages.ids import MAX_ID_BYTES
from spark_queue.options.parsers import consumer_name

#: The consumer of reservations over HTTP. A caller may add a name: `rest:desk`.
CONSUMER = "rest"

_TAG = re.compile(rf"{CONSUMER}(:[A-Za-z0-9_.:@-]{{1,100}})?/[0-9a-f]{{16}}")


def new_tag(consumer: str | None = None) -> str:
    """Return a tag for a new reservation. Raises `OptionError` if `consumer` is invalid."""
    try:
        name = CONSUMER if consumer is None else f"{CONSUMER}:{consumer_name(consumer)}"
    except ValueError as error:
        raise OptionError(f"parameter 'consumer' is {consumer!r} but must be {error}", option="consumer") from None
    return f"{name}/{uuid.uuid4().hex[:16]}"


def receipt_of(tag: str, id: str | None = None) -> str:
    """Return the receipt of a reservation, or of one message of it."""
    text = tag if id is None else f"{tag}\0{id}"
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def parse_receipt(receipt: str) -> tuple[str, str | None]:
    """Return the tag of a receipt, and the id if it is for one message.

    Raises `OptionError` if it is not a receipt.
    """
    try:
        text = base64.b64decode(receipt + "=" * (-len(receipt) % 4), altchars=b"-_", validate=True).decode()
        tag, nul, id = text.partition("\0")
    except (binascii.Error, ValueError):  # UnicodeDecodeError is one
        tag, nul, id = "", "", ""
    if not _TAG.fullmatch(tag) or bool(nul) != bool(id) or len(id.encode()) > MAX_ID_BYTES:
        raise OptionError(
            f"{receipt[:100]!r} is not a handle: reserve a message, and use its header x-ks-id, or in a batch "
            "the field 'handle' or 'reservation'",
            option="handle",
        )
    return tag, id if nul else None


def group_by_tag(receipts: list[str]) -> dict[str, list[str] | None]:
    """Return the ids to settle by tag; `None` stands for all messages that the tag holds.

    Raises `OptionError` if one is not a receipt.
    """
    found: dict[str, list[str] | None] = {}
    for tag, id in map(parse_receipt, receipts):
        ids = found.setdefault(tag, [])
        if id is None or ids is None:
            found[tag] = None
        elif id not in ids:
            ids.append(id)
    return found
