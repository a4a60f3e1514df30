"""Read the body of a request: its limits, its charset, and JSON.

A body is read after the check of credentials. All bodies in flight share one budget of bytes. What
takes long to parse is parsed in threads of its own, so that other callers need not wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import Request

from spark_queue.errors import OptionError
from spark_queue.messages.json_text import load_json
from spark_queue.messages.payload import Json
from spark_queue.rest.errors import BodyStalled, Overloaded, TooLarge, UnsupportedMediaType

T = TypeVar("T")

#: Larger bodies (bytes) are parsed in a thread, in one of this many.
LARGE_BODY, PARSER_THREADS = 1 << 16, 2

#: How long a caller may send nothing within a body (s).
STALL_TIMEOUT = 20.0

#: Bodies of the largest size that the budget is for, and its minimum (bytes).
LARGEST_BODIES, MIN_BUDGET = 8, 64 << 20

#: Charsets of text, which take no long time to decode, by their names in Python.
CHARSETS = {
    "utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "ascii": "ascii", "iso-8859-1": "latin-1",
    "latin1": "latin-1", "latin-1": "latin-1", "iso-8859-15": "iso-8859-15", "windows-1252": "cp1252",
    "cp1252": "cp1252", "utf-16": "utf-16", "utf-16le": "utf-16-le", "utf-16be": "utf-16-be",
}  # fmt: skip

_CHARSET = re.compile(r"charset=\"?([^\s;\"]+)", re.IGNORECASE)


class Bodies:
    """The bodies of requests that a server works on.

    `limit`: bytes of one body. The budget is for the largest ones of LARGEST_BODIES requests.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._budget = max(MIN_BUDGET, LARGEST_BODIES * limit)
        self._threads = ThreadPoolExecutor(PARSER_THREADS, "rest parses")

    async def read(self, request: Request) -> bytes:
        """Return the body of a request. `release` must be called at the end of the request.

        It is not read if its Content-Length exceeds the limit. Raises `TooLarge`,
        `UnsupportedMediaType` if it is compressed, `BodyStalled` if the caller sends nothing for
        STALL_TIMEOUT seconds, and `Overloaded` if the budget is used up.
        """
        if (coding := request.headers.get("content-encoding", "identity")) != "identity":
            raise UnsupportedMediaType(
                f"header Content-Encoding is {coding[:60]!r}, which is not supported: send the body uncompressed"
            )
        text = request.headers.get("content-length", "0")
        length = int(text) if text.isdecimal() and len(text) < 20 else 0
        if length > self.limit:
            raise self._too_large()
        size, parts, clock = 0, list[bytes](), asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(STALL_TIMEOUT) as stall:
                async for part in request.stream():
                    size += len(part)
                    if size > self.limit:
                        raise self._too_large()
                    self._take(request, len(part))
                    parts.append(part)
                    if size != length:  # else only the end comes
                        stall.reschedule(clock() + STALL_TIMEOUT)
        except TimeoutError:
            raise BodyStalled(f"no more of the body came in {STALL_TIMEOUT:.0f} s, after {size:,} bytes") from None
        return b"".join(parts)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body is larger than {self.limit:,} bytes, the limit of this server: send less in one request"
        )

    def _take(self, request: Request, size: int) -> None:
        if size > self._budget:
            raise Overloaded("the server works on too many large bodies: try again")
        self._budget -= size
        request.state.body_size = getattr(request.state, "body_size", 0) + size

    def release(self, request: Request) -> None:
        """Return what the body of a request took of the budget."""
        self._budget += getattr(request.state, "body_size", 0)
        request.state.body_size = 0

    async def parse(self, parse: Callable[[bytes], T], body: bytes) -> T:
        """Return what a function makes of a body; it runs in a thread if the body is large."""
        if len(body) <= LARGE_BODY:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(self._threads, parse, body)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


def media_type(content_type: str) -> str:
    """Return the type in a header `Content-Type`, without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def charset_of(content_type: str) -> str:
    """Return Python's name for the charset of a text; it is UTF-8 by default.

    Raises `UnsupportedMediaType` for one that is not in CHARSETS.
    """
    found = _CHARSET.search(content_type)
    charset = found[1].lower() if found else "utf-8"
    if charset not in CHARSETS:
        raise UnsupportedMediaType(
            f"header Content-Type has the charset {charset[:60]!r}, which is not supported: send UTF-8"
        )
    return CHARSETS[charset]


def parse_json(text: bytes) -> Json:
    """Parse a JSON body. Raises `OptionError` if it is not JSON."""
    try:
        value: Json = load_json(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the body is not JSON ({error})") from None
    return value
