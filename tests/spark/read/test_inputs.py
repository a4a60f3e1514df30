"""Several inputs that are read together."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Buckets, CheckpointError, FencedError, Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark.read.fetch import fetch_zipped
from spark_queue.spark.read.queue_input import QueueInput
from spark_queue.spark.schema import batch_joiner, read_schema
from spark_queue.spark.supervision import drain
from spark_queue.stores.conformance.waiting import wait_until
from tests import odd
from tests.spark.read.inputs import make_world, same, start, stream
from tests.spark.read.test_stream import stopped
from tests.spark_session import SPARK


def hashes(reader, shares):
    """By row, the hash of its delivery."""
    join = batch_joiner(read_schema(reader._options), reader._options.content)
    pages = [join(rows, share.delivery) for share in shares for rows in fetch_zipped(reader._options, share)]
    return sorted(one for page in pages for one in page.column("delivery_hash").to_pylist())


@pytest.fixture
def wide(sqlite_url, redis_url, mongodb_url, name):
    """Three queues in three stores."""
    world = make_world(name, {"file": sqlite_url, "memory": redis_url, "documents": mongodb_url}, 3)
    yield world
    world.close()
    for ns, queue in world.queues.values():
        with open_store(world.urls[ns]) as store:
            store.drop(queue)


# --- side by side ---------------------------------------------------------------------------------


def test_the_nth_comes_with_the_nth_whatever_comes_meanwhile(world):
    reader, seen = world.reader(delivery="exactly-once"), []
    start = reader.initial
    world.push("a", range(1_500))
    assert reader.next(start, 1_000) == start, "b has none"
    assert world.sizes() == {"a": (1_500, 0), "b": (0, 0)}
    world.push("b", range(700))
    end = reader.next(start, 1_000)
    assert end["rows"] == {"a": [350, 350], "b": [350, 350]}
    assert world.sizes() == {"a": (800, 700), "b": (0, 700)}
    seen += world.rows(reader, reader.plan(start, end))
    start = end
    assert reader.next(start, 1_000) == start
    assert world.sizes() == {"a": (800, 0), "b": (0, 0)}
    world.push("b", range(700, 2_000))
    world.push("a", range(1_500, 1_600))
    while (end := reader.next(start, 600)) != start:
        seen += world.rows(reader, reader.plan(start, end))
        start = end
    assert seen == same(range(1_600))
    assert world.sizes() == {"a": (0, 0), "b": (400, 0)}
    assert not any(one.owned.lease_renewer._renew_at for one in reader.queues.values()), "none is renewed"


def test_inputs_of_several_stores_go_in_step(wide):
    for binding, rows in (("a", 300), ("b", 250), ("c", 400)):
        wide.push(binding, range(rows))
    reader = wide.reader(delivery="exactly-once")
    start, seen = reader.initial, []
    while (end := reader.next(start, 100)) != start:
        seen += wide.rows(reader, reader.plan(start, end))
        start = end
    assert seen == [{"a": n, "b": n, "c": n} for n in range(250)]
    assert wide.sizes() == {"a": (50, 0), "b": (0, 0), "c": (150, 0)}
    place = reader.backlog()
    assert (place["seq"], place["inputs"]["c"]["ready"], place["inputs"]["c"]["ns"]) == (3, 150, "documents")


@pytest.mark.parametrize("combine", ["zip", "alts"])
@pytest.mark.parametrize("binding", ["a", "b"])
def test_what_cannot_be_read_is_in_no_batch(small, binding, combine):
    small.push("a", range(5)), small.push("b", range(5))
    ns, queue = small.queues[binding]
    for mature, record in ((1, {"id": odd.BUCKET, "payload": b"garbage", "rows": 3}), (2, {"headers": "[1]"})):
        odd.put("sqlite/", small.urls[ns], queue, record, mature=mature)
    reader = small.reader(combine=combine)
    start, seen = reader.initial, []
    while (end := reader.next(start, 4)) != start:
        seen += small.rows(reader, reader.plan(start, end))
        start = end
    assert seen == (same(range(5)) if combine == "zip" else [{one: n} for one in "ab" for n in range(5)])
    with Queue(small.urls[ns], queue) as opened:
        assert (opened.sizes().reserved, opened.sizes().dead) == (0, 2)


@pytest.mark.parametrize("bucketed", ["a", "b", "ab"])
def test_what_a_bucket_has_beyond_the_shortest_goes_back_to_its_place(world, bucketed):
    """Whole buckets are reserved, even if fewer messages are wanted; then their size is known."""
    for binding, rows in (("a", 1_000), ("b", 900)):
        for first in range(0, rows, 250):
            how = {"layout": Buckets(70)} if binding in bucketed else {}
            world.push(binding, range(first, min(first + 250, rows)), **how)
    reader = world.reader(delivery="exactly-once")
    start, seen = reader.initial, []
    while (end := reader.next(start, 260)) != start:
        seen += world.rows(reader, reader.plan(start, end))
        start = end
    assert seen == same(range(900))
    assert world.sizes() == {"a": (100, 0), "b": (0, 0)}
    ns, queue = world.queues["a"]
    with open_store(world.urls[ns]) as store:
        assert {one.tries for batch in store.peek(queue) for one in messages(batch)} == {0}


def test_what_others_take_meanwhile_is_made_up_for(small, monkeypatch):
    """Between the look and the reserve another consumer takes messages of one input."""
    small.push("a", range(50))
    small.push("b", range(50))
    reader, seen = small.reader(delivery="exactly-once"), []
    assert reader.next({**reader.initial, "seq": 0}, 10)["seq"] == 1
    start = reader.next(reader.initial, 10)
    ready, stolen = QueueInput.count_ready, []

    def steal(self, most):
        found = ready(self, most)
        if self is reader.members["b"] and not stolen:
            with open_store(self._options.database.url) as store:
                store.reserve(self.queue, "rival", 35)
                stolen.append(True)
        return found

    monkeypatch.setattr(QueueInput, "count_ready", steal)
    seen += small.rows(reader, reader.plan(reader.initial, start))
    end = reader.next(start, 30)
    assert end["rows"] == {"a": [5], "b": [5]}
    assert small.sizes() == {"a": (35, 5), "b": (0, 40)}
    seen += small.rows(reader, reader.plan(start, end))
    assert [row["a"] for row in seen] == list(range(15))
    assert [row["b"] for row in seen] == [*range(10), *range(45, 50)], "as the queue gives them"


STEPS = ["a is reserved", "b is reserved", "the rest is given back"]


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_dies_before_spark_knows_of_its_batch_leaves_the_order_as_it_is(world, step, monkeypatch):
    class Died(Exception):
        pass

    world.push("a", range(90))
    old, new = (world.reader(delivery="exactly-once") for _ in range(2))
    assert old.next(old.initial, 10) == old.initial
    world.push("b", range(60))
    claim, trim, last = QueueInput.claim, QueueInput.trim, "b" if step == "b is reserved" else "a"

    def dies(self, *arguments, **options):
        done = (trim if step == STEPS[2] else claim)(self, *arguments, **options)
        if self is old.members[last]:
            raise Died
        return done

    monkeypatch.setattr(QueueInput, "count_ready", lambda self, most: most)  # so that more is reserved than is wanted
    monkeypatch.setattr(QueueInput, "trim" if step == STEPS[2] else "claim", dies)
    with pytest.raises(Died):
        old.next(old.initial, 80)
    monkeypatch.undo()
    assert world.sizes()["a"] == ((30, 60) if step == STEPS[2] else (10, 80))
    old.close()
    world.gone(old.initial)
    world.push("a", range(90, 100))
    world.push("b", range(60, 100))
    start, seen = old.initial, []
    while (end := new.next(start, 80)) != start:
        seen += world.rows(new, new.plan(start, end))
        start = end
    assert seen == same(range(100))
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


def test_a_batch_that_comes_again_is_the_same_whatever_the_order_of_bindings(world):
    world.push("a", range(1_200))
    world.push("b", range(1_200))
    old = world.reader("ab", delivery="exactly-once", numPartitions="3")
    end = old.next(old.initial, 1_100)
    first = hashes(old, old.plan(old.initial, end))
    assert len(first) == 1_100 and len(end["rows"]["a"]) == 3
    old.close()
    world.gone(end)
    new = world.reader("ba", delivery="exactly-once", numPartitions="2")
    shares = new.plan(new.initial, end)  # Spark asks for the start of batch 0 again, which is another epoch now
    assert hashes(new, shares) == first
    assert world.rows(new, shares) == same(range(1_100))
    assert new.next(end, 2_000)["rows"] == {"b": [100], "a": [100]}


@pytest.mark.usefixtures("brisk")
def test_a_second_query_on_the_same_checkpoint_is_refused(small):
    small.push("a", range(10))
    small.push("b", range(10))
    old, new = (small.reader(delivery="exactly-once") for _ in range(2))
    end = old.next(old.initial, 5)
    for again in (lambda: new.plan(old.initial, end), lambda: new.next(end, 5), lambda: new.commit(end)):
        with pytest.raises(FencedError, match="a second query on a copy"):
            again()
    small.gone(end)
    new.plan(old.initial, end)
    with pytest.raises(FencedError):
        old.next(end, 5)
    assert small.sizes() == {"a": (5, 5), "b": (5, 5)}


def test_a_commit_that_a_crash_has_cut_short_is_completed(world, monkeypatch):
    world.push("a", range(30))
    world.push("b", range(30))
    old, new = (world.reader(delivery="exactly-once") for _ in range(2))
    end = old.next(old.initial, 20)
    old.plan(old.initial, end)
    monkeypatch.setattr(old.members["b"], "remove", lambda end: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        old.next(end, 20)
    old.close()
    assert world.sizes() == {"a": (10, 0), "b": (10, 20)}
    world.gone(end)
    last = new.next(end, 20)
    assert world.rows(new, new.plan(end, last)) == same(range(20, 30))
    assert new.next(last, 20) == last
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


# --- one input ------------------------------------------------------------------------------------


def test_one_input_is_the_plain_source_in_a_struct(small):
    ids = small.push("a", range(30))
    small.queues.pop("b")
    reader, begun = small.reader(numPartitions="1"), []
    start = reader.initial
    while (end := reader.next(start, 10, prefetch=10)) != start:
        begun.append(end["rows"])
        shares = reader.plan(start, end)
        assert [row["a"] for row in small.rows(reader, shares)] == list(range(len(ids)))[10 * start["seq"] :][:10]
        start = end
    assert begun == [{"a": [10]}] * 3
    assert small.sizes() == {"a": (0, 0)}


def test_a_message_that_makes_the_batch_of_one_input_fail_is_found(small):
    small.push("a", range(20))
    small.queues.pop("b")
    start, end, seen = None, None, []
    for _ in range(60):
        reader = small.reader(numPartitions="1", retryDelay="1h")
        start = start or reader.initial
        while True:
            again = end is not None and end != start
            if not again:
                end = reader.next(start, 100)
            if end == start:
                break
            rows = [row["a"] for row in small.rows(reader, reader.plan(start, end))]
            if 7 in rows:
                break
            seen += rows
            start = end
        reader.close()
        small.gone(end)
        if end == start:
            break
    assert sorted(seen) == [n for n in range(20) if n != 7]


# --- logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once", "at-most-once, then exactly-once"])
def test_a_log_goes_in_step_with_a_queue_and_is_kept(world, delivery):
    dropped, (delivery, *_, after) = delivery.startswith("at-most"), delivery.split(", then ") * 2
    world.logs = {"b"}
    world.push("a", range(700))
    world.push("b", range(400))
    old = world.reader(delivery=delivery)
    start, seen = old.initial, []
    end = old.next(start, 300)
    assert end["rows"] == {"a": [300], "b": [300]}
    first = world.rows(old, old.plan(start, end))
    assert first == same(range(300))
    old.close()
    world.gone(end)
    world.push("b", range(400, 900))
    new = world.reader("ba", delivery=after)
    again = world.rows(new, new.plan(new.initial, end))
    assert again == ([] if dropped else first)
    start = end
    while (end := new.next(start, 300)) != start:
        seen += world.rows(new, new.plan(start, end))
        start = end
    assert seen == same(range(300, 700))
    assert world.sizes()["a"] == (0, 0)
    place = new.backlog()["inputs"]["b"]
    assert (place["ready"], place["retained"]) == (200, 900)
    world.queues.pop("a")
    alone, seen = world.reader(delivery=delivery), []
    start = alone.initial
    while (end := alone.next(start, 500)) != start:
        shares = alone.plan(start, end)
        seen += [row["b"] for row in world.rows(alone, shares)]
        (position,) = {one.ranges["b"][0].position for one in shares[:1]}
        assert position == 500 * (end["seq"] - 1)
        start = end
    assert seen == list(range(900)), "each reader gets all"
    assert world.columns(alone) == ["id", "queue", "payload", "headers", "mature", "tries", "pushed", "position"]


def test_where_a_log_is_gone_no_queue_loses_a_message(world):
    world.logs = {"b"}
    world.push("a", range(20))
    world.push("b", range(20))
    reader = world.reader(delivery="exactly-once")
    end = reader.next(reader.initial, 10)
    reader.plan(reader.initial, end)
    with open_store(world.urls["here"]) as store:
        store.drop(world.queues["b"][1])
    with pytest.raises(CheckpointError, match="the queue was dropped"):
        reader.commit(end)
    assert world.sizes()["a"] == (10, 10)


def test_alts_of_logs_and_queues(world):
    world.logs = {"a"}
    world.push("b", range(3))
    reader = world.reader(combine="alts", delivery="exactly-once")
    start, seen = reader.initial, []
    for more in ("a", "b", None):
        end = reader.next(start, 10)
        seen += world.rows(reader, reader.plan(start, end))
        start = end
        if more:
            world.push(more, [more])
    assert seen == [*({"b": n} for n in range(3)), {"a": "a"}, {"b": "b"}]
    assert reader.next(start, 10) == start


# --- in Spark -------------------------------------------------------------------------------------


def test_rows_of_two_stores_through_spark_over_a_failure_and_another_order(spark, file_world, tmp_path):
    file_world.push("a", [{"n": n} for n in range(1_400)])
    file_world.push("b", [{"n": n} for n in range(1_300)])
    seen, attempts = [], {}

    def work(df, batch):
        rows = df.selectExpr("a.payload.n a", "CAST(get_json_object(b.payload, '$.n') AS INT) b", "delivery_hash")
        attempts.setdefault(batch, []).append(sorted(tuple(row) for row in rows.collect()))
        if batch == 1 and len(attempts[1]) == 1:
            raise RuntimeError("planned failure")
        seen.extend(attempts[batch][-1])

    def reading(bindings):
        order = {"a": "a STRUCT<payload: STRUCT<n: INT>>", "b": "b STRUCT<id: STRING, payload: STRING>"}
        schema = ", ".join([*(order[one] for one in bindings), "delivery_hash STRING"])
        return stream(spark, file_world, bindings, schema, maxRecordsPerTrigger="1000", delivery="exactly-once")

    query = start(reading("ab"), tmp_path, work)
    with pytest.raises(StreamingQueryException, match="planned failure"):
        query.awaitTermination()
    query = start(reading("ba"), tmp_path, work)
    wait_until(lambda: len(seen) == 1_300)
    file_world.push("b", [{"n": 1_300}])
    wait_until(lambda: len(seen) == 1_301)
    wait_until(lambda: file_world.sizes() == {"a": (99, 0), "b": (0, 0)})
    stopped(query)
    assert attempts[1][0] == attempts[1][1] and len(attempts[1][0]) == 300
    assert [row[:2] for row in seen] == [(n, n) for n in range(1_301)]
    assert len({row[2] for row in seen}) == 1_301


def test_available_now_ends_where_one_input_has_no_more(spark, file_world, tmp_path):
    file_world.logs = {"b"}
    file_world.push("a", range(70))
    file_world.push("b", range(60))
    seen = []

    def work(df, batch):
        seen.extend((int(row.a.payload), int(row.b.payload), row.b.position) for row in df.collect())

    while True:
        before = len(seen)
        query = start(stream(spark, file_world, payloadFormat="text"), tmp_path, work, availableNow=True)
        drain(query, file_world.urls)
        if SPARK >= (4, 2) or len(seen) == before:
            break
    assert sorted(seen) == [(n, n, n) for n in range(60)]
    assert file_world.sizes()["a"] == (10, 0)


def test_alts_through_spark(spark, file_world, tmp_path):
    file_world.push("b", [1, 2])
    seen = []

    def work(df, batch):
        seen.extend(("a", row.a.payload) if row.b is None else ("b", row.b.payload) for row in df.collect())

    query = start(stream(spark, file_world, combine="alts"), tmp_path, work)
    wait_until(lambda: len(seen) == 2)
    file_world.push("a", [3])
    wait_until(lambda: len(seen) == 3)
    file_world.push("b", [4])
    wait_until(lambda: len(seen) == 4)
    wait_until(lambda: file_world.sizes() == {"a": (0, 0), "b": (0, 0)})
    stopped(query)
    assert seen == [("b", "1"), ("b", "2"), ("a", "3"), ("b", "4")]
