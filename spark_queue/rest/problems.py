"""Errors over HTTP: a status for each kind of error, and the document that tells it (RFC 9457)."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from spark_queue.errors import (
    CheckpointError,
    FencedError,
    MessageError,
    QueueError,
    StoreError,
    StoreUnavailable,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"

#: Seconds after which a caller may try again where the database could not be reached.
RETRY_AFTER = 1

log = logging.getLogger(__name__)


class NotThere(UsageError):
    """What the call is about is not there."""


class NotAllowed(UsageError):
    """The method is not for this resource."""


class TooLarge(UsageError):
    """The body of the request is larger than this server takes."""


class NotUnderstood(UsageError):
    """The body, or what is wanted back, is of a type that this resource does not speak."""


class Unwanted(QueueError):
    """Whoever waited does not wait any more."""


class NothingCame(QueueError):
    """No message came in time."""


class Ending(QueueError):
    """The server is about to end."""


#: The status of each kind of error; the first that fits.
STATUS: dict[type[Exception], int] = {
    NotThere: 404,
    NotAllowed: 405,
    TooLarge: 413,
    NotUnderstood: 415,
    Unwanted: 410,
    NothingCame: 504,
    Ending: 503,
    UsageError: 400,  # fix the call
    MessageError: 400,
    StoreUnavailable: 503,  # try again
    StoreError: 502,
    FencedError: 409,  # somebody else has it
    CheckpointError: 409,
    QueueError: 500,
}


def status_of(error: Exception) -> int:
    """The status that tells of an error."""
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def problem(status: int, title: str, detail: str, **more: Any) -> Response:
    """The answer that tells a problem."""
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    headers = {503: {"Retry-After": str(RETRY_AFTER)}, 413: {"Connection": "close"}}.get(
        status
    )  # nobody reads the rest
    text = orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(text, status, headers, MEDIA_TYPE)


def told(error: QueueError) -> Response:
    """An error of ours as an answer."""
    more = {"rows": error.rows} if isinstance(error, MessageError) and error.rows else {}
    return problem(status_of(error), type(error).__name__, str(error), **more)


def tell_problems(app: FastAPI) -> None:
    """Let an app tell all that goes wrong as problem documents."""

    @app.exception_handler(QueueError)
    async def ours(_: Request, error: QueueError) -> Response:
        return told(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        said = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        return problem(400, "UsageError", said)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        answer = problem(error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def ours_to_mend(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "Internal Server Error", "this is a mistake of the server's, which its log tells")


#: What the OpenAPI page says of errors that any resource may answer with.
ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in {
        400: "The call cannot work as it was made.",
        401: "Nobody knows who calls.",
        403: "A page of another site calls.",
        404: "What the call is about is not there.",
        405: "This method is not for this resource.",
        413: "The body is too large.",
        415: "This type is not spoken here.",
        502: "The database refused.",
        503: "The database cannot be reached, or the server is about to end: try again.",
    }.items()
}

#: The document, as the OpenAPI page has it.
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "The kind of error: its name in Python."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do about it."},
        "rows": {"type": "object", "description": "Of messages that cannot be pushed: by position, the rule broken."},
    },
}
