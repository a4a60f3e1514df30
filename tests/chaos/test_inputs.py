"""A query on two queues that is killed in the middle of its batches: the n-th still comes with the n-th, once."""

from __future__ import annotations

import time

import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.stores.conformance.waiting import wait_until
from tests import registered
from tests.chaos.processes import kill_tree, start

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

KILLS, ROWS = 1, 1_500


def test_a_killed_query_on_two_queues_pairs_every_message_once(url_of, name, rng, tmp_path):
    urls = {"x": url_of(registered.schemes()[0]), "y": url_of(registered.schemes()[-1])}
    inputs = {"a": {"queue": f"{name}.a", "ns": "x"}, "b": {"queue": f"{name}.b", "ns": "y"}}
    to_url, to = f"sqlite:///{tmp_path}/out.db", f"{name}.out"
    pushed, process = 0, None

    def push(rows):
        nonlocal pushed
        for one in inputs.values():
            with Queue(urls[one["ns"]], one["queue"]) as queue:
                queue.push_many(list(range(pushed, pushed + rows)))
        pushed += rows

    def arrived():
        with open_store(to_url) as store:
            return [one.payload for batch in store.peek(to) for one in messages(batch)]

    try:
        push(ROWS)
        for kill in range(KILLS + 1):
            process = start("join", urls=urls, inputs=inputs, to_url=to_url, to=to, folder=str(tmp_path))
            before = len(arrived())
            if kill == KILLS:
                wait_until(lambda: len(arrived()) == pushed, 120)
                break
            wait_until(lambda: len(arrived()) > before, 120)  # noqa: B023
            time.sleep(rng.uniform(0, 0.6))
            kill_tree(process)
            push(100)
        found = arrived()
        assert sorted((int(one["a"]), int(one["b"])) for one in found) == [(n, n) for n in range(pushed)]
        assert len({one["hash"] for one in found}) == pushed
    finally:
        if process is not None and process.poll() is None:
            kill_tree(process)
        for one in inputs.values():
            with open_store(urls[one["ns"]]) as store:
                store.drop(one["queue"])
