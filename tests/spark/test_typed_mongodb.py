"""Values of another program in MongoDB, which JSON lacks, wherever they are in a typed payload."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, json_util
from pymongo import MongoClient
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, TimestampType

from spark_queue import Queue
from tests.registered import in_layout, layouts
from tests.spark.drive import snapshot
from tests.spark.test_typed_payloads import struct

WHEN, KEY, UUID_7 = datetime(2026, 7, 1, 23, 30, tzinfo=UTC), ObjectId("5f1d7e0123456789abcdef01"), UUID(int=7)
LONG = 2**53 + 1
NODE = {
    "at": WHEN, "price": Decimal128("12.50"), "key": KEY, "count": Int64(LONG), "uuid": Binary.from_uuid(UUID_7),
}  # fmt: skip
PAYLOAD = {
    "one": NODE, "items": [NODE, None, {}], "of": {"a": NODE, "b": None}, "deep": [[{"x": {"k": NODE}}], []],
    "ats": [WHEN, None], "prices": {"k": NODE["price"]}, "counts": [[NODE["count"]]],
    "keys": [KEY, NODE["uuid"]], "texts": NODE, "as_text": NODE, "text_items": [NODE["at"], [KEY]], "whole": NODE,
}  # fmt: skip

VALUE = struct(at=TimestampType(), price=DecimalType(10, 2), key=StringType(), count=LongType(), uuid=StringType())
TEXTS = struct(**dict.fromkeys(NODE, StringType()))
SCHEMA = struct(
    payload=struct(
        one=VALUE,
        items=ArrayType(VALUE),
        of=MapType(StringType(), VALUE),
        deep=ArrayType(ArrayType(struct(x=MapType(StringType(), VALUE)))),
        ats=ArrayType(TimestampType()),
        prices=MapType(StringType(), DecimalType(12, 3)),
        counts=ArrayType(ArrayType(LongType())),
        keys=ArrayType(StringType()),
        texts=MapType(StringType(), StringType()),
        as_text=TEXTS,
        text_items=ArrayType(StringType()),
        whole=StringType(),
    ),
    _corrupt_payload=StringType(),
)

READ = {"at": WHEN, "price": Decimal("12.50"), "key": str(KEY), "count": LONG, "uuid": str(UUID_7)}
AS_TEXT = {
    "at": '{"$date":"2026-07-01T23:30:00Z"}', "price": '{"$numberDecimal":"12.50"}', "key": str(KEY),
    "count": str(LONG), "uuid": str(UUID_7),
}  # fmt: skip
WHOLE = (
    '{"at":{"$date":"2026-07-01T23:30:00Z"},"price":{"$numberDecimal":"12.50"},'
    f'"key":{{"$oid":"{KEY}"}},"count":{LONG},'
    '"uuid":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAABw==","subType":"04"}}}'
)
WANTED = {
    "one": READ, "items": [READ, None, dict.fromkeys(NODE)], "of": [("a", READ), ("b", None)],
    "deep": [[{"x": [("k", READ)]}], []], "ats": [WHEN, None], "prices": [("k", Decimal("12.500"))],
    "counts": [[LONG]], "keys": [str(KEY), str(UUID_7)], "texts": [*AS_TEXT.items()], "as_text": AS_TEXT,
    "text_items": [AS_TEXT["at"], f'[{{"$oid":"{KEY}"}}]'], "whole": WHOLE,
}  # fmt: skip


def put_in_place(url: str, mark: str) -> None:
    """Replace the payload of the message that has this mark, as a program of its own does."""
    with MongoClient(url) as client:
        database = client.get_default_database()
        changed = 0
        for name in database.list_collection_names():
            for field, place in (("payload.mark", "payload"), ("b.__p.mark", "b.$.__p")):
                changed += database[name].update_one({field: mark}, {"$set": {place: PAYLOAD}}).modified_count
    assert changed == 1


@pytest.mark.parametrize("layout", layouts("mongodb"))
def test_values_of_another_program_are_read_wherever_they_are(empty_mongodb_url, layout):
    url, mark = in_layout(empty_mongodb_url, layout), uuid.uuid4().hex
    with Queue(url, "q") as queue:
        queue.push({"mark": mark})
    put_in_place(empty_mongodb_url, mark)
    [row] = snapshot(SCHEMA, url=url, queue="q", timeZone="America/New_York")
    assert row == {"payload": WANTED, "_corrupt_payload": None}


def test_the_same_json_is_read_the_same_in_each_store(any_url, name):
    """The texts of parts are those that were pushed; a database may write them anew."""
    with Queue(any_url, name) as queue:
        queue.push(json.loads(json_util.dumps(PAYLOAD)))
    [row] = snapshot(SCHEMA, url=any_url, queue=name)
    assert row["_corrupt_payload"] is None
    for field in ("one", "items", "of", "deep", "ats", "prices", "counts", "keys"):
        assert row["payload"][field] == WANTED[field]
    assert (row["payload"]["as_text"]["key"], row["payload"]["as_text"]["uuid"]) == (str(KEY), str(UUID_7))
