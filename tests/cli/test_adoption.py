"""`spark-queue adopt`: a collection of another program becomes a queue, if that is confirmed."""

from __future__ import annotations

import uuid

import pytest
from pymongo import MongoClient

from spark_queue import NotAQueue, OptionError, admin
from tests.command_line import Run


@pytest.fixture
def users(mongodb_url):
    with MongoClient(mongodb_url) as client:
        found = client.get_default_database()[f"users{uuid.uuid4().hex[:12]}"]
        found.insert_many([{"_id": n, "name": f"user {n}"} for n in range(3)])
        found.create_index("name")
        yield found
        found.drop()


def test_it_shows_the_collection_and_asks(mongodb_url, users):
    refused = Run("size", mongodb_url, users.name)
    assert refused.code == 2 and refused.err.endswith(f"spark-queue adopt URL {users.name}\n")
    place = f"{users.database.name}.{users.name}"
    asked = Run("adopt", mongodb_url, users.name)
    assert asked.code == 2 and asked.out == ""
    shown = f"{place}: 3 documents, 2 indexes: _id_ (_id: 1), name_1 (name: 1)"
    assert shown in asked.err and "confirm with --yes" in asked.err
    assert len(users.index_information()) == 2, "asking changes nothing"
    done = Run("adopt", mongodb_url, users.name, "--yes", "--json").json
    assert done == {
        "queue": users.name,
        "place": place,
        "documents": 3,
        "indexes": {"_id_": "_id: 1", "name_1": "name: 1"},
        "is_queue": False,
        "adopted": True,
    }
    assert Run("size", mongodb_url, users.name).code == 0
    assert Run("adopt", mongodb_url, users.name).out.endswith(f"{users.name} is a queue already\n")
    assert users.count_documents({"name": {"$exists": True}}) == 3


def test_a_list_of_queues_has_no_collection_of_an_application(mongodb_url, users):
    Run("push", mongodb_url, f"q{users.name}", input="1")
    listed = {one["queue"] for one in Run("size", mongodb_url, "--json").json}
    assert f"q{users.name}" in listed and users.name not in listed


def test_a_queue_whose_dead_letter_queue_is_none_is_listed(mongodb_url, users):
    Run("push", mongodb_url, "orders", input="1")
    users.rename("orders.dead", dropTarget=True)
    (found,) = admin.sizes.sizes(mongodb_url, ["orders"])
    assert (found.ready, found.dead) == (1, 0)
    with pytest.raises(NotAQueue):
        admin.dead_letters(mongodb_url, "orders")
    users.database["orders.dead"].drop()


@pytest.mark.parametrize("fixture", ["sqlite_url", "redis_url"])
def test_other_databases_need_no_adoption(request, fixture):
    url = request.getfixturevalue(fixture)
    Run("push", url, "orders", input="1")
    with pytest.raises(OptionError, match="nothing needs to be adopted"):
        admin.adopt(url, "orders")
    reported = Run("adopt", url, "orders", "--yes")
    assert reported.code == 2 and reported.err.count("\n") == 1 and "nothing needs to be adopted" in reported.err
