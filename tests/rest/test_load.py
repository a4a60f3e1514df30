"""64 clients at once, on all stores, also while the server is killed repeatedly."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid

import pytest

from spark_queue import open_store
from spark_queue.stores.conformance.waiting import wait_until
from tests.http_load import Tally, load
from tests.serving import Serving


@pytest.fixture
def paths(urls):
    name = f"t{uuid.uuid4().hex[:16]}"
    yield [f"/q/{ns}/{name}" for ns in urls]
    for url in urls.values():
        with open_store(url) as store:
            store.drop(name)
            store.drop(f"{name}.dead")


def total_sizes(urls, paths):
    found = []
    for url, path in zip(urls.values(), paths, strict=True):
        with open_store(url) as store:
            found.append(store.sizes(path.rpartition("/")[2]).total)
    return found


def test_64_clients_lose_nothing_and_share_nothing(server, urls, paths):
    tally = asyncio.run(load(server.url, paths, 64, enough=lambda tally: len(tally.pushed) > 2_000))
    assert tally.wrong == []
    assert tally.committed and tally.received >= tally.pushed
    assert total_sizes(urls, paths) == [0] * len(urls)


@pytest.mark.full
def test_a_server_that_is_killed_loses_nothing(urls, paths, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spaces = [one for ns, url in urls.items() for one in ("--url", f"{ns}={url}")]

    def start():
        return Serving(tmp_path, *spaces, "--port", port)

    started = start()
    kills, over = [], threading.Event()
    now = Tally()

    def kill():
        nonlocal started
        try:
            for _ in range(2):
                before = len(now.pushed)
                wait_until(lambda: len(now.pushed) > before + 300, 240)  # noqa: B023
                started.kill()
                kills.append(len(now.pushed))
                started = start()
            wait_until(lambda: len(now.pushed) > kills[-1] + 300, 240)
        finally:
            over.set()

    def enough(tally):
        nonlocal now
        now = tally
        return over.is_set()

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        tally = asyncio.run(load(f"http://127.0.0.1:{port}", paths, 64, enough=enough, dying=True))
    finally:
        killing.join()
        started.kill()
    assert tally.wrong == []
    assert len(kills) == 2 and tally.broken > 0
    assert tally.committed
    assert total_sizes(urls, paths) == [0] * len(urls)
