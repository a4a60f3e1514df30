"""The real keuss and spark_queue on one queue: each reads what the other wrote, nobody gets what another holds."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

from spark_queue import Queue, replay
from spark_queue.messages.message import pushes
from spark_queue.spark import drain
from spark_queue.stores.conformance.waiting import tick, wait_until
from spark_queue.stores.services.ledger import delete_sink
from spark_queue.stores.services.replay import Replay
from tests.interop.keuss import LARGE, same
from tests.moments import end_leases, make_due

pytestmark = [pytest.mark.interop, pytest.mark.full]  # test_smoke.py is what `make test` runs of it


def moment(seconds):
    return datetime.fromtimestamp(seconds, UTC)


# --- each reads what the other wrote --------------------------------------------------------------------------------


def test_headers_of_keuss_become_text(shared):
    shared.keuss().push({"n": 1}, hdrs={"text": "ü/x", "int": 7, "yes": True, "no": False, "float": 1.5, "neg": -2})
    (message,) = shared.ours().reserve()
    assert message.headers == {
        "text": "ü/x", "int": "7", "yes": "true", "no": "false", "float": "1.5", "neg": "-2",
    }  # fmt: skip


def test_headers_of_ours_are_read_by_keuss(shared):
    headers = {"carrier": "UA", "x-note": 'ü "quoted" / \\', "empty": "", "number": "7"}
    shared.ours().push([1], headers=headers)
    assert shared.keuss().pop().hdrs == headers


def test_tries_go_both_ways(shared):
    keuss, ours = shared.keuss(), shared.ours()
    keuss.push("theirs", tries=3)
    (message,) = ours.reserve()
    assert message.tries == 3
    ours.commit(message)
    shared.store.push(shared.name, pushes(["ours"], tries=4))
    assert keuss.pop().tries == 4


@pytest.mark.needs("later")
def test_a_delay_of_keuss_holds_for_us(shared):
    keuss, ours = shared.keuss(), shared.ours()
    before = shared.store.now()
    keuss.push("later", delay=3600)
    assert ours.reserve() == []
    (scheduled,) = ours.peek()
    assert before - 1_000 < scheduled.mature.timestamp() * 1000 - 3_600_000 < shared.store.now() + 1_000
    make_due(shared.store, shared.name)
    (message,) = ours.reserve()
    assert message.payload == "later"


@pytest.mark.needs("later")
def test_a_delay_of_ours_holds_for_keuss(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push("later", delay=3600)
    assert keuss.get() is None
    assert keuss.sched_size() == 1
    make_due(shared.store, shared.name)
    assert keuss.pop().payload == "later"


@pytest.mark.needs("later")
def test_both_see_the_same_moment_of_maturity(shared):
    keuss, ours = shared.keuss(), shared.ours()
    due = int(time.time()) - 60
    keuss.push("theirs", mature=due)
    (theirs,) = ours.reserve()
    assert theirs.mature.timestamp() == due
    ours.push("ours", mature=theirs.mature)
    assert keuss.pop().mature == due * 1000


@pytest.mark.needs("later")
def test_messages_come_in_the_order_of_maturity_whoever_pushed_them(shared):
    keuss, ours = shared.keuss(), shared.ours()
    due = int(time.time()) - 60
    for n, pusher in enumerate((keuss, ours, keuss, ours)):
        if pusher is keuss:
            keuss.push(n, mature=due + n)
        else:
            shared.store.push(shared.name, pushes([n], mature=moment(due + n)))
    first, middle, last = keuss.pop(), ours.reserve(2), keuss.pop()
    assert [one.payload for one in (first, *middle, last)] == [0, 1, 2, 3]


# --- sizes ----------------------------------------------------------------------------------------------------------


def agree(shared, keuss, ours, ready, scheduled, reserved):
    """Both count the same. keuss counts what is reserved as scheduled on redis-oq."""
    sizes = ours.sizes()
    assert (sizes.ready, sizes.scheduled, sizes.reserved) == (ready, scheduled, reserved)
    assert keuss.size() == ready
    assert keuss.total_size() == sizes.total
    if shared.holds_are_counted:
        assert (keuss.sched_size(), keuss.resv_size()) == (scheduled, reserved)
    else:
        assert (keuss.sched_size(), keuss.resv_size()) == (scheduled + reserved, None)


@pytest.mark.needs("later")
def test_sizes_agree_at_each_step(shared):
    keuss, ours = shared.keuss(), shared.ours()
    agree(shared, keuss, ours, 0, 0, 0)
    keuss.push(1)
    ours.push(2)
    tick(shared.store)  # those of one millisecond have an order of their own
    keuss.push(3)
    agree(shared, keuss, ours, 3, 0, 0)
    keuss.push(4, delay=3600)
    ours.push(5, delay=3600)
    agree(shared, keuss, ours, 3, 2, 0)
    held = ours.reserve(2)
    agree(shared, keuss, ours, 1, 2, 2)
    ours.rollback(held[0], delay=3600)
    agree(shared, keuss, ours, 1, 3, 1)
    ours.commit(held[1])
    agree(shared, keuss, ours, 1, 3, 0)
    assert keuss.pop().payload == 3
    agree(shared, keuss, ours, 0, 3, 0)


@pytest.mark.needs("hold")
def test_what_keuss_holds_is_not_ready_for_us(shared):
    keuss, ours = shared.keuss(), shared.ours()
    keuss.push(1)
    assert keuss.reserve().payload == 1
    sizes = ours.sizes()
    assert (sizes.ready, sizes.total) == (0, 1)
    assert ours.reserve() == []
    assert [message.payload for message in ours.peek()] == [1]


# --- nobody gets what another holds ---------------------------------------------------------------------------------


@pytest.mark.needs("hold")
def test_keuss_does_not_get_what_we_hold(shared):
    keuss, ours = shared.keuss(), shared.ours()
    for n in range(4):
        keuss.push(n)
    held = ours.reserve(3)
    (left,) = {0, 1, 2, 3} - {message.payload for message in held}
    assert keuss.reserve().payload == left
    assert keuss.get() is None
    assert ours.commit(*held) == 3


@pytest.mark.needs("hold")
def test_our_commit_removes_a_message_for_keuss(shared):
    keuss, ours = shared.keuss(), shared.ours()
    id = keuss.push(1)
    assert ours.commit(*ours.reserve()) == 1
    assert keuss.total_size() == 0
    assert keuss.get() is None
    assert not keuss.ok(id) and not keuss.ko(id)


@pytest.mark.needs("hold")
def test_keuss_ok_removes_a_message_for_us(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push(1)
    assert keuss.ok(keuss.reserve().id)
    assert ours.sizes().total == 0
    assert ours.reserve() == [] and ours.peek() == []


@pytest.mark.needs("hold")
def test_our_rollback_gives_a_message_to_keuss_with_its_tries(shared):
    keuss, ours = shared.keuss(), shared.ours()
    keuss.push({"n": 1}, hdrs={"h": "x"})
    ours.rollback(*ours.reserve())
    ours.rollback(*ours.reserve())
    taken = keuss.reserve()
    assert (taken.payload, taken.hdrs, taken.tries) == ({"n": 1}, {"h": "x"}, 2)
    assert keuss.ok(taken.id)
    assert ours.sizes().total == 0


@pytest.mark.needs("hold")
def test_a_client_that_closes_gives_back_to_keuss_without_a_failed_try(shared):
    keuss = shared.keuss()
    keuss.push(1)
    with Queue(shared.url, shared.name) as closing:
        assert len(closing.reserve()) == 1
    assert keuss.reserve().tries == 0


@pytest.mark.needs("hold")
def test_an_ended_lease_gives_a_message_to_keuss_with_its_tries(shared):
    keuss, ours = shared.keuss(), shared.ours()
    keuss.push("a")
    assert len(ours.reserve()) == 1
    end_leases(shared.store, shared.name)
    taken = keuss.reserve()
    # keuss itself never counts an ended lease on redis-oq: there it is one of ours that does, when it next reserves
    assert (taken.payload, taken.tries) == ("a", 1 if shared.holds_are_counted else 0)
    assert keuss.ok(taken.id)
    keuss.push("b")
    assert len(ours.reserve()) == 1
    end_leases(shared.store, shared.name)
    other = shared.ours()
    (message,) = other.reserve()
    assert message.tries == 1
    assert other.rollback(message) == 1
    assert keuss.reserve().tries == 2


@pytest.mark.needs("hold")
def test_keuss_ko_gives_a_message_to_us_with_its_tries(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push({"n": 1}, headers={"h": "x"})
    for _ in range(2):
        assert keuss.ko(keuss.reserve().id)
    (message,) = ours.reserve()
    assert (message.payload, message.headers, message.tries) == ({"n": 1}, {"h": "x"}, 2)
    assert ours.commit(message) == 1
    assert keuss.total_size() == 0


@pytest.mark.needs("hold")
def test_keuss_ko_with_a_moment_delays_a_message_for_us(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push(1)
    taken = keuss.reserve()
    due = shared.store.now() + 3_600_000
    assert keuss.ko(taken.id, next_t=due)
    assert ours.reserve() == []
    (scheduled,) = ours.peek()
    assert round(scheduled.mature.timestamp() * 1000) == due
    make_due(shared.store, shared.name)
    (message,) = ours.reserve()
    assert message.id == taken.id


# --- fences ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs("hold")
def test_our_late_commit_changes_nothing_of_what_keuss_took_over(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push_many(["a", "b"])
    held = ours.reserve(2)
    end_leases(shared.store, shared.name)
    taken = keuss.reserve()
    assert ours.commit(*held) == 1, "the other one is still ours: nobody took it"
    assert keuss.total_size() == 1
    assert keuss.ok(taken.id)
    assert ours.sizes().total == 0


@pytest.mark.needs("hold")
@pytest.mark.parametrize("late", ["rollback", "dead_letter", "renew", "close"])
def test_no_late_act_of_ours_changes_what_keuss_took_over(shared, late):
    keuss = shared.keuss()
    ours = Queue(shared.url, shared.name)
    ours.push("a")
    held = ours.reserve()
    end_leases(shared.store, shared.name)
    taken = keuss.reserve()
    assert taken.id == held[0].id
    changed = ours.close() if late == "close" else getattr(ours, late)(*held)
    assert not changed
    ours.close()
    other = shared.ours()
    assert other.reserve() == [], "keuss holds it"
    assert other.sizes().total == 1 and other.sizes().dead == 0
    assert keuss.ok(taken.id)
    assert other.sizes().total == 0


@pytest.mark.needs("hold")
def test_our_late_commit_changes_nothing_of_what_keuss_gave_back(shared):
    keuss, ours = shared.keuss(), shared.ours()
    ours.push("a")
    held = ours.reserve()
    end_leases(shared.store, shared.name)
    assert keuss.ko(keuss.reserve().id)
    assert ours.commit(*held) == 0
    (message,) = shared.ours().reserve()
    assert message.payload == "a"


# --- together -------------------------------------------------------------------------------------------------------


def test_keuss_loops_and_our_clients_drain_one_queue_and_each_message_comes_once(shared):
    first, pushed = shared.keuss(), itertools.count(200)
    shared.ours().push_many([{"n": n} for n in range(200)])
    seen, lock, errors = Counter(), threading.Lock(), []
    by, ended = Counter(), threading.Event()

    def note(who, numbers):
        with lock:
            seen.update(numbers)
            by[who] += len(numbers)

    def pop(keuss, name):
        while "n" in (message := keuss.pop()).payload:
            note(name, [message.payload["n"]])

    def reserve(keuss, name):
        while "n" in (message := keuss.reserve()).payload:
            if not keuss.ok(message.id):
                errors.append(f"keuss lost {message}")
            note(name, [message.payload["n"]])
        keuss.ok(message.id)

    def client(queue, name):
        while not ended.is_set():
            batch = queue.reserve(3, timeout=0.2)
            if queue.commit(*batch) != len(batch):
                errors.append(f"we lost some of {batch}")
            note(name, [message.payload["n"] for message in batch])
            time.sleep(0.01)  # keuss is slower; it shall have its share

    work = [
        (pop, shared.keuss(), "keuss pop"),
        *([(reserve, shared.keuss(), "keuss reserve")] if "hold" in shared.can else []),
        (client, shared.ours(), "client 1"),
        (client, shared.ours(), "client 2"),
    ]
    threads = [threading.Thread(target=act, args=(who, name)) for act, who, name in work]
    for thread in threads:
        thread.start()

    def one_more():
        n = next(pushed)
        first.push({"n": n})
        return n >= 399 and set(by) == {name for *_, name in work}

    wait_until(one_more, description="that all have a share", pause=0)
    total = next(pushed)
    wait_until(lambda: seen.total() >= total, description="the last message")
    ended.set()
    for thread in threads[-2:]:
        thread.join()
    for _ in threads[:-2]:
        first.push({"end": True})
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen == Counter(range(total))
    assert first.total_size() == 0


# --- what keuss has written again -----------------------------------------------------------------------------------

#: keuss on redis-oq decodes and encodes a message when it reserves it. That damages what `cjson` cannot say (an empty
#: array, the 15th digit of a number), which is not ours to mend; all else has to come out as it was, whatever it is.
TRICKY = [
    {"path": "a/b", "text": 'back\\slash "quoted" {brace] \u2028 é 航', "n": 12, "f": 0.5, "list": [1, {"b": None}]},
    {"tries": 9, "hdrs": {"x": 1}, "mature": 5, "reserved": True, "_id": "no", "type": "buffer", "payload": [1]},
    '","tries":7,"hdrs":{},"mature":1,"reserved":true}',
    "a/b\n\t\x01",
    [[[1]], {"": ""}],
    -5,
    0.25,
    True,
    b"\x00/\xff",
]


@pytest.mark.needs("hold")
def test_a_message_that_keuss_reserved_and_gave_back_keeps_when_it_was_pushed(shared):
    keuss, ours = shared.keuss(), shared.ours()
    id = ours.push({"n": 1})
    (before,) = ours.peek()
    assert before.pushed == before.mature
    held = keuss.reserve()
    assert held.id == id and held.payload == {"n": 1}
    assert keuss.ko(held.id)
    assert [one.pushed for one in ours.peek()] == [before.pushed]
    theirs = keuss.push({"n": 2})
    assert {one.id: one.pushed for one in ours.peek()} == {id: before.pushed, theirs: None}
    assert sorted(keuss.pop().payload["n"] for _ in range(2)) == [1, 2]


@pytest.mark.needs("hold")
def test_a_message_that_keuss_reserved_and_gave_back_is_read_as_it_was(shared):
    keuss, ours = shared.keuss(), shared.ours()
    headers = {"h": 'x/"y"', "z": "\\"}
    expected = dict(zip(ours.push_many(TRICKY, headers=headers), TRICKY, strict=True))
    expected |= {keuss.push(payload, hdrs=headers): payload for payload in TRICKY}
    held = [keuss.reserve() for _ in expected]
    assert {one.id for one in held} == expected.keys()
    for one in held:
        assert keuss.ko(one.id)
    peeked = {message.id: message for message in ours.peek(100)}
    for message in ours.reserve(100):
        payload = expected.pop(message.id)
        assert same(message.payload, payload)
        assert (message.headers, message.tries) == (headers, 1)
        assert peeked[message.id] == message
        ours.rollback(message, delay=0)
    assert expected == {}
    for message in ours.reserve(100):
        assert same(message.payload, peeked[message.id].payload), "also after we gave it back"
        assert (message.headers, message.tries) == (headers, 2)
        ours.dead_letter(message, reason="planned")
    with Queue(shared.url, ours.dead_name) as dead:
        buried = dead.reserve(100)
        assert {message.id for message in buried} == peeked.keys()
        for message in buried:
            assert same(message.payload, peeked[message.id].payload), "and in the dead-letter queue"
            assert message.headers.items() >= headers.items()
            assert (message.headers["x-dl-from-queue"], message.headers["x-dl-tries"]) == (shared.name, "3")


@pytest.mark.needs("hold")
def test_a_message_whose_keuss_died_comes_to_us_when_its_lease_ends(shared):
    """keuss counts its lease of two minutes on redis-oq from the maturity: an old message is free again at once."""
    ours = shared.ours()
    old = int(time.time()) - 3600
    with Queue(shared.url, shared.name) as pushing:
        pushing.push({"n": 1}, mature=moment(old))
    dying = shared.keuss()  # and alive enough to come late
    assert dying.reserve().payload == {"n": 1}
    if shared.holds_are_counted:  # there two minutes have to pass: let them
        shared.store._queue_view(shared.name).update_many({}, [{"$set": {"mature": "$reserved"}}])
    (message,) = ours.reserve(timeout=60)
    assert (message.payload, message.tries) == ({"n": 1}, 1 if shared.holds_are_counted else 0)
    if shared.backend == "redis-oq":  # on mongo keuss removes whatever is reserved, by whomever
        assert not dying.ok(message.id), "it comes too late"
    assert ours.commit(message) == 1
    assert shared.store.sizes(shared.name).total == 0


# --- Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("later", "id")
def test_spark_reads_what_keuss_pushed_and_keuss_what_spark_wrote(shared, spark, tmp_path):
    keuss, answers = shared.keuss(), f"{shared.name}.answers"
    sent = [{"n": 1}, [1, "two"], "text", 7, -2.5, LARGE, {"deep": {"list": [None, True]}}]
    ids = {keuss.push(payload, hdrs={"from": "keuss", "n": 7}): payload for payload in sent}
    binary = keuss.push(b"\x00\xff")
    keuss.push("later", delay=3600)
    rows = []

    def answer(df, batch_id):
        rows.extend(df.collect())
        reply = F.concat(F.lit('{"of":"'), "id", F.lit('"}')).alias("payload")
        (
            df.select(reply, F.create_map(F.lit("tries"), F.col("tries").cast("string")).alias("headers"))
            .write.format("queue").mode("append").options(url=shared.url, queue=answers).save()
        )  # fmt: skip

    query = (
        spark.readStream.format("queue").options(url=shared.url, queue=shared.name).load()
        .writeStream.foreachBatch(answer).option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    drain(query, shared.url)
    got = {row.id: row for row in rows}
    assert got.keys() == {*ids, binary} and len(rows) == len(sent) + 1
    for id, payload in ids.items():
        assert same(json.loads(got[id].payload), payload)
        assert (got[id].headers, got[id].tries) == ({"from": "keuss", "n": "7"}, 0)
    assert json.loads(got[binary].payload) == {"$binary": {"base64": "AP8=", "subType": "00"}}
    assert (keuss.size(), keuss.total_size()) == (0, 1), "Spark committed all but the scheduled one"

    listening = shared.keuss(answers)
    answered = {}
    for message in (listening.pop() for _ in got):
        answered[message.payload["of"]] = message.hdrs
    assert listening.total_size() == 0
    assert answered == {id: {"tries": "0"} for id in got}


# --- history --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", ["ps-mongo"], indirect=True)
def test_both_have_one_history(shared):
    keuss, ours = shared.keuss(), shared.ours(consumer="etl")
    ids = [keuss.push({"n": n}) for n in range(5)]
    assert keuss.remove(ids[0])
    assert keuss.pop().payload == {"n": 1}
    assert keuss.ok(keuss.reserve().id)
    three, four = ours.reserve(2)
    ours.commit(three)
    ours.dead_letter(four, reason="hopeless")
    rows = [row for batch in shared.store.peek(shared.name, view="history") for row in batch.to_pylist()]
    told = {row["payload"].decode(): (row["outcome"], row["consumer"], row["tries"]) for row in rows}
    assert told == {
        '{"n":0}': ("remove", None, 0),
        '{"n":1}': ("pop", None, 0),
        '{"n":2}': ("pop", None, 1),  # keuss counts a try when it reserves
        '{"n":3}': ("commit", "etl", 0),
        '{"n":4}': ("dead", "etl", 1),
    }
    assert all(row["mature"] <= row["processed"] for row in rows)
    assert keuss.total_size() == keuss.size() == 0 and keuss.get() is None
    assert replay(shared.url, shared.name, "again") == 3
    delete_sink(shared.store, Replay(shared.name, "again", shared.name, None, "").sink)
    assert sorted(keuss.pop().payload["n"] for _ in range(3)) == [1, 2, 3]
