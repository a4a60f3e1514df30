"""One scrape of the metrics is computed at a time, and its size is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spark_queue import Queue
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app
from spark_queue.rest.errors import Overloaded
from spark_queue.rest.scrapes import Scrapes
from tests.rest.in_process import calling


def test_one_scrape_is_computed_at_a_time_and_others_get_the_last_one():
    go, calls = threading.Event(), []

    def render():
        calls.append(1)
        assert go.wait(30)
        return b"number %d\n" % len(calls)

    async def act():
        found = Scrapes(render, fresh=0.0, patience=0.05, first_patience=0.05)
        answers = await asyncio.gather(*(found.get() for _ in range(40)), return_exceptions=True)
        assert all(isinstance(one, Overloaded) for one in answers) and len(calls) == 1
        go.set()
        found._first_patience = 30
        assert (await found.get()).text.startswith(b"number 1\n")
        go.clear()
        await asyncio.sleep(0.1)
        later = [asyncio.ensure_future(found.get()) for _ in range(40)]
        await asyncio.wait(later)
        assert len(calls) == 2
        for text, age in (one.result() for one in later):
            assert text.startswith(b"number 1\n") and age >= 0.1
            assert b"\nspark_queue_scrape_age_seconds 0." in text
        go.set()
        found.close()

    asyncio.run(act())


def test_a_scrape_that_fails_is_an_error_and_the_next_one_is_tried():
    async def act():
        found = Scrapes(lambda: (_ for _ in ()).throw(ValueError("no")))
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await found.get()
            found._next = 0.0
        found.close()

    asyncio.run(act())


def test_the_busiest_queues_have_their_names_and_the_others_are_summed(tmp_path):
    url = f"sqlite:///{tmp_path}/q.db"
    for number in range(5):
        with Queue(url, f"q{number}") as one:
            one.push_many([1] * (10 + number))
    app = create_app(Settings(graph=Graph({"a": Namespace(url)}), metrics_queues=2))
    with calling(app) as http:
        got = http.get("/metrics")
    assert got.status_code == 200 and got.headers["age"] == "0"
    lines = [line for line in got.text.splitlines() if line.startswith("q_global_size{")]
    assert sorted(lines) == [
        'q_global_size{ns="a",q="__other__"} 33.0',
        'q_global_size{ns="a",q="q3"} 13.0',
        'q_global_size{ns="a",q="q4"} 14.0',
    ]
    assert 'q_global_next_t{ns="a",q="__other__"}' not in got.text
