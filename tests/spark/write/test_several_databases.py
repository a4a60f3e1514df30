"""A batch of several databases is decided once, whatever rows it has when it comes again."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from spark_queue import CheckpointError, open_store
from spark_queue.admin.sinks import recover
from spark_queue.errors import StoreUnavailable
from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import LEDGER_PREFIX, ledger_of, note_value, stage_of
from spark_queue.stores.services.publishing import Publisher
from spark_queue.stores.services.sink_ledgers import read_ledgers
from tests.spark.drive import Write, attempt, payloads

#: The calls of a store that a driver makes while it commits.
CALLS = ("set_note", "publish", "unstage")


class Killed(Exception):
    """The driver has died."""


@pytest.fixture
def urls(any_url, tmp_path):
    """Three databases, by name."""
    return {"here": any_url} | {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("there", "else")}


def routed(values, seed):
    """These values, each in a database that depends on the run."""
    chance = random.Random(seed)
    values = list(values)
    return attempt(values, ns=[chance.choice(["here", "there", "else"]) for _ in values])


class Sink:
    """A query that writes to several databases, and makes other rows each time it runs."""

    def __init__(self, urls, out, sink):
        self.urls, self.out, self.sink = urls, out, sink

    def driver(self, batch, names=None):
        some = {name: self.urls[name] for name in names or self.urls}
        options = {"urls": json.dumps(some), "queue": self.out, "replayCheck": "none"}
        return Write(routed([0], 0).schema, query=self.sink, batch=batch, **options)

    def run(self, batch, *parts, names=None):
        self.driver(batch, names).run(*parts)

    def numbers(self):
        return Counter(n for url in self.urls.values() for n in payloads(url, self.out))

    def ledgers(self):
        found = {}
        for name, url in self.urls.items():
            with open_store(url) as store:
                found[name] = ledger_of(store, self.sink)
        return found

    def staged(self):
        found = []
        for url in self.urls.values():
            with open_store(url) as store:
                found += store.staged(self.sink)
        return found


@pytest.fixture
def query(urls, out, sink):
    return Sink(urls, out, sink)


def dying_at(monkeypatch, number):
    """Let the driver die at this call, before (an odd number) or after it reaches the database."""
    calls = []

    def watched(usual):
        def called(store, *arguments, **named):
            calls.append(store)
            if len(calls) == number // 2 + 1 and number % 2:
                raise Killed
            result = usual(store, *arguments, **named)
            if len(calls) == number // 2 + 1:
                raise Killed
            return result

        return called

    for one in CALLS:
        monkeypatch.setattr(Store, one, watched(getattr(Store, one)))
    return calls


@pytest.mark.parametrize("order", [["here", "there", "else"], ["else", "there", "here"]])
def test_a_driver_that_dies_anywhere_loses_and_doubles_nothing(query, order):
    """Each batch comes again with other rows, and with the databases in another order."""
    batch, number = 0, 0
    while True:
        values = range(batch * 20, batch * 20 + 20)
        first = query.driver(batch)
        written = [first.task([routed(values, number)], 0)]
        with pytest.MonkeyPatch.context() as patch:
            calls = dying_at(patch, number)
            try:
                first.commit(*written)
                died = False
            except Killed:
                died = True
        if died:
            query.run(batch, routed(values, number + 1_000), names=order)
        assert query.numbers() == Counter(range(batch * 20 + 20)), f"killed at call {number}"
        assert query.staged() == [] and {one.batch for one in query.ledgers().values()} == {batch}
        batch, number = batch + 1, number + 1
        if not died:
            break
    assert number > 2 * len(calls) >= 12, "it was killed at each call"


def killed_between_ledgers(query, batch, values, seed):
    """Let a driver die when one ledger has the batch."""
    driver = query.driver(batch)
    written = driver.task([routed(values, seed)], 0)
    usual = Store.set_note

    def set_note(store, key, value, version):
        result = usual(store, key, value, version)
        if key.startswith(LEDGER_PREFIX) and value["batch"] == batch:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "set_note", set_note)
        with pytest.raises(Killed):
            driver.commit(written)
    assert sorted(one.batch for one in query.ledgers().values()) == [batch - 1, batch - 1, batch]
    return driver, written


def test_a_decided_batch_is_not_staged_again(query):
    query.run(0, routed(range(10), 0))
    killed_between_ledgers(query, 1, range(10, 20), 1)
    before = query.staged()
    again = query.driver(1)
    result = again.task([routed(range(10, 20), 2)], 0)
    assert query.staged() == before and not result.staged_rows
    again.commit(result)
    assert query.numbers() == Counter(range(20)) and query.staged() == []


def test_the_next_batch_waits_for_all_databases(query):
    """A later batch, of a process that skips the one before, publishes that first."""
    query.run(0, routed(range(10), 0))
    killed_between_ledgers(query, 1, range(10, 20), 1)
    query.run(2, routed(range(20, 30), 2))
    assert query.numbers() == Counter(range(30)) and query.staged() == []


def test_names_and_order_do_not_matter(query, urls):
    query.run(0, routed(range(10), 0))
    killed_between_ledgers(query, 1, range(10, 20), 1)
    query.urls = {"a": urls["else"], "here": urls["there"], "there": urls["here"]}
    values = list(range(10, 20))
    again = attempt(values, ns=["a", "here"] * 5)
    query.run(1, again)
    assert query.numbers() == Counter(range(20)) and query.staged() == []


def test_what_a_ledger_names_is_not_discarded_by_an_abort(query):
    query.run(0, routed(range(10), 0))
    driver, written = killed_between_ledgers(query, 1, range(10, 20), 1)
    left = query.staged()
    assert left
    usual = Store.note

    def away(store, key):
        if store.url == query.urls["there"]:
            raise StoreUnavailable("it is away")
        return usual(store, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "note", away)
        with pytest.raises(StoreUnavailable):
            driver.abort(written)
    assert query.staged() == left, "a ledger cannot be read"
    driver.abort(written)
    assert query.staged() == left, "one of them names it"
    query.run(1, routed(range(10, 20), 2))
    assert query.numbers() == Counter(range(20))


def test_an_undecided_batch_is_discarded_by_its_abort(query):
    driver = query.driver(0)
    written = driver.task([routed(range(10), 0)], 0)
    driver.abort(written)
    assert query.staged() == []
    query.run(0, routed(range(10), 1))
    assert query.numbers() == Counter(range(10))


def test_a_database_that_left_is_named_before_anything_is_staged(query, sink):
    query.run(0, routed(range(10), 0))
    killed_between_ledgers(query, 1, range(10, 20), 1)
    left = query.staged()
    rows = attempt([20], ns=["here"])
    for batch in (1, 2):
        way_on = rf"also written to '(there|else)'.* ledger set URL {sink} \d for each"
        with pytest.raises(CheckpointError, match=way_on):
            query.run(batch, rows, names=["here"])
    assert query.staged() == left


def test_rows_that_are_missing_in_one_database_are_not_shown_there(query, sink, out):
    query.run(0, routed(range(9), 0))
    killed_between_ledgers(query, 1, range(10, 20), 1)
    late = next(name for name, one in query.ledgers().items() if one.batch == 0)
    with open_store(query.urls[late]) as store:
        (stage,) = {one.stage for one in store.staged(sink)}
        store.unstage(stage)
        before = payloads(query.urls[late], out)
        way_on = (
            rf"is decided, with \d+ rows? for '{late}', but 0 .* ledger set URL {sink} 1, with the URL of '{late}'"
        )
        with pytest.raises(CheckpointError, match=way_on):
            query.run(1, routed(range(10, 20), 2))
        ledger = ledger_of(store, sink)
        assert payloads(query.urls[late], out) == before and ledger is not None and ledger.batch == 0


def test_the_ledger_of_one_database_does_not_decide_for_the_others(query, sink):
    """`ledger recover` sees one database: it keeps what another may have decided."""
    query.run(0, routed(range(10), 0))
    killed_between_ledgers(query, 1, range(10, 20), 1)
    late = next(name for name, one in query.ledgers().items() if one.batch == 0)
    done = recover(query.urls[late], sink)
    assert (done.published, done.dropped) == (0, 0) and done.kept > 0
    query.run(1, routed(range(10, 20), 2))
    assert query.numbers() == Counter(range(20))


@pytest.mark.parametrize("decided", ["here", "there"])
def test_a_batch_that_an_earlier_version_decided_in_one_database_goes_on(query, sink, out, decided):
    """Its ledgers name the databases, and do not say how many rows each has."""
    stages = [stage_of(sink, 1, "000000-a"), stage_of(sink, 1, "000001-b")]
    names = ["here", "there", "else"]
    for number, name in enumerate(names):
        with open_store(query.urls[name]) as store:
            store.stage(out, stages[number % 2], pushes([number]))
            value = note_value(None, int(name == decided), stages if name == decided else [])
            value["members"] = dict.fromkeys(names, 0)
            assert store.set_note(LEDGER_PREFIX + sink, value, 0)
    query.run(1, routed(range(5, 10), 1))
    assert query.numbers() == Counter(range(3)) and query.staged() == []
    query.run(2, routed(range(3, 6), 2))
    assert query.numbers() == Counter(range(6))


def test_a_database_that_has_lost_a_batch_is_named(query, sink):
    """A failover takes its last writes back just when the next batch is decided."""
    query.run(0, routed(range(10), 0))
    late = [share.name for one in query.ledgers().values() for share in one.shares][-1]
    with open_store(query.urls[late]) as store:
        before = store.note(LEDGER_PREFIX + sink)
        query.run(1, routed(range(10, 20), 1))
        usual, stage = Publisher._finish, stage_of(sink, 1, "000000-a")

        def fails_over(publisher, ledgers, decided):
            now = store.note(LEDGER_PREFIX + sink)
            assert before is not None and now is not None
            store.stage(query.out, stage, pushes([99]))
            assert store.set_note(LEDGER_PREFIX + sink, before.value, now.version)
            return usual(publisher, read_ledgers(publisher._stores, sink), decided)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Publisher, "_finish", fails_over)
            with pytest.raises(CheckpointError, match=rf"'{late}' has lost its last writes.* set URL {sink} 1"):
                query.run(2, routed(range(20, 30), 2))
        assert stage in {one.stage for one in store.staged(sink)}, "they may be the only copy"
