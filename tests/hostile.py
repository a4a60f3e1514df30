"""Requests that try to keep a server from its other callers: what each sends, and what the server answers."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from urllib.parse import urlsplit

TOKEN = "correct-horse-battery"
WHO = f"authorization: Bearer {TOKEN}\r\n".encode()


@dataclass(frozen=True)
class Hostile:
    """The parts of a request, and its status."""

    parts: list[bytes]
    status: int


def request(line: str, headers: bytes, body: bytes, status: int) -> Hostile:
    head = f"{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n".encode()
    return Hostile([head + headers + b"\r\n", body], status)


@cache
def kinds() -> dict[str, Hostile]:
    """Return the requests, by what they are."""
    ids = b"<event-id>x</event-id>"
    xml = b"<event-list>" + ids * ((15 << 20) // len(ids)) + b"</event-list>"
    text, basic = "/v1/resources/hub-queue", base64.b64encode(b"x" * 40_000)
    return {
        "a header of 8 MB": Hostile([b"GET /q HTTP/1.1\r\nx: ", *[b"x" * (1 << 20)] * 8], 431),
        "60,000 headers": Hostile([b"GET /q HTTP/1.1\r\n", *[b"x: y\r\n" * 1_000] * 60, b"\r\n"], 431),
        "no HTTP": Hostile([b"\x00" * 100_000], 400),
        "a body of 4 MB without credentials": request("PUT /q/a/x", b"", b"x" * (4 << 20), 401),
        "a password of 40 KB": request("GET /q", b"authorization: Basic " + basic + b"\r\n", b"", 401),
        "a path of 60 KB": request(f"GET /{'x' * 60_000}", WHO, b"", 404),
        "text in punycode, 400 KB": request(
            "PUT /q/a/x", b"content-type: text/plain; charset=punycode\r\n" + WHO, b"-" * 400_000, 415
        ),
        "XML of 15 MB": request(f"PUT {text}", b"content-type: text/xml\r\n" + WHO, xml, 400),
        "XML of an unknown encoding": request(
            f"PUT {text}", b"content-type: text/xml\r\n" + WHO, b"<?xml version='1.0' encoding='x'?><a/>", 400
        ),
        "JSON of five million brackets": request("POST /v1/queues/a/x/messages", WHO, b"[" * 5_000_000, 400),
        "a body of 17 MB": request("PUT /q/a/x", WHO, b"x" * (17 << 20), 413),
    }


def send(url: str, parts: Iterable[bytes]) -> int | None:
    """Send a request. Return the status of the answer, `None` if the connection ends without one."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    received = b""
    with socket.create_connection((str(host), int(port or 0)), timeout=60) as opened:
        with suppress(OSError):  # the server has hung up
            for part in parts:
                opened.sendall(part)
        with suppress(OSError):
            while part := opened.recv(65536):
                received += part
    return int(received.split()[1]) if received.startswith(b"HTTP/") else None


class Attack:
    """Callers that send hostile requests at the same time, within the block."""

    def __init__(self, url: str, requests: Iterable[Hostile], number: int, callers: int = 4) -> None:
        self._url, self._todo = url, islice(cycle(requests), number)
        self._lock = threading.Lock()
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._work) for _ in range(callers)]

    def _next(self) -> Hostile | None:
        with self._lock:
            return next(self._todo, None)

    def _work(self) -> None:
        while (one := self._next()) is not None:
            if (status := send(self._url, one.parts)) != one.status:
                self.wrong.append(f"{status} instead of {one.status}: {one.parts[0][:80]!r}")

    @property
    def runs(self) -> bool:
        """Whether requests are left."""
        return any(one.is_alive() for one in self._threads)

    def __enter__(self) -> Attack:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._threads:
            one.join()
