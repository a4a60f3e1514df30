"""Over HTTP: what no database can hold is refused with its rule, and what no message can be called is not found."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.rest.refusals import check_refused

OPERATOR = '{"_id":{"$gt":""}}'
MANY = {f"h{n}": "" for n in range(1_001)}


@pytest.mark.every_store
def test_what_is_out_of_bounds_is_refused_and_nothing_is_pushed(http, ns, queue):
    path = f"/v1/queues/{ns}/{queue}/messages"
    refused: dict[str, dict[str, Any]] = {
        "it has 1,001 headers; the limit is 1,000": {"headers": MANY},
        "its header 'big' has 9,003 bytes; the limit is 8,192": {"headers": {"big": "x" * 9_000}},
        "its headers have 40,": {"headers": {str(n): "x" * 8_000 for n in range(5)}},
        "has the character NUL": {"headers": {"a\0b": "1"}},
        "its id has the form of an _id of MongoDB": {"id": OPERATOR},
    }
    for rule, fields in refused.items():
        check_refused(http, ("POST", path, {"json": [{"payload": 1}, {"payload": 1, **fields}]}, 400, rule))
    check_refused(http, ("PUT", f"/q/{ns}/{queue}?id={quote(OPERATOR)}", {"json": 1}, 400, "its id has the form"))
    assert http.get(path).json()["messages"] == []


@pytest.mark.every_store
def test_an_id_that_no_message_can_have_is_not_found(http, ns, queue):
    path = f"/v1/queues/{ns}/{queue}"
    assert http.post(f"{path}/messages", json=[{"payload": 1, "id": "one"}]).status_code == 200
    tag = http.post(f"{path}/reserve", json={}).json()["receipt"]
    for id in (OPERATOR, '{"_id":{"$code":"x","$scope":{"$gt":""}}}', "{" * 200, "$gt", "\x7f"):
        shown = http.get(f"{path}/messages", params={"id": id})
        assert (shown.status_code, shown.json()["messages"]) == (200, [])
        assert http.get(f"{path}/messages", params={"id": ["one", id]}).json()["messages"][0]["id"] == "one"
        for method, how in (("PATCH", "/commit/"), ("PATCH", "/rollback/"), ("DELETE", "/")):
            done = http.request(method, f"/q/{ns}/{queue}{how}{quote(id, safe='')}")
            assert done.status_code in (200, 204, 404), done.text
        raw = base64.urlsafe_b64decode(tag + "=" * (-len(tag) % 4)).decode()
        forged = base64.urlsafe_b64encode(f"{raw}\0{id}".encode()).decode().rstrip("=")
        for outcome, result in (("commit", {"committed": 0}), ("dead", {"dead": 0})):
            settled = http.post(f"{path}/{outcome}", json={"receipts": [forged]})
            assert (settled.status_code, settled.json()) == (200, result)
        cursor = base64.urlsafe_b64encode(json.dumps([0, id]).encode()).decode().rstrip("=")
        assert http.get(f"{path}/messages", params={"after": cursor}).status_code == 200
    assert http.post(f"{path}/commit", json={"receipts": [tag]}).json() == {"committed": 1}
