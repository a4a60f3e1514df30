"""Delivery guarantees: the sink that writes exactly once, the sources, who owns a consumer, hashes."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StringType, StructType

from spark_queue import FencedError, Queue, delivery_hash, open_store
from spark_queue.message import messages, pushes
from spark_queue.options import QueueOptions
from spark_queue.spark import drain
from spark_queue.spark.writer import Publish, Written
from spark_queue.store.ledger import ledger_of, set_ledger
from spark_queue.store.owner import consumers, owner_of, revoke
from tests.spark.test_stream import numbers, stopped, until


@pytest.fixture
def out(q):
    return f"{q.name}.out"


@pytest.fixture
def out_any(q_any):
    return f"{q_any.name}.out"


def payloads(url, queue):
    with open_store(url) as store:
        return [one.payload for batch in store.peek(queue) for one in messages(batch)]


def to_queue(q, df, queue, trigger=None, **options):
    writer = df.writeStream.format("queue").options(**{"url": q.url, "queue": queue} | options)
    return writer.option("checkpointLocation", q.checkpoint).trigger(**(trigger or {"availableNow": True})).start()


def run_to_queue(q, queue, source=None, **options):
    """Move what is ready to another queue, and give the last query, which has ended."""
    while True:  # on Spark 4.0 and 4.1 each run is one batch
        query = to_queue(
            q, q.stream(maxRecordsPerTrigger="700", **(source or {})).select("payload"), queue, **options
        )
        drain(query, q.url)
        if q.sizes().total == 0:
            return query


def forget_ledger(store, sink):
    note = store.note(f"ledger/{sink}")
    assert note is not None
    store.set_note(f"ledger/{sink}", None, note.version)


def change_ledger(store, sink, **facts):
    note = store.note(f"ledger/{sink}")
    assert note is not None
    store.set_note(f"ledger/{sink}", note.value | facts, note.version)


def batch_in_ledger(store, sink):
    ledger = ledger_of(store, sink)
    return ledger.batch if ledger else None


def left_behind(url, name):
    """Staged rows and ledgers of sinks that wrote to queues of this name."""
    with open_store(url) as store:
        return [one for one in store.staged() if one.queue.startswith(name)]


# --- the sink -------------------------------------------------------------------------------------------------------


def test_a_streaming_write_is_exactly_once_by_default(q_any, out_any):
    q_any.push([{"n": n} for n in range(2_000)])
    query = run_to_queue(q_any, out_any, source={"delivery": "exactly-once", "numPartitions": "2"})
    assert sorted(one["n"] for one in payloads(q_any.url, out_any)) == list(range(2_000))
    assert left_behind(q_any.url, q_any.name) == []
    with open_store(q_any.url) as store:
        assert batch_in_ledger(store, str(query.id)) == 2


def forget_the_last_commit(q):
    """As if the query had died after its sink had committed, before Spark noted that the batch was done."""
    commits = Path(q.checkpoint, "commits")
    last = max((one for one in commits.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def one_batch(q, df, queue, **options):
    query = to_queue(q, df, queue, {"once": True}, **options)
    query.awaitTermination()
    return query.lastProgress["batchId"]


def test_a_batch_that_comes_again_is_not_written_again(q_any, out_any):
    source = q_any.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100).load()
    df = source.selectExpr("to_json(struct(value)) payload").repartition(2)
    assert [one_batch(q_any, df, out_any) for _ in range(2)] == [0, 1]
    written = payloads(q_any.url, out_any)
    assert forget_the_last_commit(q_any) == 1
    with Queue(q_any.url, out_any) as queue:  # and what it wrote has been consumed meanwhile
        assert len(queue.reserve(10_000)) == len(written) == 200
        queue.store.commit(out_any, queue.consumer)
    assert [one_batch(q_any, df.repartition(5), out_any) for _ in range(2)] == [1, 2]  # in other pieces, too
    values = Counter(one["value"] for one in written + payloads(q_any.url, out_any))
    assert values == Counter(range(300))


def test_at_least_once_writes_a_batch_that_comes_again_twice(q, out):
    """What the ledger is good for: the test above would see it if there were none."""
    source = q.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10).load()
    df = source.selectExpr("to_json(struct(value)) payload")
    assert [one_batch(q, df, out, delivery="at-least-once") for _ in range(2)] == [0, 1]
    assert forget_the_last_commit(q) == 1
    assert one_batch(q, df, out, delivery="at-least-once") == 1
    values = Counter(one["value"] for one in payloads(q.url, out))
    assert values == Counter([*range(20), *range(10, 20)])


def publish_work(q, queue, **options):
    schema = StructType().add("payload", StringType())
    return Publish(QueueOptions.parse({"url": q.url, "queue": queue} | options, "push"), schema, streaming=True)


def staged_batch(q, queue, sink, number, values):
    """What a task of a batch would have staged."""
    stage = f"{sink}/{number}/000000-{uuid.uuid4().hex[:8]}"
    with open_store(q.url) as store:
        store.stage(queue, stage, pushes(values))
    return Written(rows=len(values), sink=sink, batch=number, stage=stage, staged={"": len(values)})


def test_a_driver_that_died_after_its_decision_is_finished_by_the_next(q_any, out_any):
    sink = f"s{q_any.name}"
    work = publish_work(q_any, out_any)
    work.commit([staged_batch(q_any, out_any, sink, 0, ["a"])])
    first = staged_batch(q_any, out_any, sink, 1, ["b", "c"])
    with open_store(q_any.url) as store:
        set_ledger(store, sink, 1)  # decided, with nothing published yet
        change_ledger(store, sink, stages=[first.stage])
    work.commit([Written(sink=sink, batch=1)])  # the replay has staged nothing: it has seen the ledger
    assert sorted(payloads(q_any.url, out_any)) == ["a", "b", "c"]
    work.commit([Written(sink=sink, batch=1)])
    assert sorted(payloads(q_any.url, out_any)) == ["a", "b", "c"]
    assert left_behind(q_any.url, q_any.name) == []


def test_of_two_drivers_with_the_same_batch_the_first_decides_for_both(q_any, out_any):
    sink = f"s{q_any.name}"
    mine, theirs = (staged_batch(q_any, out_any, sink, 0, [f"{who} {n}" for n in range(3)]) for who in "ab")
    work = publish_work(q_any, out_any)
    work.commit([mine])
    work.commit([theirs])
    assert sorted(payloads(q_any.url, out_any)) == ["a 0", "a 1", "a 2"]
    assert left_behind(q_any.url, q_any.name) == []


def test_stages_of_dead_attempts_and_earlier_runs_are_swept(q_any, out_any):
    sink = f"s{q_any.name}"
    staged_batch(q_any, out_any, sink, 0, ["lost attempt"])
    won = staged_batch(q_any, out_any, sink, 0, ["won"])
    later = staged_batch(q_any, out_any, sink, 1, ["of the next batch, by a run that is ahead"])
    publish_work(q_any, out_any).commit([won])
    assert payloads(q_any.url, out_any) == ["won"]
    assert [one.stage for one in left_behind(q_any.url, q_any.name)] == [later.stage]
    with open_store(q_any.url) as store:
        store.unstage(sink)


def test_an_aborted_batch_leaves_nothing(q, out):
    sink = f"s{q.name}"
    mine, other = staged_batch(q, out, sink, 0, ["mine"]), staged_batch(q, out, sink, 0, ["of another run"])
    publish_work(q, out).abort([mine, None])
    assert [one.stage for one in left_behind(q.url, q.name)] == [other.stage]
    assert payloads(q.url, out) == []


def test_rows_that_somebody_discarded_are_missed_before_anything_is_visible(q, out):
    sink = f"s{q.name}"
    first, second = staged_batch(q, out, sink, 0, ["x"]), staged_batch(q, out, sink, 0, ["y"])
    with open_store(q.url) as store:
        store.unstage(first.stage)
    with pytest.raises(Exception, match="2 rows were staged and 1 are there"):
        publish_work(q, out).commit([first, second])
    assert payloads(q.url, out) == []
    with open_store(q.url) as store:
        assert ledger_of(store, sink) is None


def test_a_ledger_that_is_gone_or_of_another_time_stops_the_query(q, out):
    q.push([{"n": n} for n in range(1_500)])
    query = run_to_queue(q, out)
    sink = str(query.id)
    with open_store(q.url) as store:
        last = batch_in_ledger(store, sink)
        forget_ledger(store, sink)
    q.push([{"n": -1}])
    with pytest.raises(StreamingQueryException, match=rf"batch {last + 1} of sink .*there is no ledger"):
        run_to_queue(q, out)
    with open_store(q.url) as store:
        set_ledger(store, sink, last)
    run_to_queue(q, out)
    assert sorted(one["n"] for one in payloads(q.url, out)) == [-1, *range(1_500)]
    with open_store(q.url) as store:
        change_ledger(store, sink, v=2)
    q.push([{"n": -2}])
    with pytest.raises(StreamingQueryException, match=r"ledger of sink .* has version 2.*upgrade"):
        run_to_queue(q, out)
    with open_store(q.url) as store:
        set_ledger(store, sink, last + 7)
    with pytest.raises(StreamingQueryException, match=f"is at batch {last + 7} already"):
        run_to_queue(q, out)


def test_one_sink_writes_to_several_queues_at_once(q_any, out_any):
    other = f"{q_any.name}.other"
    q_any.push([{"n": n} for n in range(100)])
    n = "cast(get_json_object(payload, '$.n') as int)"
    df = q_any.stream().selectExpr("payload", f"if({n} % 2 = 0, '{out_any}', '{other}') queue")
    writer = df.writeStream.format("queue").option("url", q_any.url).option("checkpointLocation", q_any.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(one["n"] for one in payloads(q_any.url, out_any)) == list(range(0, 100, 2))
    assert sorted(one["n"] for one in payloads(q_any.url, other)) == list(range(1, 100, 2))


def test_a_failing_task_leaves_nothing_visible(q_any, out_any):
    df = q_any.spark.range(0, 4_000, 1, 4).selectExpr("if(id = 3500, raise_error('broken row'), string(id)) payload")
    with pytest.raises(Exception, match="broken row"):
        q_any.writing(df, queue=out_any).save()
    assert payloads(q_any.url, out_any) == []
    until(lambda: left_behind(q_any.url, q_any.name) == [])


def test_a_bad_row_fails_the_whole_write_before_any_of_it_is_visible(q_any, out_any):
    df = q_any.spark.range(0, 30_000, 1, 2).selectExpr("if(id = 29999, 'no json', string(id)) payload")
    with pytest.raises(Exception, match="its payload is not JSON"):
        q_any.writing(df, queue=out_any).save()
    assert payloads(q_any.url, out_any) == []
    q_any.writing(df, queue=out_any, onBadRow="deadLetter").save()
    assert len(payloads(q_any.url, out_any)) == 29_999
    assert payloads(q_any.url, f"{out_any}.dead") == ["no json"]
    until(lambda: left_behind(q_any.url, q_any.name) == [])


def test_what_a_task_stages_after_its_write_has_been_aborted_is_dropped(q_any, out_any, monkeypatch):
    schema = StructType().add("payload", StringType())
    options = {"url": q_any.url, "queue": out_any, "onBadRow": "fail"}
    work = Publish(QueueOptions.parse(options, "push"), schema, streaming=False)
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0))

    def rows():
        yield pa.record_batch({"payload": ["1"]})
        work.abort([])  # another task has failed, and Spark does not wait for this one
        assert left_behind(q_any.url, q_any.name) == []
        yield pa.record_batch({"payload": ["2"]})

    with pytest.raises(FencedError, match="its write has ended without this task"):
        work.run(rows())
    assert left_behind(q_any.url, q_any.name) == []
    assert payloads(q_any.url, out_any) == []


def test_a_batch_write_leaves_no_ledger(q, out):
    with open_store(q.url) as store:
        q.writing(q.spark.sql("SELECT '1' payload"), queue=out).save()
        assert store.notes("ledger/") == {}


def test_a_numbered_batch_write_is_written_once(q_any, out_any):
    app = f"app-{q_any.name}"

    def write(number, value):
        df = q_any.spark.sql(f"SELECT '{value}' payload")
        q_any.writing(df, queue=out_any, txnAppId=app, txnVersion=str(number)).save()

    for number, value in ((0, 10), (0, 11), (3, 12), (2, 13), (3, 14)):
        write(number, value)
    assert sorted(payloads(q_any.url, out_any)) == [10, 12]


def test_ids_are_the_same_whenever_a_batch_is_written(q, out):
    app = f"app-{q.name}"
    df = q.spark.range(0, 1_000, 1, 2).selectExpr("string(id) payload")
    ids = []
    for _ in range(2):
        q.writing(df, queue=out, txnAppId=app, txnVersion="0").save()
        with open_store(q.url) as store:
            found = [one for batch in store.peek(out) for one in messages(batch)]
            ids.append({one.id: one.payload for one in found})
            store.purge(out)
            forget_ledger(store, app)
    assert ids[0] == ids[1]
    assert len(ids[0]) == 1_000
    assert all(len(id) == 24 and int(id, 16) for id in ids[0])


# --- several databases ----------------------------------------------------------------------------------------------


def test_a_write_reaches_several_databases(q_any, out_any, tmp_path):
    urls = {"here": q_any.url, "there": f"sqlite:///{tmp_path}/there.db"}
    df = q_any.spark.range(0, 9_000, 1, 3).selectExpr("string(id) payload", "if(id % 3 = 0, 'there', 'here') ns")
    options = {"urls": json.dumps(urls), "queue": out_any}
    df.write.format("queue").mode("append").options(**options).save()
    assert sorted(payloads(urls["there"], out_any)) == list(range(0, 9_000, 3))
    assert len(set(payloads(urls["here"], out_any))) == 6_000
    for url in urls.values():
        assert left_behind(url, q_any.name) == []


def test_each_database_has_a_ledger_of_its_own(q_any, out_any, tmp_path):
    urls = {"here": q_any.url, "there": f"sqlite:///{tmp_path}/there.db"}
    app, df = f"app-{q_any.name}", q_any.spark.range(10).selectExpr("string(id) payload", "'there' ns")
    options = {"urls": json.dumps(urls), "queue": out_any, "txnAppId": app}
    here = q_any.writing(df.drop("ns"), queue=out_any, txnAppId=app, txnVersion="5")
    here.save()  # as if a driver had died after it had published in one of them
    for version in ("5", "5", "6"):
        both = df.union(df.selectExpr("payload", "'here' ns"))
        both.write.format("queue").mode("append").options(**options, txnVersion=version).save()
    assert Counter(payloads(urls["here"], out_any)) == Counter(2 * list(range(10)))
    assert Counter(payloads(urls["there"], out_any)) == Counter(2 * list(range(10)))
    for url in urls.values():
        assert left_behind(url, q_any.name) == []


@pytest.mark.parametrize("streaming", [True, False])
def test_a_database_may_have_several_names(q, out, tmp_path, streaming):
    """Where one of them gets nothing of a batch, what the other gets must not be taken for left behind."""
    urls = json.dumps(dict.fromkeys(("first", "second"), f"sqlite:///{tmp_path}/both.db"))
    for ns in ("'second'", "if(payload LIKE '%3%', 'first', 'second')"):
        q.push([{"n": n} for n in range(9)])
        df = q.stream(delivery="exactly-once") if streaming else q.read()
        write(df.selectExpr("payload", f"{ns} ns"), q, urls, out, streaming)
    assert Counter(one["n"] for one in payloads(f"sqlite:///{tmp_path}/both.db", out)) == Counter(2 * list(range(9)))
    assert left_behind(f"sqlite:///{tmp_path}/both.db", q.name) == []


@pytest.mark.parametrize("streaming", [True, False])
def test_one_database_under_two_urls_is_refused_before_anything_is_visible(q, out, tmp_path, streaming):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    url = f"sqlite:///{tmp_path}/data/both.db"
    urls = json.dumps({"first": url, "second": f"sqlite:///{tmp_path}/link/both.db"})
    q.push([{"n": n} for n in range(9)])
    df = q.stream(delivery="exactly-once") if streaming else q.read()
    with pytest.raises(Exception, match="same database under two URLs"):
        write(df.selectExpr("payload", "'second' ns"), q, urls, out, streaming)
    assert payloads(url, out) == []
    assert left_behind(url, q.name) == []
    assert q.sizes().total == 9


def write(df, q, urls, out, streaming):
    """All that is there, to several databases."""
    if streaming:
        writer = df.writeStream.format("queue").option("checkpointLocation", q.checkpoint)
        drain(writer.options(urls=urls, queue=out).trigger(availableNow=True).start(), q.url)
    else:
        df.write.format("queue").mode("append").options(urls=urls, queue=out).save()
        with q.client() as queue:
            queue.purge()


def names_of(names):
    return f"array({', '.join(repr(name) for name in names)})"


def test_databases_may_join_and_leave_a_stream(q, out, tmp_path):
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two", "three")}
    for number, names in enumerate((["one"], ["one", "two"], ["two"], ["one", "two", "three"])):
        q.push([{"n": number}])
        df = q.stream(delivery="exactly-once").selectExpr("payload", f"explode({names_of(names)}) ns")
        writer = df.writeStream.format("queue").option("checkpointLocation", q.checkpoint)
        writer = writer.options(urls=json.dumps({name: urls[name] for name in names}), queue=out)
        drain(writer.trigger(availableNow=True).start(), q.url)
    found = {name: sorted(one["n"] for one in payloads(url, out)) for name, url in urls.items()}
    assert found == {"one": [0, 1, 3], "two": [1, 2, 3], "three": [3]}


def test_a_ledger_that_is_lost_is_not_taken_for_a_database_that_joins(q, out, tmp_path):
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")}

    def run():
        q.push([{"n": 1}])
        df = q.stream(delivery="exactly-once").selectExpr("payload", "'one' ns")
        writer = df.writeStream.format("queue").option("checkpointLocation", q.checkpoint)
        query = writer.options(urls=json.dumps(urls), queue=out).trigger(availableNow=True).start()
        drain(query, q.url)
        return str(query.id)

    sink = run()
    with open_store(urls["two"]) as store:
        forget_ledger(store, sink)
    with pytest.raises(StreamingQueryException, match=r"there is no ledger"):
        run()


@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        ({"urls": "[]"}, "'1' payload, 'a' ns", "option 'urls' is .hidden. but must be a JSON object"),
        ({"urls": '{"a": "sqlite:///x.db"}'}, "'1' payload", "column 'ns' is missing"),
        (
            {"urls": '{"here": "sqlite:///x.db"}'},
            "'1' payload, 'her' ns",
            "has no database 'her'; did you mean 'here'",
        ),
        ({"urls": '{"here": "sqlite:///x.db"}'}, "'1' payload, string(NULL) ns", "its ns is NULL"),
        ({"urls": '{"a": "sqlite:///x.db"}', "url": "sqlite:///y.db"}, "'1' payload", "exclude each other"),
        ({"url": "sqlite:///y.db"}, "'1' payload, 'a' ns", "column 'ns' names one of several databases"),
    ],
)
def test_databases_that_cannot_be_meant_are_refused(q, tmp_path, monkeypatch, options, columns, told):
    monkeypatch.chdir(tmp_path)
    df = q.spark.sql(f"SELECT {columns}")
    with pytest.raises(Exception, match=told):
        df.write.format("queue").mode("append").options(**options, queue="out").save()


# --- the source -----------------------------------------------------------------------------------------------------


def test_reservations_of_an_exactly_once_source_never_end(q_any):
    q_any.push([{"n": n} for n in range(10)])
    held = []

    def fail(df, batch_id):
        df.collect()
        with open_store(q_any.url) as store:
            held.extend(store.reservations(q_any.name))
        raise RuntimeError("on purpose")

    with pytest.raises(StreamingQueryException, match="on purpose"):
        q_any.run(q_any.stream(delivery="exactly-once"), fail).awaitTermination()
    assert [one.until for one in held] == [None]
    assert numbers(q_any.drain(delivery="exactly-once")) == list(range(10))


def test_an_at_most_once_batch_is_not_delivered_twice(q_any):
    q_any.push([{"n": n} for n in range(30)])
    seen = []

    def fail_first(df, batch_id):
        seen.append([row.payload for row in df.collect()])
        if len(seen) == 1:
            assert df.count() == 10, "within a batch it can be looked at again"
            raise RuntimeError("on purpose")

    options = {"delivery": "at-most-once", "maxRecordsPerTrigger": "10"}
    with pytest.raises(StreamingQueryException, match="on purpose"):
        q_any.run(q_any.stream(**options), fail_first).awaitTermination()
    for _ in range(4):
        q_any.run(q_any.stream(**options), fail_first).awaitTermination()
    assert sum(len(batch) for batch in seen) == 30
    assert len({text for batch in seen for text in batch}) == 30
    assert len(seen[0]) == 10 and seen[1] == [], "the batch that was being worked on is given up"


def test_a_batch_that_takes_ten_times_its_lease_is_delivered_once(q_any):
    q_any.push([{"n": n} for n in range(20)])
    seen, others = [], []

    def slow(df, batch_id):
        seen.extend(row.payload for row in df.collect())
        with Queue(q_any.url, q_any.name) as rival:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                others.extend(rival.reserve(100))
                time.sleep(0.05)

    query = q_any.run(q_any.stream(reserveTimeout="500ms", maxRecordsPerTrigger="100"), slow)
    query.awaitTermination()
    assert (len(seen), len(set(seen)), others) == (20, 20, [])


def test_a_query_whose_messages_were_taken_fails_instead_of_committing_them(q_any):
    q_any.push([{"n": n} for n in range(20)])
    taken = []

    def steal(df, batch_id):
        df.collect()
        if not taken:
            with open_store(q_any.url) as store:  # as if the lease had ended: somebody else has a part of the batch
                (tag,) = {one.tag for one in store.reservations(q_any.name)}
                ids = [one.id for batch in store.fetch(q_any.name, tag) for one in messages(batch)][:5]
                store.retag(q_any.name, tag, "thief/0", ids, lease=60_000)
                taken.extend(ids)

    with pytest.raises(StreamingQueryException, match=r"5 of 20 messages of queue .* are no longer held"):
        q_any.run(q_any.stream(numPartitions="1"), steal, {"processingTime": "0 seconds"}).awaitTermination()
    assert q_any.sizes().reserved == 5, "the thief's are still there, ours are done"
    with open_store(q_any.url) as store:
        store.rollback(q_any.name, "thief")
    assert len(numbers(q_any.drain())) == 5, "started again, the query goes on"


def test_a_task_that_finds_too_few_rows_fails(q):
    q.push([{"n": n} for n in range(20)])

    def steal(df, batch_id):
        df.collect()
        with open_store(q.url) as store:
            (tag,) = {one.tag for one in store.reservations(q.name)}
            store.rollback(q.name, tag, failed=False)
        df.collect()

    with pytest.raises(StreamingQueryException, match=r"20 of 20 messages of queue .* are no longer held"):
        q.run(q.stream(numPartitions="1", delivery="exactly-once"), steal).awaitTermination()


def test_a_second_query_on_a_copy_of_the_checkpoint_is_refused(q_any, tmp_path):
    q_any.push([{"n": 0}])
    seen = []
    stream = q_any.stream(delivery="exactly-once")
    first = q_any.run(stream, lambda df, i: seen.extend(df.collect()), {"processingTime": "0 seconds"})
    until(lambda: seen)
    copy = str(tmp_path / "copy")
    shutil.copytree(q_any.checkpoint, copy)
    # In one session Spark itself stops a query of which another run starts: this is to be one of another session.
    Path(copy, ".metadata.crc").unlink(missing_ok=True)
    Path(copy, "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    with pytest.raises(StreamingQueryException, match="a second query on a copy of its checkpoint"):
        q_any.run(stream, lambda df, i: None, {"processingTime": "0 seconds"}, checkpoint=copy).awaitTermination()
    assert first.isActive
    q_any.push([{"n": 1}])
    until(lambda: len(seen) == 2)
    stopped(first)
    second = q_any.run(stream, lambda df, i: None, checkpoint=copy)  # the other has ended: it may take over
    second.awaitTermination()


def test_a_query_whose_consumer_was_released_by_force_fails(q):
    q.push([{"n": 0}])
    seen = []
    query = q.run(
        q.stream(delivery="exactly-once"), lambda df, i: seen.extend(df.collect()), {"processingTime": "0 seconds"}
    )
    until(lambda: seen)
    with open_store(q.url) as store:
        ((_, consumer, owner),) = consumers(store, q.name)
        assert owner is not None and owner == owner_of(store, q.name, consumer)
        revoke(store, q.name, consumer)
    q.push([{"n": 1}])
    with pytest.raises(StreamingQueryException, match=r"no longer runs consumer .* released by word"):
        query.awaitTermination(60)


def test_settling_in_a_batch_is_no_loss(q):
    q.push([{"n": n} for n in range(20)])

    def settle(df, batch_id):
        some = df.where("cast(get_json_object(payload, '$.n') as int) < 5").selectExpr(
            "id", "'rollback' outcome", "60 delay"
        )
        q.writing(some, operation="settle", consumer="c").save()
        assert df.count() == 15

    query = q.run(q.stream(consumer="c", delivery="exactly-once"), settle)
    drain(query, q.url)
    assert (q.sizes().scheduled, q.sizes().total) == (5, 5)


# --- hashes ---------------------------------------------------------------------------------------------------------


def test_hashes_are_the_same_at_every_replay(q_any):
    q_any.push([{"n": n} for n in range(100)])
    seen = []

    def fail_at_first(df, batch_id):
        rows = {row.id: row.delivery_hash for row in df.collect()}
        seen.append((batch_id, rows, delivery_hash(df, batch_id)))
        if len(seen) % 2:
            raise RuntimeError("on purpose")

    for _ in range(4):
        query = q_any.run(q_any.stream(delivery="exactly-once", maxRecordsPerTrigger="50"), fail_at_first)
        try:
            query.awaitTermination()
        except StreamingQueryException:
            continue
    by_batch = {}
    for batch, rows, whole in seen:
        if rows:
            assert by_batch.setdefault(batch, (rows, whole)) == (rows, whole)
    assert len(by_batch) >= 2
    assert len({whole for _, whole in by_batch.values()}) == len(by_batch)
    assert len({one for rows, _ in by_batch.values() for one in rows.values()}) == 100


def test_a_batch_without_the_column_has_no_hash(q):
    with pytest.raises(Exception, match="no column 'delivery_hash'"):
        delivery_hash(q.read().select("id"), 0)
