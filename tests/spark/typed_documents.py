"""Schemas and JSON documents at random, to compare typed payloads with Spark's own readers.

A document fits its schema, or has values of other types in it, in forms that are easy to read
wrong. It is written with any spaces, names twice, and numbers as people write them. Values that
Spark is known to read in another way are left out.
"""

from __future__ import annotations

import json
import random
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

NAMES = ["a", "b", "c", "d", "e", "an é", "x.y"]

_SIMPLE: list[DataType] = [
    ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(6, 2),
    DecimalType(38, 10), DecimalType(20, 0), StringType(), StringType(), BooleanType(), DateType(), TimestampType(),
    TimestampNTZType(), BinaryType(), DayTimeIntervalType(0, 3), DayTimeIntervalType(1, 2), DayTimeIntervalType(3, 3),
]  # fmt: skip

NUMBERS = [
    "0", "-0", "1", "-1", "127", "-128", "32767", "-32769", "2147483647", "2147483648", "-2147483648", "1700000000",
    "9007199254740993", "1.0", "-1.50", "0.1", "1.005", "-1.005", "2.675", "1e2", "1E-3", "1.5e+3", "-0.0", "1e22",
    "1234.565", "9999.995", "16777217.1", "3.4028235e39", "4.9e-324",
    "12345678901234567890123456789012345678", "123456789012345678901234567890.10", "0.000000000049",
]  # fmt: skip
TEXTS = [
    "", " ", "x", "NaN", "Infinity", "-Infinity", "+INF", "-INF", "INF", "1", "-5", "1.5", "1e3", "1,234.5", ".5",
    "5.",
    "true", "null", "2013-01-31", "2013-1-3", "2013", "2013-01", "20130131", "+2013-01-31", "-0044-03-15",
    "0000-01-01",
    "12026-01-01", "+12026-01-01T00:00:00Z", " 2013-01-31 ", "2013-01-31T", "2013-01-31Tx", "2013-01-31 x",
    "2013-02-30", "2013-13-01", "2013-01-31T05", "2013-01-31T05:30", "2013-01-31 05:30:01", "2013-01-31T05:30:01.5",
    "2013-01-31T05:30:01.123456789", "2013-01-31T05:30:01.", "2013-01-31T05:30:01Z", "2013-01-31T05:30:01.25Z",
    "2013-01-31T05:30Z", "2013-01-31T05:30:01z", "2013-01-31 05:30:01 Z", "2013-01-31T05:30:01+01:00",
    "2013-01-31T05:30:01+1:2", "2013-01-31T05:30:01+0130", "2013-01-31T05:30:01+01", "2013-01-31T05:30:01-19:00",
    "2013-01-31T05:30:01+18:00", "2013-01-31T05:30:01 America/New_York", "2013-07-31T05:30:01Europe/Paris",
    "2013-01-31T05:30:01 Europe/Atlantis", "2013-01-31T05:30:01EST", "2013-07-31T05:30:01PST",
    "2013-01-31T05:30:01UTC+1", "2013-01-31T05:30:01 GMT-05:30", "2013-01-31T05:30:01GMT", "2013-01-31GMT",
    "2013-01-31T05:30:01UT+01:30", "2013-01-31T05:30:01GMT0", "2013-01-31T05:30:01+013015", "2013-01-31T24:00:00",
    "2013-01-31T23:59:60", "2013-01-31T5:3:1", "2013-03-10T02:30:00", "2013-11-03T01:30:00", "1883-11-18T12:01:00",
    "1800-01-01T00:00:00", "2099-07-01T12:00:00", "10000-07-01T12:00:00", "2013-01-31\\t05:30:01", "2013/01/31",
    "AP8=", "AP8", " AP8= ", "AP8=AP8=", "A P8=", "AP8=\\n", "____", "QUJD", "1 02:03:04.5", "-1 02:03:04",
    "+1 2:3:4", "|1 02:03:04", "26:03:04", "1 24:00:00", "106751992 00:00:00", "-5:30", "100:59", "5:60",
    "1.5", "-0.000001", "INTERVAL '1 02:03:04.5' DAY TO SECOND", "interval -'-5:30' hour to minute",
    "INTERVAL '7.25' SECOND", "INTERVAL '1' DAY", "\\u00e9", "\\ud83d\\ude00", "a\\/b\\\\\\\"", "\U0001f600",
]  # fmt: skip


def make_schemas(count: int, seed: int) -> StructType:
    """Return one schema: `n`, the number of the document, and a struct of each of `count` schemas."""
    source = random.Random(seed)
    fields = [StructField(f"s{k}", _struct(source, 3)) for k in range(count)]
    return StructType([StructField("n", IntegerType()), *fields])


def make_documents(schema: StructType, count: int, seed: int) -> list[str]:
    """Return documents of `schema`, in turns one of each of its schemas."""
    source = random.Random(seed)
    fields = schema.fields[1:]
    documents = []
    for n in range(count):
        field = fields[n % len(fields)]
        text = _fresh(source, field.dataType)
        while _differs(field.dataType, json.loads(text, object_pairs_hook=_Pairs)):
            text = _fresh(source, field.dataType)
        documents.append(f'{{"n":{n},"{field.name}":{text}}}')
    return documents


def _fresh(source: random.Random, kind: DataType) -> str:
    return _written(source, kind, source.choice([0, 0, 0.05, 0.3]))


class _Pairs(list[tuple[str, Any]]):
    """An object, in which names may come twice."""


def _differs(kind: DataType, value: Any) -> bool:
    """Return whether Spark reads a part of a value in another way, by the table of docs/typed.md."""
    match kind:
        case StructType():
            pairs = value if isinstance(value, _Pairs) else ()
            return any(name in kind.names and _differs(kind[name].dataType, one) for name, one in pairs)
        case MapType():
            return isinstance(value, _Pairs) and any(_differs(kind.valueType, one) for _, one in value)
        case ArrayType():
            return isinstance(value, list) and any(_differs(kind.elementType, one) for one in value)
        case TimestampType():
            return isinstance(value, int) and 9_223_372_036_854 < abs(value) <= 2**63
        case BinaryType():
            return isinstance(value, str) and value.strip() not in ("", "AP8=", "AP8=AP8=", "QUJD")
        case DayTimeIntervalType(startField=3):
            return isinstance(value, str) and value.startswith("-0.")
    return False


def _struct(source: random.Random, depth: int) -> StructType:
    names = source.sample(NAMES, source.randint(1, 5))
    return StructType([StructField(name, _kind(source, depth - 1)) for name in names])


def _kind(source: random.Random, depth: int) -> DataType:
    if depth and source.random() < 0.3:
        inner = source.randrange(3)
        if inner == 0:
            return _struct(source, depth)
        return ArrayType(_kind(source, depth - 1)) if inner == 1 else MapType(StringType(), _kind(source, depth - 1))
    return source.choice(_SIMPLE)


def _written(source: random.Random, kind: DataType, odd: float) -> str:
    """Return the text of a value of a type, or of any other with the probability `odd`."""
    if isinstance(kind, BinaryType):  # after text that is no base64, Spark loses its place
        return source.choice(['"AP8="', '" AP8= "', '"AP8=AP8="', '""', "null", "5", "true"])
    if source.random() < odd:
        return _any(source, 2)
    if source.random() < 0.05:
        return "null"
    match kind:
        case StructType():
            names = [*kind.names, *(source.sample(NAMES, 1) if odd else ())]
            parts = {one.name: one.dataType for one in kind.fields}
            kept = [name for name in names if source.random() < 0.85]
            return _object(
                source, [(name, _written(source, parts.get(name, IntegerType()), odd)) for name in kept], odd
            )
        case ArrayType():
            items = [_written(source, kind.elementType, odd) for _ in range(source.randrange(4))]
            return _spaced(source, odd, "[", ",".join(items), "]")
        case MapType():
            names = source.sample(NAMES, source.randrange(4))
            return _object(source, [(name, _written(source, kind.valueType, odd)) for name in names], 0)
        case BooleanType():
            return source.choice(["true", "false"])
        case StringType():
            return source.choice([_text(source), _any(source, 1)])
        case FloatType() | DoubleType() | DecimalType():
            return source.choice([source.choice(NUMBERS), f"{source.uniform(-5000, 5000):.3f}", _text(source)])
        case ByteType() | ShortType() | IntegerType() | LongType():
            return source.choice([source.choice(NUMBERS), str(source.randint(-200, 120))])
        case TimestampType() if source.random() < 0.2:
            return str(source.randint(-(10**10), 10**10))
    return source.choice([_text(source), _moment(source)])


def _moment(source: random.Random) -> str:
    day = f"{source.randint(1700, 2200)}-{source.randint(1, 12):02}-{source.randint(1, 28):02}"
    clock = f"{source.randint(0, 23):02}:{source.randint(0, 59):02}:{source.randint(0, 59):02}"
    zone = source.choice(["", "", "Z", "+02:00", ".125", ".5Z"])
    return f'"{day}"' if source.random() < 0.3 else f'"{day}{source.choice("T ")}{clock}{zone}"'


def _text(source: random.Random) -> str:
    return f'"{source.choice(TEXTS)}"'


def _any(source: random.Random, depth: int) -> str:
    inner = source.randrange(8 if depth else 6)
    if inner == 6:
        return _object(source, [(source.choice(NAMES), _any(source, depth - 1)) for _ in range(2)], 1)
    if inner == 7:
        return _spaced(source, 1, "[", ",".join(_any(source, depth - 1) for _ in range(source.randrange(3))), "]")
    if inner < 2:
        return source.choice(NUMBERS)
    return source.choice(["true", "false"]) if inner == 2 else _text(source)


def _object(source: random.Random, pairs: list[tuple[str, str]], odd: float) -> str:
    if odd and pairs and source.random() < odd / 4:  # a name that comes twice
        pairs = [*pairs, (source.choice(pairs)[0], _any(source, 0))]
    if odd:
        source.shuffle(pairs)
    return _spaced(source, odd, "{", ",".join(f'"{name}":{text}' for name, text in pairs), "}")


def _spaced(source: random.Random, odd: float, start: str, inner: str, end: str) -> str:
    space = source.choice(["", " ", "\t"]) if odd else ""
    return f"{start}{space}{inner}{space}{end}"
