"""A batch during which its process died twice is split, or the third start says what to do. Without Spark."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from dataclasses import replace

import pytest

from spark_queue import CheckpointError, FencedError, Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark.read.offsets import input_offsets
from spark_queue.stores.services.owner import OWNER_NOTE, ConsumerState, load_consumer_state
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.poison import BATCH_PARTS
from spark_queue.stores.types import queue_note_key
from tests.command_line import Run
from tests.spark.read.inputs import planner_of

ROWS = 160


@pytest.fixture
def filled(any_url, name):
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(ROWS)])
    return any_url


def die(url, queue, consumer):
    """Let the process that runs a consumer be dead: another one has its pid."""
    with open_store(url) as store:
        key = queue_note_key(queue, OWNER_NOTE, consumer)
        note = store.note(key)
        assert note is not None
        state = ConsumerState.from_note(note)
        assert state.owner is not None
        dead = replace(state, owner=replace(state.owner, started=1, until=0))
        assert store.set_note(key, dead.note_value, note.version)


def state_of(url, queue, consumer):
    with open_store(url) as store:
        state = load_consumer_state(store, queue, consumer)
        assert state is not None
        return state


def fetched(url, name, shares):
    with open_store(url) as store:
        pages = (page for one in shares for page in store.fetch(name, one.tag))
        return [one.payload["n"] for page in pages for one in messages(page)]


class Query:
    """A query without Spark, whose runs end in any way. It begins with a batch in work, whose start was its first."""

    def __init__(self, url, name, **options):
        self.url, self.name, self.options = url, name, options
        self.planner = planner_of(url, name, **options)
        self.start = self.planner.initial
        self.end = self.planner.next(self.start, 1_000)
        self.shares = self.planner.plan(self.start, self.end)

    def dies(self):
        self.planner.close()
        die(self.url, self.name, self.end["consumer"])

    def stops(self):
        self.planner.leave()
        self.planner.close()
        assert state_of(self.url, self.name, self.end["consumer"]).ended
        die(self.url, self.name, self.end["consumer"])  # it has ended, too

    def starts(self):
        self.planner = planner_of(self.url, self.name, **self.options)
        self.shares = self.planner.plan(self.start, self.end)
        return fetched(self.url, self.name, self.shares)

    def goes_on(self):
        """Commit what it holds, and all that follows; return the numbers of the messages that follow."""
        found = []
        while True:
            start, self.end = self.end, self.planner.next(self.end, 1_000)
            if start == self.end:
                return found
            found += fetched(self.url, self.name, self.planner.plan(start, self.end))


@pytest.mark.every_store
def test_a_batch_during_which_the_process_died_twice_is_split(filled, name):
    query = Query(filled, name)
    for rows in (ROWS, ROWS // BATCH_PARTS):
        query.dies()
        first = query.starts()
        assert len(first) == rows
    rest = query.goes_on()
    query.planner.close()
    assert sorted(first + rest) == list(range(ROWS)), "each comes once"
    with open_store(filled) as store:
        assert store.sizes(name).total == 0


def test_clean_stops_do_not_count(filled, name):
    query = Query(filled, name)
    for end in (query.dies, query.stops):
        end()
        assert len(query.starts()) == ROWS
    query.planner.close()


def test_deaths_are_those_of_one_batch(sqlite_url, name):
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(ROWS)])
    query = Query(sqlite_url, name, maxRecordsPerTrigger="40")
    for turn in range(3):
        query.dies()
        assert len(query.starts()) == (40 if turn else ROWS)
        query.start, query.end = query.end, query.planner.next(query.end, 40)
        if turn == 0:
            with Queue(sqlite_url, name) as queue:
                queue.push_many([{"n": n} for n in range(ROWS)])
            query.end = query.planner.next(query.start, 40)
        query.shares = query.planner.plan(query.start, query.end)
    assert state_of(sqlite_url, name, query.end["consumer"]).deaths == 0
    query.planner.close()


def test_a_death_before_the_batch_was_started_does_not_count(sqlite_url, name):
    """No task has read it, so it did not kill."""
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(ROWS)])
    planner = planner_of(sqlite_url, name)
    start, end = planner.initial, planner.next(planner.initial, 1_000)
    for _ in range(3):
        planner.close()
        die(sqlite_url, name, end["consumer"])
        planner = planner_of(sqlite_url, name)
        planner.batches(end)
    assert len(fetched(sqlite_url, name, planner.plan(start, end))) == ROWS
    planner.close()


def commands_of(error, url):
    """Return the commands that an error names, for this database."""
    named = re.findall(r"spark-queue (recover URL \S+ \S+ --sink URL)", str(error))
    assert named
    return [shlex.split(one.replace("URL", url)) for one in named]


@pytest.mark.every_store
def test_with_exactly_once_the_third_start_says_what_to_do_and_that_works(filled, name, capsys):
    query = Query(filled, name, delivery="exactly-once")
    query.dies()
    assert len(query.starts()) == ROWS
    query.dies()
    with pytest.raises(CheckpointError, match=f"died 2 times.* of {ROWS} messages") as error:
        query.starts()
    query.planner.close()
    with open_store(filled) as store:
        assert sum(one.rows for one in store.reservations(name)) == ROWS, "nothing was changed"
    die(filled, name, query.end["consumer"])
    (command,) = commands_of(error.value, filled)
    done = Run(*command[:4], "--not-written", "--yes")
    assert done.code == 0, done.err
    most = int(re.search(r"maxRecordsPerTrigger=(\d+)", str(error.value))[1])
    assert most == ROWS // BATCH_PARTS
    with closing(planner_of(filled, name, delivery="exactly-once", maxRecordsPerTrigger=str(most))) as new:
        end = new.next(new.initial, most)
        assert fetched(filled, name, new.plan(new.initial, end)) == list(range(most)), "the same, in the same order"


def test_after_that_error_another_start_repeats_the_batch(sqlite_url, name):
    """The deaths may have had another cause: a machine that was switched off."""
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(ROWS)])
    query = Query(sqlite_url, name, delivery="exactly-once")
    query.dies()
    query.starts()
    query.dies()
    with pytest.raises(CheckpointError):
        query.starts()
    query.dies()
    assert len(query.starts()) == ROWS
    assert query.goes_on() == []
    query.planner.close()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_several_inputs_name_all_their_queues(sqlite_url, name, delivery):
    for queue in (f"{name}.a", f"{name}.b"):
        with Queue(sqlite_url, queue) as opened:
            opened.push_many([{"n": n} for n in range(ROWS)])
    options = {"inputs": json.dumps({"a": f"{name}.a", "b": f"{name}.b"}), "delivery": delivery}
    planner = planner_of(sqlite_url, name, **options)
    start = planner.initial
    end = planner.next(start, 1_000)
    planner.plan(start, end)
    for turn in range(2):
        planner.close()
        for one in input_offsets(end).values():
            die(sqlite_url, one["queue"], one["consumer"])
        planner = planner_of(sqlite_url, name, **options)
        if turn:
            with pytest.raises(CheckpointError, match="died 2 times") as error:
                planner.plan(start, end)
            assert {one[2] for one in commands_of(error.value, sqlite_url)} == {f"{name}.a", f"{name}.b"}
        assert planner.plan(start, end)
    planner.close()


def test_a_batch_that_at_most_once_drops_is_no_matter(sqlite_url, name):
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(ROWS)])
    query = Query(sqlite_url, name, delivery="at-most-once")
    query.dies()
    assert query.starts() == []
    query.planner.close()


# --- the note -------------------------------------------------------------------------------------


def test_a_note_of_an_earlier_version_has_no_deaths(sqlite_url, name):
    with open_store(sqlite_url) as store:
        claim = Ownership(store, name, "c/1")
        claim.take()
        (note,) = store.notes(queue_note_key(name, OWNER_NOTE, "")).values()
        assert not {"deaths", "ended"} & set(note.value)
    assert state_of(sqlite_url, name, "c/1") == ConsumerState.from_note(note)


def test_a_process_that_lost_its_consumer_leaves_without_a_word(sqlite_url, name):
    with open_store(sqlite_url) as store:
        claim = Ownership(store, name, "c/1")
        claim.take()
        die(sqlite_url, name, "c/1")
        other = Ownership(store, name, "c/1")
        other.take()
        assert other.deaths == 1
        with pytest.raises(FencedError):
            claim.leave()
        assert not state_of(sqlite_url, name, "c/1").ended
