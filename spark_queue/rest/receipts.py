"""Receipts: a caller settles reserved messages by them, in a later request, also at another server.

A receipt is the tag of a reservation, and possibly the id of one message, in base64url. It is
fenced like the tag: it cannot settle messages that the tag no longer holds. Other tags than those
of this module are refused, so a receipt cannot settle messages that a query holds.

All these tags are below `rest`, which no other consumer may be called. So a bare id can settle what
any caller over HTTP holds, and nothing else.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from spark_queue.errors import OptionError
from spark_queue.messages.ids import MAX_ID_BYTES
from spark_queue.options.values import REST
from spark_queue.rest.base64url import decode_base64url, encode_base64url

#: A tag, with the name of a consumer if the caller gave one. Before, it was a part of the first
#: word; such reservations last until their leases end.
_TAG = re.compile(rf"{REST}(?:[:/][A-Za-z0-9_.:@-]{{1,100}})?/[0-9a-f]{{16}}")


def new_tag(consumer: str | None = None) -> str:
    """Return a tag for a new reservation by a consumer."""
    name = REST if consumer is None else f"{REST}/{consumer}"
    return f"{name}/{uuid.uuid4().hex[:16]}"


def sibling_tag(tag: str) -> str:
    """Return another new tag of the same consumer."""
    return f"{tag.rpartition('/')[0]}/{uuid.uuid4().hex[:16]}"


def receipt_of(tag: str, id: str | None = None) -> str:
    """Return the receipt of a reservation, or of one message of it."""
    text = tag if id is None else f"{tag}\0{id}"
    return encode_base64url(text.encode())


def parse_receipt(text: str) -> tuple[str, str | None] | None:
    """Return the tag of a receipt, and the id if it is for one message; `None` for other text."""
    try:
        decoded = decode_base64url(text).decode()
    except ValueError:  # UnicodeDecodeError is one
        return None
    tag, nul, id = decoded.partition("\0")
    if not _TAG.fullmatch(tag) or bool(nul) != bool(id) or len(id.encode()) > MAX_ID_BYTES:
        return None
    return tag, id if nul else None


def group_by_tag(receipts: Iterable[str]) -> dict[str, list[str] | None]:
    """Return the ids to settle by tag; `None` stands for all messages that the tag holds.

    Raises `OptionError` if one is not a receipt.
    """
    found: dict[str, dict[str, None] | None] = {}
    for number, text in enumerate(receipts):
        parsed = parse_receipt(text)
        if parsed is None:
            raise OptionError(
                f"receipt {number} is {text[:100]!r}, which is none: use the field 'receipt' of a reserved message",
                option="receipts",
            )
        tag, id = parsed
        ids = found.setdefault(tag, {})
        if id is None or ids is None:
            found[tag] = None
        else:
            ids[id] = None
    return {tag: None if ids is None else list(ids) for tag, ids in found.items()}
