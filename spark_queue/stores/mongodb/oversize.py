"""Dead letters that are larger than a document of MongoDB may be: the reason adds headers to them.

Messages that we pushed leave room for it. Those of other programs, and documents that hold many
messages with headers of their own, may leave none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import bson
from bson import ObjectId

from spark_queue.messages.dead_letter import (
    DEAD_AT_HEADER,
    ERROR_HEADER,
    FROM_HEADER,
    TRIES_HEADER,
    NewDeadLetter,
)
from spark_queue.stores.mongodb.bson_json import CODEC, MAX_DOCUMENT_BYTES, from_bson, header_text, to_bson
from spark_queue.stores.mongodb.keys import id_of

#: Most bytes of a dead letter: the server's 16 MiB less the fields that a reservation adds.
MAX_LETTER_BYTES = (16 << 20) - (4 << 10)

#: The fields of a free message.
_FIELDS = frozenset({"_id", "_sid", "_q", "_seq", "_pushed", "mature", "tries", "payload", "hdrs", "rows", "b", "n"})

_REASONS = (ERROR_HEADER, FROM_HEADER, DEAD_AT_HEADER, TRIES_HEADER)


def document_bytes(document: dict[str, Any]) -> int:
    """Return the size of a document in the database."""
    return len(bson.encode(document, codec_options=CODEC))


def fit_letter(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of one message that is a dead letter, cut if it is too large."""
    if document_bytes(document) <= MAX_LETTER_BYTES:
        return document
    id, known = id_of(document["_id"]), _known(document)
    cut = _cut(id, document.get("payload"), header_text(document.get("hdrs")))
    return next(one for payload, headers in cut if fits(one := {**known, "payload": payload, "hdrs": headers}))


def fit_bucket(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a document of many dead letters (its entries are `b`), in parts if it is too large."""
    if document_bytes(document) <= MAX_LETTER_BYTES:
        yield document
        return
    id, document = id_of(document["_id"]), _known(document)
    entries = [
        {"__i": f"{id}:{place}", **one} for place, one in enumerate(document.get("b") or ()) if one is not None
    ]
    if len(entries) > 1:
        half = len(entries) // 2
        for number, part in enumerate((entries[:half], entries[half:])):
            key = ObjectId(hashlib.sha256(f"{id}/{number}".encode()).digest()[:12])
            yield from fit_bucket({**document, "_id": key, "b": part, "n": len(part)})
        return
    (entry,) = entries
    for payload, headers in _cut(entry["__i"], entry["__p"], header_text(entry.get("__h"))):
        if fits(letter := {**document, "b": [{**entry, "__p": payload, "__h": headers}]}):
            yield letter
            return


def _known(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without fields of other programs, which may be of any size."""
    return {name: value for name, value in document.items() if name in _FIELDS}


def fits(document: dict[str, Any]) -> bool:
    """Return whether a collection can hold a document, and a client reserve it."""
    return document_bytes(document) <= MAX_DOCUMENT_BYTES


def _cut(id: str, value: Any, headers: dict[str, str]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield the payload and the headers of a dead letter in the forms that it may have."""
    reasons = {name: headers.pop(name) for name in _REASONS if name in headers}
    letter = NewDeadLetter(id, *from_bson(value), headers, reasons, spare_id=id)
    for row in letter.variants():
        yield to_bson(row["payload"], row["payload_kind"], True), dict(row["headers"])
