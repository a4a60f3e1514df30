"""A real server that serves all three stores, and a queue of the test's own in each."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

import httpx

from spark_queue import open_store
from tests import registered
from tests.conftest import store_url
from tests.serving import serving


@pytest.fixture(scope="session")
def urls(request, tmp_path_factory):
    """The stores that are served, by namespace."""
    folder = tmp_path_factory.mktemp("rest")
    return {scheme: store_url(request, scheme, folder) for scheme in registered.schemes()}


@pytest.fixture(scope="session")
def server(urls, tmp_path_factory):
    """A server of these; dead letters after two failures."""
    folder = tmp_path_factory.mktemp("server")
    graph = folder / "graph.yaml"
    spaces = [
        f"  {ns}: {{url: '{url}', options: {{maxTries: '2', reserveTimeout: 30s}}}}" for ns, url in urls.items()
    ]
    graph.write_text(
        "\n".join(["namespaces:", *spaces])
        + "\nexchanges:\n  by_delay:\n    src: sqlite/departures\n"
        + "    dst: [{queue: late, selector: 'payload:delay::int > 60'}, {ns: redis, queue: all}]\n"
        + "processors:\n  pairs: {in: [sqlite/left, redis/right], out: redis/pairs, fn: 'work:pair', rows: true}\n"
        + "  orders: {out: sqlite/left}\n"
    )
    with serving(
        folder, "--graph", graph, "--max-body", 2 << 20, "--max-batch", 2000, "--max-wait", "20s"
    ) as started:
        yield started


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


@pytest.fixture
def ns(scheme):
    return scheme


@pytest.fixture
def store(ns, urls):
    with open_store(urls[ns]) as opened:
        yield opened


@pytest.fixture
def q(ns, queue):
    """The path of the queue."""
    return f"/q/{ns}/{queue}"
