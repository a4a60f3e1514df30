"""Answers in JSON."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from spark_queue.messages.payload import to_jsonable

#: The type of JSON, as keuss-server says it.
JSON_TYPE = "application/json; charset=utf-8"


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON response that no cache keeps."""
    return text_response(json_text(value), status)


def json_text(value: object) -> bytes:
    """Return the text of such a response."""
    return orjson.dumps(value, default=to_jsonable, option=orjson.OPT_PASSTHROUGH_DATETIME)


def text_response(text: bytes, status: int = 200) -> Response:
    """Return a response of JSON text that no cache keeps."""
    return Response(text, status, {"Cache-Control": "no-store", "Content-Type": JSON_TYPE})
