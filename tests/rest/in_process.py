"""An app that is called in the process of the test, so the test may change what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from fastapi import FastAPI


class Client:
    """Calls an app, one request after the other."""

    def __init__(self, app: FastAPI, runner: asyncio.Runner, url: str) -> None:
        self.app, self._runner, self._url = app, runner, url

    def request(self, method: str, path: str, **how) -> httpx.Response:
        return self.many([(method, path)], **how)[0]

    def get(self, path: str, **how) -> httpx.Response:
        return self.request("GET", path, **how)

    def many(self, calls: Sequence[tuple[str, str]], **how) -> list[httpx.Response]:
        """Make all calls at the same time."""

        async def call() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self._url, timeout=120) as client:
                return await asyncio.gather(*(client.request(method, path, **how) for method, path in calls))

        return self._runner.run(call())


@contextmanager
def calling(app: FastAPI, url: str = "http://127.0.0.1:3444") -> Iterator[Client]:
    with asyncio.Runner() as runner:
        yield Client(app, runner, url)
        app.state.service.close()
