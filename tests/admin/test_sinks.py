"""Operations of operators: sinks, their ledgers and stages."""

from __future__ import annotations

import pytest

from spark_queue import (
    FencedError,
    OptionError,
    StoreError,
    UsageError,
    forget_ledger,
    ledgers,
    open_store,
    recover,
    set_ledger,
)
from spark_queue.admin import RecoveredSink, Sink, doctor
from spark_queue.admin.sinks import find_stale_sinks
from spark_queue.messages.message import pushes
from spark_queue.stores.services.ledger import (
    LEDGER_PREFIX,
    ONE_WRITE_PREFIX,
    Ledger,
    create_ledger,
    ledger_of,
    stage_of,
)
from spark_queue.stores.sqlite.store import SqliteStore
from spark_queue.stores.types import Note
from tests.admin.sinks import seen


def stage(store, queue, sink, batch, rows, attempt="a"):
    name = stage_of(sink, batch, attempt)
    store.stage(queue, name, pushes(list(range(rows))))
    return name


def decide(store, sink, batch, *stages, v=1):
    """What a sink writes at the moment from which the batch counts as written."""
    note = store.note(LEDGER_PREFIX + sink) or Note({}, 0)
    assert store.set_note(LEDGER_PREFIX + sink, {"v": v, "batch": batch, "stages": list(stages)}, note.version)


def test_a_half_published_batch_is_seen_and_finished(url, store, name, sink):
    assert seen(url, sink) is None
    winners = [stage(store, name, sink, 3, 5, "a"), stage(store, f"{name}.other", sink, 3, 4, "b")]
    loser = stage(store, name, sink, 3, 7, "c")
    stage(store, name, sink, 4, 9)
    assert seen(url, sink) == Sink(sink, None, {3: 16, 4: 9}, 0)
    decide(store, sink, 3, *winners)
    store.publish(winners[:1])  # and then it died
    assert seen(url, sink) == Sink(sink, 3, {3: 11, 4: 9}, 4)
    assert recover(url, sink) == RecoveredSink(published=4, dropped=16)
    assert seen(url, sink) == Sink(sink, 3, {}, 0)
    assert (store.sizes(name).ready, store.sizes(f"{name}.other").ready) == (5, 4)
    assert store.staged(loser) == []
    assert recover(url, sink) == RecoveredSink(0, 0), "it may be repeated"


def test_what_was_merely_staged_is_dropped(url, store, name, sink):
    stage(store, name, sink, 0, 5)
    assert recover(url, sink) == RecoveredSink(published=0, dropped=5)
    assert store.sizes(name).total == 0
    with pytest.raises(OptionError, match=r"sink .* does not exist"):
        recover(url, sink)


def test_a_sink_that_does_not_exist(url, store, name, sink):
    stage(store, name, sink, 0, 5)
    with pytest.raises(OptionError, match=f"sink '{sink}x' does not exist.*did you mean .*'{sink}'"):
        recover(url, f"{sink}x")
    for wrong in ("", "a/b", "a b"):
        with pytest.raises(OptionError):
            recover(url, wrong)
        with pytest.raises(OptionError):
            set_ledger(url, wrong, 1)
    assert seen(url, sink).staged == {0: 5}


def test_a_sink_that_is_at_work_is_left_alone(sqlite_url, monkeypatch):
    with open_store(sqlite_url) as store:
        first, second = stage(store, "q", "s", 0, 1), stage(store, "q", "s", 1, 1)
        decide(store, "s", 0, first)
        real = SqliteStore._publish

        def publish(self, stages):
            decide(store, "s", 1, second)
            return real(self, stages)

        monkeypatch.setattr(SqliteStore, "_publish", publish)
        with pytest.raises(FencedError, match="is running: its ledger changed"):
            recover(sqlite_url, "s")
        assert [one.stage for one in store.staged("s")] == [second]


def test_a_ledger_is_set_manually(url, store, name, sink):
    assert set_ledger(url, sink, 7) is None
    assert set_ledger(url, sink, 9) == 7
    assert ledger_of(store, sink) == Ledger(sink, 9)
    with pytest.raises(OptionError, match="batch must be 0 or more"):
        set_ledger(url, sink, -1)
    stage(store, name, sink, 10, 2)
    assert set_ledger(url, sink, 9) == 9, "what is merely staged is no hindrance"
    decide(store, sink, 10, stage_of(sink, 10, "a"))
    with pytest.raises(UsageError, match=rf"published a part of batch 10.*recover URL {sink}"):
        set_ledger(url, sink, 11)
    assert recover(url, sink) == RecoveredSink(2, 0)
    assert set_ledger(url, sink, 11) == 10


def test_a_ledger_is_forgotten_once_nothing_is_staged(url, store, name, sink):
    decide(store, sink, 10, stage(store, name, sink, 10, 2))
    with pytest.raises(UsageError, match=rf"has staged rows.*ledger recover URL {sink}"):
        forget_ledger(url, sink)
    assert recover(url, sink) == RecoveredSink(2, 0)
    assert forget_ledger(url, sink) == 10
    assert ledger_of(store, sink) is None
    assert store.sizes(name).ready == 2
    with pytest.raises(OptionError, match=f"sink '{sink}' does not exist"):
        forget_ledger(url, sink)


def test_staged_rows_of_a_killed_write_are_found(url, store, name):
    """Those of a query are found once it was idle for an hour: until then it may be running."""
    sink, query = f"{ONE_WRITE_PREFIX}{name}", f"{name}-query"
    for one in (sink, query):
        create_ledger(store, one)
        stage(store, name, one, 0, 5)
    found = {one.sink: idle for one, idle in find_stale_sinks(store) if name in one.sink}
    assert found.keys() == {sink}
    idle = found[sink]
    assert idle is not None
    assert 0 <= idle < 3_600_000
    (finding,) = [one for one in doctor.examine(url) if sink in one.told]
    assert (finding.what, finding.state) == ("staged", "worry")
    assert f"{sink} has 5 staged rows" in finding.told
    assert f"spark-queue ledger recover URL {sink}" in finding.todo
    recover(url, sink)
    assert not [one for one in doctor.examine(url) if sink in one.told]


def test_stages_that_no_sink_has_made_are_left_out(sqlite_url):
    with open_store(sqlite_url) as store:
        for name in ("mine", "mine/x", "mine/x/y", "mine/1/a/b"):
            store.stage("q", name, pushes([1]))
    assert ledgers(sqlite_url) == []


def test_a_ledger_of_a_newer_version(sqlite_url):
    with open_store(sqlite_url) as store:
        stage(store, "q", "s", 0, 1)
        decide(store, "s", 0, stage_of("s", 0, "a"), v=2)
    for call in (
        lambda: ledgers(sqlite_url),
        lambda: recover(sqlite_url, "s"),
        lambda: set_ledger(sqlite_url, "s", 1),
    ):
        with pytest.raises(StoreError, match="version 2, this version of spark_queue reads 1: upgrade"):
            call()
    with open_store(sqlite_url) as store:
        assert len(store.staged("s")) == 1
