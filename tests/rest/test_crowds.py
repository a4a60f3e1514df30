"""Other callers wait little while a crowd calls; `bench/rest.py --hostile` measures larger ones."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack

import pytest

from spark_queue import Queue, open_store
from spark_queue.stores.conformance.waiting import wait_until
from tests.crowds import (
    OPERATOR,
    TAKER,
    VIEWER,
    crowded_server,
    crowding,
    open_files,
    peak_memory,
    percentile,
    push_beside,
    wake_beside,
)

pytestmark = pytest.mark.full

#: Limits of memory (MB), of the wait of another caller, and of a message that it waits for (ms): four times what
#: holds on an idle machine.
MEMORY, WAIT, LATE = 600, 800, 4_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory, redis_url):
    with crowded_server(tmp_path_factory.mktemp("crowded"), redis_url) as started:
        yield started


def enough(number: int) -> bool:
    return number < 150


@pytest.fixture(scope="module")
def large(redis_url):
    """A queue of more messages than a look may read."""
    queue = f"crowd{uuid.uuid4().hex[:12]}"
    with Queue(redis_url, queue) as one:
        for _ in range(15):
            one.push_many([{"n": n, "text": "x" * 50} for n in range(10_000)])
    yield queue
    with open_store(redis_url) as store:
        store.drop(queue)
        for name in (f"{queue}.beside", f"{queue}.woken"):
            store.drop(name)


CROWDS = {
    "filtered looks": (32, "/v1/queues/r/{queue}/messages?min_tries=5", VIEWER),
    "large pages": (32, "/v1/queues/r/{queue}/messages?limit=10000", VIEWER),
    "lists": (32, "/q/r", VIEWER),
    "scrapes": (40, "/metrics", ""),
}


@pytest.mark.parametrize("kind", CROWDS)
def test_others_wait_little_while_a_crowd_calls(crowded, large, kind):
    number, path, token = CROWDS[kind]
    with crowding("calls", crowded.url, number, path.replace("{queue}", large), token):
        times = asyncio.run(push_beside(crowded.url, f"/q/r/{large}.beside", OPERATOR, enough))
    assert percentile(times, 0.95) < WAIT
    assert peak_memory(crowded.process.pid) < MEMORY
    assert open_files(crowded.process.pid) < 200
    assert "Traceback" not in crowded.said


def test_others_wait_little_while_all_crowds_call_at_once(tmp_path, redis_url, large):
    """They come at the same time, with one that waits for 3,000 queues."""
    with crowded_server(tmp_path, redis_url) as server, ExitStack() as block:
        for number, path, token in CROWDS.values():
            block.enter_context(crowding("calls", server.url, number, path.replace("{queue}", large), token))
        block.enter_context(crowding("calls", server.url, 3_000, f"/q/r/{large}.{{}}?to=60000", TAKER))
        times = asyncio.run(push_beside(server.url, f"/q/r/{large}.beside", OPERATOR, enough))
        wait_until(lambda: open_files(server.process.pid) > 3_000)
        late = asyncio.run(wake_beside(server.url, f"/q/r/{large}.woken", OPERATOR, 10))
        assert percentile(times, 0.95) < WAIT
        assert max(late) < LATE
        assert peak_memory(server.process.pid) < MEMORY


@pytest.mark.parametrize("token", [TAKER, OPERATOR], ids=["of another caller", "of the same caller"])
def test_a_message_comes_in_time_while_many_queues_are_waited_for(crowded, redis_url, token):
    queue = f"crowd{uuid.uuid4().hex[:12]}"
    with crowding("calls", crowded.url, 3_000, f"/q/r/{queue}.{{}}?to=60000", token):
        times = asyncio.run(wake_beside(crowded.url, f"/q/r/{queue}", OPERATOR, 20))  # the crowd still connects
        wait_until(lambda: open_files(crowded.process.pid) > 3_000)
        times += asyncio.run(wake_beside(crowded.url, f"/q/r/{queue}", OPERATOR, 5))
    assert max(times) < LATE
    assert peak_memory(crowded.process.pid) < MEMORY
    with open_store(redis_url) as store:
        store.drop(queue)
