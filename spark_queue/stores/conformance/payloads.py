"""The part of the conformance suite about payloads that are, or look like, Extended JSON."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from spark_queue.errors import MessageError
from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import messages_of, payloads_of, push_and_reserve, reserve_again

#: Objects that are almost Extended JSON. Some version read each of them as something else.
LOOKALIKES: list[Any] = [
    {"$oid": None}, {"$oid": "no"}, {"$oid": {"$oid": "5f1d7e0123456789abcdef01"}},
    {"$oid": "5F1D7E0123456789ABCDEF01"}, {"$oid": "5f1d7e0123456789abcdef01", "more": 1},
    {"$date": True}, {"$date": 5}, {"$date": "soon"}, {"$date": "2024-01-01T00:00:00.000Z"}, {"$date": None},
    {"$date": "2024-01-01T01:00:00+01:00"}, {"$date": {"$numberLong": "5"}}, {"$date": {"$numberLong": "9" * 30}},
    {"$binary": {}}, {"$binary": {"base64": "AA=="}}, {"$binary": {"base64": "AB==", "subType": "00"}},
    {"$binary": {"subType": "00", "base64": "AA=="}}, {"$binary": {"base64": "AA==", "subType": "00"}},
    {"$binary": {"base64": "AA==", "subType": "05"}}, {"$binary": {"base64": "AA==", "subType": "5"}},
    {"$binary": "AA==", "$type": "00"}, {"$binary": "AA==", "$type": 5}, {"$uuid": "0" * 32},
    {"$regularExpression": {}}, {"$regularExpression": {"pattern": "a", "x": 1}}, {"$regularExpression": None},
    {"$regularExpression": {"pattern": "a", "options": "z"}}, {"$regularExpression": {"pattern": "a", "options": ""}},
    {"$regularExpression": {"pattern": "a", "options": "xi"}},
    {"$regularExpression": {"pattern": None, "options": ""}},
    {"$regularExpression": {"pattern": "a\0", "options": ""}},
    {"$regex": "x"}, {"$regex": "x", "$options": "i"}, {"$regex": 5},
    {"$code": "f()", "$scope": None}, {"$code": None}, {"$code": "f()", "$scope": {"a": {"$oid": None}}},
    {"$code": "f()", "$scope": {"n": 1.5, "d": {"$date": "2024-01-01T00:00:00Z"}}}, {"$scope": {}, "$code": "f()"},
    {"$symbol": None}, {"$symbol": "s"}, {"$undefined": True}, {"$undefined": None},
    {"$dbPointer": {"$ref": "c", "$id": {"$oid": "5f1d7e0123456789abcdef01"}}},
    {"$ref": "c", "$id": {"$oid": "5f1d7e0123456789abcdef01"}, "$db": "d", "more": 3_000_000_000.5},
    {"$numberInt": "5"}, {"$numberLong": "5"}, {"$numberLong": None}, {"$numberDouble": "1e7000"},
    {"$numberDouble": "1.5"}, {"$numberDouble": "NaN"}, {"$numberDouble": "nan"}, {"$numberDecimal": "1e3"},
    {"$numberDecimal": "sNaN"}, {"$numberDecimal": 5}, {"$numberDecimal": "1.50"}, {"$numberDecimal": "x"},
    {"$timestamp": {"t": 1, "i": 2}}, {"$timestamp": {"t": -1, "i": 2}}, {"$timestamp": {"i": 2, "t": 1}},
    {"$timestamp": {"t": True, "i": 2}}, {"$timestamp": 5}, {"$minKey": 1}, {"$minKey": True}, {"$maxKey": 1.0},
    {"$set": {"a.b": 1}}, {"$": 1}, {"$schema": "x", "a": {"$date": "2024-01-01T00:00:00Z"}}, {"": {"$oid": None}},
]  # fmt: skip

#: Names and values that occur in Extended JSON, and numbers that are easily changed.
_NAMES = [
    "$oid", "$date", "$binary", "$regularExpression", "$code", "$scope", "$timestamp", "$minKey", "$maxKey", "$regex",
    "$numberDecimal", "$numberDouble", "$numberInt", "$numberLong", "$symbol", "$undefined", "$uuid", "$options",
    "$dbPointer", "$type", "base64", "subType", "pattern", "options", "t", "i", "a", "$set", "$ref",
]  # fmt: skip
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 1.0, -0.0, 0.1, 1e22, 1e-300,
    3_000_000_000.0, [], {}, "", "x", "AA==", "AB==", "00", "05", "5", "80", "ff", "5f1d7e0123456789abcdef01", "i",
    "z", "1969-12-31T23:59:59Z", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123Z", "2024-01-01T00:00:00.000Z", "-5",
    "ilmsux", "NaN", "Infinity", "-Infinity", "1e7000", "1.50", "1E+3", "9223372036854775808",
]  # fmt: skip

#: Functions that return valid Extended JSON of a type that JSON lacks.
_EXTENDED_JSON: list[Callable[[Random], Any]] = [
    lambda some: {"$oid": some.randbytes(12).hex()},
    lambda some: {"$date": {"$numberLong": str(some.randrange(-(2**63), 2**63) >> some.randrange(64))}},
    lambda some: {"$date": _moment(some).isoformat(timespec="seconds") + "Z"},
    lambda some: {"$date": _moment(some).isoformat(timespec="milliseconds") + "Z"},
    lambda some: {"$binary": {"base64": _base64(some), "subType": f"{some.choice([0, some.randrange(256)]):02x}"}},
    lambda some: {"$regularExpression": {"pattern": _text(some), "options": _options(some)}},
    lambda some: {"$timestamp": {"t": some.randrange(2**32), "i": some.randrange(2**32)}},
    lambda some: {"$numberDecimal": str(Decimal(some.randrange(10**34)).scaleb(some.randrange(-6176, 6112)))},
    lambda some: some.choice([{"$minKey": 1}, {"$maxKey": 1}, {"$numberDouble": "-Infinity"}]),
    lambda some: {"$code": _text(some)},
]


def extended_json(random: Random) -> dict[str, Any]:
    """Return an object that is Extended JSON, almost is, or has such parts."""
    made = _random_value(random, random.randrange(4))
    return made if isinstance(made, dict) else {"v": made}


def _random_value(random: Random, depth: int) -> Any:
    match random.randrange(8 if depth else 4):
        case 0:
            return random.choice(_VALUES)
        case 1:
            return _text(random)
        case 2:
            return random.choice(_EXTENDED_JSON)(random)
        case 4:
            return [_random_value(random, depth - 1) for _ in range(random.randrange(4))]
        case 5:
            return {"$code": "f()", "$scope": {"a": _random_value(random, depth - 1)}}
        case 6:
            return {"$ref": "c", "$id": _random_value(random, depth - 1)}
        case _:
            return {
                name: _random_value(random, max(depth - 1, 0)) for name in random.sample(_NAMES, random.randrange(4))
            }


def _text(random: Random) -> str:
    return "".join(random.choice('a$.\0"\\é🛫\u2028/') for _ in range(random.randrange(4)))


def _base64(random: Random) -> str:
    return b64encode(random.randbytes(random.randrange(5))).decode()


def _options(random: Random) -> str:
    return "".join(sorted(random.sample("ilmsux", random.randrange(7))))


def _moment(random: Random) -> datetime:
    return datetime(random.randrange(1, 10_000), 1, 1) + timedelta(milliseconds=random.randrange(86_400_000))


def same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same, with the order of names and types of numbers.

    A large double without a fraction equals the same integer: JavaScript does not distinguish them.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return [*one] == [*other] and all(map(same_json, one.values(), other.values()))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    alike = type(one) is type(other) or ({type(one), type(other)} == {int, float} and abs(one) >= 2**31)
    return alike and bool(one == other)


class PayloadContract:
    """Tests for `StoreContract`, which has the fixtures `store` and `queue`."""

    def test_what_looks_like_extended_json_comes_back_as_it_was(self, store: Store, queue: str) -> None:
        _push_and_compare(store, queue, [*LOOKALIKES, *({"a": [one, None]} for one in LOOKALIKES)])

    def test_any_extended_json_comes_back_as_it_was(self, store: Store, queue: str) -> None:
        some = Random(1)
        _push_and_compare(store, queue, [extended_json(some) for _ in range(2_000)])

    def test_what_looks_like_extended_json_is_published_and_moved_as_it_was(self, store: Store, queue: str) -> None:
        store.stage(queue, f"{queue}/0/a", pushes(LOOKALIKES))
        store.publish([f"{queue}/0/a"])
        store.move(queue, f"{queue}.other")
        found = payloads_of(store.peek(f"{queue}.other"))
        _compare(sorted(LOOKALIKES, key=repr), sorted(found, key=repr))

    def test_what_looks_like_extended_json_is_forwarded_as_it_was(self, store: Store, queue: str) -> None:
        if not store.supports_forward:
            pytest.skip("this layout does not support forward")
        batch = pushes(LOOKALIKES)
        ids = batch.column("id").to_pylist()
        push_and_reserve(store, queue, pushes([{"n": 1}] * len(ids), ids=ids))
        assert store.forward(queue, f"{queue}.other", "c/1", batch) == len(ids)
        found = {one.id: one.payload for one in messages_of(store.peek(f"{queue}.other"))}
        _compare(LOOKALIKES, [found[id] for id in ids])

    @pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**30])
    def test_an_integer_beyond_64_bits_is_exact_or_refused(self, store: Store, queue: str, number: int) -> None:
        refused = ""
        try:
            _push_and_compare(store, queue, [{"n": number, "$date": [number, None]}])
        except MessageError as error:
            refused = str(error)
        assert not refused or "beyond 64 bits" in refused
        assert store.sizes(queue).total == 0


def _push_and_compare(store: Store, queue: str, payloads: list[Any]) -> None:
    """Push payloads, reserve them twice, and compare those that come back."""
    _compare(payloads, [one.payload for one in reserve_again(store, queue, pushes(payloads))])
    assert store.commit(queue, "c/2") == len(payloads)


def _compare(expected: list[Any], found: list[Any]) -> None:
    assert [pair for pair in zip(expected, found, strict=True) if not same_json(*pair)] == []
