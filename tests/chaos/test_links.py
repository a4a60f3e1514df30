"""A link that is killed in the middle of a batch: each message is in one of its queues, and arrives once, changed."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.options.url import StoreUrl
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.processes import kill_tree, start

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

KILLS, ROWS = 3, 2_000


def contents(store, queue):
    return [one for batch in store.peek(queue) for one in messages(batch)]


def test_a_killed_link_moves_every_message_once(url_of, name, rng, tmp_path):
    plain = url_of("mongodb")
    url, to = f"{StoreUrl.parse(plain).with_layout('pl-mongo')}&pipeline={name}", f"{name}.next"
    with Queue(url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(ROWS)])
    process, halves = None, 0
    with open_store(url) as store:
        try:
            for kill in range(KILLS + 1):
                process = start("link", url=url, queue=name, to=to, folder=str(tmp_path))
                before = len(contents(store, to))
                if kill == KILLS:
                    wait_until(lambda: store.sizes(name).total == 0, 150)
                    break
                wait_until(lambda: len(contents(store, to)) > before, 100)  # noqa: B023
                time.sleep(rng.uniform(0, 0.4))
                kill_tree(process)
                moved, left = contents(store, to), contents(store, name)
                assert Counter(one.id for one in [*moved, *left]) == Counter(ids), "in one queue at every moment"
                held = sum(one.rows for one in store.reservations(name))
                halves += 0 < held < 200
            arrived = contents(store, to)
            assert Counter(one.id for one in arrived) == Counter(ids)
            assert sorted(one.payload["n"] for one in arrived) == list(range(ROWS))
            assert {(one.payload["seen"], one.headers["by"], one.tries) for one in arrived} == {(True, "link", 0)}
            print(f"{halves} of {KILLS} kills have left a batch half moved")
        finally:
            if process is not None and process.poll() is None:
                kill_tree(process)
            for one in (name, to):
                store.drop(one)
