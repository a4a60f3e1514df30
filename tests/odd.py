"""Records as other programs, older versions and failing disks leave them in a queue, and what is to become of each.

One table for all layouts. `put` writes a record as such a program would.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

import redis
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId
from pymongo import MongoClient

from spark_queue.options.url import StoreUrl

BUCKET = "\x7ffirst\x7f3\x7f0123456789abcdef"


@dataclass(frozen=True)
class Odd:
    """A record that cannot be read.

    `reason`: what `x-error` says of it. `raw`: what its payload has. `id`: that of the dead letter, or of the header
    `x-dl-id`. `decoded`: only who decodes payloads finds it.
    """

    name: str
    record: Any
    reason: str
    raw: str
    id: str
    rows: int = 1
    decoded: bool = False


def _sqlite(name: str, reason: str, raw: str, **columns: Any) -> Odd:
    id = columns.pop("shown", columns.get("id", "odd"))
    how = {one: columns.pop(one) for one in ("rows", "decoded") if one in columns}
    if "rows" in how:
        columns["rows"] = how["rows"]
    return Odd(name, columns, reason, raw, id, **how)


_SHOWN = '{"_id":{"$binary":{"base64":"/wE=","subType":"00"}}}'

#: The same id in Redis, which renames ids that look like a mark of ours.
_RENAMED = "\\xff\x01"

_SQLITE = (
    _sqlite("headers a list", "not a JSON object", '"headers":"[1]"', headers="[1]"),
    _sqlite("headers a string", "not a JSON object", '"headers":"\\"x\\""', headers='"x"'),
    _sqlite("headers a number", "not a JSON object", '"headers":"5"', headers="5"),
    _sqlite("headers cut off", "not a JSON object", '"headers":"{\\"a\\"', headers='{"a"'),
    _sqlite("headers a blob", "not a JSON object", '"headers":', headers=b"\x00\xff"),
    _sqlite("payload a text", "its payload is str 'five'", '"payload":"five"', payload="five"),
    _sqlite("payload a number", "its payload is 5", '"payload":5', payload=5),
    _sqlite("tries a text", "its tries is str 'many'", '"tries":"many"', tries="many"),
    _sqlite("tries a blob", "its tries is bytes", '"tries":', tries=b"\xff"),
    _sqlite("tries 2^40", "its tries is 1099511627776", '"tries":1099511627776', tries=2**40),
    _sqlite("kind unknown", "its kind is str 'xml'", '"kind":"xml"', kind="xml"),
    _sqlite("id a blob", "its id is bytes", '"id":', id=b"\xff\x01", shown=_SHOWN),
    _sqlite("id no UTF-8", "its id is BrokenText", '"id":', id=("text", b"\xff\x01"), shown=_SHOWN),
    _sqlite("payload no UTF-8", "its payload is not UTF-8", "", payload=b'"\xff"'),
    _sqlite("payload no JSON", "its payload is not JSON", "{oops", payload=b"{oops", decoded=True),
    _sqlite("a bucket of garbage", "the bucket is damaged", "garbage", id=BUCKET, payload=b"garbage", rows=3),
    _sqlite("almost a bucket", "the bucket is damaged", "x", id="\x7fabc", payload=b"x", kind="binary"),
)  # fmt: skip

_OID = ObjectId("0123456789abcdef01234567")


def _mongo(name: str, reason: str, raw: str, id: str = str(_OID), rows: Any = 1, **fields: Any) -> Odd:
    usual = {"_id": _OID, "payload": {"n": "odd"}, "tries": 0, "hdrs": {}} | ({} if rows == 1 else {"rows": rows})
    return Odd(name, usual | fields, reason, raw, id, rows if isinstance(rows, int) else 1)


_MONGO = (
    _mongo("hdrs a list", "its hdrs is list", '"hdrs":["x"]', hdrs=["x"]),
    _mongo("hdrs a string", "its hdrs is str", '"hdrs":"x"', hdrs="x"),
    _mongo("hdrs a number", "its hdrs is 5", '"hdrs":', hdrs=5),
    _mongo("hdrs a date", "its hdrs is", '"hdrs":{"$date"', hdrs=DatetimeMS(5)),
    _mongo("tries NaN", "its tries is nan", '"$numberDouble":"NaN"', tries=math.nan),
    _mongo("tries infinite", "its tries is inf", '"$numberDouble":"Infinity"', tries=math.inf),
    _mongo("tries minus infinite", "its tries is -inf", '"$numberDouble":"-Infinity"', tries=-math.inf),
    _mongo("tries 2^40", "its tries is 1099511627776", "1099511627776", tries=Int64(2**40)),
    _mongo("tries a string", "its tries is str '3'", '"tries":"3"', tries="3"),
    _mongo("tries a boolean", "its tries is True", '"tries":true', tries=True),
    _mongo("tries an object", "its tries is dict", '"tries":{"a"', tries={"a": 1}),
    _mongo("tries a decimal", "its tries is Decimal128", '"$numberDecimal":"3"', tries=Decimal128("3")),
    _mongo("_sid a number", "its _sid is 5", '"_sid":', _sid=5),
    _mongo(
        "a bucket of garbage", "the bucket is damaged", "garbage", id=BUCKET, _id=BUCKET, payload=b"garbage", rows=3
    ),
    _mongo("rows a string", "the bucket is damaged", "junk", id=BUCKET, _id=BUCKET, payload=b"junk", rows="x"),
    _mongo("tries a string, hdrs a list", "its hdrs is list", '"tries":"x"', tries="x", hdrs=[{"a": 1}]),
)  # fmt: skip

_PL = tuple(one for one in _MONGO if one.id != BUCKET)

_BUCKETS = (
    Odd("b a number", {"_id": _OID, "b": 5, "n": 2}, "its b is 5", '"b":', str(_OID), 2),
    Odd("b a string", {"_id": _OID, "b": "abc", "n": 2}, "its b is str", '"b":"abc"', str(_OID), 2),
    Odd(
        "tries a string", {"_id": _OID, "b": [{"n": 1}], "n": 1, "tries": "x"}, "its tries", '"tries":"x"', str(_OID)
    ),
    Odd("n a string", {"_id": _OID, "b": 7, "n": "x"}, "its b is 7", '"n":"x"', str(_OID)),
)


def _redis(name: str, reason: str, document: bytes, id: bytes = b"odd", shown: str = "odd", **how: Any) -> Odd:
    return Odd(name, (id, document), reason, how.pop("raw", document.decode(errors="replace")), shown, **how)


def document(**fields: str) -> bytes:
    usual = {"_id": '"odd"', "payload": '{"n":"odd"}', "tries": "0", "hdrs": "{}", "mature": "5"}
    return ("{" + ",".join(f'"{name}":{value}' for name, value in {**usual, **fields}.items()) + "}").encode()


_REDIS = (
    _redis("no JSON", "is not a JSON object", b"oops"),
    _redis("nothing", "is not a JSON object", b""),
    _redis("cut off", "is not a JSON object", document()[:-5]),
    _redis("a list", "is not a JSON object", b"[1,2]"),
    _redis("hdrs a list", "its hdrs is [1]", document(hdrs="[1]")),
    _redis("hdrs a string", 'its hdrs is "x"', document(hdrs='"x"')),
    _redis("hdrs a number", "its hdrs is 5", document(hdrs="5")),
    _redis("hdrs cut off", "is not a JSON object", document(hdrs="{oops}")),
    _redis("tries a string", "its tries is", document(tries='"3"')),
    _redis("tries a boolean", "its tries is true", document(tries="true")),
    _redis("tries beyond all", "its tries is", document(tries="1e999")),
    _redis("tries 2^40", "its tries is", document(tries=str(2**40))),
    _redis("no UTF-8", "is not UTF-8", b'{"_id":"odd","tries":0,"payload":"\xff"}'),
    _redis("payload no JSON", "JSON", document(payload="{oops}"), raw="{oops}", decoded=True),
)  # fmt: skip

_REDIS_OQ = (
    *_REDIS,
    _redis("id no UTF-8", "is not UTF-8", b'{"_id":"\xff\x01","payload":1}', b"\xff\x01", _RENAMED),
    _redis("a bucket of garbage", "the bucket is damaged", b'{"_id":"x","payload":"Z2FyYmFnZQ==","tries":0,"hdrs":{},'
           b'"mature":5,"type":"buffer"}', BUCKET.encode(), BUCKET, raw="garbage", rows=3),
    _redis("almost a bucket", "the bucket is damaged", document(), b"\x7fabc", "\x7fabc", raw='{"n":"odd"}'),
)  # fmt: skip

_RFQ = (
    Odd("headers cut off", (b"odd", {b"n": b"odd"}, b"0 5 {oops"), "is not a JSON object", '"hdrs":{oops', "odd"),
    Odd("headers a list", (b"odd", {b"n": b"odd"}, b"0 5 [1]"), "its hdrs is [1]", '"hdrs":[1]', "odd"),
    Odd("tries beyond all", (b"odd", {b"n": b"odd"}, b"9999999999999 5 {}"), "its tries is", '"tries":9999', "odd"),
    Odd("id no UTF-8", (b"\xff\x01", {b"n": b"odd"}, None), "is not UTF-8", '"document":"', _RENAMED),
)

#: By scheme and layout. They lie as in one database, so a store that is registered by others has none of them.
TABLE: dict[str, tuple[Odd, ...]] = {
    "sqlite/": _SQLITE,
    "mongodb/mongo": _MONGO,
    "mongodb/ps-mongo": _MONGO,
    "mongodb/pl-mongo": _PL,
    "mongodb/bucket-mongo-safe": _BUCKETS,
    "redis/redis-oq": _REDIS_OQ,
    "redis/redis-list": _REDIS,
    "redis/rfq": _RFQ,
}


def put(kind: str, url: str, queue: str, record: Any, mature: int | None = None) -> None:
    """Write a record, due at that moment (ms; now by default), as another program does."""
    due = int(time.time() * 1000) if mature is None else mature  # not rounded up: that would be later than now
    scheme, layout = kind.split("/")
    if scheme == "sqlite":
        _put_sqlite(url, queue, record, due)
    elif scheme == "mongodb":
        _put_mongodb(layout, StoreUrl.parse(url).url, queue, record, due)
    else:
        _put_redis(layout, StoreUrl.parse(url).url, queue, record, due)


def _put_sqlite(url: str, queue: str, columns: dict[str, Any], due: int) -> None:
    row = {
        "id": "odd",
        "mature": due,
        "tries": 0,
        "kind": "json",
        "headers": None,
        "payload": b'{"n":"odd"}',
        "rows": 1,
    }
    row |= columns
    text = isinstance(row["id"], tuple)
    if text:
        row["id"] = row["id"][1]
    db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        db.execute("INSERT OR IGNORE INTO queue (name) VALUES (?)", (queue,))
        (number,) = db.execute("SELECT id FROM queue WHERE name = ?", (queue,)).fetchone()
        values = ", ".join("CAST(? AS TEXT)" if name == "id" and text else "?" for name in row)
        db.execute(f"INSERT INTO message (queue, {', '.join(row)}) VALUES ({number}, {values})", [*row.values()])
    finally:
        db.close()


def _put_mongodb(layout: str, url: str, queue: str, document: dict[str, Any], due: int) -> None:
    whole = {"mature": DatetimeMS(due), **document}
    with MongoClient(url) as client:
        database = client.get_default_database()
        pipeline = layout == "pl-mongo"
        collection = database["default" if pipeline else queue]
        keys = [*([("_q", 1)] if pipeline else []), ("processed", 1), ("mature", 1), ("_id", 1)]
        collection.create_index(keys, name="spark_queue_ready")  # it is a queue of ours
        collection.insert_one({"_q": queue, **whole} if pipeline else whole)


def _put_redis(layout: str, url: str, queue: str, record: tuple[Any, ...], due: int) -> None:
    with redis.Redis.from_url(url, protocol=2) as client:
        if layout == "redis-oq":
            id, document = record
            client.hset(f"keuss:q:ordered_queue:hash:{queue}", id, document)
            client.zadd(f"keuss:q:ordered_queue:index:{queue}", {id: due})
            if id.startswith(b"\x7f"):
                client.zadd(f"spark_queue:{queue}:buckets", {id: 1})
        elif layout == "redis-list":
            client.lpush(f"keuss:q:list:{queue}", record[1])
        else:
            id, fields, more = record
            client.hset(b"rfq:%b:message:%b" % (queue.encode(), id), mapping=fields)
            if more:
                client.hset(f"spark_queue.rfq:{queue}:more", id, more)
            client.lpush(f"rfq:{queue}:backlog", id)


#: `_id` of all types that MongoDB takes, beside ObjectId, with the id under which each message is delivered.
IDS = {
    "string": ("order-7", '{"_id":"order-7"}'),
    "like an ObjectId": ("0" * 24, '{"_id":"' + "0" * 24 + '"}'),
    "like a bucket": ("\x7fabc", json.dumps({"_id": "\x7fabc"}, separators=(",", ":"))),
    "int": (5, '{"_id":{"$numberInt":"5"}}'),
    "long": (Int64(2**40), '{"_id":{"$numberLong":"1099511627776"}}'),
    "double": (1.5, '{"_id":{"$numberDouble":"1.5"}}'),
    "NaN": (math.nan, '{"_id":{"$numberDouble":"NaN"}}'),
    "binary": (b"\xff\x01", _SHOWN),
    "UUID": (
        Binary(bytes(range(16)), 4), '{"_id":{"$binary":{"base64":"AAECAwQFBgcICQoLDA0ODw==","subType":"04"}}}',
    ),
    "date": (DatetimeMS(1_700_000_000_000), '{"_id":{"$date":{"$numberLong":"1700000000000"}}}'),
    "null": (None, '{"_id":null}'),
    "document": ({"a": 1, "b": "x"}, '{"_id":{"a":{"$numberInt":"1"},"b":"x"}}'),
    "decimal": (Decimal128("1.10"), '{"_id":{"$numberDecimal":"1.10"}}'),
    "bool": (True, '{"_id":true}'),
}  # fmt: skip
