"""Problem texts name the caller's parameter, header or field, and say what to do."""

from __future__ import annotations

import re

import pytest

from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Limits, Settings, create_app, malformed
from tests.rest.in_process import calling

#: Words of the libraries below, and of our own insides.
FOREIGN = re.compile(
    r"Input should|valid (integer|number|string|boolean)|unable to|Value error|pydantic|Traceback|NoneType|<class|"
    r"\brow\b|\brows\b|of the batch|this batch|Arrow|KeyError|Expecting value|DTDForbidden|\bpattern\b"
)

JSON, TEXT = {"content-type": "application/json"}, {"content-type": "text/plain"}

#: A value that a parameter of a type cannot have.
WRONG = {"integer": "1.5", "number": "soon", "boolean": "maybe", "string": "x" * 1_100 + "/"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    graph = Graph({"shop": Namespace(f"sqlite:///{folder}/q.db")})
    with calling(create_app(Settings(graph=graph, events="shop/events", limits=Limits(2048, 3, 1000)))) as called:
        yield called


def parameters(client):
    """Each query parameter of each resource that refuses some text, with a text that it refuses."""
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            for one in operation.get("parameters", ()):
                if one["in"] != "query":
                    continue
                schemas = [kind for kind in one["schema"].get("anyOf", [one["schema"]]) if kind.get("type") != "null"]
                [schema] = schemas
                if schema["type"] == "array":
                    continue
                if schema["type"] != "string" or set(schema) & {"maxLength", "pattern", "enum"}:
                    yield method.upper(), re.sub(r"\{\w+\}", "shop", path), one["name"], WRONG[schema["type"]]
                for bound, value in (("minimum", -1), ("exclusiveMaximum", 2**80), ("maximum", 2**80)):
                    if bound in schema:
                        yield method.upper(), re.sub(r"\{\w+\}", "shop", path), one["name"], str(value)


def test_a_parameter_that_cannot_be_is_named_with_its_value_and_what_it_must_be(client):
    called = 0
    for method, path, name, value in parameters(client):
        refused = client.request(method, path, params={name: value})
        reported = refused.json()["detail"]
        assert refused.status_code == 400, (path, name, value)
        assert reported.startswith(f"parameter {name!r} is "), reported
        assert re.search(r" but (must be|a request may) ", reported), reported
        assert not FOREIGN.search(reported), reported
        assert len(reported) < 300
        called += 1
    assert called > 30


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"type": "missing", "loc": ("query", "a"), "input": None}, "parameter 'a' is missing"),
        ({"type": "int_type", "loc": ("path", "a"), "input": 1}, "'a' in the path is '1' but must be a whole number"),
        (
            {"type": "literal_error", "loc": ("query", "a"), "input": "haed", "ctx": {"expected": "'all' or 'head'"}},
            "parameter 'a' is 'haed' but must be 'all' or 'head'; did you mean 'head'?",
        ),
        ({"type": "of_tomorrow", "loc": ("query", "a"), "input": "x"}, "parameter 'a' is 'x', which is not valid"),
    ],
)  # fmt: skip
def test_errors_of_the_library_become_sentences(error, expected):
    assert malformed.describe_error(error) == expected


#: Method, path, what is sent, and what is said.
TEXTS = {
    "no JSON": (
        "PUT", "/q/shop/orders", {"content": "{", "headers": JSON},
        "the body is not JSON, as its Content-Type says (unexpected end of data: line 1 column 2 (char 1)); "
        "nothing was pushed. Send JSON, or text as text/plain",
    ),
    "an empty body": ("PUT", "/q/shop/orders", {"content": "", "headers": JSON}, "the body is not JSON"),
    "a large id": (
        "PUT", f"/q/shop/orders?id={'é' * 150}", {"content": "1", "headers": JSON}, "the message is invalid: its id"
    ),
    "before 1970": ("PUT", "/q/shop/orders?mature=-5", {"content": "1", "headers": JSON}, "the message is invalid"),
    "text of another charset": (
        "PUT", "/q/shop/orders", {"content": b"\xff", "headers": TEXT},
        "the body is not text in the charset of its Content-Type, utf-8",
    ),
    "a misspelt parameter": (
        "GET", "/v1/queues?limt=5", {}, "unknown parameter 'limt'; did you mean 'limit'?"
    ),
    "an unknown parameter": (
        "GET", "/v1/queues?x=5", {}, "unknown parameter 'x'; known parameters: after, exact, limit, ns",
    ),
    "a parameter where there is none": (
        "POST", "/v1/queues/shop/orders/pause?now=1", {},
        "unknown parameter 'now'; this resource has no parameters",
    ),
    "a misspelt namespace": ("GET", "/q/shpo", {}, "no such queue namespace [shpo]; did you mean 'shop'?"),
    "a misspelt field": (
        "POST", "/v1/queues/shop/orders/reserve", {"json": {"limt": 5}}, "unknown field 'limt'; did you mean 'limit'?"
    ),
    "a field that cannot be": (
        "POST", "/v1/queues/shop/orders/reserve", {"json": {"wait": 5}},
        "field 'wait' is '5' but must be text with a unit, such as 30s",
    ),
    "a field that is missing": (
        "POST", "/v1/queues/shop/orders/commit", {"json": {}}, "field 'receipts' is missing"
    ),
    "a batch with a misspelt field": (
        "POST", "/v1/queues/shop/orders/messages", {"json": [{"payload": 1}, {"payload": 2, "dealy": 5}]},
        "message 1: a message has no field 'dealy'; did you mean 'delay'? Nothing was pushed",
    ),
    "a batch with two mistakes that the store finds": (
        "POST", "/v1/queues/shop/orders/messages", {"json": [{"payload": 1}, *[{"payload": 2, "delay": -1}] * 2]},
        "message 1 (and 1 more): its delay is negative; nothing was pushed",
    ),
    "a batch that is too long": (
        "POST", "/v1/queues/shop/orders/messages", {"json": [{"payload": 1}] * 4},
        "the body has 4 messages, but a request may have 3 at most: send several requests",
    ),
    "a batch that is an object": (
        "POST", "/v1/queues/shop/orders/messages", {"json": {"payload": 1}},
        "the body must be a JSON array of messages",
    ),
    "a receipt that is none": (
        "POST", "/v1/queues/shop/orders/commit", {"json": {"receipts": ["x"]}},
        "receipt 0 is 'x', which is none: use the field 'receipt' of a reserved message",
    ),
    "a page of another site": (
        "GET", "/q", {"headers": {"origin": "null"}}, "a page of 'null' may not call this server"
    ),
    "entities": (
        "PUT", "/v1/resources/hub-queue",
        {"content": '<!DOCTYPE a [<!ENTITY b "c">]><event-list/>', "headers": {"content-type": "text/xml"}},
        "the body is not valid XML: it has entities or external references, which are not allowed",
    ),
    "half a document": (
        "PUT", "/v1/resources/hub-queue", {"content": "<a", "headers": {"content-type": "text/xml"}},
        "the body is not valid XML: unclosed token: line 1, column 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", TEXTS.values(), ids=TEXTS)
def test_a_mistake_is_reported_in_the_callers_words(client, call):
    method, path, how, expected = call
    refused = client.request(method, path, **how)
    document = refused.json()
    assert refused.status_code in (400, 403, 404)
    assert document["detail"].startswith(expected), document["detail"]
    assert not FOREIGN.search(document["detail"])
    if method == "PUT":
        assert "rows" not in document and "batch" not in refused.text, "a single push speaks of no batch"


def test_each_of_those_that_push_at_once_gets_an_error_of_its_own(client):
    calls = [("PUT", f"/q/shop/mixed?id=m{n}{'é' * 150 if n % 3 == 1 else ''}") for n in range(12)]
    answers = client.many(calls, content="[1]", headers=JSON)
    assert [one.status_code for one in answers] == [400 if n % 3 == 1 else 200 for n in range(12)]
    for one in answers:
        assert "batch" not in one.text and "rows" not in one.text and not re.search(r"message \d", one.text)


def test_an_error_inside_is_for_the_log_alone(client, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("redis://me:secret@db/0 is odd")

    monkeypatch.setattr(client.app.state.service, "get_queue", fail)
    answer = client.get("/q/shop/orders")
    assert answer.status_code == 500
    assert answer.json()["detail"] == "an error in the server; its log has the details"
    assert "GET /q/shop/orders failed" in caplog.text


def test_a_method_that_is_not_supported_names_those_that_are(client):
    refused = client.request("DELETE", "/q/shop/orders")
    assert refused.status_code == 405 and refused.headers["allow"] == "GET, POST, PUT"
    assert refused.json()["detail"] == "/q/shop/orders does not support DELETE; use GET, POST, PUT"
    assert client.request("POST", "/docs").headers["allow"] == "GET, HEAD"


def test_a_reserve_is_of_100_messages_or_what_the_server_allows(client):
    few = "/v1/queues/shop/few"
    assert client.request("POST", f"{few}/messages", json=[{"payload": n} for n in range(3)]).status_code == 200
    assert len(client.request("POST", f"{few}/reserve").json()["messages"]) == 3
