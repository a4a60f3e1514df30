"""The bounds of headers, and ids that no document of MongoDB can have: the same rules on every store."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_queue.messages import headers as message_headers
from spark_queue.messages.columns import headers_array
from spark_queue.messages.message import pushes
from spark_queue.messages.rules import OPERATOR_RULE, validate_rows

LONG = "x" * (message_headers.HEADER_SIZE_LIMIT - 1)
FULL = {str(n): "y" * (message_headers.HEADERS_SIZE_LIMIT // 4 - 1) for n in range(4)}
OWN = {"x-error": "e" * 4_000, "x-dl-t": "now", "x-hop-count": "3"}

#: Headers, and the rule that they break, if any.
HEADERS = {
    "none": ({}, ""),
    "a long one": ({"h": LONG}, ""),
    "one byte more": ({"h": f"{LONG}x"}, "its header 'h' has 8,193 bytes; the limit is 8,192"),
    "two bytes a character": ({"h": "é" * 4_096}, "its header 'h' has 8,193 bytes; the limit is 8,192"),
    "many": ({f"h{n}": "" for n in range(1_000)}, ""),
    "one more": ({f"h{n}": "" for n in range(1_001)}, "it has 1,001 headers; the limit is 1,000"),
    "very many": ({f"h{n}": "" for n in range(100_000)}, "it has 100,000 headers; the limit is 1,000"),
    "all": (FULL, ""),
    "all and one byte": (FULL | {"a": ""}, "its headers have 32,769 bytes; the limit is 32,768"),
    "all and those of a dead letter": (FULL | OWN, ""),
    "many and those of a dead letter": ({f"h{n}": "" for n in range(1_000)} | OWN, ""),
    "too many of a dead letter": (FULL | OWN | {"x-dl-more": LONG[:5_000]}, "its headers have 41,"),
    "very large": ({str(n): LONG for n in range(100)}, "its headers have 819,"),
    "NUL": ({"a\0b": "1"}, r"the name of its header 'a\x00b' has the character NUL"),
    "NUL in a value": ({"a": "1\0"}, ""),
    "no name": ({"": "1"}, ""),
}


@pytest.mark.parametrize("which", HEADERS)
def test_headers_have_bounds(which):
    headers, rule = HEADERS[which]
    batch = pushes([1, 2, 3], ids=["a", "b", "c"], headers=[{"k": "v"}, headers, {}])
    found = validate_rows(batch, 100)
    assert list(found) == ([1] if rule else [])
    assert found.get(1, "").startswith(rule)
    assert validate_rows(batch.slice(1), 100) == ({0: found[1]} if rule else {}), "a slice has rows of its own"
    assert validate_rows(batch, None) == {}, "what an older version has stored is read"


@pytest.mark.parametrize("which", HEADERS)
def test_the_headers_of_a_dead_letter_fit(which):
    headers, rule = HEADERS[which]
    cut = message_headers.cut_headers(headers, {"x-error": "e" * 4_000})
    assert message_headers.broken_rule(cut) is None
    assert cut["x-error"] == "e" * 4_000
    if not rule:
        assert cut.keys() == {*headers, "x-error"}
    assert message_headers.find_unfit(headers_array([cut])) == {}


def test_headers_that_are_null_do_not_count():
    pairs = [(f"h{n}", None) for n in range(1_500)] + [("h", "1")]
    column = pa.array([None, pairs], pa.map_(pa.string(), pa.string()))
    assert message_headers.find_unfit(column) == {}


OPERATORS = [
    '{"_id":{"$gt":""}}', '{"_id":{"a":{"$gt":""}}}', '{"_id":{"a":[{"$in":[]}]}}', '{"_id":{"$where":"1"}}',
    '{"_id":{"$ref":"a","$id":{"$ne":1}}}', '{"_id":{"$numberInt":"1","$gt":0}}', '{"_id": {"$exists": true}}',
]  # fmt: skip
KEYS = [
    '{"_id":"order-7"}', '{"_id":{"$numberInt":"5"}}', '{"_id":{"a":{"$date":{"$numberLong":"1"}}}}', '{"_id":null}',
    '{"_id":{"$ref":"a","$id":"b","$db":"c"}}', '{"_id":{"a":"$gt"}}', '{"_id":{"$gt":""}', '{"id":{"$gt":""}}',
    '{"_id":1,"$gt":""}', '{"_id":{"$binary":{"base64":"/wE=","subType":"00"}}}', '{"_id":',
]  # fmt: skip


def test_an_id_that_no_document_can_have_is_refused():
    found = validate_rows(pushes([1] * len(OPERATORS), ids=OPERATORS), 100)
    assert found == dict.fromkeys(range(len(OPERATORS)), OPERATOR_RULE)
    assert validate_rows(pushes([1] * len(KEYS), ids=KEYS), 100) == {}
    assert validate_rows(pushes([1], ids=OPERATORS[:1]), None) == {}
