"""Collections of an application, over HTTP: no request lists, reads, changes or deletes one."""

from __future__ import annotations

import uuid

import pytest

pytest.importorskip("fastapi")

from bson import ObjectId
from pymongo import MongoClient

from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app
from tests.rest.in_process import calling

ID = "5f1d7e0123456789abcdef01"


@pytest.fixture
def users(mongodb_url):
    with MongoClient(mongodb_url) as client:
        found = client.get_default_database()[f"users{uuid.uuid4().hex[:12]}"]
        found.insert_many([{"_id": ObjectId(ID), "name": "Ann"}, {"name": "Bob"}])
        yield found
        found.drop()


@pytest.mark.parametrize(
    "call",
    [
        "DELETE /q/mo/{0}/" + ID, "GET /q/mo/{0}?to=1", "GET /q/mo/{0}?to=1&reserve=true", "POST /q/mo/{0}",
        "PUT /q/mo/{0}", "GET /q/mo/{0}/status", "PATCH /q/mo/{0}/commit/" + ID, "PATCH /q/mo/{0}/rollback/" + ID,
        "PATCH /q/mo/{0}/pause", "PATCH /q/mo/{0}/resume", "GET /v1/queues/mo/{0}", "GET /v1/queues/mo/{0}/messages",
        "POST /v1/queues/mo/{0}/messages", "POST /v1/queues/mo/{0}/reserve",
        "POST /v1/queues/mo/{0}/pause", "POST /v1/queues/mo/{0}/resume",
    ],
)  # fmt: skip
def test_a_request_for_a_collection_that_is_no_queue_is_refused(mongodb_url, users, call):
    method, path = call.format(users.name).split()
    body = {"json": [{"payload": 1}] if path.endswith("messages") else {}} if method in ("POST", "PUT") else {}
    with calling(create_app(Settings(graph=Graph({"mo": Namespace(mongodb_url)})))) as client:
        answer = client.request(method, path, **body)
        if "/commit/" in call or "/rollback/" in call:  # this server has reserved nothing there
            assert answer.status_code in (404, 409), answer.text
        else:
            problem = answer.json()
            assert (problem["title"], problem["status"], answer.status_code) == ("NotAQueue", 409, 409), answer.text
            assert f"spark-queue adopt URL {users.name}" in problem["detail"]
        for listing in ("/q/mo", "/q?array=true", "/q?tree=true", "/v1/queues"):
            assert users.name not in client.get(listing).text, listing
        measured = [line for line in client.get("/metrics").text.splitlines() if line.startswith("q_global")]
        assert not [line for line in measured if users.name in line]
    assert [one["name"] for one in users.find()] == ["Ann", "Bob"]
    assert list(users.index_information()) == ["_id_"]
