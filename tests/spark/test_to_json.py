"""Struct payloads are compared with what `to_json` of the same Spark writes: random types and values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from spark_queue import Queue
from tests.spark_session import SPARK

#: Values of each type, as SQL: usual ones, and those at its limits. `{n}` is another number in each row.
VALUES: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128Y", "127Y", "CAST({n} % 100 AS TINYINT)"],
    "SMALLINT": ["-32768S", "CAST({n} % 30000 AS SMALLINT)"],
    "INT": ["-2147483648", "2147483647", "CAST({n} % 1000000 AS INT)"],
    "BIGINT": ["-9223372036854775807L", "9223372036854775807L", "{n}"],
    "FLOAT": [
        "19.99F",
        "0.1F",
        "1.0E10F",
        "-0.0F",
        "float('NaN')",
        "float('-Infinity')",
        "float('1.4E-45')",
        "1.0E7F",
        "0.001F",
        "CAST({n} / 1.0E15D AS FLOAT)",
        "CAST({n} AS FLOAT)",
        "float('3.4028235E38')",
    ],
    "DOUBLE": [
        "19.99D",
        "1.0E10D",
        "-0.0D",
        "double('NaN')",
        "double('Infinity')",
        "double('4.9E-324')",
        "9999999.0D",
        "9.99E-4D",
        "{n} / 1.0E12D",
        "{n} * 1.0E3D",
        "1.7976931348623157E308D",
    ],
    "DECIMAL(10,2)": ["CAST({n} % 10000000 / 100 AS DECIMAL(10,2))", "1.50BD", "CAST(0 AS DECIMAL(10,2))"],
    "DECIMAL(38,18)": [
        "CAST(0 AS DECIMAL(38,18))",
        "CAST('1E-18' AS DECIMAL(38,18))",
        "CAST('-0.000001' AS DECIMAL(38,18))",
        "CAST('12345678901234567890.000000000000000001' AS DECIMAL(38,18))",
        "CAST('1E-7' AS DECIMAL(38,18))",
    ],
    "DECIMAL(38,0)": ["99999999999999999999999999999999999999BD", "CAST({n} AS DECIMAL(38,0))"],
    "STRING": [
        "''",
        "'a\"b\\\\c/d'",
        "'é😀'",
        "concat('\\t', chr(1), chr(31), chr(127), '\\n\\r')",
        "string({n})",
        "'null'",
    ],
    "BINARY": ["X''", "X'00FF10'", "CAST(string({n}) AS BINARY)"],
    "DATE": [
        "DATE'2026-01-01'",
        "DATE'+12026-01-01'",
        "DATE'-0044-03-15'",
        "DATE'0000-12-31'",
        "DATE'0001-01-01'",
        "DATE'1582-10-10'",
        "DATE'9999-12-31'",
        "date_from_unix_date(CAST({n} % 100000 AS INT))",
    ],
    "TIMESTAMP": [
        "TIMESTAMP'2026-01-01 00:00:00.123456'",
        "TIMESTAMP'2026-07-01 00:00:00'",
        "TIMESTAMP'1800-01-01 00:00:00'",
        "TIMESTAMP'+12026-07-01 00:00:00'",
        "TIMESTAMP'-0044-03-15 00:00:00'",
        "TIMESTAMP'1582-10-04 12:00:00.999999'",
        "TIMESTAMP'0001-01-01 00:00:00'",
        "TIMESTAMP'9999-12-31 23:59:59.999999'",
        "timestamp_micros({n} % 4000000000000000)",
        "TIMESTAMP'+294000-01-01 00:00:00'",
        "TIMESTAMP'-290000-01-01 00:00:00'",
    ],
    "TIMESTAMP_NTZ": [
        "TIMESTAMP_NTZ'2026-01-01 00:00:00.123456'",
        "TIMESTAMP_NTZ'+12026-01-01 00:00:00'",
        "TIMESTAMP_NTZ'-0044-03-15 01:02:03.999999'",
        "TIMESTAMP_NTZ'1582-10-10 00:00:00'",
    ],
    "INTERVAL YEAR TO MONTH": ["INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-178956970-8' YEAR TO MONTH"],
    "INTERVAL MONTH": ["INTERVAL '-14' MONTH", "INTERVAL '3' MONTH"],
    "INTERVAL DAY TO SECOND": [
        "INTERVAL '1 02:03:04.5' DAY TO SECOND",
        "INTERVAL '-1 02:03:04.000001' DAY TO SECOND",
        "make_dt_interval(-106751991, -4, 0, -54.775808)",
        "INTERVAL '0 00:00:00' DAY TO SECOND",
    ],
    "INTERVAL SECOND": ["INTERVAL '5' SECOND", "INTERVAL '-0.5' SECOND"],
    "INTERVAL HOUR TO SECOND": ["INTERVAL '30:01:02.5' HOUR TO SECOND"],
    "INTERVAL DAY": ["INTERVAL '5' DAY"],
    "VARIANT": [
        'parse_json(\'{{"b":1,"a":[1.50,"x",true,null,1e100,12345678901234567890]}}\')',
        "parse_json(string({n}))",
        "CAST(TIMESTAMP'2026-01-01 00:00:00.1234' AS VARIANT)",
        "CAST(TIMESTAMP'1800-01-01 00:00:00' AS VARIANT)",
        "CAST(19.99F AS VARIANT)",
        "CAST(X'00FF' AS VARIANT)",
        "CAST(DATE'+12026-01-01' AS VARIANT)",
        "CAST(CAST('-1.10' AS DECIMAL(38,18)) AS VARIANT)",
        "CAST('é\"' AS VARIANT)",
        "parse_json('null')",
    ],
    "VOID": ["NULL"],
}
if SPARK >= (4, 2):  # that of 4.1 fails
    VALUES["TIME"] = ["TIME'12:34:56.123456'", "TIME'00:00:00'", "TIME'23:59:59.5'"]
KEYS = [one for one in VALUES if one not in ("VARIANT", "VOID", "BINARY")]  # docs/struct-payloads.md: keys


class Types:
    """Makes random types, and for each the SQL of a value that differs in each row."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = count(1)

    def struct(self, depth: int = 3) -> str:
        names = self._random.sample(["a", "b c", "é", 'q"', "long_name"], self._random.randint(1, 4))
        fields = [f"'{name}', {self.value(depth - 1)}" for name in names]
        return f"named_struct({', '.join(fields)})"

    def value(self, depth: int) -> str:
        kinds: list[Callable[[int], str]] = [self._leaf] * 3
        if depth > 0:
            kinds += [self.struct, self._array, self._map]
        return self._random.choice(kinds)(depth)

    def _leaf(self, _: int) -> str:
        return self._of(self._random.choice([*VALUES]))

    def _of(self, kind: str, *, null: bool = True) -> str:
        chosen = self._random.sample(VALUES[kind], min(3, len(VALUES[kind])))
        values = [*chosen, *(["NULL"] if null and kind != "VOID" else [])]
        if len(values) == 1:
            return self._filled(values[0])
        row = f"1 + CAST(pmod(xxhash64(id, {next(self._number)}), {len(values)}) AS INT)"
        return f"element_at(array({', '.join(map(self._filled, values))}), {row})"

    def _filled(self, value: str) -> str:
        return value.format(n=f"pmod(xxhash64(id, {next(self._number)}), 4611686018427387904)")

    def _array(self, depth: int) -> str:
        value = self.value(depth - 1)
        size = f"CAST(pmod(xxhash64(id, {next(self._number)}), 4) AS INT)"
        return f"slice(array({value}, {value}, NULL), 1, {size})"

    def _map(self, depth: int) -> str:
        if self._random.random() < 0.2:
            return f"map(named_struct('k', {self._of('STRING', null=False)}, 'n', 1), {self.value(depth - 1)})"
        return f"map({self._of(self._random.choice(KEYS), null=False)}, {self.value(depth - 1)})"


def numbers_of(text: str) -> tuple[str, list[str]]:
    """Return a text without its numbers that may have more digits than they need, and these."""
    number = r"(?<![\w.])-?\d+\.\d+(?:E-?\d+)?(?![\w.])"
    return re.sub(number, "#", text), re.findall(number, text)


def is_same(ours: str, theirs: str) -> bool:
    """Return whether the texts are the same, but for numbers with less digits than Java 17 writes."""
    (text, numbers), (other, others) = numbers_of(ours), numbers_of(theirs)
    if text != other or len(numbers) != len(others):
        return False
    pairs = zip(numbers, others, strict=True)
    return all(a == b or float(a) == float(b) or np.float32(a) == np.float32(b) for a, b in pairs)


def compare(spark, url, schemas, rows, seed, **options):
    """Write all schemas as one payload of `rows` rows; return how many are equal, and pairs that differ."""
    types = Types(seed)
    fields = ", ".join(f"'s{number}', {types.struct()}" for number in range(schemas))
    frame = spark.range(0, rows, 1, 1).selectExpr("string(id) AS id", f"named_struct({fields}) AS payload")
    given = {key: value for key, value in options.items() if key not in ("url", "queue")}
    listed = "".join(f", '{key}', '{value}'" for key, value in given.items())
    expected = frame.selectExpr("id", f"to_json(payload{f', map({listed[2:]})' if given else ''}) AS text").collect()
    name = f"to-json-{random.randrange(2**40)}"
    frame.write.format("queue").mode("append").options(url=url, queue=name, **given).save()
    read = spark.read.format("queue").options(url=url, queue=name).load().select("id", "payload")
    written = {row.id: row.payload for row in read.collect()}
    with Queue(url, name) as queue:
        queue.purge()
    same, different = 0, []
    for row in expected:
        if is_same(written[row.id], row.text):
            same += schemas
            continue
        ours, theirs = json.loads(written[row.id]), json.loads(row.text)
        wrong = [key for key in theirs if ours.get(key) != theirs[key]]
        same += schemas - len(wrong)
        different += [(ours.get(key), theirs[key]) for key in wrong] or [(written[row.id], row.text)]
    return same, different


@pytest.fixture
def zone(spark):
    """A session whose zone has had offsets of seconds, and that has the type TIME.

    It interprets its queries: Java code for 200 schemas takes minutes, and does not fit into memory.
    """
    confs = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    if SPARK >= (4, 2):
        confs["spark.sql.timeType.enabled"] = "true"
    before = {name: spark.conf.get(name) for name in confs}
    for name, value in confs.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def test_struct_payloads_are_what_to_json_writes(spark, zone, sqlite_url):
    assert compare(spark, sqlite_url, 20, 20, seed=63) == (400, [])


@pytest.mark.full
def test_ten_thousand_payloads_of_200_schemas_are_what_to_json_writes(spark, zone, sqlite_url):
    assert compare(spark, sqlite_url, 200, 50, seed=1) == (10_000, [])


@pytest.mark.full
def test_the_options_of_to_json_are_those_of_a_write(spark, zone, sqlite_url):
    options = {
        "timeZone": "+05:30", "ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSXXX",
        "dateFormat": "dd/MM/yyyy", "timestampNTZFormat": "EEE, d MMM yyyy h:mm a",
    }  # fmt: skip
    same, different = compare(spark, sqlite_url, 40, 20, seed=2, **options)
    assert (same, different) == (800, [])
