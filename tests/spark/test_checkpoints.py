"""Local checkpoints without a process for each file, what guards them, and what a stop leaves there."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pyspark
import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Queue, open_store
from spark_queue.spark import supervise
from spark_queue.spark.checkpoints import CHECKPOINT_MANAGER, checkpoint_conf
from tests.spark_session import SPARK

#: A query on the queue and the checkpoint of its arguments, in a new session of this package.
PROGRAM = """
import sys
import spark_queue
url, queue, checkpoint, out, forever = sys.argv[1:]
spark = spark_queue.session(**{"spark.master": "local[1]", "spark.ui.enabled": False})
print("manager", spark.conf.get("spark.sql.streaming.checkpointFileManagerClass"), flush=True)
rows = spark.readStream.format("queue").options(url=url, queue=queue, numPartitions=1).load()
writer = rows.select("payload").writeStream.format("queue").options(url=url, queue=out)
writer = writer.option("checkpointLocation", checkpoint)
query = (writer if forever == "yes" else writer.trigger(availableNow=True)).start()
query.awaitTermination()
"""


def start_program(folder, *arguments):
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_session_of_this_package_writes_them_so_unless_the_user_names_another_way():
    from spark_queue.spark import sessions

    (manager,) = checkpoint_conf().values()
    asked = []

    class Builder:
        def config(self, key, value):
            asked.append((key, value))
            return self

        def getOrCreate(self):
            raise StopIteration

    for conf in ({}, {CHECKPOINT_MANAGER: "mine"}, {"spark.remote": "sc://host"}):
        asked.append(conf)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sessions, "SparkSession", type("Session", (), {"builder": Builder()}))
            patch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
            patch.setenv("PYSPARK_SUBMIT_ARGS", "")
            patch.setenv("SPARK_HOME", "")
            with pytest.raises(StopIteration):
                sessions.session(**conf)
    assert [one for one in asked if isinstance(one, tuple) and one[0] == CHECKPOINT_MANAGER] == [
        (CHECKPOINT_MANAGER, manager),
        (CHECKPOINT_MANAGER, "mine"),
    ]


@pytest.mark.parametrize(("version", "package"), [("4.0.1", "streaming"), ("4.1.4", "streaming.checkpointing")])
def test_the_class_has_moved(version, package, monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", version)
    (manager,) = checkpoint_conf().values()
    assert manager == f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"


def test_two_processes_on_one_checkpoint_lose_and_duplicate_nothing(any_url, name, out, tmp_path):
    """The owner's note stops the second one, whatever Spark's files allow."""
    arguments = (any_url, name, tmp_path / "checkpoint", out)
    with Queue(any_url, name) as queue, Queue(any_url, out) as written, open_store(any_url) as store:
        queue.push_many([{"n": n} for n in range(5)])
        first = start_program(tmp_path, *arguments, "yes")
        try:
            queue_is_drained(store, name, out, 5)
            queue.push_many([{"n": n} for n in range(5, 10)])
            second = start_program(tmp_path, *arguments, "no")
            output, errors = second.communicate(timeout=120)
            assert "FileSystemBasedCheckpointFileManager" in output
            assert second.returncode, "the second query was not refused"
            assert "second query" in errors or "is running" in errors, errors[-3000:]
            queue_is_drained(store, name, out, 10)
            assert first.poll() is None, "the first query goes on"
        finally:
            first.kill()
            first.communicate()
        assert sorted(one.payload["n"] for one in written.peek(100)) == [*range(10)]


def queue_is_drained(store, name, out, total):
    from spark_queue.stores.conformance.waiting import wait_until

    wait_until(lambda: store.sizes(out).total == total and not store.sizes(name).ready, 120)


def write_files(checkpoint, *names):
    for name in names:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("v1\n")


def copy(q, out, checkpoint):
    """Copy what is ready to another queue, with one restart."""
    writer = q.stream().select("payload").writeStream.format("queue").options(url=q.url, queue=out)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    supervise(writer.start, q.url, restarts=1, initial_backoff=0.01)


UNFINISHED = f"{uuid.uuid4()}.tmp"


def test_a_query_that_was_stopped_within_its_first_write_starts_again(q, out, tmp_path):
    write_files(tmp_path, f"offsets/.0.{UNFINISHED}")
    q.push([{"n": 1}])
    copy(q, out, tmp_path)
    with Queue(q.url, out) as written:
        assert [one.payload for one in written.peek(10)] == [{"n": 1}]


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 does not look")
@pytest.mark.parametrize(
    "names",
    [
        ["commits/notes.txt", f"commits/.0.{UNFINISHED}"],
        ["offsets/notes.txt", f"offsets/.0.{UNFINISHED}"],
        ["commits/notes.txt", f"offsets/.0.{UNFINISHED}"],
        [f"commits/.0.{UNFINISHED}"],
        [f"offsets/.5.{UNFINISHED}"],
    ],
    ids=["commits", "offsets", "both", "a commit without its offset", "a later offset"],
)
def test_a_checkpoint_that_has_lost_a_part_stays_refused(q, out, tmp_path, names):
    write_files(tmp_path, *names)
    with pytest.raises(StreamingQueryException, match="should be empty"):
        copy(q, out, tmp_path)
    left = [*tmp_path.glob("offsets/*"), *tmp_path.glob("commits/*")]
    assert {str(one.relative_to(tmp_path)) for one in left} == set(names)
