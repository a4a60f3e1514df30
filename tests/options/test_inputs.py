"""Several inputs: what the option says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.errors import OptionError
from spark_queue.options.inputs import InputOptions, parse_inputs
from spark_queue.options.roles import parse_options
from spark_queue.stores import resolve_options

URL = "sqlite:///q.db"
TWO = '{"order": {"queue": "orders"}, "price": {"queue": "prices"}}'


def parse(role="stream", **raw):
    raw = {"url": URL, "inputs": TWO} | raw
    return parse_options({key: text for key, text in raw.items() if text is not None}, role)


def test_inputs_keep_their_order_and_each_has_options_of_its_own():
    urls = json.dumps({"shop": "sqlite:///shop.db", "market": "sqlite:///market.db"})
    inputs = '{"price": {"queue": "p", "ns": "market"}, "order": {"queue": "o", "ns": "shop"}}'
    options = parse_options({"urls": urls, "inputs": inputs, "maxTries": "3"}, "stream")
    assert options.inputs is not None
    assert list(options.inputs.items()) == [
        ("price", InputOptions("p", "market")),
        ("order", InputOptions("o", "shop")),
    ]
    one = options.for_input("order")
    place = one.database
    assert (place.url, one.queue, place.urls, one.inputs, one.outcomes.max_tries) == (
        "sqlite:///shop.db",
        "o",
        None,
        None,
        3,
    )
    assert options.combine == "zip"
    assert parse(combine="ALTS").combine == "alts"
    assert parse_inputs('{"a": "b"}') == {"a": InputOptions("b")}


def test_messages_of_several_inputs_are_not_tried_apart():
    assert not parse().isolate_failures
    assert parse(inputs='{"order": {"queue": "orders"}}').isolate_failures


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"inputs": "[]"}, "option 'inputs' is '[]' but must be a JSON object such as"),
        ({"inputs": "{}"}, "a JSON object such as"),
        ({"inputs": "{"}, "a JSON object such as"),
        ({"inputs": '{"a": {"queue": "x"}, "a": {"queue": "y"}}'}, "'a' occurs twice"),
        ({"inputs": '{"a": {"queue": "x"}, "A": {"queue": "y"}}'}, "the binding 'A' is the same column as 'a'"),
        ({"inputs": '{"delivery_hash": "x"}'}, "'delivery_hash' is a column beside the inputs"),
        ({"inputs": '{"": "x"}'}, "a binding has no name"),
        ({"inputs": '{"a": 1}'}, "'a' is 1"),
        ({"inputs": '{"a": {"quue": "x"}}'}, "'a' has 'quue'; did you mean 'queue'?"),
        ({"inputs": '{"a": {"queue": ""}}'}, "'queue' of 'a' is \"\" but must be a name"),
        ({"inputs": '{"a": {}}'}, "'a' has no 'queue'"),
        ({"inputs": '{"a": "x", "b": "x"}'}, "the bindings 'a' and 'b' are both the queue 'x'"),
        ({"queue": "x"}, "options 'queue' and 'inputs' exclude each other"),
        ({"inputs": None, "queue": "x", "combine": "zip"}, "option 'combine' is for several queues"),
        ({"url": None, "urls": '{"a": "sqlite:///a.db"}'}, "'order' has no 'ns'"),
        ({"url": None, "urls": '{"ship": "x"}', "inputs": '{"a": {"queue": "x", "ns": "shop"}}'}, "mean 'ship'?"),
        ({"inputs": '{"a": {"queue": "x", "ns": "shop"}}'}, "which option 'urls' does not name; set it"),
        ({"url": None, "urls": '{"a": "x"}', "inputs": None, "queue": "q"}, "option 'urls' is for several queues"),
        ({"isolateFailures": "true"}, "option 'isolateFailures' is for one queue"),
        ({"reserveAhead": "true"}, "option 'reserveAhead' is for one queue"),
        ({"combine": "zipp"}, "did you mean 'zip'"),
    ],
)
def test_invalid_inputs_are_refused(raw, message):
    with pytest.raises(OptionError) as caught:
        parse(**raw)
    assert message in str(caught.value)


def test_two_names_of_one_database_are_seen_through():
    urls = json.dumps({"x": "sqlite:///q.db", "y": "sqlite:///q.db"})
    inputs = '{"a": {"queue": "q", "ns": "x"}, "b": {"queue": "q", "ns": "y"}}'
    with pytest.raises(OptionError, match="are both the queue"):
        parse_options({"urls": urls, "inputs": inputs}, "stream")


@pytest.mark.parametrize("role", ["snapshot", "push", "settle"])
def test_inputs_are_for_streams(role):
    with pytest.raises(OptionError, match="'inputs' is not for"):
        parse(role)


@given(st.text() | st.recursive(st.none() | st.text(), lambda x: st.dictionaries(st.text(), x)).map(json.dumps))
def test_any_text_is_inputs_or_a_value_error(text):
    try:
        assert all(one.queue for one in parse_inputs(text).values())
    except ValueError as error:
        assert "a JSON object such as" in str(error)


def test_names_that_a_database_forbids_are_refused():
    pytest.importorskip("pymongo")
    inputs = '{"a": {"queue": "system.x", "ns": "m"}, "b": {"queue": "system.x", "ns": "s"}}'
    urls = {"m": "mongodb://localhost/air", "s": URL}
    with pytest.raises(OptionError, match=r"'system.x' cannot name a queue: the name of a MongoDB collection"):
        resolve_options(parse_options({"urls": json.dumps(urls), "inputs": inputs}, "stream"))
