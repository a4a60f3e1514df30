"""Errors over HTTP: a status for each kind of error, and the problem document for it (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spark_queue.errors import (
    CheckpointError,
    FencedError,
    GraphError,
    MessageError,
    NotAQueue,
    QueueError,
    SparkUnavailable,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from spark_queue.rest.malformed import describe_error
from spark_queue.stores.support.budget import BudgetExceeded

MEDIA_TYPE = "application/problem+json"

#: Most characters of a path in an error text.
MAX_PATH = 200

#: Most characters of a detail, and invalid messages of a batch that an answer names.
MAX_DETAIL, MAX_NAMED_ROWS = 2_000, 100

#: How long a caller should wait if the server or a database is unavailable (s).
RETRY_AFTER = 1

log = logging.getLogger(__name__)


class NotFound(UsageError):
    """The call names something that does not exist."""


class TooLarge(UsageError):
    """The body of the request is larger than this server accepts."""


class UnsupportedMediaType(UsageError):
    """The resource does not support the type of the body, or the type that the caller accepts."""


class Cancelled(QueueError):
    """The wait was cancelled."""


class NoMessage(QueueError):
    """No message came in time."""


class NotReady(QueueError):
    """A store cannot be reached."""


class ShuttingDown(QueueError):
    """The server is shutting down."""


class Overloaded(QueueError):
    """The server has too much other work of this kind: it has no memory, thread or place left."""


class Conflict(UsageError):
    """The thing exists already, or this server cannot change it."""


class BodyStalled(UsageError):
    """The body of the request did not come in time."""


class NotAllowed(UsageError):
    """The role of the caller does not allow the call."""


#: The status of each kind of error; the first match counts.
STATUS_CODES: dict[type[Exception], int] = {
    NotAllowed: 403,
    NotFound: 404,
    BodyStalled: 408,
    Conflict: 409,
    NotAQueue: 409,  # data of another program has the name
    TooLarge: 413,
    UnsupportedMediaType: 415,
    Cancelled: 410,
    NoMessage: 504,
    NotReady: 503,
    ShuttingDown: 503,
    Overloaded: 503,
    SparkUnavailable: 503,
    BudgetExceeded: 503,
    UsageError: 400,  # fix the call
    MessageError: 400,
    StoreUnavailable: 503,  # try again
    StoreError: 502,
    FencedError: 409,  # another consumer holds it
    CheckpointError: 409,
    QueueError: 500,
}


def problem_text(status: int, title: str, detail: str, **more: Any) -> bytes:
    """Return a problem document. A long detail is cut."""
    if len(detail) > MAX_DETAIL:
        detail = f"{detail[:MAX_DETAIL]}…"
    document = {"type": "about:blank", "title": title, "status": int(status), "detail": detail, **more}
    return orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)


def problem_response(status: int, title: str, detail: str, **more: Any) -> Response:
    """Return a response with a problem document."""
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return Response(problem_text(status, title, detail, **more), status, headers, MEDIA_TYPE)


def add_nothing_pushed(sentence: str) -> str:
    """Return an error text about a message, with the note that nothing was pushed."""
    return f"{sentence} Nothing was pushed" if sentence.endswith("?") else f"{sentence}; nothing was pushed"


def _first_rows(rows: Mapping[int, str]) -> dict[int, str]:
    return {row: rule[:MAX_DETAIL] for row, rule in islice(rows.items(), MAX_NAMED_ROWS)}


def add_error_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make an app with these routes answer every error with a problem document."""

    @app.exception_handler(QueueError)
    async def handle_queue_error(_: Request, error: QueueError) -> Response:
        status = next(status for kind, status in STATUS_CODES.items() if isinstance(error, kind))
        more: dict[str, Any] = {}
        if isinstance(error, MessageError) and error.rows:
            more["rows"] = _first_rows(error.rows)
        if isinstance(error, GraphError):
            more["details"] = [{"message": text[:MAX_DETAIL]} for text in error.mistakes]
        return problem_response(status, type(error).__name__, str(error), **more)

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_request(_: Request, error: RequestValidationError) -> Response:
        return problem_response(400, "UsageError", "; ".join(describe_error(one) for one in error.errors()))

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> Response:
        phrase = HTTPStatus(error.status_code).phrase
        detail, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == 404 and detail == phrase:
            detail = f"there is no resource {_shown(request)}; GET /docs lists them"
        elif error.status_code == 405:
            path = request.url.path
            found = [route for route in routes if isinstance(route, Route) and route.path_regex.match(path)]
            methods = {method for route in found for method in route.methods or ()}
            # Starlette's `Allow` has the methods of one route only. The rest are pages and files.
            allowed = ", ".join(sorted(methods)) or "GET, HEAD"
            detail = f"{_shown(request)} does not support {request.method}; use {allowed}"
            headers["Allow"] = allowed
        answer = problem_response(error.status_code, phrase, detail)
        answer.headers.update(headers)
        return answer

    @app.exception_handler(Exception)
    async def handle_unexpected_error(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, _shown(request), exc_info=error)
        return problem_response(500, "Internal Server Error", "an error in the server; its log has the details")

    @app.exception_handler(ClientDisconnect)
    async def handle_disconnect(request: Request, _: ClientDisconnect) -> Response:
        log.info("%s %s: the caller disconnected", request.method, _shown(request))
        return Response(status_code=400)  # it has no reader


def _shown(request: Request) -> str:
    path = request.url.path
    return path if len(path) <= MAX_PATH else f"{path[:MAX_PATH]}…"


#: The error responses that any resource may have, for OpenAPI.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in {
        400: "The request is wrong. Nothing was changed.",
        401: "Credentials are missing or wrong.",
        403: "The role of the caller does not allow it, or a page of another site made the request.",
        404: "The request names something that does not exist.",
        405: "The resource does not support this method.",
        408: "The body did not come in time.",
        409: "Another consumer holds it, it exists already, the name is that of data of another program, or this "
        "server runs no exchanges.",
        413: "The body is too large.",
        415: "The type of the body, or of the answer, is not supported.",
        431: "The head of the request is too large.",
        502: "The database refused the operation.",
        503: "The database or Spark is away, or the server is shutting down or has too much to do: try again.",
    }.items()
}

#: The schema of a problem document, for OpenAPI.
PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "The kind of error: its name in Python."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "rows": {
            "type": "object",
            "description": "In a batch: the rule that each invalid message breaks, by its position from 0.",
        },
        "details": {
            "type": "array",
            "items": {"type": "object"},
            "description": "For a declaration: its mistakes, each with its `message`.",
        },
    },
}
