"""The real keuss and spark_queue on one queue of keuss' buckets: many messages in one document."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from pyspark.sql import functions as F

from spark_queue import Queue, drain
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.waiting import wait_until
from tests.interop.keuss import documents, everything
from tests.moments import make_due

pytestmark = [pytest.mark.interop, pytest.mark.full]  # test_smoke.py is what `make test` runs of it

#: Messages in a bucket of the driver's keuss.
FULL = 8


def leases_end(buckets):
    buckets.store._queue_view(buckets.name).update_many(
        {"reserved": {"$exists": True}}, [{"$set": {"mature": "$reserved"}}]
    )


def test_a_message_has_the_id_that_keuss_gave_it(buckets):
    keuss, ours = buckets.keuss(), buckets.ours()
    pushed = [keuss.push(n) for n in range(3)]
    assert [one.id for one in everything(ours, 3)] == pushed


def test_headers_go_both_ways(buckets):
    keuss, ours = buckets.keuss(), buckets.ours()
    keuss.push(1, hdrs={"text": "ü/x", "int": 7, "yes": True})
    (message,) = everything(ours, 1)
    assert message.headers == {"text": "ü/x", "int": "7", "yes": "true"}
    ours.commit(message)
    ours.push_many([1, 2], headers=[{"a": "1"}, {"b": "ü"}])
    assert [keuss.pop().hdrs for _ in range(2)] == [{"a": "1"}, {"b": "ü"}]


def test_what_we_write_has_the_fields_of_keuss(buckets):
    buckets.ours().push_many([{"n": 1}, "two"])
    buckets.keuss().push({"n": 3})
    wait_until(lambda: len(documents(buckets)) == 2)
    ours, theirs = documents(buckets)
    if "__i" not in ours["b"][0]:
        ours, theirs = theirs, ours
    assert [{name: one[name] for name in one if name != "__i"} for one in ours["b"]] == [
        {"__p": {"n": 1}, "__h": {}},
        {"__p": "two", "__h": {}},
    ]
    assert ours.keys() - {"_pushed", "_seq"} == theirs.keys() == {"_id", "b", "n", "mature"}
    assert (ours["n"], theirs["n"]) == (2, 1)
    assert theirs["b"] == [{"__p": {"n": 3}, "__h": {}}]


def test_delays_go_both_ways(buckets):
    keuss, ours = buckets.keuss(), buckets.ours()
    keuss.push("theirs", delay=3600)
    wait_until(lambda: documents(buckets))
    assert ours.reserve() == []
    make_due(buckets.store, buckets.name)
    (message,) = everything(ours, 1)
    ours.commit(message)
    ours.push_many(["a", "b"], delay=3600)
    assert keuss.get() is None
    make_due(buckets.store, buckets.name)
    assert keuss.pop().payload == "a"


def test_sizes_agree(buckets):
    keuss, ours = buckets.keuss(), buckets.ours()
    ours.push_many(range(5))
    ours.push_many(range(3), delay=3600)
    held = ours.reserve(2)
    wait_until(lambda: (keuss.size(), keuss.sched_size(), keuss.resv_size(), keuss.total_size()) == (3, 3, 2, 8))
    sizes = ours.sizes()
    assert (sizes.ready, sizes.scheduled, sizes.reserved) == (3, 3, 2)
    ours.rollback(*held)
    assert (keuss.size(), keuss.resv_size()) == (5, 0)


def test_we_settle_the_messages_of_a_bucket_one_by_one(buckets):
    keuss, ours = buckets.keuss(), buckets.ours()
    for n in range(5):
        keuss.push(n)
    held = everything(ours, 5)
    assert len(documents(buckets)) == 1, "it is one bucket of keuss"
    assert ours.commit(held[0], held[3]) == 2
    assert ours.rollback(held[1]) == 1
    assert ours.dead_letter(held[4], reason="planned") == 1
    given = keuss.pop()
    assert (given.payload, given.tries) == (1, 1)
    assert keuss.get() is None, "the other is held"
    wait_until(lambda: ours.sizes().total == 1)
    assert ours.commit(held[2]) == 1
    assert documents(buckets) == []
    with Queue(buckets.url, ours.dead_name) as dead:
        (buried,) = dead.reserve()
        assert (buried.payload, buried.headers["x-error"]) == (4, "planned")


def test_what_keuss_has_done_of_a_bucket_does_not_come_to_us(buckets):
    ours = buckets.ours()
    ours.push_many(range(1, 7))
    dying = buckets.keuss()
    taken = [dying.reserve() for _ in range(4)]
    assert dying.ok(taken[0].id)
    assert dying.ok(taken[2].id)
    wait_until(lambda: ours.sizes().total == 4)
    assert ours.reserve() == [], "keuss holds the bucket as a whole"
    leases_end(buckets)
    left = everything(ours, 4)
    assert [(one.payload, one.tries) for one in left] == [(2, 1), (4, 1), (5, 1), (6, 1)]
    assert ours.commit(*left) == 4
    assert documents(buckets) == []


def test_what_keuss_commits_too_late_is_taken_out_of_our_bucket(buckets):
    ours = buckets.ours()
    ours.push_many(["a", "b", "c"])
    late = buckets.keuss()
    taken = late.reserve()
    leases_end(buckets)
    held = everything(ours, 3)
    assert late.ok(taken.id)
    wait_until(lambda: buckets.store.sizes(buckets.name).total == 2)
    assert ours.commit(*held) == 2, "who holds it learns that one is gone"
    assert documents(buckets) == []


def test_neither_gets_what_the_other_holds(buckets):
    n, seen = 240, Counter()
    keuss = buckets.keuss()
    ours = [buckets.ours(), buckets.ours()]
    lock = threading.Lock()

    def note(found):
        with lock:
            seen.update(one.payload for one in found)

    def work(queue):
        while seen.total() < n:
            some = queue.reserve(5, timeout=0.2)
            assert queue.commit(*some) == len(some)
            note(some)

    for start in range(1, n, 12):  # not 0: see above
        ours[0].push_many(list(range(start, start + 12)))
    threads = [threading.Thread(target=work, args=(one,)) for one in ours]
    for thread in threads:
        thread.start()
    while seen.total() < n:
        if found := keuss.get():
            note([found])
    for thread in threads:
        thread.join()
    assert seen == Counter(range(1, n + 1))
    wait_until(lambda: documents(buckets) == [])


def test_spark_reads_what_keuss_pushes_and_the_other_way_round(buckets, spark, tmp_path):
    keuss, out = buckets.keuss(), f"{buckets.name}.out"
    for n in range(3 * FULL):
        keuss.push({"n": n}, hdrs={"from": "keuss"})
    wait_until(lambda: buckets.store.sizes(buckets.name).total == 3 * FULL)
    messages = spark.readStream.format("queue").options(url=buckets.url, queue=buckets.name).load()
    made = messages.select(F.concat(F.lit('{"spark":'), "payload", F.lit("}")).alias("payload"), "headers")
    query = (
        made.writeStream.format("queue")
        .options(url=buckets.url, queue=out, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    drain(query, buckets.url)
    assert documents(buckets) == []
    theirs = buckets.keuss(out)
    got = [theirs.pop() for _ in range(3 * FULL)]
    assert sorted(one.payload["spark"]["n"] for one in got) == list(range(3 * FULL))
    assert {one.hdrs["from"] for one in got} == {"keuss"}


def test_rows_that_are_pushed_again_are_not_doubled(buckets):
    batch = pushes(list(range(20)))
    assert buckets.store.push(buckets.name, batch) == 20
    assert buckets.store.push(buckets.name, batch) == 0
    assert buckets.keuss().total_size() == 20
