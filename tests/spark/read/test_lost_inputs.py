"""A checkpoint without offsets, and a sink that knows a batch by its number: no row is dropped.

Such a sink takes the new batch 0 for written. So each batch notes what the query reads, even if it
has no messages.
"""

from __future__ import annotations

import shutil

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.read.inputs import start, stream


@pytest.fixture
def run(spark, file_world, tmp_path):
    """Run a query on one queue or on two, until it has nothing to do; give what was written."""
    written = {}

    def work(df, batch):
        rows = df.collect()
        written.setdefault(batch, [row.payload for row in rows])

    def run(bindings):
        if len(bindings) == 1:
            ns, queue = file_world.queues[bindings]
            options = {"url": file_world.urls[ns], "queue": queue, "waitTimeout": "200ms", "payloadFormat": "text"}
            rows = spark.readStream.format("queue").options(**options).load().select("payload")
        else:
            df = stream(spark, file_world, bindings, combine="alts", payloadFormat="text")
            rows = df.selectExpr("coalesce(a.payload, b.payload) AS payload")
        start(rows, tmp_path, work, availableNow=True).awaitTermination()
        return sorted(row for rows in written.values() for row in rows)

    return run


def lose_offsets(tmp_path):
    for name in ("offsets", "commits"):
        shutil.rmtree(tmp_path / "checkpoint" / name)


def test_a_query_that_begins_again_with_another_queue_is_refused(run, file_world, tmp_path):
    file_world.push("a", range(3))
    assert run("ab") == ["0", "1", "2"]
    lose_offsets(tmp_path)
    file_world.push("b", range(4))
    with pytest.raises(StreamingQueryException, match="and now begins again as"):
        run("ab")
    assert file_world.sizes()["b"] == (0, 4)


@pytest.mark.parametrize("bindings", ["b", "ab"])
def test_a_query_that_had_only_a_batch_without_messages_is_refused(run, file_world, tmp_path, bindings):
    assert run(bindings) == []
    lose_offsets(tmp_path)
    file_world.push("b", range(4))
    with pytest.raises(StreamingQueryException, match="and now begins again as"):
        run(bindings)
    assert file_world.sizes()["b"] == (0, 4)
