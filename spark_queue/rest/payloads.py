"""Convert HTTP bodies and headers to messages, and back.

A single message is the body itself: JSON, text or bytes by its `Content-Type`. Its headers are
`x-ks-hdr-<name>`, in UTF-8. A batch is JSON, in which a message looks as `pop --json` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
from fastapi import Request
from starlette.responses import Response

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.json_text import load_json
from spark_queue.messages.payload import Json, as_json, to_jsonable
from spark_queue.messages.schema import PayloadKind
from spark_queue.rest.errors import TooLarge, UnsupportedMediaType
from spark_queue.rest.receipts import receipt_of

#: The prefix of HTTP headers that are headers of the message.
HEADER_PREFIX = "x-ks-hdr-"

#: The header of a message that holds the type of its payload.
CONTENT_TYPE = "content-type"

_DEFAULT_TYPES: dict[str, str] = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "binary": "application/octet-stream",
}
_TOKEN_CHARACTERS = "!#$&'*+-.^_`|~"  # allowed in the name of an HTTP header, besides letters and digits
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+\s*(;.*)?")


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body of a request. It is not read if its Content-Length exceeds `limit` (bytes).

    Raises `TooLarge` if it exceeds the limit, and `UnsupportedMediaType` if it is compressed.
    """
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise UnsupportedMediaType(
            f"header Content-Encoding is {coding!r}, which is not supported: send the body uncompressed"
        )
    length = request.headers.get("content-length", "0")
    parts, size = [], int(length) if length.isdecimal() else 0
    if size <= limit:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                break
            parts.append(part)
    if size > limit:
        raise TooLarge(f"the body is larger than {limit:,} bytes, the limit of this server: send less in one request")
    return b"".join(parts)


def parse_json(text: bytes) -> Json:
    """Parse a JSON body. Raises `OptionError` if it is not JSON."""
    try:
        value: Json = load_json(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the body is not JSON ({error})") from None
    return value


# --- a single message -----------------------------------------------------------------------------


def parse_payload(request: Request, body: bytes) -> tuple[bytes, PayloadKind]:
    """Return the payload in a body, and its kind.

    Raises `UnsupportedMediaType` for an invalid type or charset, `OptionError` if the text is
    invalid.
    """
    full = request.headers.get(CONTENT_TYPE, "")
    if full and not _MEDIA_TYPE.fullmatch(full):
        raise UnsupportedMediaType(
            f"header Content-Type is {full!r} but must be a media type such as application/json or text/plain"
        )
    media = media_type(full)
    if _is_json(media):
        return body, "json"
    if not media.startswith("text/"):
        return body, "binary"
    found = re.search(r"charset=\"?([^\s;\"]+)", full, re.IGNORECASE)
    charset = found[1] if found else "utf-8"
    try:
        return body.decode(charset).encode(), "text"
    except LookupError:
        raise UnsupportedMediaType(f"header Content-Type has the unknown charset {charset!r}: send UTF-8") from None
    except UnicodeError as error:
        raise OptionError(
            f"the body is not text in the charset of its Content-Type, {charset} ({error}); "
            "send bytes as application/octet-stream"
        ) from None


def media_type(content_type: str) -> str:
    """Return the type in a header `Content-Type`, without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


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
                raise OptionError(f"header {key} is not UTF-8: encode its value in UTF-8") from None
    return found


def single_message_error(row: dict[str, Any], error: MessageError) -> MessageError:
    """Return a store's error for a single message, in terms of the caller's body and parameters."""
    if row["payload_kind"] == "json":
        try:
            orjson.loads(row["payload"])
        except orjson.JSONDecodeError as why:
            return MessageError(
                f"the body is not JSON, as its Content-Type says ({why}); nothing was pushed. Send JSON, or text as "
                "text/plain"
            )
    rule = next(iter(error.rows.values()), str(error))
    return MessageError(_nothing_pushed(f"the message is invalid: {rule}"))


def batch_error(error: MessageError) -> MessageError:
    """Return the error for a batch: it names the first invalid message, and counts the others."""
    position, rule = next(iter(error.rows.items()))
    rest = f" (and {len(error.rows) - 1} more)" if len(error.rows) > 1 else ""
    return MessageError(_nothing_pushed(f"message {position}{rest}: {rule}"), rows=error.rows)


def _nothing_pushed(sentence: str) -> str:
    return f"{sentence} Nothing was pushed" if sentence.endswith("?") else f"{sentence}; nothing was pushed"


def parse_mature(text: str) -> datetime:
    """Parse the parameter `mature`: seconds since 1970, or ISO format with a time zone.

    Raises `OptionError` if it is neither.
    """
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(text), UTC)
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found
    raise OptionError(
        f"parameter 'mature' is {text!r} but must be seconds since 1970, or a moment such as 2026-01-31T12:00Z",
        option="mature",
    )


def message_response(batch: pa.RecordBatch, tag: str | None) -> Response:
    """Return a response with the first message; `tag` holds it if it is reserved."""
    payload, kind, id = (batch.column(name)[0].as_py() for name in ("payload", "payload_kind", "id"))
    headers = dict(header_dicts(batch.slice(0, 1))[0])
    media = headers.pop(CONTENT_TYPE, None) or _DEFAULT_TYPES[kind]
    if _is_json(media_type(media)):  # a store may keep a JSON string as text
        payload = as_json(payload, kind)
    fields = {
        "x-ks-id": id if tag is None else receipt_of(tag),  # the tag holds this message only
        "x-ks-message-id": id,
        "x-ks-tries": str(batch.column("tries")[0].as_py()),
        "x-ks-mature": str(to_jsonable(batch.column("mature")[0].as_py())),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",  # a browser must not run a payload
        CONTENT_TYPE: media,
    }
    fields |= {HEADER_PREFIX + key: value for key, value in headers.items()}
    response = Response(payload)
    for key, value in fields.items():
        name = quote(key.lower(), safe=_TOKEN_CHARACTERS)
        text = _CONTROL.sub(lambda one: f"%{ord(one[0]):02X}", value.strip())
        response.raw_headers.append((name.encode(), text.encode()))
    return response


# --- batches --------------------------------------------------------------------------------------


def message_dicts(batches: list[pa.RecordBatch], tag: str | None) -> Iterator[dict[str, Any]]:
    """Yield the messages of batches for JSON, with unparsed payloads.

    `tag` holds them if they are reserved; then each gets a receipt, the field `handle`.
    """
    names = ("id", "queue", "payload", "payload_kind", "mature", "tries")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        for (id, queue, payload, kind, mature, tries), headers in zip(
            zip(*columns, strict=True), header_dicts(batch), strict=True
        ):
            receipt = {} if tag is None else {"handle": receipt_of(tag, id)}
            yield {
                "id": id, **receipt, "queue": queue, "payload": orjson.Fragment(as_json(payload, kind)),
                "headers": headers, "mature": to_jsonable(mature), "tries": tries,
            }  # fmt: skip


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON response."""
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(value, default=to_jsonable), status, headers, "application/json")
