"""`recover` settles the messages of a lost query; `release` keeps those that may be written."""

from __future__ import annotations

import uuid

import pytest

from spark_queue import OptionError, UsageError, open_store
from spark_queue.admin import RecoveredConsumer, recover_consumer, release, set_ledger
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.services import owner
from spark_queue.stores.services.dead_letters import note_settings
from spark_queue.stores.services.ledger import LEDGER_PREFIX, delete_sink, stage_of
from spark_queue.stores.services.owner import Batch, load_consumer_state
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.query_binding import QueryBinding, bind
from spark_queue.stores.types import queue_note_key
from tests.command_line import Run

CONSUMER = "etl/3fa9c1"


class Lost:
    """A query whose second process reserved batch 7 and one more; its sink has batch 6."""

    def __init__(self, store, queue):
        self.store, self.queue, self.query = store, queue, str(uuid.uuid4())
        store.push(queue, pushes(list(range(15))))
        store.reserve(queue, f"{CONSUMER}/7.2", 10, partitions=2, min_partitions=2, lease=None)
        store.reserve(queue, f"{CONSUMER}/8.2", 5)
        ownership = Ownership(store, queue, CONSUMER)
        ownership.take()
        ownership.start(Batch(6))
        ownership.start(Batch(7, 2))
        owner.revoke(store, queue, CONSUMER)

    def reads(self, number=6, batch="7.2"):
        bind(self.store, self.queue, None, QueryBinding(self.query, CONSUMER, number, batch))

    def has_written(self, batch, stages=(), sink=None):
        self.store.set_note(LEDGER_PREFIX + (sink or self.query), {"v": 1, "batch": batch, "stages": stages}, 0)

    @property
    def left(self):
        sizes = self.store.sizes(self.queue)
        return sizes.ready, sizes.reserved


@pytest.fixture
def lost(store, name):
    made = Lost(store, name)
    yield made
    for sink in (made.query, f"app:{made.query}", f"other:{made.query}"):
        delete_sink(store, sink)


WRITTEN, OPEN = RecoveredConsumer("7.2", committed=10, released=5), RecoveredConsumer("7.2", committed=0, released=15)


@pytest.mark.parametrize("sink", ["{query}", "app:{query}"])
@pytest.mark.parametrize(("last", "settled"), [(6, WRITTEN), (7, WRITTEN), (5, OPEN)])
def test_the_ledger_shows_whether_the_last_batch_was_written(url, name, lost, sink, last, settled):
    lost.reads()
    lost.has_written(last, sink=sink.format(query=lost.query))
    assert recover_consumer(url, name, CONSUMER, sink=url) == settled
    assert lost.left == (settled.released, 0)
    assert recover_consumer(url, name, CONSUMER, sink=url) == RecoveredConsumer("7.2", 0, 0), "it may be repeated"


def test_what_the_ledger_has_decided_is_published_first(url, store, name, lost):
    lost.reads()
    stage = stage_of(lost.query, 6, "000000-a")
    store.stage(f"{name}.out", stage, pushes(list(range(10))))
    lost.has_written(6, [stage])
    assert recover_consumer(url, name, CONSUMER, sink=url) == WRITTEN
    assert store.sizes(f"{name}.out").ready == 10
    store.drop(f"{name}.out")


def test_what_was_staged_and_not_decided_is_dropped(url, store, name, lost):
    lost.reads()
    decided = stage_of(lost.query, 5, "000000-a")
    for stage in (decided, stage_of(lost.query, 6, "000000-b")):
        store.stage(f"{name}.out", stage, pushes([1, 2]))
    lost.has_written(5, [decided])
    assert recover_consumer(url, name, CONSUMER, sink=url) == OPEN
    assert not store.staged(lost.query)
    assert store.sizes(f"{name}.out").ready == 2
    store.drop(f"{name}.out")


def test_what_one_of_several_databases_has_decided_follows_in_the_others(url, store, name, lost, tmp_path):
    lost.reads()
    first, second = stage_of(lost.query, 6, "000000-a"), stage_of(lost.query, 6, "000001-b")
    members = {"a": 0, "b": 0}
    store.stage(f"{name}.out", first, pushes([1]))
    lost.store.set_note(
        LEDGER_PREFIX + lost.query, {"v": 1, "id": "1", "batch": 6, "stages": [first, second], "members": members}, 0
    )
    other = f"sqlite:///{tmp_path}/other.db"
    with open_store(other) as there:
        for stage in (second, stage_of(lost.query, 6, "000001-loser")):
            there.stage("out", stage, pushes([2, 3]))
        there.set_note(
            LEDGER_PREFIX + lost.query, {"v": 1, "id": "2", "batch": 5, "stages": [], "members": members}, 0
        )
        with pytest.raises(UsageError, match=r"writes to 2 databases, 'a', 'b' .* --sink names 1 of them"):
            recover_consumer(url, name, CONSUMER, sink=url)
        assert lost.left == (0, 15)
        assert store.sizes(f"{name}.out").ready == 0
        assert recover_consumer(url, name, CONSUMER, sink=[other, url]) == WRITTEN
        assert there.sizes("out").ready == 2
        assert not there.staged(lost.query)
    assert store.sizes(f"{name}.out").ready == 1
    store.drop(f"{name}.out")


def test_one_of_several_databases_that_has_lost_its_ledger_is_named(url, name, lost, tmp_path):
    """The hint leads on: its rows that are lost are left out."""
    lost.reads()
    value = {"v": 1, "id": "1", "batch": 6, "stages": [], "shares": [["1", "a", 0, 2], ["2", "b", 0, 3]]}
    lost.store.set_note(LEDGER_PREFIX + lost.query, value, 0)
    other = f"sqlite:///{tmp_path}/other.db"
    with open_store(other) as there:
        there.set_note("other", {}, 0)
    hint = rf"2 databases, 'a', 'b' .*other.db has no ledger of it.* ledger set URL {lost.query} 6, with its URL"
    with pytest.raises(UsageError, match=hint):
        recover_consumer(url, name, CONSUMER, sink=[url, other])
    assert lost.left == (0, 15)
    assert set_ledger(other, lost.query, 6) is None
    assert recover_consumer(url, name, CONSUMER, sink=[url, other]) == WRITTEN


def test_what_was_written_becomes_history(url, store, name, lost):
    note_settings(store, name, "etl", 3_600_000, None)
    recover_consumer(url, name, CONSUMER, written=True)
    reported = [one for batch in store.peek(name, view="history") for one in batch.column("id").to_pylist()]
    assert len(reported) >= 10


@pytest.mark.parametrize("how", ["no task has read it", "the first batch, without a ledger", "at least once"])
def test_what_no_sink_has_is_released(url, name, lost, how):
    if how == "no task has read it":
        lost.reads(5, "6.1")
        lost.has_written(5)
    elif how == "at least once":
        lost.reads(None, None)
    else:
        lost.reads(0)
    sink = None if how == "at least once" else url
    assert recover_consumer(url, name, CONSUMER, sink=sink) == OPEN
    assert lost.left == (15, 0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no sink is named", "name its database with --sink URL"),
        ("no task has told its query", "its query is unknown"),
        ("the sink is another", r"has no ledger in .* wrote elsewhere"),
        ("of two sinks one has it", r"several sinks .* only some have batch 6"),
    ],
)
def test_an_unknown_outcome_is_asked_for_before_anything_changes(url, name, lost, how, said):
    if how != "no task has told its query":
        lost.reads()
    if how == "of two sinks one has it":
        lost.has_written(6, sink=f"app:{lost.query}")
        lost.has_written(5, sink=f"other:{lost.query}")
    sink = None if how == "no sink is named" else url
    with pytest.raises(UsageError, match=said) as asked:
        recover_consumer(url, name, CONSUMER, sink=sink)
    assert "--written" in str(asked.value)
    assert lost.left == (0, 15)
    assert recover_consumer(url, name, CONSUMER, written=True) == WRITTEN


def test_a_query_that_reads_the_queue_as_two_consumers_is_known_for_each(url, store, name, lost):
    for option, consumer in (("a", "a/1"), ("etl", CONSUMER), ("z", "z/1")):
        bind(store, name, option, QueryBinding(lost.query, consumer, 6, "7.2"))
    lost.has_written(6)
    assert recover_consumer(url, name, CONSUMER, sink=url) == WRITTEN


def test_one_that_says_so_is_believed(url, name, lost):
    lost.reads()
    lost.has_written(6)
    assert recover_consumer(url, name, CONSUMER, written=False) == OPEN


@with_limits(owner_timeout_ms=600_000)
def test_a_living_query_and_an_unknown_one_are_refused(url, store, name, lost):
    with pytest.raises(OptionError, match=rf"no consumer 'etl/3fa9c2'; did you mean '?{CONSUMER}"):
        recover_consumer(url, name, "etl/3fa9c2", written=True)
    Ownership(store, name, CONSUMER).take(Batch(7, 2))
    with pytest.raises(UsageError, match="is run by process"):
        recover_consumer(url, name, CONSUMER, written=True)
    assert lost.left == (0, 15)


@pytest.mark.parametrize(
    ("written", "settled"), [(True, RecoveredConsumer("7", 10, 5)), (False, RecoveredConsumer("7", 0, 15))]
)
def test_a_consumer_of_version_1(url, store, name, written, settled):
    store.push(name, pushes(list(range(15))))
    store.reserve(name, f"{CONSUMER}/7", 10, lease=None)
    store.reserve(name, f"{CONSUMER}/8", 5, lease=None)
    gone = {"token": "t", "host": "elsewhere", "boot": "", "pid": 1, "started": 1, "until": 1, "leaves": False}
    store.set_note(queue_note_key(name, "consumer", CONSUMER), {"v": 1, **gone}, 0)
    with pytest.raises(UsageError, match="its query is unknown"):
        recover_consumer(url, name, CONSUMER, sink=url)
    assert recover_consumer(url, name, CONSUMER, written=written) == settled


@pytest.mark.parametrize("tag", ["etl", CONSUMER])
def test_a_release_refuses_what_may_be_written(url, store, name, lost, tag):
    with pytest.raises(UsageError, match=rf"batch {CONSUMER}/7\.2 .* was started, and its lease never ends: its 10"):
        release(url, name, tag)
    assert lost.left == (0, 15)
    assert release(url, name, f"{CONSUMER}/8.2") == 5
    if tag == "etl":
        assert release(url, name, tag, force=True) == 10
    else:
        assert release(url, name, f"{CONSUMER}/7.2/0") == 5, "a tag by its full name is released"
        assert release(url, name, f"{CONSUMER}/7.2") == 5
    standing = load_consumer_state(store, name, CONSUMER)
    assert standing is not None and standing.started == Batch(7, 2), "how far it was is known all the same"


def test_a_release_gives_back_what_is_held_under_a_lease(url, store, name, lost):
    store.renew(name, f"{CONSUMER}/7.2", 120_000)
    assert release(url, name, "etl") == 15


def test_from_a_shell(url, name, lost):
    lost.reads()
    refused = Run("recover", url, name, CONSUMER, "--yes")
    assert refused.code == 2 and refused.out == "" and "name its database with --sink URL" in refused.err
    lost.has_written(6)
    done = Run("recover", url, name, CONSUMER, "--sink", url, "--yes", "--json")
    assert done.json == {"queue": name, "consumer": CONSUMER, "batch": "7.2", "committed": 10, "released": 5}
    assert Run("recover", url, name, CONSUMER, "--not-written", "-y").out == "0 messages committed, 0 released\n"
