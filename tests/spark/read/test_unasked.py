"""A query that reads a queue twice is refused before it reserves; two queries on one queue are not."""

from __future__ import annotations

import tempfile
import threading

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import UsageError
from spark_queue.options.roles import parse_options
from spark_queue.spark import drain
from spark_queue.spark.read import unasked
from spark_queue.spark.read.unasked import UnaskedReader
from spark_queue.stores.conformance.waiting import wait_until


def joined(one, two):
    sides = one.selectExpr("mature", "payload a"), two.selectExpr("mature", "payload b")
    left, right = (side.withWatermark("mature", "1 hour") for side in sides)
    return left.join(right, "mature")


def parsed(name, **options):
    raw = {"url": "sqlite:///unused.db", "queue": name} | options
    return parse_options(raw, "stream")


@pytest.mark.parametrize(
    "twice",
    [
        "a join with itself",
        pytest.param("two loads", marks=pytest.mark.full),
        pytest.param("two loads with a name", marks=pytest.mark.full),
    ],
)
def test_a_query_that_reads_a_queue_twice_is_refused_before_anything_is_reserved(q_any, twice):
    q_any.push([{"n": n} for n in range(20)])
    named = {"consumer": "etl"} if "name" in twice else {}
    one = q_any.stream(delivery="exactly-once", **named)
    two = one if "itself" in twice else q_any.stream(delivery="exactly-once", **named)
    for _ in range(2 if twice == "two loads" else 1):  # started again, it is refused again
        query = q_any.run(joined(one, two), lambda df, _: df.collect())
        with pytest.raises(StreamingQueryException, match=r"to read queue .* twice.*Nothing was reserved") as raised:
            query.awaitTermination()
        text = str(raised.value)
        assert "a stream cannot be joined with itself" in text and "UsageError" in text
    sizes = q_any.sizes()
    assert (sizes.ready, sizes.reserved, sizes.total) == (20, 0, 20)
    with q_any.client() as queue:
        assert {message.tries for message in queue.peek(limit=100)} == {0}
    assert len(q_any.drain(checkpoint=str(q_any.folder / "other"))[0]) == 20, "another query reads them at once"


def test_two_queries_of_one_dataframe_share_the_messages(q):
    """They are started at the same time: each sees the other before it is asked."""
    q.push([{"n": n} for n in range(40)])
    stream, seen = q.stream(maxRecordsPerTrigger="5"), []
    trigger = {"processingTime": "0 seconds"}
    queries = []

    def start(number):
        collect = lambda df, _: seen.extend(row.payload for row in df.collect())  # noqa: E731
        queries.append(q.run(stream, collect, trigger, str(q.folder / f"checkpoint{number}")))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    wait_until(lambda: len(seen) == 40 or any(one.exception() for one in queries), 60)
    assert [one.exception() for one in queries] == [None, None]
    for one in queries:
        one.stop()
        drain(one, q.url)
    assert len(seen) == len(set(seen)) == 40


# --- without Spark --------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(unasked, "ASK_TIMEOUT", 0.2)  # of Spark's reader


def test_a_reader_waits_until_that_of_another_query_is_asked(tmp_path):
    one, two = (UnaskedReader(parsed("a"), [tmp_path]) for _ in range(2))
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (one.check(), done.set()))
    waiting.start()
    assert not done.wait(0.2)
    two.check()
    assert done.wait(5)
    waiting.join()
    one.check()
    assert list(tmp_path.iterdir()) == []


def test_of_two_readers_of_one_query_the_first_is_refused(tmp_path, short):
    """The second is never asked, as long as the first one does not answer."""
    one, two = (UnaskedReader(parsed("a"), [tmp_path]) for _ in range(2))
    with pytest.raises(UsageError, match="queue 'a' twice") as raised:
        one.check()
    assert raised.value.facts == {"queues": ["a"]}
    two.end()


@pytest.mark.parametrize(
    "other",
    [{"queue": "b"}, {"consumer": "etl"}, {"url": "sqlite:///other.db"}],
    ids=lambda one: next(iter(one)),
)
def test_other_queues_and_consumers_do_not_count(tmp_path, short, other):
    two = UnaskedReader(parsed("a", **other), [tmp_path])
    UnaskedReader(parsed("a"), [tmp_path]).check()
    two.end()


@pytest.mark.parametrize(("mode", "refused"), [("queue", True), ("log", False)])
def test_each_queue_of_several_inputs_counts_and_logs_do_not(tmp_path, short, mode, refused):
    inputs = f'{{"x": {{"queue": "a", "mode": "{mode}"}}, "y": {{"queue": "b"}}}}'
    two = UnaskedReader(parsed("a"), [tmp_path])
    raw = {"url": "sqlite:///unused.db", "inputs": inputs}
    one = UnaskedReader(parse_options(raw, "stream"), [tmp_path])
    if refused:
        with pytest.raises(UsageError, match="queue 'a' twice"):
            one.check()
    else:
        one.check()
    two.end()


def test_a_reader_that_has_died_does_not_count(tmp_path, short):
    dead = UnaskedReader(parsed("a"), [tmp_path])
    for mark in dead._marks.values():
        mark.close()  # as the end of its process does
    UnaskedReader(parsed("a"), [tmp_path]).check()
    assert list(tmp_path.iterdir()) == []


def test_a_mark_holds_no_password(tmp_path):
    options = {"url": "redis://user:secret@host/0", "queue": "a"}
    one = UnaskedReader(parse_options(options, "stream"), [tmp_path])
    (mark,) = tmp_path.iterdir()
    assert "secret" not in mark.name and mark.read_bytes() == b""
    one.end()


@pytest.mark.parametrize("local", [None, "", "/proc/none", "/proc/none,{other}", "/dev/null,/proc"])
def test_a_local_folder_that_cannot_be_written_does_not_matter(monkeypatch, tmp_path, short, local):
    """Another one of Spark, or the temporary folder, takes its place."""
    for name in ("temporary", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if local is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", local.format(other=tmp_path / "other"))
    one, two = (UnaskedReader.create(parsed("a")) for _ in range(2))
    with pytest.raises(UsageError, match="queue 'a' twice"):
        one.check()
    two.end()
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]


def test_readers_of_other_programs_do_not_count(monkeypatch, tmp_path, short):
    """They share the temporary folder."""
    two = UnaskedReader(parsed("a"), [tmp_path])
    monkeypatch.setattr("spark_queue.spark.read.unasked.os.getppid", lambda: 1)
    UnaskedReader(parsed("a"), [tmp_path]).check()
    two.end()


def test_marks_of_dead_readers_are_removed_by_others(monkeypatch, tmp_path):
    for number in range(3):
        dead = UnaskedReader(parsed(f"dead{number}"), [tmp_path])
        for mark in dead._marks.values():
            mark.close()
    one = UnaskedReader(parsed("a"), [tmp_path])
    assert len([*tmp_path.iterdir()]) == 1
    one.end()
    assert [*tmp_path.iterdir()] == []


def test_without_any_folder_a_query_is_refused(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/temporary")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc/none")
    with pytest.raises(UsageError, match=r"no file can be created in /proc/none, /proc/temporary.*spark.local.dir"):
        UnaskedReader.create(parsed("a"))
