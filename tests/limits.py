"""Messages at the limits: sizes, kinds, headers, ids, nesting and numbers. Seeded: the same in each run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_queue.messages import headers as message_headers
from spark_queue.messages.schema import PUSHES

#: The largest payload of a queue in MongoDB.
LARGEST = (16 << 20) - (64 << 10)

NUMBERS = [
    "0", "-0", "-0.0", "0.1", "1e308", "5e-324", "1e400", "123456789012345678.5", "9007199254740993",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615",
    "18446744073709551616", "1" + "0" * 40, "2147483648", "1.0", "3000000000.0", "NaN", "Infinity",
]  # fmt: skip

#: JSON that only looks like Extended JSON, and that which is, at the ends of its ranges.
EXTENDED = [
    '{"$date":"0001-01-01T00:00:00Z"}', '{"$date":"9999-12-31T23:59:59.999Z"}', '{"$date":"12026-01-01T00:00:00Z"}',
    '{"$date":{"$numberLong":"-9223372036854775808"}}', '{"$date":{"$numberLong":"9223372036854775807"}}',
    '{"$timestamp":{"t":0,"i":0}}', '{"$timestamp":{"t":4294967295,"i":1}}', '{"$numberDecimal":"1E+6144"}',
    '{"$numberDecimal":"NaN"}', '{"$numberLong":"9223372036854775808"}', '{"$oid":"0123456789abcdef01234567"}',
    '{"$binary":{"base64":"/w==","subType":"00"}}', '{"$binary":{}}', '{"$ref":"a","$id":"b"}',
    '{"$id":"b","$ref":"a"}', '{"$gt":""}', '{"$undefined":true}', '{"$code":"x","$scope":{}}', '{"$minKey":1}',
    '{"$regularExpression":{"pattern":"(","options":"x"}}', '{"$dbPointer":{}}', '{"$numberInt":"5"}',
]  # fmt: skip

TEXTS = ["", " ", "\0", "\x7f", "é", "😀", "\ufeff", "a" * 200, "\u2028", '"', "\\", "$", ".", "a.b", "$gt", "\r\n"]

IDS = [
    "x" * 200, "x" * 201, "é" * 100, "é" * 101, "", "a\0b", "\x7fb", "\x7fa\x7f3\x7f0123456789abcdef", "0" * 24,
    "F" * 24, " ", "\n", "😀", "a/b", "$gt", '{"_id":', '{"_id":"order-7"}', '{"_id":{"$numberInt":"7"}}',
    '{"_id":{"$numberDouble":"7.0"}}', '{"_id":{"$numberDouble":"-0.0"}}', '{"_id":{"$numberDecimal":"7.00"}}',
    '{"_id":{"$numberDouble":"NaN"}}', '{"_id":{"$numberDecimal":"NaN"}}', '{"_id":{"$gt":""}}', '{"_id":null}',
    '{"_id":{"a":{"$in":[]}}}', '{"_id":{"$ref":"a","$id":"b"}}', '{"_id":{"a\\u0000b":1}}', '{"_id":[1]}',
    '{"_id":{"$code":"x","$scope":{"$gt":""}}}', '{"_id":{"$timestamp":{"t":0,"i":0}}}', '{"_id":{"":""}}',
    '{"_id":{"$binary":{"base64":"/wE=","subType":"00"}}}', '{"_id":{"a.b":"c"}}', '{"_id":{"$minKey":1}}',
]  # fmt: skip

#: Queue names: each is one, or is refused.
NAMES = [
    "x" * 200, "x" * 201, "é" * 100, "é" * 101, "x" * 195 + ".dead", "x" * 200 + ".dead", "", "\0", "a\0b", "\ud800",
    "$a", "a$b", ".a", "a.", "a..b", "a.b", "system.a", "spark_queue.a", ".dead", "a b", "a/b", "é", "😀", "*", "a:b",
    "{a}", "a\nb", "'", '"', "x" * 100_000,
]  # fmt: skip


class Limits:
    """Makes messages from a seed. `largest`: whether payloads of the largest size are among them."""

    def __init__(self, seed: int, *, largest: bool = False) -> None:
        self._random = random.Random(seed)
        self._largest = largest
        self._ids = iter(self._random.sample(IDS, len(IDS)))

    def batches(self, number: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield a batch of this number of messages for each kind of payload: what `payloadFormat` is, and rows."""
        for kind in ("json", "text", "binary"):
            rows = [self._row(kind) for _ in range(number)]
            names = pa.schema([PUSHES.field(name) for name in ("id", "payload", "headers", "tries")])
            yield kind, pa.RecordBatch.from_pylist(rows, schema=names)

    def stored(self, number: int) -> pa.RecordBatch:
        """Return messages that older versions have stored: the rules of today refuse them."""
        headers = [
            {f"h{n}": "" for n in range(20_000)}, {"big": "x" * 100_000}, {"a\0b": "1"},
            {str(n): "y" * 8_000 for n in range(50)}, {},
        ]  # fmt: skip
        rows = [
            {
                "id": '{"_id":{"$gt":""}}' if not one else f"stored{place}",
                "payload": json.dumps({"n": str(place)}).encode(), "payload_kind": "json",
                "headers": list(one.items()), "tries": 0,
            }
            for place, one in enumerate(headers[:number])
        ]  # fmt: skip
        return pa.RecordBatch.from_pylist(rows, schema=PUSHES)

    def _row(self, kind: str) -> dict[str, object]:
        tries = self._random.choice([0, 0, 0, 1, 2**31 - 2, 2**31 - 1])
        return {"id": self._id(), "payload": self._payload(kind), "headers": self._headers(), "tries": tries}

    def _id(self) -> str:
        odd = next(self._ids, None) if self._random.random() < 0.5 else None
        return f"{self._random.getrandbits(96):024x}" if odd is None else odd

    def _payload(self, kind: str) -> bytes:
        if kind == "binary":
            return self._random.choice([b"", b"\xff", b"\0", bytes(range(256)), b"x" * self._size(), b"{}"])
        if kind == "text":
            text = self._random.choice([*TEXTS, "\0" * 1_000, "x" * self._size()])
            return self._random.choice([text.encode(), text.encode(), b"caf\xe9"])
        return self._json().encode()

    def _size(self) -> int:
        sizes = [1, 1 << 10, 100_000]
        large = [LARGEST - 1, LARGEST, LARGEST + 1, 17 << 20] if self._largest else []
        return self._random.choice([*sizes, *sizes, *sizes, *sizes, *large])

    def _json(self) -> str:
        depth = self._random.choice([1, 10, 99, 100, 101, 250, 1_000, 1_025])
        choices = [
            self._random.choice(NUMBERS), self._random.choice(EXTENDED), json.dumps(self._random.choice(TEXTS)),
            self._random.choice(["null", "true", "{}", "[]", '{"a":1,"a":2}', '"\\ud800"', "{", "", "\ufeff1"]),
            json.dumps(dict.fromkeys(TEXTS, "v")), json.dumps({"a": self._random.choice(TEXTS)}),
            f'{{"n":{self._random.choice(NUMBERS)}}}', f'{{"e":{self._random.choice(EXTENDED)}}}',
            json.dumps({"flat": self._random.choice(TEXTS), "n": "1"}), json.dumps({"flat": "y", "n": 1}),
            "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, json.dumps("x" * self._size()),
            "[" + ",".join("0" * (self._size() // 4)) + "]",
        ]  # fmt: skip
        return self._random.choice(choices)

    def _headers(self) -> Sequence[tuple[str, str]]:
        if self._random.random() < 0.4:
            return []
        most = message_headers.HEADER_COUNT_LIMIT
        number = self._random.choice([1, 3, most, most + 1])
        choices: list[dict[str, str]] = [
            {f"h{n}": "" for n in range(number)},
            dict.fromkeys(self._random.sample(TEXTS, 3), "v"),
            {"v": self._random.choice(TEXTS)},
            {"big": "x" * (message_headers.HEADER_SIZE_LIMIT - 3 + self._random.choice([0, 1]))},
            {str(n): "é" * 4_095 for n in range(self._random.choice([3, 4, 5]))},
            {"$ref": "a", "$id": "b"},
            {"x-error": "old", "x-dl-t": "never", "x-dl-tries": "x", "x-dl-from-queue": "elsewhere"},
        ]
        return list(self._random.choice(choices).items())
