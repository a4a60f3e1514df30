"""A batch that is written and comes again may lack rows, and has no others: `replayCheck`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import CheckpointError, OptionError, Queue, open_store
from spark_queue.admin.sinks import set_ledger
from spark_queue.options.roles import parse_options
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.services import row_hashes
from spark_queue.stores.services.ledger import ledger_of
from tests.spark.drive import Query, Write, attempt, change_ledger, left_behind, payloads, rows, save

pytestmark = pytest.mark.every_store


@pytest.fixture
def few(set_limits):
    """Let the ledger itself have two hashes, and a note three."""
    set_limits(hashes_in_ledger=2, hashes_per_note=3)


@pytest.fixture(params=["in the ledger", "in notes"])
def size(request):
    """Where the hashes of a batch of five rows are."""
    if request.param == "in notes":
        request.getfixturevalue("few")


def notes_of(url, sink):
    with open_store(url) as store:
        return sorted(store.notes(f"{row_hashes.WRITTEN_PREFIX}{sink}/"))


def test_a_batch_that_comes_again_with_other_rows_is_refused(any_url, name, out, driver, size):
    driver(0).run(attempt(range(5)))
    with pytest.raises(CheckpointError, match=r"batch 0 of sink .* comes again with 2 rows .* set replayCheck=none"):
        driver(0).run(attempt([0, 1, 7]), attempt([8]))
    assert left_behind(any_url, name) == []
    driver(0).run(attempt([4, 3]), attempt([2]))
    driver(1).run(attempt([7, 8]))
    assert sorted(payloads(any_url, out)) == [*range(5), 7, 8]


def test_a_row_that_was_written_once_does_not_come_twice(any_url, out, driver, size):
    driver(0).run(attempt(["a", "a", "b", "c", "d"]))
    with pytest.raises(CheckpointError, match="comes again with 1 row "):
        driver(0).run(attempt(["a", "a"]), attempt(["a"]))
    driver(0).run(attempt(["a"]), attempt(["a", "d"]))


@pytest.mark.parametrize("other", [{"queue": "another"}, {"delay": 3600}])
def test_a_row_is_its_queue_and_its_delay_too(any_url, out, sink, other):
    def write(**columns):
        given = rows(["a", "b"], **{"queue": out, "delay": 60} | columns)
        Write(given.schema, query=sink, url=any_url).run(given)

    write()
    write()
    with pytest.raises(CheckpointError, match="2 rows"):
        write(**{key: f"{out}.2" if key == "queue" else one for key, one in other.items()})


def test_ids_and_headers_may_be_others(any_url, out, sink):
    for tries in ("1", "2"):
        headers = pa.array([[("tries", tries)]], pa.map_(pa.string(), pa.string()))
        given = rows(["a"], id=tries, headers=headers)
        Write(given.schema, query=sink, url=any_url, queue=out).run(given)
    assert payloads(any_url, out) == ["a"]


def test_what_is_not_compared_goes_on(any_url, out, driver):
    driver(0).run(attempt(["a"]))
    driver(0, replayCheck="none").run(attempt(["b"]))
    driver(1, replayCheck="none").run(attempt(["c"]))
    driver(1).run(attempt(["d"]))  # nothing is known of its rows
    assert sorted(payloads(any_url, out)) == ["a", "c"]


def test_a_batch_that_an_older_version_wrote_is_not_compared(any_url, out, sink, driver):
    driver(0).run(attempt(["a"]))
    change_ledger(any_url, sink, rows=None)
    driver(0).run(attempt(["b"]))
    driver(1).run(attempt(["c"]))
    with pytest.raises(CheckpointError, match="1 row "):
        driver(1).run(attempt(["d"]))


def test_a_driver_that_decides_late_is_compared_too(any_url, name, out, driver):
    mine, theirs = driver(0), driver(0)
    staged = theirs.task([attempt(["a", "b"])])
    mine.run(attempt(["a"]))
    with pytest.raises(CheckpointError, match="1 row "):
        theirs.commit(staged)
    theirs.abort(staged)
    assert payloads(any_url, out) == ["a"]
    assert left_behind(any_url, name) == []


def test_the_notes_of_a_batch_go_with_the_next(any_url, sink, out, driver, few):
    for number in range(3):
        driver(number).run(attempt(range(7)))
        assert [one.split("/")[2] for one in notes_of(any_url, sink)] == [str(number)] * 3
    set_ledger(any_url, sink, 2)
    assert notes_of(any_url, sink) == []


def test_notes_that_a_crash_has_left_go_when_the_batch_comes_again(any_url, sink, driver, few, monkeypatch):
    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    driver(0).run(attempt(range(7)))
    with monkeypatch.context() as patched:
        patched.setattr(row_hashes, "delete_hashes", crash)
        with pytest.raises(Crash):
            driver(1).run(attempt(range(5)))
    assert [one.split("/")[2] for one in notes_of(any_url, sink)] == ["0"] * 3 + ["1"] * 2
    driver(1).run(attempt(range(5)))
    assert [one.split("/")[2] for one in notes_of(any_url, sink)] == ["1"] * 2


def test_the_notes_of_a_driver_that_decides_late_go(any_url, sink, driver, few, monkeypatch):
    mine, theirs, keep = driver(0), driver(0), row_hashes.save_hashes
    staged = theirs.task([attempt(range(3))])

    def kept(*args):
        monkeypatch.setattr(row_hashes, "save_hashes", keep)
        mine.run(attempt(range(4)))
        return keep(*args)

    monkeypatch.setattr(row_hashes, "save_hashes", kept)
    theirs.commit(staged)
    assert len(notes_of(any_url, sink)) == 2


def test_a_batch_without_rows_gets_none(any_url, out, driver):
    for _ in range(2):
        driver(0).run(attempt([]))
    with pytest.raises(CheckpointError, match="1 row "):
        driver(0).run(attempt(["a"]))


@with_limits(compared_rows=3)
def test_more_rows_than_are_compared(any_url, out, driver, caplog):
    driver(0).run(attempt(range(4)))
    assert "has more than 3 rows: they are not compared" in caplog.text
    driver(0).run(attempt(["other"]))


def test_bad_rows_are_compared_as_they_came(any_url, out, sink):
    for _ in range(2):
        given = rows(["a", "b"], delay=[0, -1])
        Write(given.schema, query=sink, url=any_url, queue=out, onBadRow="deadLetter").run(given)
    assert payloads(any_url, out) == ["a"]
    assert payloads(any_url, f"{out}.dead") == ["b"]


def test_in_a_query_a_second_write_of_a_batch_is_refused(any_url, out, in_query):
    in_query("q", 0, "a")
    in_query("q", 0, "a")
    with pytest.raises(CheckpointError, match="another one for each write of a batch"):
        in_query("q", 0, "b")
    in_query("q", 0, "b", replayCheck="none")
    assert payloads(any_url, out) == ["a"]


def test_a_job_warns_of_other_rows(any_url, out, sink, caplog):
    for value in ("a", "a", "b"):
        save(attempt([value]), url=any_url, queue=out, txnAppId=sink, txnVersion="4")
    assert payloads(any_url, out) == ["a"]
    reported = [one.getMessage() for one in caplog.records]
    assert reported == [
        f"txnVersion 4 of txnAppId {sink} was written before, without 1 row that it has now: nothing was written"
    ]


def test_a_write_that_cannot_come_again_keeps_no_hashes(any_url, out, monkeypatch):
    monkeypatch.setattr("spark_queue.spark.write.publish.hash_rows", None)
    save(attempt(["a"]), url=any_url, queue=out)
    assert payloads(any_url, out) == ["a"]


def test_a_query_of_a_queue_that_comes_again_is_compared_in_other_pieces(any_url, name, out):
    with Queue(any_url, name) as queue:
        queue.push_many(range(900))
    options = {"url": any_url, "queue": name, "numPartitions": "2", "delivery": "exactly-once"}
    query = Query(lambda batch: batch.write(url=any_url, queue=out), **options)
    query.run()
    with open_store(any_url) as store:
        ledger = ledger_of(store, query.id)
        assert ledger is not None
        known = row_hashes.load_hashes(store, ledger.rows)
    assert known is not None and len(known) == 900 * row_hashes.HASH_BYTES


@pytest.mark.full
def test_files_under_an_older_checkpoint_are_not_lost(q_any, tmp_path):
    """A source of others gives other rows under the number of a batch that is written."""
    checkpoint, copy, files, out = Path(q_any.checkpoint), tmp_path / "copy", tmp_path / "files", f"{q_any.name}.out"
    files.mkdir()

    def run(checkpoint=checkpoint, **options):
        rows = q_any.spark.readStream.schema("n INT").json(str(files)).selectExpr("to_json(struct(*)) AS payload")
        writer = rows.writeStream.format("queue").options(url=q_any.url, queue=out, **options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(one["n"] for one in payloads(q_any.url, out))

    for n in range(3):
        if n == 1:
            shutil.copytree(checkpoint, copy)
        (files / f"{n}.json").write_text(f'{{"n": {n}}}')
        if n < 2:
            assert run() == [*range(n + 1)]
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    with pytest.raises(StreamingQueryException, match=r"comes again with 1 row .* replayCheck=none"):
        run()
    assert run(tmp_path / "new") == [0, 0, 1, 1, 2], "which is the way on that the error names"


def test_the_check_is_for_exactly_once():
    given = {"url": "sqlite:///x.db", "queue": "q", "delivery": "at-least-once", "replayCheck": "none"}
    with pytest.raises(OptionError, match="'replayCheck' needs delivery=exactly-once"):
        parse_options(given, "push")
