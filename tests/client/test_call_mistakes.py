"""Mistakes in calls of the client: each error has the place and the remedy; nothing is pushed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from spark_queue import MessageError, OptionError, Queue, admin
from spark_queue.stores.sqlite.store import SqliteStore


@pytest.fixture
def queue(tmp_path):
    with Queue(f"sqlite:///{tmp_path}/q.db", "q") as opened:
        yield opened


# --- names of arguments ---------------------------------------------------------------------------

NAMES = {
    "camel case": ("max_tries", {"maxTries": 3}),
    "an option of Spark": ("lease", {"reserveTimeout": 3}),
    "camel case of two words more": ("dead_letter_queue", {"deadLetterQueue": "dead"}),
    "a misspelling": ("consumer", {"consumr": "me"}),
    "the word of SQS": ("lease", {"visibility_timeout": 30}),
    "the word of Celery": ("max_tries", {"max_retries": 3}),
}


@pytest.mark.parametrize(("nearest", "given"), NAMES.values(), ids=NAMES)
def test_an_unknown_argument_names_the_nearest(nearest, given):
    odd = next(iter(given))
    with pytest.raises(OptionError, match=rf"^Queue\(\) has no argument '{odd}'; did you mean '{nearest}'\?$"):
        Queue("sqlite:///q.db", "q", **given)


METHODS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "push": (lambda q, k: q.push(1, **k), {"headerz": {}}, "'headers'"),
    "push, in camel case": (lambda q, k: q.push(1, **k), {"delaySeconds": 1}, "'delay'"),
    "push_many": (lambda q, k: q.push_many([1], **k), {"tris": 1}, "'tries'"),
    "reserve": (lambda q, k: q.reserve(**k), {"max_messages": 1}, "'limit'"),
    "pop": (lambda q, k: q.pop(**k), {"timeOut": 1}, "'timeout'"),
    "messages": (lambda q, k: q.messages(**k), {"wait": 1}, "'timeout'"),
    "rollback": (lambda q, k: q.rollback(**k), {"dealy": 1}, "'delay'"),
    "dead_letter": (lambda q, k: q.dead_letter(**k), {"error": "x"}, "'reason'"),
    "peek": (lambda q, k: q.peek(**k), {"n": 1}, "'limit'"),
}


@pytest.mark.parametrize(("call", "given", "nearest"), METHODS.values(), ids=METHODS)
def test_an_unknown_argument_of_a_method_names_the_nearest(queue, call, given, nearest):
    with pytest.raises(OptionError, match=f"has no argument '{next(iter(given))}'; did you mean {nearest}"):
        call(queue, given)


def test_what_is_like_nothing_is_answered_with_all_there_is(queue):
    with pytest.raises(OptionError, match=r"^Queue\.pop\(\) has no argument 'xyz'; it has timeout$"):
        queue.pop(xyz=1)


VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "a lease as in Spark": ({"lease": "120s"}, "lease must be a number of seconds, 0.001 or more, not '120s'"),
    "a timedelta": ({"lease": timedelta(1)}, r"days=1\); use .total_seconds\(\)"),
    "no tries": ({"max_tries": 0}, "max_tries must be a whole number, 1 or more, not 0"),
    "tries as text": ({"max_tries": "3"}, "max_tries must be a whole number, 1 or more, not '3'"),
    "a negative history": ({"history": -1}, "history must be a number of seconds, 0 or more, not -1"),
    "a consumer with a slash": ({"consumer": "a/b"}, "consumer 'a/b' must be 1 to 100 letters"),
}


@pytest.mark.parametrize(("given", "expected"), VALUES.values(), ids=VALUES)
def test_a_wrong_value_names_the_argument(given, expected):
    with pytest.raises(OptionError, match=expected):
        Queue("sqlite:///q.db", "q", **given)


def test_url_and_queue_that_are_swapped():
    with pytest.raises(OptionError, match="the URL comes before the queue"):
        Queue("q", "redis://u:hunter2@h/0")


# --- values of messages ---------------------------------------------------------------------------


@dataclass
class Flight:
    gates: set[str]


class numpy_int64:
    """As numpy's, which need not be installed."""

    def item(self) -> int:
        return 1


numpy_int64.__module__ = "numpy"

LOOP: list[Any] = []
LOOP.append(LOOP)

PAYLOADS: dict[str, tuple[Any, str]] = {
    "a set": ({"a": [1, {"b": {1, 2}}]}, "payload.a[1].b: set has no form in JSON; use a list"),
    "a set beside a date": ({"when": date(2026, 1, 31), "what": {1}}, "payload.what: set has no form"),
    "a time difference": (
        {"took": timedelta(1)},
        "payload.took: timedelta has no form in JSON; use .total",
    ),
    "bytes inside": ({"x": b"1"}, "payload.x: bytes has no form in JSON; encode it as text (base64)"),
    "a decimal": ([Decimal(1)], "payload[0]: Decimal has no form in JSON; use str(…) or float(…)"),
    "not a number": ({"x": [0.5, float("nan")]}, "payload.x[1]: nan has no form in JSON; use None or text"),
    "infinity": (float("inf"), "payload: inf has no form in JSON"),
    "a key": ({"a": {1: 2}}, "payload.a: the key 1 is int, and keys of JSON are text; use str(…)"),
    "a dataclass": (Flight({"B12"}), "payload.gates: set has no form in JSON"),
    "an object": ({"o": object()}, "payload.o: object has no form in JSON; use text, a number, a list or a dict"),
    "a number of numpy": ({"n": numpy_int64()}, "payload.n: numpy_int64 has no form in JSON; use .item()"),
    "half a surrogate pair": ("\ud800", "payload: text with half a surrogate pair is not Unicode"),
    "the same inside": ({"t": ["\ud800"]}, "payload.t[0]: text with half a surrogate pair is not Unicode"),
    "itself": (LOOP, "is nested more than 250 levels deep, or contains itself"),
}


@pytest.mark.parametrize(("payload", "expected"), PAYLOADS.values(), ids=PAYLOADS)
def test_what_json_cannot_hold_is_named_with_its_place_and_the_remedy(queue, payload, expected):
    with pytest.raises(MessageError) as caught:
        queue.push(payload)
    assert str(caught.value).startswith("queue 'q': ")
    assert expected in str(caught.value) and str(caught.value).endswith("; nothing was pushed")
    assert list(caught.value.rows) == [0]
    with pytest.raises(MessageError, match=r"^queue 'q', message 2 of 3: payload.*; nothing was pushed$") as caught:
        queue.push_many([1, payload, 3])
    assert expected in caught.value.rows[1]
    assert queue.sizes().total == 0


def test_all_messages_that_cannot_be_pushed_are_known(queue):
    with pytest.raises(MessageError, match=r"message 1 of 3: .* \(and 1 more message\); nothing") as caught:
        queue.push_many([{1}, 2, {3}])
    assert list(caught.value.rows) == [0, 2]


COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "a header": ({"headers": {"gate": 12}}, "headers.gate: int must be text; use str(…)"),
    "the name of a header": ({"headers": {1: "x"}}, "headers: the key 1 is int, and names of headers are text"),
    "headers": ({"headers": "gate=B12"}, "headers must be a dict of text, not str"),
    "an id": ({"id": 5}, "id must be text, not int; use str(…)"),
    "a moment": ({"mature": "2026-01-31"}, "mature must be a datetime with a time zone, not str"),
    "tries": ({"tries": "3"}, "tries must be a whole number below 2147483648, not '3'"),
    "too many tries": ({"tries": 2**31}, "tries must be a whole number below 2147483648"),
    "negative tries": ({"tries": -1}, "its tries is negative"),
    "a negative delay": ({"delay": -1}, "its delay is negative"),
    "moment and delay": ({"delay": 1, "mature": datetime(2026, 1, 31, tzinfo=UTC)}, "it has both mature and delay"),
}


@pytest.mark.parametrize(("given", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_what_is_wrong_beside_the_payload_is_named(queue, given, expected):
    with pytest.raises(MessageError) as caught:
        queue.push(1, **given)
    assert expected in str(caught.value) and str(caught.value).endswith("; nothing was pushed")
    assert "batch" not in str(caught.value) and "row" not in str(caught.value)
    assert queue.sizes().total == 0


CALLS: dict[str, tuple[Any, str]] = {
    "one payload": (lambda q: q.push_many({"a": 1}), "push_many takes a list of payloads; for one payload use push"),
    "ids": (lambda q: q.push_many([1, 2], ids=["a"]), "ids has 1 value for 2 payloads: give one for each"),
    "headers": (lambda q: q.push_many([1], headers=[{}, {}]), "headers has 2 values for 1 payload"),
    "tries": (lambda q: q.push_many([1, 2, 3], tries=[1]), "tries has 1 value for 3 payloads"),
    "delay": (lambda q: q.push(1, delay="5s"), "delay must be a number of seconds, not '5s'"),
    "no delay": (lambda q: q.push(1, delay=float("nan")), "delay must be a number of seconds, not nan"),
    "timeout": (lambda q: q.reserve(timeout=None), "timeout must be a number of seconds, 0 or more, not None"),
    "delay of a rollback": (lambda q: q.rollback(delay=-1), "delay must be a number of seconds, 0 or more, not -1"),
    "a long delay": (lambda q: q.push(1, delay=18446744073709552), "delay must be .* end before the year 5000"),
    "an endless delay": (lambda q: q.push(1, delay=float("inf")), "delay must be .* end before the year 5000"),
    "a long rollback": (lambda q: q.rollback(delay=10**400), "delay must be .* end before the year 5000"),
    "a long timeout": (lambda q: q.reserve(timeout=1e300), "timeout must be .* end before the year 5000"),
    "many to prefetch": (lambda q: q.messages(prefetch=2**31), "prefetch must be a whole number, at most 2147483647"),
    "a long commit": (
        lambda q: admin.consume.commit(q.store.url, q.name, "c/1", history=1e300), "history must be .* year 5000"
    ),
    "a late rollback": (
        lambda q: admin.consume.rollback(q.store.url, q.name, "c/1", delay=1e300), "delay must be .* year 5000"
    ),
    "a late release": (
        lambda q: admin.release(q.store.url, q.name, "c/1", delay=float("nan")), "delay must be a number of seconds"
    ),
    "a long lease": (
        lambda q: admin.consume.reserve(q.store.url, q.name, lease=10**5000), "lease must be .* before the year 5000"
    ),
    "an old harvest": (
        lambda q: admin.consume.harvest(q.store.url, q.name, older_than=1e300), "older_than must be .* year 5000"
    ),
    "a delay of a store": (lambda q: q.store.rollback(q.name, "c/1", delay=10**18), "delay is too long"),
    "a lease of a store": (lambda q: q.store.reserve(q.name, "c/1", 1, lease=10**18), "lease is too long"),
    "a renewal of a store": (lambda q: q.store.renew(q.name, "c/1", 10**18), "lease is too long"),
    "a history of a store": (lambda q: q.store.commit(q.name, "c/1", history=10**18), "history is too long"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS)
def test_a_wrong_argument_is_refused(queue, call, expected):
    with pytest.raises(OptionError, match=expected):
        call(queue)
    assert queue.sizes().total == 0


def test_dates_are_json_as_orjson_has_them(queue):
    queue.push({"when": datetime(2026, 1, 31, 12, tzinfo=UTC), "none": None})
    assert queue.pop().payload == {"when": "2026-01-31T12:00:00+00:00", "none": None}


def test_a_client_may_get_an_opened_store(tmp_path):
    with Queue(SqliteStore(f"sqlite:///{tmp_path}/q.db"), "q") as queue:
        assert queue.push_many(n for n in range(2))
