"""What functions of processors get and give: errors as messages, the facts of `wrap_error`."""

from __future__ import annotations

import json

import pytest

from spark_queue import wrap_error
from spark_queue.graph.processor_function import Output, ProcessorContext, context_of, error_message, to_jsonable
from spark_queue.messages.message import Message
from spark_queue.messages.payload import encode


def failure(*contexts):
    """An exception that has gone through these, the innermost first."""
    try:
        _through(list(contexts))
    except ValueError as error:
        return error
    raise AssertionError


def _through(contexts):
    if not contexts:
        raise ValueError("odd")
    with wrap_error(contexts[-1]):
        _through(contexts[:-1])


PROCESS = ProcessorContext("p", config={"in": {"a": "l/a"}, "errors": "l/errors"}, errors="l/errors")


def test_what_an_error_queue_gets():
    message = Message("1", "a", {"n": 3}, {"by": "me"})
    made = error_message(PROCESS, failure(), {"l/a": message})
    trace = made["cause"].pop("trace")
    assert made == {
        "type": "processor",
        "processor": "p",
        "config": {"in": {"a": "l/a"}, "errors": "l/errors"},
        "messages": {"l/a": {"id": "1", "payload": {"n": 3}, "headers": {"by": "me"}}},
        "cause": {"cause": "odd", "via": [{"type": "ValueError", "message": "odd"}]},
    }
    assert trace[-1].startswith(__file__) and trace[-1].endswith(" _through")
    json.dumps(made)


def test_all_contexts_of_an_error_are_reported_and_the_inner_one_counts():
    error = failure({"order": 7, "step": "inner"}, {"step": "outer", "who": "me"})
    assert (type(error), str(error)) == (ValueError, "odd"), "it stays the one it is"
    assert context_of(error) == {"order": 7, "step": "inner", "who": "me"}
    made = error_message(PROCESS, error, {})
    assert (made["type"], made["order"], made["step"], made["who"]) == ("error", 7, "inner", "me")
    assert error_message(PROCESS, failure({"type": "late", "config": 1}), {})["type"] == "late"
    assert error_message(PROCESS, failure({"config": 1}), {})["config"] == PROCESS.config


def test_an_end_is_no_error():
    with pytest.raises(KeyboardInterrupt) as caught, wrap_error(a=1):
        raise KeyboardInterrupt
    assert context_of(caught.value) == {}


def test_an_error_with_half_a_surrogate_pair_is_reported():
    made = error_message(PROCESS, ValueError("no \ud800"), {})
    assert made["cause"]["cause"] == made["cause"]["via"][0]["message"] == "'no \\ud800'"
    assert encode(made)


def test_the_cause_of_an_error_is_reported():
    try:
        try:
            raise KeyError("k")
        except KeyError as error:
            raise ValueError("no k") from error
    except ValueError as error:
        via = error_message(PROCESS, error, {})["cause"]["via"]
    assert [one["type"] for one in via] == ["ValueError", "KeyError"]


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        ({"a": [1, "x", None]}, {"a": [1, "x", None]}),
        (b"\x00", {"$binary": {"base64": "AA==", "subType": "00"}}),
        ("text", "text"),
        (float("nan"), "nan"),
        ({"a": {1, 2}, 3: object}, {"a": [1, 2], "3": "<class 'object'>"}),
        (Output({"n": float("inf")}, id="7"), {"id": "7", "payload": {"n": "inf"}, "headers": {}}),
        ("\ud800", "'\\ud800'"),
        (10**400, str(10**400)),
        (Output("x", {"h": "\ud800"}), {"id": None, "payload": "x", "headers": {"h": "'\\ud800'"}}),
    ],
)
def test_a_value_that_json_cannot_hold_is_shown_as_python_prints_it(value, as_json):
    assert to_jsonable(value) == as_json
