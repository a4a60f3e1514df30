"""A queue of MongoDB that keuss and other programs share."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spark_queue.errors import OptionError
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.conformance.waiting import MINUTE_MS, end_lease
from spark_queue.stores.types import Condition, DeadLetterInfo, Sizes
from tests.stores.mongodb.programs import DUE, keuss_ko, keuss_now, keuss_ok, keuss_push, keuss_reserve, without_place


def expire(store, collection, tag):
    """End the lease of a tag, without the wait."""
    end_lease(store, collection.name, tag)


def test_a_message_that_keuss_reserves_anew_is_lost_to_the_tag(store, queue, collection):
    store.push(queue, pushes(["a"]))
    store.reserve(queue, "c/1", 1)
    assert keuss_reserve(collection) is None
    expire(store, collection, "c/1")
    assert len(messages_of(store.fetch(queue, "c/1/0"))) == 1
    taken = keuss_reserve(collection)
    assert taken["tries"] == 1  # the lease that ended
    assert list(store.fetch(queue, "c/1/0")) == []
    assert [store.commit(queue, "c/1"), store.rollback(queue, "c/1"), store.renew(queue, "c/1", 1)] == [0, 0, 0]
    assert store.move(queue, f"{queue}.dead", tag="c/1") == 0
    assert store.reservations(queue) == []
    assert store.sizes(queue) == Sizes(0, 0, 1)
    assert keuss_ok(collection, taken["_id"]) == 1


def test_a_message_that_keuss_gave_back_is_lost_to_the_tag(store, queue, collection):
    store.push(queue, pushes(["a"]))
    store.reserve(queue, "c/1", 1)
    (held,) = collection.find()
    assert keuss_ko(collection, held["_id"]) == 1
    assert list(store.fetch(queue, "c/1/0")) == []
    assert store.commit(queue, "c/1") == 0
    assert store.sizes(queue).ready == 1
    assert store.reserve(queue, "c/2", 1) == [1]
    assert [one.tries for one in messages_of(store.fetch(queue, "c/2/0"))] == [1]
    assert store.commit(queue, "c/1") == 0
    assert store.commit(queue, "c/2") == 1


def test_what_keuss_holds_is_left_alone_and_counted(store, queue, collection):
    id = keuss_push(collection, "a")
    assert keuss_reserve(collection)["_id"] == id
    assert store.reserve(queue, "c/1", 1) == []
    assert store.purge(queue) == 0
    assert store.sizes(queue) == Sizes(0, 0, 1)
    assert [one.tries for one in messages_of(store.peek(queue))] == [0]
    assert ids_of(store.peek(queue, [Condition("tries", "=", 0)], limit=5)) == [str(id)]
    collection.update_one({"_id": id}, {"$set": {"mature": keuss_now()}})  # its lease ends
    assert store.reserve(queue, "c/1", 1) == [1]
    assert [one.tries for one in messages_of(store.fetch(queue, "c/1/0"))] == [1]


def test_keuss_takes_what_we_push_and_what_we_give_back(store, queue, collection):
    store.push(queue, pushes([{"n": 1}]))
    store.reserve(queue, "c/1", 1)
    store.rollback(queue, "c/1")
    taken = keuss_reserve(collection)
    assert (taken["payload"], taken["tries"]) == ({"n": 1}, 1)
    assert keuss_ok(collection, taken["_id"]) == 1


def test_an_ended_lease_keeps_when_a_message_was_due(store, queue, collection):
    store.push(queue, pushes(["a"], mature=DUE))
    store.reserve(queue, "c/1", 1)
    expire(store, collection, "c/1")
    store.reserve(queue, "c/2", 1)
    assert [one.mature for one in messages_of(store.fetch(queue, "c/2/0"))] == [DUE]


def test_history_is_that_of_keuss(store, queue, collection):
    store.push(queue, pushes(["ours"], mature=DUE))
    collection.create_index("processed", expireAfterSeconds=3600)  # made by keuss; the lifetimes must not conflict
    store.reserve(queue, "c/1", 1)
    before = store.now()
    assert store.commit(queue, "c/1", history=MINUTE_MS) == 1
    document = without_place(collection.find_one())
    assert document.keys() == {
        "_id",
        "mature",
        "payload",
        "tries",
        "hdrs",
        "processed",
        "_mature",
        "_until",
        "_consumer",
        "_pushed",
    }
    assert 0 <= int(document["processed"]) - before < MINUTE_MS
    assert int(document["mature"]) - int(document["processed"]) == 100 * MINUTE_MS
    keuss_push(collection, "theirs", processed=keuss_now(), mature=keuss_now() + timedelta(days=4))
    history = list(store.peek(queue, view="history", limit=5))
    assert [(one.payload, one.tries) for batch in history for one in messages(batch)] == [("ours", 0), ("theirs", 0)]
    assert messages(history[0])[0].mature == DUE
    assert store.sizes(queue) == Sizes(0, 0, 0)
    assert store.next_mature(queue) is None
    ttl = {
        name: one["expireAfterSeconds"]
        for name, one in collection.index_information().items()
        if "expire" in str(one)
    }
    assert ttl == {"processed_1": 3600, "spark_queue_ending": 0}


def test_the_history_of_keuss_and_of_an_earlier_version_is_read(store, queue, collection):
    done = {"processed": keuss_now(), "mature": keuss_now() + timedelta(days=4)}
    keuss_push(collection, "popped", **done)
    keuss_push(collection, "removed", **done, removed=True)
    keuss_push(collection, "old", **done, _mature=DUE, _until=keuss_now() + timedelta(days=1))
    wanted = {"popped": "pop", "removed": "remove", "old": "commit"}

    def outcomes(*where):
        rows = [row for batch in store.peek(queue, where, view="history") for row in batch.to_pylist()]
        assert all(row["consumer"] is None and row["mature"] <= row["processed"] for row in rows)
        return {row["payload"].decode(): row["outcome"] for row in rows}

    assert outcomes() == wanted
    for payload, outcome in wanted.items():
        assert outcomes(Condition("outcome", "=", outcome)) == {payload: outcome}
    assert outcomes(Condition("outcome", ">", "commit")) == {"popped": "pop", "removed": "remove"}
    assert outcomes(Condition("mature", "<=", store.now())) == wanted, "keuss has left no other moment"
    assert outcomes(Condition("mature", "=", round(DUE.timestamp() * 1000))) == {"old": "commit"}
    assert outcomes(Condition("consumer", "=", "c")) == outcomes(Condition("consumer", "<", "c")) == {}


def test_ps_mongo_always_keeps_a_history(mongodb_url, store, queue):
    with open_store(f"{mongodb_url}&layout=ps-mongo&ttl=60") as keeping:
        keeping.push(queue, pushes(["dead", "done"]))
        keeping.reserve(queue, "c/1", 2)
        assert keeping.move(queue, f"{queue}.dead", tag="c", limit=1, dead_letter=DeadLetterInfo("why")) == 1
        assert keeping.commit(queue, "c") == 1
        (batch,) = keeping.peek(queue, view="history", limit=9)
        assert batch.column("outcome").to_pylist() == ["dead", "commit"]
        assert keeping.commit(queue, "c") == keeping.sizes(queue).total == 0


@pytest.mark.parametrize("ttl", ["0", "1h", "2147483648", "9" * 5_000])
def test_ps_mongo_refuses_a_ttl_that_mongodb_has_not(ttl):
    with pytest.raises(OptionError, match="must be a number of seconds, 1 to 2147483647"):
        open_store(f"mongodb://host/db?layout=ps-mongo&ttl={ttl}")


def test_ps_mongo_takes_the_longest_ttl_of_mongodb():
    with open_store("mongodb://host/db?layout=ps-mongo&ttl=2147483647") as keeping:
        assert keeping.always_keeps_history


def test_pl_mongo_keeps_the_facts_of_a_death_in_the_dead_letter(mongodb_url, store, queue):
    with open_store(f"{mongodb_url}&layout=pl-mongo&pipeline={queue}") as pipeline:
        pipeline.push(queue, pushes(["a"], mature=DUE))
        pipeline.reserve(queue, "c/1", 1)
        assert pipeline.move(queue, f"{queue}.dead", tag="c", dead_letter=DeadLetterInfo("why", 1, MINUTE_MS)) == 1
        assert list(pipeline.peek(queue, view="history")) == []
        (one,) = messages_of(pipeline.peek(f"{queue}.dead"))
        assert (one.headers["x-dl-tries"], one.mature) == ("1", DUE)


def test_history_whose_maturity_has_come_is_not_reserved(store, queue, collection):
    keuss_push(collection, "done", processed=keuss_now(), mature=DUE)
    keuss_push(collection, "waits")
    assert store.sizes(queue).total == 1
    assert store.reserve(queue, "c/1", 1) == [1]
    assert [one.payload for one in messages_of(store.fetch(queue, "c/1/0"))] == ["waits"]
    assert store.purge(queue) == 0


def test_a_message_of_the_history_makes_way_for_a_new_one(store, queue):
    dead = f"{queue}.dead"
    for name in (queue, dead):
        store.push(name, pushes([f"old {name}"], ids=["a"]))
        store.reserve(name, "c/1", 1)
        store.commit(name, "c/1", history=MINUTE_MS)
    assert store.push(queue, pushes(["new", "newer"], ids=["a", "a"])) == 1
    store.reserve(queue, "c/2", 1)
    assert store.move(queue, dead, tag="c/2", dead_letter=DeadLetterInfo("why")) == 1
    assert [one.payload for one in messages_of(store.peek(dead))] == ["new"]
    assert store.sizes(dead) == Sizes(1, 0, 0)


def test_large_messages_move_in_transactions_of_bounded_size(store, queue):
    batch = pushes([f"{i}" + "x" * (1 << 20) for i in range(40)])
    store.push(queue, batch)
    store.reserve(queue, "c/1", 35)
    assert store.move(queue, f"{queue}.dead", tag="c/1", min_tries=0, limit=33) == 33
    assert store.move(queue, f"{queue}.dead", ids=batch.column("id").to_pylist()) == 5
    assert store.sizes(queue) == Sizes(0, 0, 2)
    assert len(ids_of(store.peek(f"{queue}.dead"))) == 38
