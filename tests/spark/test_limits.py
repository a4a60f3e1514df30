"""A message of an older version that the next queue cannot take: the others arrive, and it is a dead letter there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_queue import open_store
from spark_queue.messages.schema import PUSHES
from tests.spark.drive import found
from tests.spark.test_delivery import to_queue


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_message_with_over_a_million_headers_does_not_stop_a_query(q, mongodb_url, delivery):
    q.push([{"n": n} for n in range(5)])
    headers = [(f"h{n:07}", "") for n in range(1_290_000)]
    row = {"id": "stored", "payload": b'{"n":5}', "payload_kind": "json", "headers": headers, "tries": 0}
    with open_store(q.url) as store:  # past the rules of today
        store._push(q.name, pa.RecordBatch.from_pylist([row], schema=PUSHES))
    df = q.stream(delivery=delivery).select("id", "payload", "headers")
    to_queue(q, df, f"{q.name}.to", url=mongodb_url, onBadRow="deadLetter", delivery=delivery).awaitTermination()
    try:
        assert sorted(one.payload["n"] for one in found(mongodb_url, f"{q.name}.to")) == list(range(5))
        (letter,) = found(mongodb_url, f"{q.name}.to.dead")
        assert letter.id == "stored"
        assert letter.headers["x-error"] == "it has 1,290,000 headers; the limit is 1,000"
        assert letter.headers["x-dl-headers"] == "1290000"
        assert letter.headers["x-dl-headers-size"] == str(8 * 1_290_000)
        assert "h0000999" in letter.headers and letter.payload.startswith('{"id":"stored","payload":"{')
        assert len(letter.headers["x-dl-sha256"]) == 64 and int(letter.headers["x-dl-size"]) > 16_000_000
        query = to_queue(q, df, f"{q.name}.to", url=mongodb_url, onBadRow="deadLetter", delivery=delivery)
        query.awaitTermination()  # on Spark 4.0 and 4.1, a query settles its last batch when it starts again
        assert q.sizes().total == 0
    finally:
        with open_store(mongodb_url) as store:
            store.drop(f"{q.name}.to")
            store.drop(f"{q.name}.to.dead")
