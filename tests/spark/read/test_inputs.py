"""Several queues read at once: `zip` and `alts`, restarts, kills and other consumers."""

from __future__ import annotations

import json
import threading

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Buckets, CheckpointError, FencedError, Queue, StoreError, open_store
from spark_queue.admin.recovery import recover_consumer
from spark_queue.messages.message import messages, pushes
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.fetch import fetch_zipped
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.read.queue_input import QueueInput
from spark_queue.spark.schema import batch_joiner, read_schema
from spark_queue.spark.supervision import drain
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.services.owner import revoke
from spark_queue.stores.types import queue_note_key
from tests import odd
from tests.spark.read.test_consumer import DROPPED, brisk, renewed, renewing  # noqa: F401
from tests.spark.read.test_pause import by_signals, listening  # noqa: F401
from tests.spark.read.test_stream import stopped
from tests.spark_session import SPARK


class World:
    """Queues of one or several stores, and the ways they are read together, without Spark."""

    def __init__(self, urls, queues):
        self.urls, self.queues = urls, queues  # ns -> URL, binding -> (ns, queue)
        self.logs, self.made = set(), []

    @property
    def inputs(self):
        return {
            binding: {"queue": queue, "ns": ns, "mode": "log" if binding in self.logs else "queue"}
            for binding, (ns, queue) in self.queues.items()
        }

    def columns(self, reader):
        """Those of the first input."""
        return [one.name for one in read_schema(reader._options).fields[0].dataType]  # type: ignore[attr-defined]

    def options(self, bindings=None, **options):
        inputs = {binding: self.inputs[binding] for binding in bindings or self.inputs}
        raw = {"urls": json.dumps(self.urls), "inputs": json.dumps(inputs), "waitTimeout": "50ms"} | options
        return QueueOptions.parse(raw, "stream", "snapshot")

    def reader(self, bindings=None, **options):
        made = MultiInputPlanner(self.options(bindings, **{"numPartitions": "2"} | options))
        self.made.append(made)
        return made

    def push(self, binding, values, **options):
        ns, queue = self.queues[binding]
        tries = options.pop("tries", 0)
        with Queue(self.urls[ns], queue, **options) as opened:
            batch = pushes(list(values), tries=tries)
            opened.store.push(queue, batch)
            return batch.column("id").to_pylist()

    def sizes(self):
        found = {}
        for binding, (ns, queue) in self.queues.items():
            with open_store(self.urls[ns]) as store:
                sizes = store.sizes(queue)
                found[binding] = (sizes.ready, sizes.reserved)
        return found

    def rows(self, reader, shares):
        """What tasks get: by row, the payloads by binding."""
        found = []
        for share in shares:
            for batches in fetch_zipped(reader._options, share):
                of = {binding: [one.payload for one in messages(batch)] for binding, batch in batches.items()}
                found += [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]
        return found

    def close(self):
        for one in self.made:
            one.close()

    def gone(self, offset):
        """As if the process that runs the consumer were gone."""
        for ns, queue in self.queues.values():
            with open_store(self.urls[ns]) as store:
                revoke(store, queue, offset["consumer"])


def hashes(reader, shares):
    """By row, the hash of its delivery."""
    join = batch_joiner(read_schema(reader._options), reader._options)
    pages = [join(rows, share.delivery) for share in shares for rows in fetch_zipped(reader._options, share)]
    return sorted(one for page in pages for one in page.column("delivery_hash").to_pylist())


def make_world(name, urls, count=2):
    places = list(urls)
    queues = {binding: (places[i % len(places)], f"{name}.{binding}") for i, binding in enumerate("abc"[:count])}
    return World(urls, queues)


@pytest.fixture
def world(any_url, name):
    """Two queues of each store in turn."""
    world = make_world(name, {"here": any_url})
    yield world
    world.close()


@pytest.fixture
def small(sqlite_url, name):
    """Two queues of SQLite."""
    world = make_world(name, {"here": sqlite_url})
    yield world
    world.close()


@pytest.fixture
def wide(sqlite_url, redis_url, mongodb_url, name):
    """Three queues in three stores."""
    world = make_world(name, {"file": sqlite_url, "memory": redis_url, "documents": mongodb_url}, 3)
    yield world
    world.close()
    for ns, queue in world.queues.values():
        with open_store(world.urls[ns]) as store:
            store.drop(queue)


def same(numbers):
    return [{"a": n, "b": n} for n in numbers]


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
            with open_store(self._options.url) as store:
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
    take, trim, last = QueueInput.take, QueueInput.trim, "b" if step == "b is reserved" else "a"

    def dies(self, *arguments, **options):
        done = (trim if step == STEPS[2] else take)(self, *arguments, **options)
        if self is old.members[last]:
            raise Died
        return done

    monkeypatch.setattr(QueueInput, "count_ready", lambda self, most: most)  # so that more is reserved than is wanted
    monkeypatch.setattr(QueueInput, "trim" if step == STEPS[2] else "take", dies)
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


# --- messages that others have taken --------------------------------------------------------------


def release_some(world, binding, end):
    ns, queue = world.queues[binding]
    with open_store(world.urls[ns]) as store:
        store.rollback(queue, f"{end['consumer']}/{end['seq']}.1/0", failed=False)


def begun(world, **options):
    """A batch whose process died while tasks worked on it, and the reader that goes on with it."""
    world.push("a", range(20))
    world.push("b", range(20))
    old, new = (world.reader(**options) for _ in range(2))
    end = old.next(old.initial, 12)
    shares = old.plan(old.initial, end)
    return old, new, end, shares


def test_a_batch_of_which_messages_are_gone_comes_again_in_other_company(small, caplog):
    old, new, end, shares = begun(small, numPartitions="1")
    release_some(small, "b", end)
    with pytest.raises(FencedError, match=f"12 of 12 messages of queue '{small.queues['b'][1]}' are no longer held"):
        small.rows(old, shares)
    old.close()
    small.gone(end)
    assert small.rows(new, new.plan(old.initial, end)) == []
    assert "12 of 12 of" in caplog.text and "the batch cannot be repeated" in caplog.text
    assert small.sizes() == {"a": (20, 0), "b": (20, 0)}
    after = new.next(end, 100)
    assert sorted(row["a"] for row in small.rows(new, new.plan(end, after))) == list(range(20))


def test_with_exactly_once_a_person_decides_what_becomes_of_the_rest(small):
    old, new, end, _ = begun(small, delivery="exactly-once")
    release_some(small, "b", end)
    old.close()
    small.gone(end)
    settle_rest(small, "a", new, old.initial, end)
    assert small.sizes()["a"] == (8, 12)
    last = settle_rest(small, "a", new, old.initial, end, written=False)
    assert last.next(end, 100)["rows"] == {"a": [20], "b": [20]}


def test_a_batch_of_which_a_part_was_removed_is_not_written_again(small):
    """An older checkpoint may have a written batch that one queue committed before a crash."""
    old, new, end, _ = begun(small, delivery="exactly-once")
    with open_store(small.urls["here"]) as store:
        store.commit(small.queues["a"][1], f"{end['consumer']}/1.1")
    old.close()
    small.gone(end)
    last = settle_rest(small, "b", new, old.initial, end, written=True)
    assert last.next(end, 100)["rows"] == {"a": [8], "b": [8]}
    assert small.sizes() == {"a": (0, 8), "b": (0, 8)}


def settle_rest(world, binding, reader, begin, end, **recover):
    """See a reader refuse a batch, do what it says, and give the reader that goes on."""
    ns, queue = world.queues[binding]
    with pytest.raises(FencedError, match=rf"spark-queue recover URL {queue} {end['consumer']} --sink URL"):
        reader.plan(begin, end)
    if not recover:
        return reader
    reader.close()
    world.gone(end)
    recover_consumer(world.urls[ns], queue, end["consumer"], **recover)
    last = world.reader(delivery="exactly-once", numPartitions="1")
    assert world.rows(last, last.plan(begin, end)) == []
    return last


@pytest.mark.parametrize("deliveries", DROPPED)
def test_at_most_once_drops_what_was_begun(small, deliveries):
    before, after = deliveries
    old, _, end, _ = begun(small, delivery=before)
    new = small.reader(delivery=after)
    old.close()
    small.gone(end)
    assert small.rows(new, new.plan(old.initial, end)) == []
    assert small.sizes() == {"a": (8, 0), "b": (8, 0)}
    last = new.next(end, 100)
    assert last.get("delivery") == (after if after != "at-least-once" else None)
    assert small.rows(new, new.plan(end, last)) == same(range(12, 20))


def test_leases_of_all_inputs_are_renewed(small, renewing):  # noqa: F811
    old, _, _, shares = begun(small, **renewing)
    for ns, queue in small.queues.values():
        with open_store(small.urls[ns]) as store:
            assert sum(store.reserve(queue, "rival", 100)) == 8
            assert store.commit(queue, "rival") == 8
        renewed(small.urls[ns], queue, ["1.1/0"])
    assert small.rows(old, shares) == same(range(12))


def test_what_has_failed_too_often_is_in_nobodys_company(small):
    small.push("a", range(5), tries=3)
    small.push("a", range(5, 10))
    small.push("b", range(5, 10))
    reader = small.reader(maxTries="3")
    end = reader.next(reader.initial, 100)
    assert small.rows(reader, reader.plan(reader.initial, end)) == same(range(5, 10))
    with Queue(small.urls["here"], f"{small.queues['a'][1]}.dead") as dead:
        assert dead.sizes().ready == 5


# --- the first that has some ----------------------------------------------------------------------


def test_alts_takes_from_the_first_that_has_some(world):
    world.push("b", range(10, 16))
    reader = world.reader(combine="alts", delivery="exactly-once")
    start, seen = reader.initial, []
    for more in (None, "a", None, None, None):
        end = reader.next(start, 4)
        seen.append((end["rows"] if end != start else None, world.rows(reader, reader.plan(start, end))))
        start = end
        if more:
            world.push(more, range(5))
    assert [rows for rows, _ in seen] == [{"b": [4]}, {"b": [2]}, {"a": [4]}, {"a": [1]}, None]
    assert [one for _, rows in seen for one in rows] == [
        *({"b": n} for n in range(10, 16)), *({"a": n} for n in range(5))
    ]  # fmt: skip
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


def test_the_choice_of_alts_is_durable_before_anything_is_read(world):
    world.push("b", ["first"])
    old = world.reader("ab", combine="alts", delivery="exactly-once")
    end = old.next(old.initial, 10)
    assert end["rows"] == {"b": [1]}
    old.close()
    world.push("a", ["second"])
    world.gone(end)
    for bindings in ("ba", "ab"):
        new = world.reader(bindings, combine="alts", delivery="exactly-once")
        assert world.rows(new, new.plan(new.initial, end)) == [{"b": "first"}]
        new.close()
        world.gone(end)
    new = world.reader("ab", combine="alts", delivery="exactly-once")
    assert new.next(end, 10)["rows"] == {"a": [1]}


def test_what_a_process_took_before_spark_knew_is_given_back(world):
    world.push("b", ["first"])
    old, new = (world.reader(combine="alts", delivery="exactly-once") for _ in range(2))
    old.next(old.initial, 10)
    old.close()  # Spark has not written it down
    world.push("a", ["second"])
    world.gone(old.initial)
    end = new.next(old.initial, 10)
    assert end["rows"] == {"a": [1]}
    assert world.rows(new, new.plan(old.initial, end)) == [{"a": "second"}]
    after = new.next(end, 10)
    assert world.rows(new, new.plan(end, after)) == [{"b": "first"}]


@pytest.mark.parametrize("taken", [1, 2])
def test_a_batch_of_one_input_that_comes_again_has_what_it_still_holds(world, taken):
    """Its lease ended before it was started, and another consumer took some of its messages."""
    world.push("a", ["first", "second"])
    old, new = (world.reader(combine="alts", delivery="exactly-once") for _ in range(2))
    end = old.next(old.initial, 10)
    ns, queue = world.queues["a"]
    with Queue(world.urls[ns], queue) as rival:
        for one in rival.store.reservations(queue):
            end_lease(rival.store, queue, one.tag)
        others = rival.reserve(taken)
        assert rival.commit(*others) == taken
    world.gone(end)
    world.push("b", ["third"])
    seen = world.rows(new, new.plan(new.initial, end))
    while (after := new.next(end, 10)) != end:
        seen += world.rows(new, new.plan(end, after))
        end = after
    left = {"first", "second"} - {one.payload for one in others}  # some stores free it with the others
    assert seen == [*({"a": one} for one in left), {"b": "third"}]
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


@pytest.mark.parametrize("combine", ["zip", "alts"])
def test_an_older_checkpoint_is_refused_by_whichever_queue_went_on(world, combine):
    old, new = (world.reader(combine=combine, delivery="exactly-once") for _ in range(2))
    offsets = [old.initial]
    for binding in ("a", "b", "a"):
        for one in "ab" if combine == "zip" else binding:
            world.push(one, [1])
        offsets.append(old.next(offsets[-1], 10))
        old.plan(*offsets[-2:])
    before = world.sizes()
    world.gone(old.initial)
    with pytest.raises(CheckpointError, match=r"ends with batch 2\.1, but batch 3\.1 was started since"):
        new.next(offsets[2], 10)
    with pytest.raises(CheckpointError, match=r"ends with batch 1\.1, but batch 3\.1 was started since"):
        new.plan(offsets[0], offsets[1])
    assert world.sizes() == before
    assert new.next(offsets[3], 10) == offsets[3]


@pytest.mark.parametrize("combine", ["zip", "alts"])
@pytest.mark.parametrize("batch", ["has ended", "comes again"])
def test_the_calls_of_older_versions_of_spark(world, combine, batch):
    """They ask for empty partitions first, and for a batch without a start; and then back."""
    for binding in "ab":
        world.push(binding, range(30))
    first, second, third = (world.reader(combine=combine, delivery="exactly-once") for _ in range(3))
    begin = first.initial
    one = first.next(begin, 10)
    seen = world.rows(first, first.plan(begin, one))
    world.gone(one)
    assert second.plan(one, one) == []
    if batch == "comes again":
        assert world.rows(second, second.plan(begin, one)) == seen
    two = second.next(second.planned, 10)
    second.commit(one)
    seen += world.rows(second, second.plan(one, two))
    world.gone(two)
    start = two
    while (end := third.next(start, 10)) != start:
        seen += world.rows(third, third.plan(start, end))
        start = end
    expected = same(range(30)) if combine == "zip" else [{one: n} for one in "ab" for n in range(30)]
    assert seen == expected
    assert world.sizes() == {"a": (0, 0), "b": (0, 0)}


def test_no_queue_loses_a_message_if_one_refuses_the_checkpoint(world):
    """The second queue's database went on, and the first one's was restored from a backup."""
    world.push("a", range(20))
    world.push("b", range(20))
    old, new = (world.reader(delivery="exactly-once") for _ in range(2))
    first = old.next(old.initial, 10)
    old.plan(old.initial, first)
    world.gone(first)
    ns, queue = world.queues["b"]
    with open_store(world.urls[ns]) as store:
        key = queue_note_key(queue, "consumer", first["consumer"])
        note = store.note(key)
        assert note is not None
        store.set_note(key, note.value | {"started": [2, 1]}, note.version)
    with pytest.raises(CheckpointError, match=r"ends with batch 1\.1, but batch 2\.1 was started since"):
        new.next(first, 10)
    assert world.sizes() == {"a": (10, 10), "b": (10, 10)}


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("combine", ["zip", "alts"])
def test_an_idle_reader_wakes_when_it_gets_what_it_lacks(world, combine, late, by_signals, listening):  # noqa: F811
    reader = world.reader(combine=combine, waitTimeout="2m")
    if combine == "zip":
        world.push("b" if late == "a" else "a", [0])
    woken = []
    thread = threading.Thread(target=lambda: woken.append(reader.next(reader.initial, 10)), daemon=True)
    thread.start()
    listening()
    assert not woken
    world.push(late, [0])
    thread.join(60)
    (end,) = woken
    assert end["seq"] == 1


def test_a_store_that_cannot_be_reached_is_told_while_alts_waits(small, tmp_path):
    small.urls["gone"] = f"sqlite:///{tmp_path}/no/such/folder/q.db"
    small.queues["b"] = ("gone", small.queues["b"][1])
    reader = small.reader(combine="alts", retryTimeout="100ms")
    with pytest.raises(StoreError, match="no/such/folder"):
        reader._waiter.wait(1_000)
    small.queues.pop("b")


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


@pytest.fixture
def file_world(sqlite_url, tmp_path, name):
    world = make_world(name, {"one": sqlite_url, "two": f"sqlite:///{tmp_path}/two.db"})
    yield world
    world.close()


def stream(spark, world, bindings="ab", schema=None, **options):
    raw = {"urls": json.dumps(world.urls), "inputs": json.dumps({one: world.inputs[one] for one in bindings})}
    reader = spark.readStream.format("queue").options(
        **raw | {"waitTimeout": "200ms", "numPartitions": "2"} | options
    )
    return (reader.schema(schema) if schema else reader).load()


def start(df, folder, on_batch, **trigger):
    writer = df.writeStream.foreachBatch(on_batch).option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(**trigger or {"processingTime": "0 seconds"}).start()


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
