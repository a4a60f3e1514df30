"""Helpers of several tests of consumers."""

from __future__ import annotations

from collections import Counter

from spark_queue import open_store
from spark_queue.messages.message import messages
from spark_queue.spark.read.batch_size import FIRST_ROWS
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.services.owner import revoke

MOST, LEAST, EXACTLY = "at-most-once", "at-least-once", "exactly-once"

#: The delivery of a planned batch, and the option after the restart: the batch does not come again.
DROPPED = [(MOST, MOST), (MOST, EXACTLY), (MOST, LEAST), (EXACTLY, MOST)]


def fetched(url, queue, shares):
    with open_store(url) as store:
        return [one.id for share in shares for batch in store.fetch(queue, share.tag) for one in messages(batch)]


def taken_over(url, queue, start):
    """As if the process that runs the consumer were gone."""
    with open_store(url) as store:
        revoke(store, queue, start["consumer"])


def renewed(url, queue, tags, endless=()):
    """Wait until just the leases of these tags were renewed twice; endless ones are held."""
    with open_store(url) as store:

        def ends():
            return {one.tag.partition("/")[2].partition("/")[2]: one.until for one in store.reservations(queue)}

        for _ in range(2):
            before = ends()
            assert set(before) == set(tags)
            assert {tag for tag, end in before.items() if end is None} == set(endless)
            wait_until(lambda: all(end is None or end > before[tag] for tag, end in ends().items()))  # noqa: B023
        assert store.reserve(queue, "rival", 100) == []


def all_come(url, name, consumer, start, seen, ids):
    """All other messages come, each once, when the leases of late reservations have ended."""
    with open_store(url) as store:
        for one in store.reservations(name):
            assert one.until is not None, "only what is started is held without an end"
            end_lease(store, name, one.tag)
    while (offset := consumer.next(start, 5_000)) != start:
        seen.extend(fetched(url, name, consumer.plan(start, offset)))
        start = offset
    assert sorted(seen) == sorted(ids)
    with open_store(url) as store:
        assert store.sizes(name).total == 0


def reserved(url, queue):
    """Rows by the number of their batch."""
    with open_store(url) as store:
        found = Counter()
        for one in store.reservations(queue):
            found[int(one.tag.split("/")[2].partition(".")[0])] += one.rows
        return dict(found)


def held_until(url, queue):
    """The end of each lease by batch, `None` for never."""
    with open_store(url) as store:
        return {one.tag.split("/")[2]: one.until for one in store.reservations(queue)}


def plan_next(planner, start, limit=FIRST_ROWS, prefetch=0):
    """Plan a batch and start it; return its end."""
    end = planner.next(start, limit, prefetch=prefetch)
    if end != start:
        planner.plan(start, end)
    return end
