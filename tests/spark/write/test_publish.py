"""Exactly-once writes: batches that are visible as a whole or not at all, decided once."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pyarrow as pa
import pytest

from spark_queue import (
    CheckpointError,
    FencedError,
    MessageError,
    Queue,
    StoreError,
    open_store,
)
from spark_queue.admin.sinks import RecoveredSink, recover
from spark_queue.spark import encode
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.ledger import Ledger, delete_sink, inherit_ledger, ledger_of, set_ledger
from tests.spark.drive import (
    ATTEMPT,
    Query,
    Write,
    attempt,
    batch_in_ledger,
    change_ledger,
    forget_ledger,
    found,
    left_behind,
    payloads,
    rows,
    save,
)
from tests.spark.write.drivers import Killed

pytestmark = pytest.mark.every_store


@pytest.fixture
def at_once(monkeypatch):
    """Let tasks stage each batch when the next one comes, none together; a row is a batch."""
    monkeypatch.setattr(encode, "COALESCED_ROWS", 1)  # of a Spark task
    monkeypatch.setattr(encode, "ROWS_PER_BATCH", 1)  # of a Spark task


def pieces(values, count):
    """These values in this number of partitions."""
    values = list(values)
    return [attempt(values[start::count]) for start in range(count)]


@contextmanager
def killed_before(call, url):
    """Let a program die just before this call of the store: `set_note` decides in the ledger."""
    with open_store(url) as store:
        kind = type(store)
    usual, calls = getattr(kind, call), []

    def die(store, first, *rest, **named):
        if call != "set_note" or str(first).startswith("ledger/"):
            calls.append(first)
            raise Killed
        return usual(store, first, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, call, die)
        with pytest.raises(Killed):
            yield
    assert calls


# --- a batch is visible as a whole or not at all, decided once ------------------------------------


def test_a_streaming_write_is_exactly_once_by_default(any_url, name, out):
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(2_000)])
    options = {"maxRecordsPerTrigger": "700", "numPartitions": "2", "delivery": "exactly-once"}
    query = Query(lambda batch: batch.write(url=any_url, queue=out), url=any_url, queue=name, **options)
    query.run()
    assert sorted(one["n"] for one in payloads(any_url, out)) == list(range(2_000))
    assert left_behind(any_url, name) == []
    assert batch_in_ledger(any_url, query.id) == 2
    forget_ledger(any_url, query.id)


@pytest.mark.parametrize("died_before", ["set_note", "publish", "unstage", None])
def test_a_batch_whose_driver_died_at_any_step_is_written_once(any_url, name, out, driver, died_before):
    driver(0).run(attempt(["before"]))
    first = driver(1)
    first.task([attempt(["lost attempt"])], 1)
    written = [first.task([attempt([n, n + 1])], partition) for partition, n in enumerate((0, 2))]
    assert payloads(any_url, out) == ["before"], "what is staged is not visible"
    if died_before is None:
        first.commit(*written)
    else:
        with killed_before(died_before, any_url):
            first.commit(*written)
    decided = died_before != "set_note"
    assert batch_in_ledger(any_url, first.query) == (1 if decided else 0)
    published = died_before not in ("set_note", "publish")
    visible = found(any_url, out)
    assert Counter(one.payload for one in visible) == Counter(["before", *(range(4) if published else ())])
    again = driver(1)  # in other pieces
    written = [again.task([attempt([n])], n) for n in range(4)]
    assert [one.rows for one in written] == [0 if decided else 1] * 4, "what is decided is not staged again"
    again.commit(*written)
    assert Counter(payloads(any_url, out)) == Counter(["before", 0, 1, 2, 3])
    assert {one.id for one in visible} <= {one.id for one in found(any_url, out)}
    assert left_behind(any_url, name) == []


def test_nothing_is_visible_before_the_ledger_has_decided(any_url, out, driver):
    with open_store(any_url) as store:
        usual, seen = type(store).set_note, []

    def look(store, key, value, version):
        if key.startswith("ledger/"):
            seen.append(payloads(any_url, out))
        return usual(store, key, value, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "set_note", look)
        driver(0).run(attempt(["a"]), attempt(["b"]))
    assert seen == [[]]
    assert sorted(payloads(any_url, out)) == ["a", "b"]


def test_a_driver_that_died_after_its_decision_is_finished_by_the_next(any_url, name, out, driver):
    driver(0).run(attempt(["a"]))
    first = driver(1)
    written = first.task([attempt(["b", "c"])])
    with killed_before("publish", any_url):
        first.commit(written)
    for _ in range(2):
        again = driver(1)
        written = again.task([attempt(["b", "c"])])
        assert (written.rows, written.staged_rows) == (0, {}), "it has seen the ledger"
        again.commit(written)
        assert sorted(payloads(any_url, out)) == ["a", "b", "c"]
    assert left_behind(any_url, name) == []


@contextmanager
def a_lost_publish(url):
    """Let a server lose the first publish, as a failover does that loses what was written last."""
    with open_store(url) as store:
        kind = type(store)
    usual, lost = kind.publish, []

    def publish(store, stages):
        if lost or not stages:
            return usual(store, stages)
        lost.append(stages)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "publish", publish)
        yield
    assert lost


def test_a_lost_publish_is_made_up_for_before_the_next_batch(any_url, name, out, driver):
    with a_lost_publish(any_url):
        driver(0).run(attempt(["a", "b"]))
    assert payloads(any_url, out) == []
    with killed_before("set_note", any_url):
        driver(1).run(attempt(["c"]))
    assert sorted(payloads(any_url, out)) == ["a", "b"], "it comes first"
    driver(1).run(attempt(["c"]))
    assert sorted(payloads(any_url, out)) == ["a", "b", "c"]
    assert left_behind(any_url, name) == []


def test_a_lost_publish_is_made_up_for_by_an_operator(any_url, name, out, driver):
    write = driver(0)
    with a_lost_publish(any_url):
        write.run(attempt(["a", "b"]))
    assert recover(any_url, write.query) == RecoveredSink(published=2, dropped=0)
    assert sorted(payloads(any_url, out)) == ["a", "b"]
    assert left_behind(any_url, name) == []


def test_a_batch_that_comes_again_is_not_written_again(any_url, out, driver):
    for number in (0, 1):
        driver(number).run(*pieces(range(100 * number, 100 * number + 100), 2))
    with Queue(any_url, out) as queue:  # and what it wrote has been consumed meanwhile
        written = [one.payload for one in queue.reserve(10_000)]
        queue.store.commit(out, queue.consumer)
    assert len(written) == 200
    for number in (1, 2):
        driver(number).run(*pieces(range(100 * number, 100 * number + 100), 5))  # in other pieces, too
    assert Counter(written + payloads(any_url, out)) == Counter(range(300))


def test_at_least_once_writes_a_batch_that_comes_again_twice(any_url, out, driver):
    """What the ledger is good for: the test above would see it if there were none."""
    for number in (0, 1, 1):
        driver(number, delivery="at-least-once").run(attempt(range(10 * number, 10 * number + 10)))
    assert Counter(payloads(any_url, out)) == Counter([*range(20), *range(10, 20)])


def test_of_two_drivers_with_the_same_batch_the_first_decides_for_both(any_url, name, out, driver):
    mine, theirs = (driver(0, replayCheck="none") for _ in range(2))
    written = {
        one: one.task([attempt([f"{who} {n}" for n in range(3)])]) for one, who in ((mine, "a"), (theirs, "b"))
    }
    mine.commit(written[mine])
    theirs.commit(written[theirs])
    assert sorted(payloads(any_url, out)) == ["a 0", "a 1", "a 2"]
    assert left_behind(any_url, name) == []


def test_of_two_drivers_that_decide_at_the_same_moment_one_does(any_url, name, out, driver):
    mine, theirs = (driver(0, replayCheck="none") for _ in range(2))
    written = {
        one: one.task([attempt([f"{who} {n}" for n in range(3)])]) for one, who in ((mine, "a"), (theirs, "b"))
    }
    with open_store(any_url) as store:
        kind, usual, met = type(store), type(store).set_note, []

    def overtaken(store, key, value, version):
        if key.startswith("ledger/") and not met:
            met.append(key)
            theirs.commit(written[theirs])
        return usual(store, key, value, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "set_note", overtaken)
        mine.commit(written[mine])
    assert met
    assert sorted(payloads(any_url, out)) == ["b 0", "b 1", "b 2"]
    assert left_behind(any_url, name) == []


@pytest.mark.usefixtures("at_once")
def test_of_the_attempts_of_a_task_the_one_that_won_counts(any_url, name, out, driver):
    write = driver(0)

    def breaks():
        yield attempt(["first"])
        yield attempt(["second"])
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        write.task(breaks(), 0)
    assert [one.rows for one in left_behind(any_url, name)] == [1]
    tried_again = write.task([attempt(["a"])], 0)
    slow, speculative = (write.task([attempt(["b"])], 1) for _ in range(2))
    assert len({one.stage for one in (tried_again, slow, speculative)}) == 3
    write.commit(speculative, tried_again)  # in whatever order they end
    assert sorted(payloads(any_url, out)) == ["a", "b"]
    assert left_behind(any_url, name) == []


def test_stages_of_dead_attempts_and_earlier_runs_are_swept(any_url, name, out, driver):
    driver(0).task([attempt(["lost attempt"])])
    write = driver(0)
    won = write.task([attempt(["won"])])
    with open_store(any_url) as store:  # a run that is ahead has staged a part of the next batch
        store.stage(out, f"{write.query}/1/000000-later", _pushes(store, "later"))
    write.commit(won)
    assert payloads(any_url, out) == ["won"]
    assert [one.stage for one in left_behind(any_url, name)] == [f"{write.query}/1/000000-later"]


def _pushes(store, value):
    from spark_queue.messages.message import pushes

    return pushes([value])


def test_what_a_late_attempt_stages_is_swept_with_the_next_batch(any_url, name, out, driver):
    write = driver(0)

    def late():
        write.commit(write.task([attempt(["won"])]))
        yield attempt(["late"])

    write.task(late())
    assert [one.rows for one in left_behind(any_url, name)] == [1]
    driver(1).run(attempt(["next"]))
    assert sorted(payloads(any_url, out)) == ["next", "won"]
    assert left_behind(any_url, name) == []


def test_an_aborted_batch_leaves_nothing(any_url, name, out, driver):
    write = driver(0)
    mine, other = write.task([attempt(["mine"])]), driver(0).task([attempt(["of another run"])])
    write.abort(mine, None)
    assert [one.stage for one in left_behind(any_url, name)] == [other.stage]
    assert payloads(any_url, out) == []


def test_an_abort_keeps_what_the_ledger_has_decided_on(any_url, name, out, driver):
    write = driver(0)
    mine, lost = write.task([attempt(["mine"])]), write.task([attempt(["lost"])], 1)
    with killed_before("publish", any_url):
        write.commit(mine)
    write.abort(mine, lost)
    assert [one.stage for one in left_behind(any_url, name)] == [mine.stage]
    driver(0).run(attempt(["mine"]))
    assert payloads(any_url, out) == ["mine"]
    assert left_behind(any_url, name) == []


def test_discarded_rows_are_missed_before_anything_is_visible(any_url, out, driver):
    write = driver(0)
    first, second = write.task([attempt(["x"])], 0), write.task([attempt(["y"])], 1)
    with open_store(any_url) as store:
        store.unstage(first.stage)
    with pytest.raises(StoreError, match="2 rows staged, 1 left"):
        write.commit(first, second)
    assert payloads(any_url, out) == []
    assert batch_in_ledger(any_url, write.query) is None


def test_a_ledger_that_is_gone_or_of_another_time_stops_the_query(any_url, out, driver):
    for number in range(3):
        driver(number).run(attempt([number]))
    sink = driver(3).query
    forget_ledger(any_url, sink)
    with pytest.raises(CheckpointError, match=rf"batch 3 of sink '{sink}': there is no ledger"):
        driver(3).run(attempt([3]))
    with open_store(any_url) as store:
        set_ledger(store, sink, 1)
    with pytest.raises(CheckpointError, match="the ledger ends with batch 1"):
        driver(3).run(attempt([3]))
    with open_store(any_url) as store:
        set_ledger(store, sink, 2)
    driver(3).run(attempt([3]))
    assert sorted(payloads(any_url, out)) == [0, 1, 2, 3]
    change_ledger(any_url, sink, v=2)
    with pytest.raises(StoreError, match=r"ledger of sink .* has version 2.*upgrade"):
        driver(4).run(attempt([4]))
    with open_store(any_url) as store:
        set_ledger(store, sink, 10)
    with pytest.raises(FencedError, match="is at batch 10 already"):
        driver(4).run(attempt([4]))
    assert sorted(payloads(any_url, out)) == [0, 1, 2, 3]


def test_a_ledger_that_is_lost_while_tasks_run_stops_the_driver(any_url, out, driver):
    driver(0).run(attempt([0]))
    write = driver(1)
    written = write.task([attempt([1])])
    forget_ledger(any_url, write.query)
    with pytest.raises(CheckpointError, match="there is no ledger"):
        write.commit(written)
    assert payloads(any_url, out) == [0]


def test_one_sink_writes_to_several_queues_at_once(any_url, name, out, sink):
    other = f"{name}.other"
    halves = [range(start, 100, 2) for start in (0, 1)]
    parts = [attempt(half, queue=[out if n % 3 else other for n in half]) for half in halves]
    write = Write(parts[0].schema, query=sink, url=any_url)
    written = [write.task([one], number) for number, one in enumerate(parts)]
    assert payloads(any_url, out) == payloads(any_url, other) == []
    write.commit(*written)
    assert sorted(payloads(any_url, out)) == [n for n in range(100) if n % 3]
    assert sorted(payloads(any_url, other)) == list(range(0, 100, 3))


# --- batch writes ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_a_failing_task_leaves_nothing_visible(any_url, name, out, sink):
    def breaks():
        yield attempt([-1])
        yield attempt([-2])
        raise RuntimeError("broken row")

    parts = pieces(range(30), 3)
    for query in (None, sink):
        write = Write(ATTEMPT, query=query, url=any_url, queue=out)
        with pytest.raises(RuntimeError, match="broken row"):
            write.run(*parts[:2], breaks(), parts[2])
        assert payloads(any_url, out) == []
        if query is None:
            assert left_behind(any_url, name) == []
        else:  # Spark does not say what the failed attempt has staged: the next one sweeps it
            assert [one.rows for one in left_behind(any_url, name)] == [1]
            Write(ATTEMPT, query=query, url=any_url, queue=out).run(*parts)
            assert sorted(payloads(any_url, out)) == list(range(30))
            assert left_behind(any_url, name) == []


def test_a_bad_row_fails_the_whole_write_before_any_of_it_is_visible(any_url, name, out):
    texts = [str(n) for n in range(29_999)] + ["no json"]
    parts = [
        [pa.record_batch({"payload": texts[start : start + 5_000]}) for start in range(half, half + 15_000, 5_000)]
        for half in (0, 15_000)
    ]
    with pytest.raises(MessageError, match="its payload is not JSON"):
        Write(url=any_url, queue=out).run(*parts)
    assert payloads(any_url, out) == []
    assert left_behind(any_url, name) == []
    Write(url=any_url, queue=out, onBadRow="deadLetter").run(*parts)
    assert sorted(payloads(any_url, out)) == list(range(29_999))
    assert payloads(any_url, f"{out}.dead") == ["no json"]
    assert left_behind(any_url, name) == []


@pytest.mark.usefixtures("at_once")
def test_what_a_task_stages_after_its_write_has_been_aborted_is_dropped(any_url, name, out):
    write = Write(url=any_url, queue=out, onBadRow="fail")

    def late():
        yield rows([0])
        yield rows([1])
        wait_until(lambda: left_behind(any_url, name))
        write.abort()  # another task has failed, and Spark does not wait for this one
        assert left_behind(any_url, name) == []
        yield rows([2])

    with pytest.raises(FencedError, match="its write has ended without this task"):
        write.task(late())
    assert left_behind(any_url, name) == []
    assert payloads(any_url, out) == []


def test_a_batch_write_leaves_no_ledger(any_url, out):
    with open_store(any_url) as store:
        write = Write(url=any_url, queue=out)
        sink = write.writer.operation._sink
        assert ledger_of(store, sink) is not None, "what is staged without one is dropped"
        write.run(rows([1]))
        assert ledger_of(store, sink) is None
    assert payloads(any_url, out) == [1]


def test_a_numbered_batch_write_is_written_once(any_url, out, sink):
    for number, value in ((0, 10), (0, 11), (3, 12), (2, 13), (3, 14)):
        save(attempt([value]), url=any_url, queue=out, txnAppId=sink, txnVersion=str(number))
    assert sorted(payloads(any_url, out)) == [10, 12]


def test_a_query_with_a_new_checkpoint_writes_with_the_same_application(any_url, out, in_query):
    """Or what it reads would be removed from the source, and written nowhere."""
    for version in range(3):
        in_query("q1", version, version)
    for version in (0, 1, 1):
        in_query("q2", version, 10 + version)
    assert sorted(payloads(any_url, out)) == [0, 1, 2, 10, 11]


def test_a_lower_version_in_a_query_is_an_error(any_url, out, sink, in_query):
    in_query("q", 4, "a")
    with pytest.raises(CheckpointError, match=f"txnVersion 3 of sink '{sink}:q' is below 4.* set a new txnAppId"):
        in_query("q", 3, "b")
    in_query("q", 6, "c")
    assert sorted(payloads(any_url, out)) == ["a", "c"]


def test_over_spark_connect_a_lower_version_is_an_error(any_url, out, sink):
    """There, `foreachBatch` does not know its query."""
    write = {"url": any_url, "queue": out, "txnAppId": sink, "connect": True}
    for version in (4, 4, 6):
        save(attempt([version]), txnVersion=str(version), **write)
    with pytest.raises(CheckpointError, match=f"txnVersion 5 of sink '{sink}' is below 6.* set a new txnAppId"):
        save(attempt([5]), txnVersion="5", **write)
    with pytest.raises(CheckpointError, match="comes again with 1 row "):
        save(attempt([7]), txnVersion="6", **write)
    assert sorted(payloads(any_url, out)) == [4, 6]


def test_a_lower_version_in_a_job_is_skipped_with_a_warning(any_url, out, sink, caplog):
    for version in ("4", "3", "4"):
        save(attempt([version]), url=any_url, queue=out, txnAppId=sink, txnVersion=version)
    assert payloads(any_url, out) == ["4"]
    reported = [one.getMessage() for one in caplog.records]
    assert reported == [
        f"txnVersion 3 of txnAppId {sink} is below 4, the last one that was written: nothing was written"
    ]


def test_the_first_query_goes_on_with_the_ledger_of_an_older_version(any_url, out, sink, in_query):
    """That was the ledger of the application, whatever query wrote."""
    save(attempt(["a"]), url=any_url, queue=out, txnAppId=sink, txnVersion="7")
    in_query("q1", 7, "a")
    in_query("q1", 8, "b")
    in_query("q2", 0, "c")
    with pytest.raises(CheckpointError, match="txnVersion 5"):
        in_query("q1", 5, "d")
    assert sorted(payloads(any_url, out)) == ["a", "b", "c"]


def test_of_two_queries_one_goes_on_with_the_ledger_of_an_older_version(any_url, sink, out):
    save(attempt(["a"]), url=any_url, queue=out, txnAppId=sink, txnVersion="7")
    with open_store(any_url) as store:
        inherit_ledger(store, sink, f"{sink}:q1")
        for query in ("q1", "q2"):
            inherit_ledger(store, sink, f"{sink}:{query}")
        old = ledger_of(store, sink)
        assert old is not None
        assert ledger_of(store, f"{sink}:q1") == Ledger(f"{sink}:q1", 7, old.stages, rows=old.rows)
        assert ledger_of(store, f"{sink}:q2") is None
        delete_sink(store, f"{sink}:q1")


def test_ids_are_the_same_whenever_a_batch_is_written(any_url, out, sink):
    ids = []
    for _ in range(2):
        save(rows(range(500)), rows(range(500, 1_000)), url=any_url, queue=out, txnAppId=sink, txnVersion="0")
        ids.append({one.id: one.payload for one in found(any_url, out)})
        with open_store(any_url) as store:
            store.purge(out)
        forget_ledger(any_url, sink)
    assert ids[0] == ids[1]
    assert len(ids[0]) == 1_000
    assert all(len(id) == 24 and int(id, 16) for id in ids[0])
