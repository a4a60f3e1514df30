"""Identity, payloads and columns of messages."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from uuid import UUID

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_queue.errors import MessageError
from spark_queue.messages.columns import build_messages, due_ms, header_dicts, headers_array
from spark_queue.messages.ids import SMALL_BATCH, DerivedIds, new_ids
from spark_queue.messages.json_text import dump_json, load_json
from spark_queue.messages.message import Message, messages, pushes
from spark_queue.messages.payload import as_json, as_text, decode, encode, from_json
from spark_queue.messages.rules import replace_invalid_utf8, validate_rows
from spark_queue.messages.schema import MESSAGES, PUSHES


def test_ids_are_24_hex_digits_that_sort_as_they_were_made():
    made = [id for _ in range(50) for id in new_ids(1_000)]
    assert made == sorted(made) and len(set(made)) == len(made)
    assert all(len(id) == 24 and int(id, 16) for id in made)


def test_a_clock_that_goes_back_does_not_disorder_ids(monkeypatch):
    (before,) = new_ids(1)
    monkeypatch.setattr("time.time", lambda: 0.0)
    (after,) = new_ids(1)
    assert after > before


def test_a_fork_makes_ids_of_its_own():
    new_ids(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_ids(1)[0].encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    assert new_ids(1)[0][8:18] != theirs[8:18]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES | st.binary())
def test_encode_and_decode_are_inverse(value):
    payload, kind = encode(value)
    again = decode(payload, kind)
    assert (type(again), again) == (type(value), value)
    if kind != "binary":
        assert json.loads(as_json(payload, kind)) == value


DEEP: list[object] = []
DEEP.append({"n": 2**70, "deep": DEEP})

NO_JSON = {
    "not a number": (float("nan"), "payload: nan has no form in JSON; use None or text"),
    "infinite": (float("inf"), "payload: inf has no form"),
    "a number beside null": ({"a": [float("nan"), None]}, "payload.a[0]: nan has no form"),
    "a number beside a long one": ({"a": [2**70, float("nan")]}, "payload.a[1]: nan has no form"),
    "a set": ({1, 2}, "payload: set has no form in JSON; use a list"),
    "an object": (object(), "payload: object has no form"),
    "bytes": ({"a": b"x"}, "payload.a: bytes has no form in JSON; encode it as text (base64)"),
    "a key": ({1: None}, "payload: the key 1 is int, and keys of JSON are text"),
    "a key beside a long number": ({"n": 2**70, "a": {1: 2}}, "payload.a: the key 1 is int"),
    "half a surrogate pair": ({"a": ["\ud800"]}, "payload.a[0]: text with half a surrogate pair is not Unicode"),
    "the same in a key": ({"\udfff": 1}, "payload: the key '\\udfff': text with half a surrogate pair"),
    "the same beside null": ({"a": "\ud800", "b": None}, "payload.a: text with half a surrogate pair"),
    "the same beside a long number": ({"a": "\ud800", "b": 2**70}, "payload.a: text with half a surrogate pair"),
    "itself": (DEEP, "is nested more than 250 levels deep, or contains itself"),
}


@pytest.mark.parametrize(("value", "expected"), NO_JSON.values(), ids=NO_JSON)
def test_what_json_cannot_hold_is_refused(value, expected):
    for make in (dump_json, encode):
        with pytest.raises(MessageError) as caught:
            make(value)
        assert expected in str(caught.value)
    with pytest.raises(MessageError) as caught:
        pushes([1, value, 3])
    assert str(caught.value).startswith("message 2 of 3: payload") and list(caught.value.rows) == [1]
    assert expected in caught.value.rows[1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ids": ["a", "\ud800"]}, "id: text with half a surrogate pair"),
        ({"ids": ["a", 5]}, "id must be text, not int"),
        ({"headers": [{}, {"h": "\ud800"}]}, "headers.h: text with half a surrogate pair"),
        ({"headers": [{}, {"\ud800": "h"}]}, "headers: the key '\\ud800': text with half a surrogate pair"),
        ({"headers": [{}, {"h": 1}]}, "headers.h: int must be text"),
        ({"tries": [0, "3"]}, "tries must be a whole number"),
    ],
)
def test_what_is_no_text_beside_a_payload_is_refused(given, expected):
    with pytest.raises(MessageError) as caught:
        pushes([1, 2], queue="q", **given)
    assert str(caught.value).startswith("queue 'q', message 2 of 2: ") and expected in str(caught.value)
    assert list(caught.value.rows) == [1]


def test_half_a_surrogate_pair_is_no_text_payload():
    with pytest.raises(MessageError, match=r"^payload: text with half a surrogate pair"):
        encode("\ud800")
    with pytest.raises(MessageError, match=r"^payload: text with half a surrogate pair"):
        pushes(["\ud800"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":"\\ud800","b":[1]}', {"a": "?", "b": [1]}),
        (b'{"\\udc00":12345678901234567890123}', {"?": 12345678901234567890123}),
        (b"[Infinity,-Infinity]", [float("inf"), float("-inf")]),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
    ],
)
def test_json_of_other_programs_is_read(text, value):
    assert decode(text, "json") == value


@pytest.mark.parametrize("text", [b'{"n":12345678901234567890123,"a":"\\ud800"}', b"[12345678901234567890123,NaN]"])
def test_what_is_not_quite_json_is_no_json_beside_a_long_number(text):
    with pytest.raises(ValueError, match="line 1"):
        load_json(text)


class Gate(Enum):
    first = "B12"


@dataclass
class Flight:
    number: int
    gate: Gate = Gate.first


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 31, tzinfo=UTC), date(2026, 1, 31), UUID(int=1), Gate.first, Flight(1545), [Flight(1)]],
)
def test_a_null_or_a_long_integer_beside_it_does_not_change_what_json_can_hold(value):
    alone = json.loads(dump_json({"a": value}))["a"]
    assert json.loads(dump_json({"a": value, "b": None, "c": 2**100})) == {"a": alone, "b": None, "c": 2**100}


def test_long_integers_stay_exact():
    assert load_json(b'{"n": 123456789012345678901234567890}') == {"n": 123456789012345678901234567890}
    assert json.loads(dump_json({"n": 2**100, "x": None})) == {"n": 2**100, "x": None}


def test_views_of_bytes_and_text():
    assert as_json(b"\x00", "binary") == b'{"$binary":{"base64":"AA==","subType":"00"}}'
    assert as_text("ü".encode(), "binary") == "ü".encode()
    assert as_text(b"\xff", "binary") == b"/w=="
    assert as_text(b"[1]", "json") == b"[1]"


def test_a_batch_and_its_messages():
    batch = build_messages("q", ["a", "b"], [b"1", b"x"], ["json", "text"], [{"h": "1"}, None], [0, 1_500], [0, 2])
    assert batch.schema == MESSAGES
    assert messages(batch) == [
        Message("a", "q", 1, {"h": "1"}, datetime(1970, 1, 1, tzinfo=UTC), 0),
        Message("b", "q", "x", {}, datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), 2),
    ]


def test_due_is_the_moment_or_now_and_a_delay():
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    batch = pushes([1, 2, 3], mature=[moment, None, None], delay=[None, 5, None])
    assert batch.schema == PUSHES
    assert due_ms(batch, 100) == [1_577_836_800_000, 105, 100]


def test_headers_without_any_cost_nothing_and_are_empty_maps():
    column = headers_array([None, {}, None])
    assert column.to_pylist() == [[], [], []] and column.type == PUSHES.field("headers").type
    assert headers_array([{"a": "b"}, None]).to_pylist() == [[("a", "b")], []]


ENTRIES = st.lists(
    st.tuples(st.text(max_size=2), st.none() | st.text(max_size=2)), max_size=3, unique_by=lambda one: one[0]
)


@given(st.lists(st.none() | ENTRIES, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_headers_of_any_slice_are_those_of_its_rows(rows, start, end):
    column = pa.array(rows, PUSHES.field("headers").type)[start:end]
    batch = pa.RecordBatch.from_arrays([column], ["headers"])
    assert header_dicts(batch) == [
        {key: value for key, value in one or () if value is not None} for one in rows[start:end]
    ]


def test_faults_name_every_row_and_its_first_rule():
    good = pushes([1, 2, 3, 4])
    rows = good.to_pylist()
    rows[0]["payload"] = b"{"
    rows[2]["delay"] = -1
    rows[3] |= {"id": "", "payload": None}
    wrong = validate_rows(pa.RecordBatch.from_pylist(rows, schema=PUSHES), 100)
    assert list(wrong) == [0, 2, 3]
    assert wrong[0].startswith("its payload is not JSON")
    assert (wrong[2], wrong[3]) == ("its delay is negative", "its id is empty")
    assert validate_rows(good, 100) == {}
    assert list(validate_rows(pushes(["x" * 101, "x" * 100]), 100)) == [0]


def spark_text(*parts):
    """Text of Spark, which does not check that it is UTF-8."""
    return pa.array(parts, pa.binary()).view(pa.string())


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"caf\xe9"])
@pytest.mark.parametrize("n", [2, 3 * SMALL_BATCH])
def test_ids_and_headers_that_are_not_utf8_are_found(bad, n):
    good = pushes([{}] * n, headers={"k": "v"})
    ids = spark_text(*[f"id{row}".encode() for row in range(n - 1)], bad)
    items = spark_text(bad, *[b"v"] * (n - 1))
    headers = pa.MapArray.from_arrays(pa.array(range(n + 1), pa.int32()), pa.array(["k"] * n), items)
    rows = good.set_column(0, good.schema.field(0), ids).set_column(3, good.schema.field(3), headers)
    assert validate_rows(rows, 100) == {0: "its headers are not UTF-8 text", n - 1: "its id is not UTF-8 text"}
    assert validate_rows(rows.slice(1, n - 2), 100) == {}
    read = replace_invalid_utf8(rows)
    assert validate_rows(read, 100) == {} and read.column("id")[n - 1].as_py() == bad.decode(errors="replace")
    assert header_dicts(read)[0] == {"k": bad.decode(errors="replace")}
    assert replace_invalid_utf8(good) is good


@st.composite
def almost_json(draw):
    """The text of a value, in which a few bytes may be others, missing or doubled."""
    text = bytearray(
        draw(VALUES.map(dump_json) | st.sampled_from([b'{"a":[1,{"b":"\\ud83d\\ude00"}]}', b"[[[[]]]]"]))
    )
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        put = draw(st.sampled_from(b'{}[]",:\\0123-+.eEux/ntN \t\n\r\x00\x01\x1f\x7f\x80\xc3\xed\xff'))
        text[at : at + draw(st.integers(0, 2))] = bytes([put] * draw(st.integers(0, 2)))
    return bytes(text)


@pytest.mark.parametrize("fast", [True, False])
def test_invalid_json_is_found_by_both_parsers(fast, monkeypatch):
    if not fast:
        monkeypatch.setattr("spark_queue.messages.rules._simdjson_parser", lambda: None)
    deep = [b"[" * n + b"]" * n for n in (1023, 1024, 1025)]

    @given(st.lists(almost_json(), max_size=2))
    @example([b"\xef\xbb\xbf1"])
    @example([b'"\\ud800"', b'"\\udc00"'])
    @example([b"9" * 30, b"-0", b"01", b"1e999", b"NaN", b"Infinity", *deep])
    def check(texts):
        rows = pushes([{}] * SMALL_BATCH + [b""] * len(texts))
        for name, values in (("payload", [b"{}"] * SMALL_BATCH + texts), ("payload_kind", ["json"] * len(rows))):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
        assert list(validate_rows(rows, 10_000)) == [
            SMALL_BATCH + row for row, text in enumerate(texts) if not is_json(text)
        ]

    check()


def is_json(text):
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


@pytest.mark.parametrize("id", ["", "x" * 201, "a\0b", "\x7fa", None, "ü" * 101, "plain\0"])
def test_an_id_that_breaks_a_rule_is_found_among_few_and_among_many(id):
    for n in (1, SMALL_BATCH, SMALL_BATCH + 1, 500):
        rows = pushes([{}] * n, ids=["a/b:c-d_e.f"] * (n - 1) + ["x"])
        assert validate_rows(rows, 100) == {}
        broken = rows.set_column(0, rows.schema.field(0), pa.array(["a/b:c-d_e.f"] * (n - 1) + [id], pa.string()))
        assert list(validate_rows(broken, 100)) == [n - 1]


def test_a_few_ids_are_made_like_many():
    few, many = DerivedIds("part"), DerivedIds("part")
    assert [id for _ in range(10 * SMALL_BATCH) for id in few.next_ids(1).to_pylist()] == many.next_ids(
        10 * SMALL_BATCH
    ).to_pylist()


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", b"text", bytes(range(256)), "", "text", "5", '"ü€𝄞\\n\0'])
def test_what_was_shown_as_json_is_what_it_was(payload):
    kept, kind = encode(payload)
    payloads, kinds = from_json(pa.array([as_json(kept, kind), b'{"n":1}', None], pa.binary()))
    assert payloads.to_pylist() == [kept, b'{"n":1}', None]
    assert kinds.to_pylist() == [kind, "json", "json"]


@pytest.mark.parametrize(
    "text",
    [
        b'{"$binary":{"base64":"AA==","subType":"04"}}',
        b'{"$binary":{"base64":"AA==","subType":"00"},"n":1}',
        b'{"$binary":{"base64":"AA==","subType":"00","n":1}}',
        b'{"$binary":{"base64":"A","subType":"00"}}',
        b'{"$binary":{"base64":"AB==","subType":"00"}}',
        b'{"$binary":{"subType":"00","base64":"AA=="}}',
        b'{"$binary":{}}',
        b'{"$binary":{"base64":7,"subType":"00"}}',
        b'{"$binary":"AA=="}',
        b'{"$binary":',
        b'"text',
        b'"\\ud800"',
    ],
)
def test_what_is_not_quite_that_stays_as_it_is(text):
    payloads, kinds = from_json(pa.array([text], pa.binary()))
    assert (payloads.to_pylist(), kinds.to_pylist()) == ([text], ["json"])
