"""Answers in JSON."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from spark_queue.messages.payload import to_jsonable

#: The type of JSON, as keuss-server says it.
JSON_TYPE = "application/json; charset=utf-8"


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON response that no cache keeps."""
    headers = {"Cache-Control": "no-store", "Content-Type": JSON_TYPE}
    text = orjson.dumps(value, default=to_jsonable, option=orjson.OPT_PASSTHROUGH_DATETIME)
    return Response(text, status, headers)
