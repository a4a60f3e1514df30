"""What goes through exchanges is counted in the store, by several processes at once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from spark_queue import StoreError, open_store
from spark_queue.runner.traffic import Traffic, add_traffic, load_traffic, reset_traffic


@pytest.fixture
def exchange(url, name):
    yield name
    reset_traffic(url, name)


def traffic(n):
    return Traffic(
        1,
        n,
        Counter({"l/a": n, "l/$b.c": 0}),
        Counter({"l/a": 1}),
        1,
        0,
        0,
        milliseconds=Counter({"addBatch": 10 * n}),
    )


def test_counts_add_up_whoever_counts(url, exchange):
    assert exchange not in load_traffic(url)
    threads = [
        threading.Thread(target=lambda: [add_traffic(url, exchange, traffic(n)) for n in range(5)]) for _ in "abc"
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert load_traffic(url)[exchange] == Traffic(
        15,
        30,
        Counter({"l/a": 30, "l/$b.c": 0}),
        Counter({"l/a": 15}),
        15,
        0,
        0,
        milliseconds=Counter({"addBatch": 300}),
    )
    reset_traffic(url, exchange)
    assert exchange not in load_traffic(url)


def test_counts_of_a_newer_version_are_refused(url, exchange):
    with open_store(url) as store:
        assert store.set_note(f"exchange/{exchange}", {"v": 2}, 0)
    with pytest.raises(StoreError, match="upgrade spark_queue"):
        add_traffic(url, exchange, traffic(1))
