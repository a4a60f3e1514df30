"""Queues that rfq's own client shares, byte for byte."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from spark_queue import Buckets, MessageError, OptionError, Queue, open_store, set_layout
from spark_queue.messages.message import pushes
from spark_queue.options.url import StoreUrl
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.redis.lists import published_at
from tests.moments import end_leases, make_due

pytestmark = [pytest.mark.interop, pytest.mark.full]  # test_smoke.py is what `make test` runs of it

HALF_AN_HOUR = 1_800_000  #: ms

MESSAGES = [
    {"tile": "T32UNE", "v": "1"},
    {"ünï": "cødé 🛫 \u2028", "quote": '"\\/', "empty": ""},
    {"z": "1", "a": "x" * 200},
]

# --- byte for byte --------------------------------------------------------------------------------


def test_redis_has_the_same_after_each_step_of_rfq_and_of_ours(topic, rfq):
    """Every step of a topic's life, once by rfq and once by us: the contents differ in nothing but the ids."""
    store, name = topic.store, topic.name

    def by_rfq():
        for message in MESSAGES:
            rfq.publish(name, message)
        yield topic.contents()
        rfq.publish_batch(name, [{"f": "1"}, {"f": "2"}], front=True)
        yield topic.contents()
        taken = [rfq.consume(name).id for _ in range(3)]
        yield topic.contents()
        rfq.done(taken[1])
        yield topic.contents()
        rfq.harvest(name)
        yield topic.contents()
        for _ in range(4):
            rfq.done(rfq.consume(name).id)
        yield topic.contents()

    def by_us():
        ours = topic.ours()
        ours.push(MESSAGES[0])
        ours.push_many(MESSAGES[1:])
        yield topic.contents()
        with open_store(StoreUrl.parse(store.url).with_parameters(front="true")) as front:
            front.push(name, identified(store, [{"f": "1"}, {"f": "2"}]))
        yield topic.contents()
        assert store.reserve(name, "c/1", 3) == [3]
        yield without_ours(topic.contents())
        ids = [id for page in store.fetch(name, "c/1/0") for id in page.column("id").to_pylist()]
        store.commit(name, "c/1", [ids[1]])
        yield without_ours(topic.contents())
        store.harvest(name)
        yield without_ours(topic.contents())
        store.commit(name, "c/1")  # late, but a client that is done removes it
        store.reserve(name, "c/2", 9)
        store.commit(name, "c/2")
        yield without_ours(topic.contents())

    theirs, mine = list(by_rfq()), list(by_us())
    for step, (one, other) in enumerate(zip(theirs, mine, strict=True)):
        assert one == other, f"step {step}"
    assert set(theirs[-1]) == {"keys", f"rfq:{name}:backlog".encode(), f"rfq:{name}:nextlog".encode()}
    assert not any(theirs[-1].values())


def without_ours(contents):
    """The same without the keys that we keep beside a topic while we hold something of it."""
    return contents | {"keys": [key for key in contents["keys"] if not key.startswith(b"spark_queue.rfq:")]}


def identified(store, payloads, **columns):
    """A batch with ids as the layout has them."""
    batch = pushes(payloads, **columns)
    place = batch.schema.get_field_index("id")
    return batch.set_column(place, "id", store.native_ids(batch.column("id")))


def test_nothing_of_ours_is_left_when_nothing_is_held_or_scheduled(topic):
    ours = topic.ours()
    ours.push_many([{"n": n} for n in range(3)])
    ours.commit(*ours.reserve(1))
    ours.rollback(*ours.reserve(1))
    keys = {key for key in topic.redis.scan_iter(match=f"*{topic.name}*", count=10_000) if ":message:" not in key}
    assert keys == {f"rfq:{topic.name}:backlog", f"spark_queue.rfq:{topic.name}:more"}, "one has failed once"
    ours.commit(*ours.reserve(2))
    assert topic.contents()["keys"] == []


# --- rfq's own tests ------------------------------------------------------------------------------


def test_1_a_publish_makes_an_id_of_its_form_a_hash_and_a_backlog(topic, rfq):
    for id in (rfq.publish(topic.name, MESSAGES[0]), topic.ours().push(MESSAGES[0])):
        assert len(id) == 32
        found = uuid.UUID(hex=id)
        assert (found.version, found.variant) == (1, uuid.RFC_4122)
        assert found.node >> 40 & 1, "a random node, not that of a network card"
        assert topic.message(id) == MESSAGES[0]
        assert id in topic.backlog()
    assert topic.redis.exists(f"rfq:{topic.name}:nextlog") == 0


def test_1_ids_that_are_made_at_once_differ_and_ascend(topic):
    ids = topic.ours().push_many([{"n": n} for n in range(1_000)])
    assert len(set(ids)) == 1_000
    assert [uuid.UUID(hex=id).time for id in ids] == sorted(uuid.UUID(hex=id).time for id in ids)
    assert topic.backlog() == ids[::-1]


def test_2_a_batch_of_ours_has_the_order_of_the_backlog(topic, rfq):
    rfq.publish_batch(topic.name, [{"n": str(n)} for n in range(100)])
    rfq.publish_batch(topic.name, [{"n": f"f{n}"} for n in range(100)], front=True)
    rfq.publish(topic.name, {"n": "first"}, front=True)
    order = topic.backlog()[::-1]
    assert [one.id for one in topic.ours().reserve(500)] == order


def test_3_a_front_comes_before_what_waits(topic, rfq):
    front = topic.opened("&front=true")
    rfq.publish(topic.name, {"n": "old"})
    front.push(topic.name, identified(front, [{"n": "f1"}]))
    rfq.publish(topic.name, {"n": "f2"}, front=True)
    front.push(topic.name, identified(front, [{"n": "f3"}]))
    assert rfq.consume(topic.name).message == {"n": "f3"}
    assert [one.payload["n"] for one in topic.ours().reserve(9)] == ["f2", "f1", "old"]


@pytest.mark.parametrize("act", ["push", "publish"])
def test_4_a_front_batch_keeps_its_order_however_large(topic, act):
    front, n = topic.opened("&front=true"), 12_000
    topic.store.push(topic.name, identified(topic.store, [{"n": "old"}]))
    batch = identified(front, [{"n": i} for i in range(n)])
    if act == "push":
        assert front.push(topic.name, batch) == n
    else:
        front.stage(topic.name, f"{topic.name}/0/a", batch)
        assert front.publish([f"{topic.name}/0/a"]) == n
    ids = batch.column("id").to_pylist()
    assert topic.backlog()[::-1][:n] == ids
    assert topic.ours().reserve(1)[0].id == ids[0]


def test_4_a_batch_is_published_whole_or_not_at_all(topic, rfq):
    ours = topic.ours()
    with pytest.raises(MessageError, match="'b'") as caught:
        ours.push_many([{"a": "1"}, {"b": None}, {"c": "3"}])
    assert list(caught.value.rows) == [1]
    assert rfq.topics().count(topic.name) == 0 and rfq.info(topic.name) == (0, 0)
    assert ours.push_many([]) == []
    ids = ours.push_many([{"n": "1"}, {"n": "2"}])
    assert [topic.message(id)["n"] for id in ids] == ["1", "2"], "ids in the order of the messages"
    assert [rfq.consume(topic.name).id for _ in ids] == ids


@pytest.mark.parametrize("language", ["python", "js"])
def test_5_what_is_taken_and_not_done_stays_in_the_nextlog(topic, language):
    rfq, ours = topic.rfq(language), topic.ours()
    ids = ours.push_many([{"n": "1"}, {"n": "2"}])
    assert rfq.consume(topic.name).id == ids[0]
    (held,) = ours.reserve(1)
    assert held.id == ids[1]
    assert (topic.backlog(), topic.nextlog()) == ([], ids[::-1])
    assert rfq.cancel(ids[0]) == ids[0]
    assert topic.nextlog() == ids[::-1]
    assert all(topic.message(id) for id in ids)
    sizes = ours.sizes()
    assert (sizes.ready, sizes.reserved) == (0, 2), "whichever client holds it"
    assert sorted(one.id for one in ours.peek(9)) == sorted(ids)


@pytest.mark.parametrize("language", ["python", "js"])
def test_6_what_is_done_is_gone_with_its_topic_and_may_be_done_again(topic, language):
    rfq, ours = topic.rfq(language), topic.ours()
    ours.push_many([{"n": "1"}, {"n": "2"}])
    task, (held,) = rfq.consume(topic.name), ours.reserve(1)
    assert topic.name in topic.store.topics()
    assert rfq.done(task.id) == task.id == rfq.done(task.id)
    assert ours.commit(held) == 1
    assert ours.commit(held) == 0
    assert topic.contents()["keys"] == [] and topic.message(held.id) == {}
    assert topic.name not in topic.store.topics()


@pytest.mark.parametrize("language", ["python", "js"])
def test_7_what_a_killed_worker_had_comes_back_by_a_harvest(topic, language):
    ours, victim = topic.ours(), topic.rfq(language)
    id = ours.push({"n": "1"})
    assert victim.consume(topic.name).id == id
    victim.kill()
    assert ours.reserve() == [] and topic.nextlog() == [id]
    assert topic.store.harvest(topic.name) == [id]
    assert (topic.backlog(), topic.nextlog()) == ([id], [])
    assert [one.id for one in ours.reserve()] == [id]


def test_8_a_harvest_puts_behind_what_waits_what_was_taken_first_before_the_rest(topic, rfq):
    store = topic.store
    assert store.harvest(topic.name) == [] == store.harvest(topic.name, 0)
    taken = rfq.publish_batch(topic.name, [{"n": f"f{n}"} for n in range(3)])
    for _ in taken:
        rfq.consume(topic.name)
    waiting = rfq.publish_batch(topic.name, [{"n": str(n)} for n in range(3)])
    assert store.harvest(topic.name) == taken
    assert topic.backlog()[::-1] == waiting + taken
    for _ in range(6):
        rfq.consume(topic.name)
    assert store.harvest(topic.name, 0) == waiting + taken
    assert topic.backlog()[::-1] == waiting + taken


def test_8_a_large_harvest(topic, rfq):
    ids = topic.ours().push_many([{"n": n} for n in range(12_000)])
    pipe = topic.redis.pipeline()
    for _ in ids:
        pipe.rpoplpush(f"rfq:{topic.name}:backlog", f"rfq:{topic.name}:nextlog")
    pipe.execute()
    assert topic.store.harvest(topic.name) == ids
    assert topic.backlog()[::-1] == ids


def test_8_a_harvest_by_age_leaves_what_is_young_and_what_we_hold(topic, rfq):
    store = topic.store
    old = uuid1_at(time.time() - 3600)
    topic.redis.hset(f"rfq:{topic.name}:message:{old}", mapping={"n": "old"})
    topic.redis.lpush(f"rfq:{topic.name}:backlog", old, "strange")
    topic.redis.hset(f"rfq:{topic.name}:message:strange", mapping={"n": "its id tells no moment"})
    young = rfq.publish(topic.name, {"n": "young"})
    assert {rfq.consume(topic.name).id for _ in range(3)} == {old, "strange", young}
    assert store.harvest(topic.name, 7_200_000) == []
    assert store.harvest(topic.name, HALF_AN_HOUR) == [old]
    assert store.reserve(topic.name, "c/1", 9, lease=HALF_AN_HOUR) == [1]
    assert store.harvest(topic.name, HALF_AN_HOUR) == [], "a lease of ours lasts"
    end_lease(store, topic.name, "c/1")
    assert store.harvest(topic.name, HALF_AN_HOUR) == [old], "and now it does not"
    assert topic.backlog() == [old]
    with pytest.raises(OptionError, match="-1"):
        store.harvest(topic.name, -1)


def uuid1_at(seconds):
    ticks = int(seconds * 10**7) + 0x01B21DD213814000
    return f"{ticks & 0xFFFFFFFF:08x}{ticks >> 32 & 0xFFFF:04x}1{ticks >> 48:03x}8000010000000001"


@pytest.mark.parametrize("language", ["python", "js"])
def test_9_a_late_done_removes_what_was_put_back(topic, language):
    rfq, ours = topic.rfq(language), topic.ours()
    ours.push_many([{"n": "1"}, {"n": "2"}])
    task, (held,) = rfq.consume(topic.name), ours.reserve(1)
    assert topic.store.harvest(topic.name) == [task.id, held.id]
    rfq.done(task.id)
    assert topic.backlog() == [held.id]
    assert ours.commit(held) == 1
    assert topic.contents()["keys"] == []


def test_10_after_a_harvest_two_have_it_and_both_may_be_done(topic, rfq):
    ours = topic.ours()
    id = rfq.publish(topic.name, {"n": "1"})
    rfq.consume(topic.name)
    topic.store.harvest(topic.name)
    (held,) = ours.reserve()
    assert (held.id, held.payload) == (id, {"n": "1"})
    rfq.done(id)
    assert ours.commit(held) == 1
    assert topic.contents()["keys"] == []


def test_11_a_harvest_beside_a_consumer_ends(topic, rfq):
    """Also: what is done meanwhile is done once, and nothing is left of it."""
    ids = topic.ours().push_many([{"n": n} for n in range(300)])
    done, stop = [], threading.Event()

    def work():
        for _ in ids:
            done.append(rfq.done(rfq.consume(topic.name).id))

    def harvest():
        while not stop.is_set():
            topic.store.harvest(topic.name)

    threads = [threading.Thread(target=work), threading.Thread(target=harvest)]
    threads[1].start()
    threads[0].start()
    wait_until(lambda: len(set(done)) == 300 or not threads[0].is_alive())
    stop.set()
    threads[1].join(60)
    assert not threads[1].is_alive()
    if threads[0].is_alive():  # it got one twice, and waits for one that will not come
        topic.ours().push({"n": "end"})
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert set(ids) <= set(done)


def test_12_a_purge_is_of_one_list_and_removes_the_messages(topic, rfq):
    store = topic.store
    ids = rfq.publish_batch(topic.name, [{"n": str(n)} for n in range(4)])
    rfq.consume(topic.name)
    store.reserve(topic.name, "c/1", 1)
    assert store.purge_list(topic.name, "backlog") == ids[2:], "oldest first"
    assert topic.nextlog() == ids[1::-1] and topic.backlog() == []
    assert [bool(topic.message(id)) for id in ids] == [True, True, False, False]
    assert store.purge_list(topic.name, "nextlog") == ids[:2]
    assert store.purge_list(topic.name, "nextlog") == []
    assert store.commit(topic.name, "c/1") == 0
    assert topic.contents()["keys"] == []
    with pytest.raises(OptionError, match="backlog or nextlog"):
        store.purge_list(topic.name, "outlog")
    with pytest.raises(OptionError, match="backlog or nextlog"):
        store.listq(topic.name, "outlog")


def test_12_a_purge_by_rfq_ends_what_we_hold_or_had(topic, rfq):
    store = topic.store
    rfq.publish_batch(topic.name, [{"n": str(n)} for n in range(3)])
    store.reserve(topic.name, "c/1", 1, lease=60_000)
    end_lease(store, topic.name, "c/1")
    assert len(rfq.purge(topic.name, "nextlog")) == 1
    assert len(rfq.purge(topic.name, "backlog")) == 2
    assert store.reserve(topic.name, "c/2", 9) == []
    assert store.sizes(topic.name).total == 0
    assert topic.contents()["keys"] == []


def test_13_info_and_topics_agree(topic, rfq):
    other = f"{topic.name}.only-next"
    rfq.publish_batch(topic.name, [{"n": str(n)} for n in range(3)])
    rfq.publish(other, {"n": "1"})
    rfq.consume(topic.name)
    topic.store.reserve(other, "c/1", 1)
    sizes = topic.store.sizes(topic.name)
    assert rfq.info(topic.name) == (2, 1) == (sizes.ready, sizes.reserved)
    assert rfq.info(other) == (0, 1)
    for topics in (rfq.topics(), topic.store.topics(), topic.store.queues()):
        assert topics.count(topic.name) == topics.count(other) == 1
    topic.store.drop(other)


def test_14_a_peek_takes_nothing(topic, rfq):
    ours = topic.ours()
    id = ours.push(MESSAGES[1])
    assert rfq.peek(topic.name, id) == MESSAGES[1]
    assert [(one.id, one.payload) for one in ours.peek()] == [(id, MESSAGES[1])]
    assert rfq.info(topic.name) == (1, 0)


@pytest.mark.parametrize("language", ["python", "js"])
def test_15_strings_survive_in_both_directions(topic, language):
    rfq, ours = topic.rfq(language), topic.ours()
    many = {f"field {n}": f"ü{n}" for n in range(300)}
    for message in [*MESSAGES, {"": "", "a\nb\u0000": "\t\r\n\u0000"}, many]:
        rfq.publish(topic.name, message)
        (got,) = ours.reserve()
        assert got.payload == message and got.headers == {}
        ours.commit(got)
        ours.push(message)
        assert rfq.consume(topic.name).message == message


def test_15_numbers_become_text_and_nothing_else_is_taken(topic, rfq):
    ours = topic.ours()
    numbers = {"int": 1, "float": 1.5, "neg": -2, "large": 2**53 + 1, "huge": 10**25, "small": 1e-7}
    rfq.publish(topic.name, numbers)
    ours.push(numbers)
    first, second = rfq.consume(topic.name).message, rfq.consume(topic.name).message
    assert first == second == {name: str(value) for name, value in numbers.items()}
    for payload in topic.store.unsupported_payloads:
        with pytest.raises(MessageError, match="rfq"):
            ours.push(payload)
    assert rfq.info(topic.name) == (0, 2)


@pytest.mark.parametrize("language", ["python", "js"])
def test_16_a_waiting_worker_wakes_when_we_push(topic, language):
    rfq = topic.rfq(language)
    before = topic.sleepers()
    rfq.send("consume", topic=topic.name)
    wait_until(lambda: topic.sleepers() - before, description="a worker that waits")
    id = topic.ours().push({"n": "1"})
    assert rfq.consumed().id == id


def test_16_we_wake_when_rfq_publishes(topic, rfq):
    ours = topic.ours()
    waiting = threading.Timer(0.2, rfq.publish, (topic.name, {"n": "1"}))
    waiting.start()
    assert len(ours.reserve(timeout=60)) == 1
    waiting.join()


def test_17_an_id_has_the_time_of_its_push(topic, rfq):
    ours = topic.ours()
    now = datetime.now(UTC)
    id = ours.push({"n": "1"})
    assert rfq.consume(topic.name).id == id
    assert abs(datetime.fromisoformat(rfq.published(id)) - now) < timedelta(seconds=30)
    id = rfq.publish(topic.name, {"n": "2"})
    (got,) = ours.reserve()
    assert abs(got.mature - datetime.now(UTC)) < timedelta(seconds=30)
    assert got.mature.timestamp() * 1000 == pytest.approx(published_at(id), abs=1)
    assert published_at("no id") is None and published_at(uuid.uuid4().hex) is None


def test_18_an_id_whose_message_is_gone_is_skipped_and_counted(topic, rfq):
    ours = topic.ours()
    ids = rfq.publish_batch(topic.name, [{"n": str(n)} for n in range(5)])
    topic.redis.delete(*(f"rfq:{topic.name}:message:{id}" for id in (ids[0], ids[3])))
    topic.redis.delete(f"rfq:{topic.name}:message:{ids[1]}")
    topic.redis.set(f"rfq:{topic.name}:message:{ids[1]}", "what is no message")
    assert [one.id for one in ours.peek(9)] == [ids[2], ids[4]]
    assert [one.id for one in ours.reserve(9)] == [ids[2], ids[4]]
    assert topic.store.lost(topic.name) == 3
    assert topic.backlog() == [] and topic.nextlog() == [ids[4], ids[2]]
    topic.redis.delete(f"rfq:{topic.name}:message:{ids[1]}")


def test_19_what_js_rejects_comes_back_by_a_harvest_and_either_count_commits(topic, rfq):
    js, ours = topic.rfq("js"), topic.ours()
    id = js.publish(topic.name, {"n": "1"})
    assert js.consume(topic.name).id == id
    js.cancel(id)
    assert topic.store.harvest(topic.name) == [id]
    (held,) = ours.reserve()
    rfq.harvest(topic.name)
    assert js.consume(topic.name).id == id
    js.done(id)
    assert ours.commit(held) == 1
    assert topic.contents()["keys"] == []


# --- what rfq gets wrong, and what it cannot do ---------------------------------------------------


def test_what_another_rfq_harvests_of_ours_no_second_of_ours_gets(topic, rfq):
    ours, other = topic.ours(), topic.ours()
    ours.push_many([{"n": "1"}, {"n": "2"}])
    held = ours.reserve(2)
    assert sorted(rfq.harvest(topic.name)) == sorted(one.id for one in held)
    assert other.reserve(9) == []
    assert sorted(topic.nextlog()) == sorted(one.id for one in held) and topic.backlog() == []
    assert ours.commit(*held) == 2
    assert topic.contents()["keys"] == []


def test_a_message_of_ours_that_rfq_has_finished_does_not_come_again(topic, rfq):
    ours = topic.ours()
    id = ours.push({"n": "1"})
    assert len(ours.reserve()) == 1
    end_leases(topic.store, topic.name)
    rfq.harvest(topic.name)
    assert rfq.consume(topic.name).id == id
    rfq.done(id)
    assert topic.ours().reserve() == []
    assert topic.contents()["keys"] == []


def test_front_ids_come_in_the_order_of_the_messages(topic):
    """rfq of Python gives them reversed."""
    with Queue(f"{topic.url}&front=true", topic.name) as front:
        ids = front.push_many([{"n": "1"}, {"n": "2"}])
    assert [topic.message(id)["n"] for id in ids] == ["1", "2"]


def test_an_id_is_never_read_as_something_else(topic, rfq):
    """A client of rfq that does not decode makes keys of `b'…'`, and loses messages."""
    ours = topic.ours()
    rfq.publish(topic.name, {"n": "1"})
    ours.commit(*ours.reserve())
    topic.store.push(topic.name, pushes([{"n": "2"}], ids=["ü / : *"]))
    assert rfq.consume(topic.name) == ("ü / : *", {"n": "2"})
    assert list(topic.redis.scan_iter(match=f"*{topic.name}*b'*", count=10_000)) == []


def test_headers_tries_and_moments_stay_with_a_message_between_ours(topic, rfq):
    ours, store = topic.ours(), topic.store
    due = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    store.push(topic.name, identified(store, [{"n": "1"}], headers={"h": 'ü"'}, tries=2, mature=due))
    for again in (False, True):
        (got,) = ours.reserve()
        assert (got.headers, got.tries, got.payload) == ({"h": 'ü"'}, 2 + again, {"n": "1"})
        assert again or got.mature == due
        (seen,) = ours.peek()
        assert seen == got
        ours.rollback(got)
    task = rfq.consume(topic.name)
    assert task.message == {"n": "1"}
    rfq.done(task.id)


def test_what_is_scheduled_rfq_gets_when_it_is_due_and_we_push_next(topic, rfq):
    ours = topic.ours()
    later = ours.push({"n": "later"}, delay=3600)
    assert rfq.info(topic.name) == (0, 0) and ours.sizes().scheduled == 1
    assert rfq.peek(topic.name, later) == {"n": "later"}
    make_due(topic.store, topic.name)
    now = ours.push({"n": "now"})
    assert [rfq.consume(topic.name).id for _ in range(2)] == [later, now]


def test_a_delayed_rollback_leaves_the_nextlog(topic, rfq):
    ours = topic.ours()
    ours.push({"n": "1"})
    (held,) = ours.reserve()
    ours.rollback(held, delay=60)
    assert rfq.info(topic.name) == (0, 0) and ours.sizes().scheduled == 1
    assert rfq.harvest(topic.name) == []


def test_a_dead_letter_is_a_message_of_rfq_in_another_topic(topic, rfq):
    ours = topic.ours()
    id = ours.push({"n": "1"})
    ours.dead_letter(*ours.reserve(), reason="planned")
    assert topic.message(id) == {} and topic.nextlog() == []
    assert rfq.peek(ours.dead_name, id) == {"n": "1"}
    (dead,) = topic.store.peek(ours.dead_name)
    assert dict(dead.column("headers")[0].as_py())["x-error"] == "planned"
    assert rfq.consume(ours.dead_name) == (id, {"n": "1"})


def test_what_is_remembered_of_messages_that_rfq_took_does_not_pile_up(topic, rfq):
    store, more = topic.store, f"spark_queue.rfq:{topic.name}:more"
    sizes = []
    for _ in range(40):
        store.push(topic.name, identified(store, [{"n": "1"}] * 5, headers={"h": "x"}))
        for _ in range(5):
            assert rfq.done(rfq.consume(topic.name).id)
        sizes.append(topic.redis.hlen(more))
    assert max(sizes) < 30, "of 200"
    assert store.reserve(topic.name, "c/1", 1) == []
    assert topic.redis.exists(more) == 0


def test_a_message_that_is_waiting_is_not_published_again(topic):
    batch = identified(topic.store, [{"n": "1"}, {"n": "2"}])
    assert topic.store.push(topic.name, batch) == 2
    assert topic.store.push(topic.name, batch) == 0
    assert len(topic.backlog()) == 2


@pytest.mark.parametrize("layout", ["rfq", "redis-list"])
def test_there_are_no_buckets(redis_url, layout):
    url, queue = f"{redis_url}?layout={layout}", f"t{uuid.uuid4().hex}"
    with open_store(url) as store:
        with pytest.raises(OptionError, match=rf"{layout} has no buckets"):
            set_layout(url, queue, Buckets())
        with Queue(url, queue) as ours, pytest.raises(OptionError, match=rf"{layout} has no buckets"):
            ours.compact()
        with pytest.raises(OptionError, match=rf"{layout} has no buckets"):
            store.push(queue, pushes([{"n": "1"}] * 3), layout=Buckets())
        assert queue not in store.queues()


@pytest.mark.parametrize("url", ["?layout=rfq&front=maybe", "?layout=redis-list&front=true", "?front=true"])
def test_a_front_that_cannot_be_is_refused(redis_url, url):
    with pytest.raises(OptionError, match="front"):
        open_store(f"{redis_url}{url}")
