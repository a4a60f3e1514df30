"""Over HTTP, too, a record that cannot be read stops no caller."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from spark_queue import Queue
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app
from tests import odd
from tests.rest.in_process import calling

ODD = [one for one in odd.TABLE["sqlite/"] if one.decoded or one.rows > 1 or "headers" in one.name]


@pytest.mark.parametrize("one", ODD, ids=lambda one: one.name)
def test_a_request_and_a_batch_return_the_good_messages(one, tmp_path):
    url = f"sqlite:///{tmp_path}/queues.db"
    with (
        Queue(url, "orders") as queue,
        calling(create_app(Settings(graph=Graph({"shop": Namespace(url)})))) as client,
    ):
        queue.push_many([])
        queue.sizes()
        odd.put("sqlite/", url, "orders", one.record, mature=5)
        queue.push_many([{"n": 0}, {"n": 1}, {"n": 2}])
        got = client.get("/q/shop/orders")
        assert (got.status_code, got.json()) == (200, {"n": 0})
        got = client.request("POST", "/v1/queues/shop/orders/reserve", json={"limit": 10})
        assert [message["payload"] for message in got.json()["messages"]] == [{"n": 1}, {"n": 2}]
        receipts = {"receipts": [got.json()["receipt"]]}
        assert client.request("POST", "/v1/queues/shop/orders/commit", json=receipts).json() == {"committed": 2}
        assert client.get("/q/shop/orders?to=0").status_code == 504
        assert (queue.sizes().total, queue.sizes().dead) == (0, 1)
        (letter,) = Queue(queue.store, "orders.dead").peek()
        assert one.reason in letter.headers["x-error"]
