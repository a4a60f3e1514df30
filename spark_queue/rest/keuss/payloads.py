"""A message as keuss-server has it over HTTP: the body is the payload.

`Content-Type` says whether it is JSON, text or bytes. Headers of the message are `x-ks-hdr-<name>`,
in UTF-8.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
from fastapi import Request
from starlette.responses import Response

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.payload import as_json, to_jsonable
from spark_queue.messages.schema import PayloadKind
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.rest.answers import JSON_TYPE, json_response
from spark_queue.rest.bodies import Bodies, charset_of, media_type
from spark_queue.rest.errors import UnsupportedMediaType, add_nothing_pushed
from spark_queue.rest.message_dicts import message_dicts
from spark_queue.rest.receipts import receipt_of

#: The prefix of HTTP headers that are headers of the message.
HEADER_PREFIX = "x-ks-hdr-"

#: The header of a message that holds the type of its payload.
CONTENT_TYPE = "content-type"

#: The header that says that the body is a whole message, since its headers do not fit into a head.
WHOLE_MESSAGE = "x-ks-whole"

#: Most bytes and most headers of a message in the head of an answer. Clients have limits: that of
#: Node.js is 16 KB in all, that of Python a hundred headers.
MAX_HEADER_BYTES, MAX_HEADERS = 12 << 10, 80

_DEFAULT_TYPES: dict[str, str] = {
    "json": JSON_TYPE,
    "text": "text/plain; charset=utf-8",
    "binary": "application/octet-stream",
}
_TOKEN_CHARACTERS = "!#$&'*+-.^_`|~"  # allowed in the name of an HTTP header, besides letters and digits
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+\s*(;.*)?")


# --- from HTTP ------------------------------------------------------------------------------------


async def parse_payload(request: Request, body: bytes, bodies: Bodies) -> tuple[bytes, PayloadKind]:
    """Return the payload in a body, and its kind.

    Raises `UnsupportedMediaType` for an invalid type or charset, `OptionError` if the text is
    invalid.
    """
    full = request.headers.get(CONTENT_TYPE, "")
    if full and not _MEDIA_TYPE.fullmatch(full):
        raise UnsupportedMediaType(
            f"header Content-Type is {full[:60]!r} but must be a media type such as application/json or text/plain"
        )
    media = media_type(full)
    if _is_json(media):
        return body, "json"
    if not media.startswith("text/"):
        return body, "binary"
    return await bodies.parse(partial(_to_utf8, charset_of(full)), body), "text"


def _to_utf8(charset: str, body: bytes) -> bytes:
    try:
        return body.decode(charset).encode()
    except UnicodeError as error:
        raise OptionError(
            f"the body is not text in the charset of its Content-Type, {charset} ({error}); "
            "send bytes as application/octet-stream"
        ) from None


def _is_json(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def message_headers(request: Request) -> dict[str, str]:
    """Return the headers of a message. Raises `OptionError` if they are not UTF-8."""
    found = {}
    for name, value in request.headers.raw:
        key = name.decode("latin-1")
        if key == CONTENT_TYPE or key.startswith(HEADER_PREFIX):
            try:
                found[key.removeprefix(HEADER_PREFIX)] = value.decode()
            except UnicodeDecodeError:
                raise OptionError(f"header {key[:100]} is not UTF-8: encode its value in UTF-8") from None
    return found


def parse_due(mature: str | None, delay: str | None) -> tuple[datetime | None, int | None]:
    """Return when a message becomes ready, or its delay (ms), as the parameters of a push say.

    `mature` is seconds since 1970, or a moment with a time zone, and takes precedence; `delay` is
    seconds, and less than none is none. Raises `OptionError` for other text.
    """
    if mature is not None:
        return _parse_moment(mature), None
    if delay is None:
        return None, None
    seconds = math.nan
    with suppress(ValueError):
        seconds = float(delay)
    if not seconds <= MAX_DURATION_MS / 1000:
        raise OptionError(
            f"parameter 'delay' is {delay[:60]!r} but must be a number of seconds that end before the year 5000",
            option="delay",
        )
    return None, round(max(0.0, seconds) * 1000)


def _parse_moment(text: str) -> datetime:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(text), UTC)
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found
    raise OptionError(
        f"parameter 'mature' is {text[:60]!r} but must be seconds since 1970, or a moment such as 2026-01-31T12:00Z",
        option="mature",
    )


def single_message_error(row: dict[str, Any], error: MessageError) -> MessageError:
    """Return a store's error for a pushed message, in terms of the caller's body and parameters."""
    if row["payload_kind"] == "json":
        try:
            orjson.loads(row["payload"])
        except orjson.JSONDecodeError as why:
            return MessageError(
                f"the body is not JSON, as its Content-Type says ({why}); nothing was pushed. Send JSON, or text as "
                "text/plain"
            )
    rule = next(iter(error.rows.values()), str(error))
    return MessageError(add_nothing_pushed(f"the message is invalid: {rule}"))


# --- to HTTP --------------------------------------------------------------------------------------


def message_response(batch: pa.RecordBatch, tag: str | None) -> Response:
    """Return a response with the first message; `tag` holds it if it is reserved."""
    first = batch.slice(0, 1)
    payload, kind, id = (first.column(name)[0].as_py() for name in ("payload", "payload_kind", "id"))
    fields = {
        "x-ks-id": id,
        "x-ks-tries": str(first.column("tries")[0].as_py()),
        "x-ks-mature": str(to_jsonable(first.column("mature")[0].as_py())),
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",  # a browser must not run a payload
    }
    if tag is not None:
        fields["x-ks-receipt"] = receipt_of(tag)  # the tag holds this message only
    headers = dict(header_dicts(first)[0])
    media = headers.pop(CONTENT_TYPE, None) or _DEFAULT_TYPES[kind]
    own = [(HEADER_PREFIX + key, value) for key, value in headers.items()]
    encoded = [_encode_header(*one) for one in (*own, (CONTENT_TYPE, media))]
    if len(encoded) > MAX_HEADERS or sum(len(name) + len(value) for name, value in encoded) > MAX_HEADER_BYTES:
        (whole,) = message_dicts([first], None)
        response = json_response(whole)
        encoded = [_encode_header(WHOLE_MESSAGE, "1")]
    else:
        if _is_json(media_type(media)):  # a store may keep a JSON string as text
            payload = as_json(payload, kind)
            if media.strip().lower() == "application/json":
                encoded[-1] = _encode_header(CONTENT_TYPE, JSON_TYPE)
        response = Response(payload, headers={"Cache-Control": "no-store"})
    response.raw_headers.extend([*(_encode_header(*one) for one in fields.items()), *encoded])
    return response


def _encode_header(name: str, value: str) -> tuple[bytes, bytes]:
    """Return a header in UTF-8; what HTTP does not allow is percent-encoded."""
    text = _CONTROL.sub(lambda one: f"%{ord(one[0]):02X}", value.strip())
    return quote(name.lower(), safe=_TOKEN_CHARACTERS).encode(), text.encode()
