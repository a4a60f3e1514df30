"""A restarted query finds the message that makes its batch fail, and delivers the rest."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Queue, drain, open_store, supervise
from spark_queue.messages.message import messages
from spark_queue.options.roles import parse_options
from spark_queue.spark.read.consumer import Consumer
from spark_queue.stores.services.owner import revoke
from spark_queue.stores.services.poison import (
    BATCH_PARTS,
    MAX_FAILED_RUNS,
    NO_ERROR,
    failure_key,
    note_failure,
    note_run,
)
from spark_queue.stores.types import queue_note_key
from tests.queues import push_numbers


def dead(url, name):
    with open_store(url) as store:
        return [one for batch in store.peek(f"{name}.dead") for one in messages(batch)]


class Died(Exception):
    """What ends a run."""


class Killed(Exception):
    """What ends a run without an error that the driver knows."""


class Runs:
    """A source without Spark: a log of offsets, and a process that is started again."""

    def __init__(self, url, name, poison, die_anyway=0, most=1_000, ahead=False, killed=False, **options):
        self.lethal = set(options.pop("lethal", ()))  # messages that kill a run
        self.before = options.pop("before", {})  # what ends a run before its tasks begin, by its number
        raw = {"url": url, "queue": name, "numPartitions": "2", "waitTimeout": "0s"} | options
        self.options = parse_options(raw, "stream")
        self.poison, self.die_anyway = set(poison), die_anyway
        self.query = f"the query of {name}"  # whose notes no other test has
        self.count = 0
        self.most, self.ahead, self.killed = most, ahead, killed
        self.done, self.failed, self.tries = [], [], []
        self.start = self.end = None

    def run(self):
        self.count += 1
        consumer = Consumer(self.options)
        try:
            if self.start is None or self.start["seq"] == 0:
                self.start = consumer.initial
            if self.end is not None:  # the batch of the log that is not finished
                self.work(consumer)
            while (
                offset := consumer.next(self.start, self.most, prefetch=self.most if self.ahead else 0)
            ) != self.start:
                self.end = offset
                self.work(consumer)
        finally:
            if self.killed and consumer.owned is not None and consumer.owned.prefetcher.pending is not None:
                consumer.owned.prefetcher.pending.rows.result(20)
                consumer.owned.prefetcher.pending = None  # not given back
            consumer.close()
            with open_store(self.options.database.url) as store:  # its process is gone
                revoke(store, self.options.queue, (self.end or self.start)["consumer"])

    def work(self, consumer):
        assert self.end is not None
        numbers = []
        with open_store(self.options.database.url) as store:
            shares = consumer.plan(self.start, self.end)
            if self.count in self.before:
                raise self.before[self.count]
            for share in shares:
                if share.suspect:
                    note_run(store, self.options.queue, self.end["consumer"], self.query, f"run {self.count}")
                for batch in store.fetch(self.options.queue, share.tag):
                    for one in messages(batch):
                        numbers.append(one.payload["n"])
                        self.tries.append(one.tries)
        if self.die_anyway:
            self.die_anyway -= 1
            raise Died("for reasons of its own")
        if bad := self.poison & set(numbers):
            self.failed.append(numbers)
            raise Died(f"cannot digest {sorted(bad)}")
        if self.lethal & set(numbers):
            self.failed.append(numbers)
            raise Killed
        self.done.extend(numbers)
        self.start, self.end = self.end, None

    def supervise(self, most=60):
        for _ in range(most):
            try:
                return self.run()
            except Killed:
                continue
            except Died as error:
                with open_store(self.options.database.url) as store:
                    note_failure(store, self.query, f"run {self.count}", str(error))
        raise AssertionError(f"it still fails: {[len(one) for one in self.failed]}")


def test_a_poison_message_is_found_and_dies_and_the_rest_is_delivered(any_url, name):
    total = 1_200
    push_numbers(any_url, name, total)
    runs = Runs(any_url, name, {617}, maxTries="2")
    runs.supervise()
    assert Counter(runs.done) == Counter(n for n in range(total) if n != 617)
    assert set(runs.tries) == {0}, "no other message is blamed"
    (letter,) = dead(any_url, name)
    assert letter.payload == {"n": 617}
    assert (letter.headers["x-dl-tries"], letter.headers["x-error"]) == ("2", "cannot digest [617]")
    sizes = [len(batch) for batch in runs.failed]
    assert sizes[:MAX_FAILED_RUNS] == [1_000] * MAX_FAILED_RUNS, "first it is run as it was"
    assert sizes[MAX_FAILED_RUNS] == -(-1_000 // BATCH_PARTS), "then it is split"
    assert sizes[-2:] == [1, 1] and len(sizes) == MAX_FAILED_RUNS + 1 + 1 + 2
    with open_store(any_url) as store:
        assert store.sizes(name).total == 0
        assert store.notes(queue_note_key(name, "failing")) == {}
        assert store.notes(failure_key(runs.query)) == {}, "nothing is left of it"


def test_a_dead_letter_has_the_error_of_its_own_last_run(any_url, name):
    """One message raises, one kills its process, one is alone in a run that has no tasks."""
    push_numbers(any_url, name, BATCH_PARTS)
    split = (
        MAX_FAILED_RUNS + 1
    )  # the run that is left with the first message, and with the error of the fifth behind it
    runs = Runs(any_url, name, {5}, lethal={9}, before={split: Killed()}, maxTries="1")
    runs.supervise()
    assert sorted(runs.done) == sorted({*range(BATCH_PARTS)} - {0, 5, 9})
    reasons = {one.payload["n"]: one.headers["x-error"] for one in dead(any_url, name)}
    assert reasons == {0: NO_ERROR, 5: "cannot digest [5]", 9: NO_ERROR}


def test_a_run_that_ends_before_it_reads_a_batch_has_not_failed_of_it(sqlite_url, name):
    push_numbers(sqlite_url, name, 1)
    early = {MAX_FAILED_RUNS + 1: Died("the database is away")}
    runs = Runs(sqlite_url, name, {0}, before=early, maxTries="2")
    runs.supervise()
    (letter,) = dead(sqlite_url, name)
    assert letter.headers["x-error"] == f"{NO_ERROR}; before that: cannot digest [0]"


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("poison", [{7}, {0, 60, 61, 130}])
def test_what_was_reserved_ahead_comes_after_the_parts_of_a_batch_that_fails(any_url, name, poison, killed):
    total = 180
    push_numbers(any_url, name, total)
    runs = Runs(any_url, name, poison, most=60, ahead=True, killed=killed, maxTries="1")
    runs.supervise(200)
    assert sorted(runs.done) == [n for n in range(total) if n not in poison], "each comes once"
    assert sorted(one.payload["n"] for one in dead(any_url, name)) == sorted(poison)
    assert set(runs.tries) == {0}
    if len(poison) == 1:
        assert max(runs.done[: 60 - len(poison)]) < 60
        assert max(len(batch) for batch in runs.failed[MAX_FAILED_RUNS:]) == -(-60 // BATCH_PARTS)
    with open_store(any_url) as store:
        assert store.sizes(name).total == 0
        assert store.notes(queue_note_key(name, "failing")) == {}


def test_several_poison_messages_all_die(any_url, name):
    push_numbers(any_url, name, 300)
    poison = {0, 151, 152, 299}
    runs = Runs(any_url, name, poison, maxTries="1")
    runs.supervise()
    assert sorted(runs.done) == [n for n in range(300) if n not in poison]
    assert sorted(one.payload["n"] for one in dead(any_url, name)) == sorted(poison)


def test_without_max_tries_it_comes_back_later_and_the_rest_goes_on(any_url, name):
    push_numbers(any_url, name, 40)
    runs = Runs(any_url, name, {7}, retryDelay="1h")
    runs.supervise()
    assert sorted(runs.done) == [n for n in range(40) if n != 7]
    with Queue(any_url, name) as queue:
        (one,) = queue.peek()
        assert (one.payload, one.tries) == ({"n": 7}, 1)
        assert queue.sizes().scheduled == 1


def test_a_batch_that_died_for_reasons_of_its_own_is_not_split(any_url, name):
    push_numbers(any_url, name, 400)
    runs = Runs(any_url, name, set(), die_anyway=MAX_FAILED_RUNS - 1)
    runs.supervise()
    assert runs.done == list(range(400))
    with open_store(any_url) as store:
        assert store.notes(queue_note_key(name, "failing")) == {}


@pytest.mark.parametrize("most", [1_000, 60])
@pytest.mark.parametrize("die_anyway", range(MAX_FAILED_RUNS, MAX_FAILED_RUNS + 8))
def test_a_process_that_dies_at_every_step_of_the_search_loses_nothing(sqlite_url, name, die_anyway, most):
    push_numbers(sqlite_url, name, 100)
    options = {"most": most, "ahead": True, "killed": True, "maxTries": "1", "numPartitions": "1"}
    runs = Runs(sqlite_url, name, {50}, die_anyway=die_anyway, **options)
    runs.supervise()
    letters = [one.payload["n"] for one in dead(sqlite_url, name)]
    assert sorted(runs.done + letters) == list(range(100)), "each comes once, or dies"
    assert 50 in letters


@pytest.mark.parametrize("options", [{"delivery": "exactly-once"}, {"isolateFailures": "false"}])
def test_it_is_off_where_it_is_not_wanted(sqlite_url, name, options):
    push_numbers(sqlite_url, name, 20)
    runs = Runs(sqlite_url, name, {3}, maxTries="1", **options)
    with pytest.raises(AssertionError, match="it still fails"):
        runs.supervise(MAX_FAILED_RUNS + 3)
    assert [len(batch) for batch in runs.failed] == [20] * (MAX_FAILED_RUNS + 3)
    assert dead(sqlite_url, name) == []


# --- with Spark -----------------------------------------------------------------------------------


def test_a_worker_that_dies_of_a_message_is_a_failure_too(q):
    push_numbers(q.url, q.name, 10)
    done = []

    def eat(batches):
        for batch in batches:
            if '"n":7}' in str(batch.column("payload").to_pylist()):
                os._exit(3)  # as if the system had killed it for its memory
            yield batch

    def start():
        def work(df, batch_id):
            done.extend(json.loads(row.payload)["n"] for row in df.mapInArrow(eat, df.schema).collect())

        return q.run(q.stream(maxTries="1", numPartitions="1"), work)

    for _ in range(12):  # one run on Spark 4.2 and later, elsewhere a run is a batch
        query = supervise(start, q.url, restarts=12, initial_backoff=0.01)
        assert query.exception() is None
        drain(query, q.url)
        if not q.sizes().total:
            break
    assert sorted(done) == [n for n in range(10) if n != 7]
    (letter,) = dead(q.url, q.name)
    assert letter.payload == {"n": 7}
    assert "Python worker exited" in letter.headers["x-error"] or "STREAM_FAILED" in letter.headers["x-error"]


def test_supervise_gives_up_after_a_number_of_failures(q):
    push_numbers(q.url, q.name, 1)
    runs = []

    def start():
        def fail(df, batch_id):
            runs.append(df.count())
            raise ValueError("on purpose")

        return q.run(q.stream(), fail)

    with pytest.raises(StreamingQueryException, match="on purpose"):
        supervise(start, q.url, restarts=1, initial_backoff=0.01)
    assert runs == [1, 1]
