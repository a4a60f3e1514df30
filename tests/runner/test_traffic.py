"""What goes through exchanges is counted in the store, by several processes at once."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

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


def test_counts_of_several_processes_add_up(url, exchange):
    assert exchange not in load_traffic(url)
    threads = [
        threading.Thread(target=lambda: [add_traffic(url, exchange, traffic(n)) for n in range(5)]) for _ in "abc"
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = load_traffic(url)[exchange]
    assert len(found.recent) == 15
    assert found == Traffic(
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
        assert store.set_note(f"exchange/{exchange}", {"v": 3}, 0)
    with pytest.raises(StoreError, match="upgrade spark_queue"):
        add_traffic(url, exchange, traffic(1))


def test_counts_of_version_1_go_on(url, exchange):
    old = {"v": 1, "by": "x", "batches": 2, "received": 10, "pushed": {"l/a": 9}, "failed": {}, "no_route": 1}
    old |= {"too_many_hops": 0, "odd_hops": 0, "done": 0, "again": 0, "milliseconds": {"triggerExecution": 50}}
    with open_store(url) as store:
        assert store.set_note(f"exchange/{exchange}", old, 0)
    assert load_traffic(url)[exchange].received == 10
    made = traffic(3)
    made.add_hops()
    total = add_traffic(url, exchange, made)
    assert (total.batches, total.received, total.pushed["l/a"]) == (3, 13, 12)
    assert sum(total.hops.values()) == 3


def test_a_hop_takes_as_long_as_its_batch_and_rates_are_of_the_last_minute(url, exchange):
    made = Traffic(1, 10, no_route=2, too_many_hops=1, again=1, milliseconds=Counter(triggerExecution=250))
    made.add_hops()
    assert made.hops == {"ok/250": 6, "ko/250": 1, "no-route/250": 2, "too-many-hops/250": 1}
    assert made.hop_milliseconds == {"ok": 1500, "ko": 250, "no-route": 500, "too-many-hops": 250}
    slow = Traffic(1, 1, milliseconds=Counter(triggerExecution=60_001))
    slow.add_hops()
    assert slow.hops == {"ok/+Inf": 1}
    with open_store(url) as store:
        now = store.now()
    made.recent = [[now - 61_000, 600, 600]]
    assert made.rates(now) == {"received": 0, "pushed": 0}
    total = add_traffic(url, exchange, made)
    total = add_traffic(url, exchange, replace(made, pushed=Counter({"l/a": 3, "l/b": 6})))
    assert total.rates(now) == {"received": round(20 / 60, 3), "pushed": round(9 / 60, 3)}
    assert all(at >= now for at, *_ in total.recent), "older ones are dropped"
