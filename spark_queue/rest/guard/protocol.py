"""The HTTP protocol of the server, with limits for what precedes the check of credentials.

Everybody may connect and send the head of a request. So connections are limited (see
`connections.py`), and the bytes and the time of a head. uvicorn limits neither: its
parser collects a header of any length, and takes longer for each further byte.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from spark_queue.rest.entrance import KNOWN
from spark_queue.rest.errors import MEDIA_TYPE, RETRY_AFTER, problem_text
from spark_queue.rest.guard.connections import Connections
from spark_queue.rest.guard.unread import UnreadAnswers

#: Most bytes of the head of a request, and of anything else that is no body (trailers).
MAX_HEAD = 64 << 10

#: How long a head may take (s).
HEAD_TIMEOUT = 10.0

#: How long, and how many bytes of a body, are read after the answer to a request (s). A caller that
#: still sends would not see the answer otherwise: the system drops it when a connection with unread
#: bytes is closed.
DISCARD_TIMEOUT, MAX_DISCARDED = 5.0, 32 << 20


class GuardedProtocol(HttpToolsProtocol):
    """One connection of a caller.

    It extends a class of uvicorn that is not documented: `pyproject.toml` bounds its version.
    """

    def __init__(self, *args: Any, accepted: Connections, unread: UnreadAnswers, **kwargs: Any) -> None:
        """Begin without a transport.

        `accepted` has all connections of the server, and `unread` those that do not read.
        """
        super().__init__(*args, **kwargs)
        self._accepted, self._answers = accepted, unread
        self._in_message = False  # whether a head is complete, and its body is not
        self._head_size = 0  # bytes of the head that the parser has reported
        self._unreported = 0  # bytes that the parser has got since it last reported something
        self._discarded = 0  # bytes of a body whose request is answered
        self._refused = self._known = False
        self._timer: asyncio.TimerHandle | None = None

    # --- the connection ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection, or refuse it if there are too many."""
        super().connection_made(transport)
        if self._accepted.add(self, transport.abort):
            self._start_timer(HEAD_TIMEOUT, self._end_head)
            return
        self._write_problem(HTTPStatus.SERVICE_UNAVAILABLE, "the server has too many connections: try again")
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_timer()
        self._accepted.remove(self)
        self._answers.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the caller does not read its answer fast enough."""
        super().pause_writing()
        self._answers.add(self, self.transport)

    def resume_writing(self) -> None:
        """Note that the caller has read."""
        self._answers.remove(self)
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse a part of a request, or refuse it."""
        if self._refused or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if not self._in_message and self._timer is None:  # a connection that was idle
            self._start_timer(HEAD_TIMEOUT, self._end_head)
        self._unreported += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is answered like any other
        except httptools.HttpParserError:
            if self._head_size <= MAX_HEAD:
                self._refuse(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1")
                return
        if max(self._unreported, self._head_size) > MAX_HEAD:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request, its first line and its headers, is larger than {MAX_HEAD:,} bytes",
            )

    # --- reports of the parser --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL. Raises `ValueError` if the head is too large."""
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer. Raises `ValueError` if the head is too large."""
        self._count_head(name, value)
        super().on_header(name, value)

    def _count_head(self, *parts: bytes) -> None:
        """Count bytes. Raises `ValueError` if the head is too large, which ends the parser."""
        self._head_size += sum(map(len, parts)) + 4
        if self._head_size > MAX_HEAD:
            raise ValueError

    def on_headers_complete(self) -> None:
        """End the head of a request: its handler starts."""
        self._stop_timer()
        self._accepted.hear(self)
        self._in_message, self._unreported, self._discarded = True, 0, 0
        self.scope[KNOWN], self._known = self._known, True  # type: ignore[literal-required]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body. After the answer, it is discarded."""
        self._unreported = 0
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._stop_timer()
        self._in_message, self._unreported = False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """End an answer. The rest of the request is discarded."""
        super().on_response_complete()
        if self._in_message:
            self._start_timer(DISCARD_TIMEOUT, self.transport.close)

    # --- refusals ---------------------------------------------------------------------------------

    def _end_head(self) -> None:
        self._timer = None
        if self._unreported:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT, f"the head of the request did not come within {HEAD_TIMEOUT:.0f} seconds"
            )
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer with a problem document, and end the connection.

        If a handler answers the request, or has answered it, only end the connection.
        """
        self._refused = True
        self._stop_timer()
        cycle: RequestResponseCycle | None = self.cycle  # the type in uvicorn does not say that it may be None
        if self._in_message or (cycle is not None and not cycle.response_complete):
            self.transport.close()
            return
        self._write_problem(status, detail)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._start_timer(DISCARD_TIMEOUT, self.transport.close)
        else:
            self.transport.close()

    def _write_problem(self, status: HTTPStatus, detail: str) -> None:
        text = problem_text(status, status.phrase, detail)
        head = [
            f"HTTP/1.1 {status} {status.phrase}",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(text)}",
            "connection: close",
            *([f"retry-after: {RETRY_AFTER}"] if status == HTTPStatus.SERVICE_UNAVAILABLE else []),
        ]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + text)

    def _start_timer(self, seconds: float, act: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
