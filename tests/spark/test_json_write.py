"""Struct payloads as JSON: the texts are those of Spark's `to_json`, on Java 17.

What Spark itself writes for thousands of random rows: test_to_json.py.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

from spark_queue.errors import OptionError, SchemaError
from spark_queue.options.roles import parse_options
from spark_queue.options.time_zones import zone_of
from spark_queue.spark import QueueDataSource
from spark_queue.spark.json_intervals import day_time_text, time_text, year_month_text
from spark_queue.spark.json_moments import MomentStyle, offset_at, offsets_at
from spark_queue.spark.json_style import check_style, style_of
from spark_queue.spark.json_texts import float_text
from spark_queue.spark.json_types import check_json_type
from spark_queue.spark.json_variant import variant_text
from spark_queue.spark.json_write import JsonStyle, encode_json_column
from spark_queue.spark.moment_patterns import compile_pattern, local_moment
from tests.spark.drive import source, task
from tests.spark.test_unfit_values import DAY, IN_12026, MINUS_44, arrow_schema_of, column_of

NEW_YORK = JsonStyle(MomentStyle(ZoneInfo("America/New_York")))
NEW_YEAR = 1_767_243_600_000_000  # 2026-01-01 00:00:00 there, in microseconds since 1970


def written(kind, *values, style=None):
    texts, faults = encode_json_column(column_of(kind, list(values)), kind, style)
    assert not faults
    return [None if one is None else one.decode() for one in texts.to_pylist()]


def of(kind, *values, style=None):
    """Return how each value is written in a struct that has nothing else."""
    outer = StructType().add("x", kind)
    texts = written(outer, *[{"x": one} for one in values], style=style)
    return [one[len('{"x":') : -1] for one in texts]


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (19.99, "19.99"), (0.1, "0.1"), (1e10, "1.0E10"), (1e7, "1.0E7"), (9999999.0, "9999999.0"), (0.001, "0.001"),
        (9.99e-4, "9.99E-4"), (1.5e-5, "1.5E-5"), (-5.5e9, "-5.5E9"), (-0.0, "-0.0"), (0.0, "0.0"), (100.0, "100.0"),
        (float("nan"), '"NaN"'), (float("inf"), '"Infinity"'), (float("-inf"), '"-Infinity"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
def test_a_number_is_written_as_java_does(kind, number, text):
    assert of(kind, number) == [text]
    scalar = np.float32(number) if isinstance(kind, FloatType) else np.float64(number)
    assert float_text(scalar) == text.strip('"') or not np.isfinite(scalar)


def test_the_smallest_numbers_have_two_digits():
    assert of(DoubleType(), 5e-324, 1e-323, 1e22, 123456789012345680.0) == [
        "4.9E-324", "9.9E-324", "1.0E22", "1.2345678901234568E17",
    ]  # fmt: skip
    assert of(FloatType(), 1.4e-45, 16777216.0, 3.4028235e38) == ["1.4E-45", "1.6777216E7", "3.4028235E38"]


def test_a_float_has_the_fewest_digits_that_give_it_back():
    some = np.random.default_rng(7).integers(0, 2**32, 3_000, np.uint32).view(np.float32)
    numbers = [one for one in some if np.isfinite(one)]
    for number, text in zip(numbers, of(FloatType(), *map(float, numbers)), strict=True):
        assert np.float32(text) == number and float_text(number) == text


def test_a_decimal_keeps_its_digits():
    texts = ["0E-18", "1E-18", "1.500000000000000000", "-12345678901234567890.000000000000000001"]
    assert of(DecimalType(38, 18), *map(Decimal, texts)) == texts


# --- texts ----------------------------------------------------------------------------------------


def test_a_text_has_the_escapes_of_jackson():
    given = 'a"b\\c/dé\t\n\r\b\f\x01\x1f\x7f😀'
    text = '"a\\"b\\\\c/dé\\t\\n\\r\\b\\f\\u0001\\u001F\x7f😀"'
    assert of(StringType(), given) == [text]
    for kind in (VarcharType(50), CharType(50)):
        assert encode_json_column(pa.array([[given]]), ArrayType(kind))[0].to_pylist() == [f"[{text}]".encode()]
    assert written(StructType().add('a"\x1f', LongType()), {'a"\x1f': 1}) == ['{"a\\"\\u001F":1}']
    assert of(MapType(StringType(), LongType()), [('k"', 1)]) == ['{"k\\"":1}']
    assert of(BinaryType(), b"\x00\xff", b"") == ['"AP8="', '""']


def test_fields_that_are_null_are_left_out_but_not_elements_and_values():
    values = MapType(StringType(), LongType())
    kind = StructType().add("a", LongType()).add("b", ArrayType(LongType())).add("c", values)
    rows = [
        {"a": None, "b": [None], "c": [("k", None)]},
        {"a": None, "b": None, "c": None},
        None,
        {"a": 1, "b": [], "c": []},
    ]
    assert written(kind, *rows) == ['{"b":[null],"c":{"k":null}}', "{}", None, '{"a":1,"b":[],"c":{}}']
    assert written(kind, *rows, style=JsonStyle(ignore_nulls=False)) == [
        '{"a":null,"b":[null],"c":{"k":null}}', '{"a":null,"b":null,"c":null}', None, '{"a":1,"b":[],"c":{}}',
    ]  # fmt: skip
    assert written(StructType(), {}, None) == ["{}", None]
    assert of(NullType(), None) == [""]


def test_a_part_of_a_column_is_written_as_it_is():
    kind = StructType().add("l", ArrayType(StringType())).add("m", MapType(IntegerType(), ArrayType(BooleanType())))
    rows = [{"l": [str(n)] * n, "m": [(n, [True] * n)]} for n in range(5)]
    column = column_of(kind, [*rows, None])
    texts, _ = encode_json_column(column.slice(2, 3), kind)
    assert texts.to_pylist() == encode_json_column(column, kind)[0].to_pylist()[2:5]
    assert texts[1].as_py() == b'{"l":["3","3","3"],"m":{"3":[true,true,true]}}'


# --- keys of maps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (BooleanType(), True, "true"),
        (DateType(), 20454, "20454"),
        (TimestampType(), NEW_YEAR, str(NEW_YEAR)),
        (TimestampNTZType(), -1, "-1"),
        (DecimalType(38, 18), Decimal("0E-18"), "0E-18"),
        (DecimalType(4, 2), Decimal("1.50"), "1.50"),
        (DoubleType(), 1e10, "1.0E10"),
        (FloatType(), float("nan"), "NaN"),
        (FloatType(), 19.99, "19.99"),
        (DayTimeIntervalType(), 93_784_500_000, "93784500000"),
        (BinaryType(), b"\x00\xff", "AP8="),
        (StructType().add("a", LongType()).add("b", StringType()), {"a": 1, "b": 'x"'}, '[1,x\\"]'),
        (StructType().add("a", DateType()).add("b", StringType()), {"a": 1, "b": None}, "[1,null]"),
        (StructType(), {}, "[]"),
        (ArrayType(BooleanType()), [True, None], "[true,null]"),
    ],
)
def test_a_key_is_written_as_to_json_does(kind, key, text):
    assert of(MapType(kind, LongType()), [(key, 1)]) == [f'{{"{text}":1}}']


# --- moments --------------------------------------------------------------------------------------


def test_a_timestamp_has_the_zone_of_the_session_and_three_digits_of_a_second():
    moments = [NEW_YEAR + 123_456, NEW_YEAR + 181 * DAY, -1, -5_364_645_000_000_000, IN_12026 * DAY, MINUS_44 * DAY]
    assert of(TimestampType(), *moments, None, style=NEW_YORK) == [
        '"2026-01-01T00:00:00.123-05:00"',
        '"2026-07-01T01:00:00.000-04:00"',
        '"1969-12-31T18:59:59.999-05:00"',
        '"1799-12-31T23:53:58.000-04:56:02"',
        '"+12025-12-31T19:00:00.000-05:00"',
        '"-0044-03-14T19:03:58.000-04:56:02"',
        "",
    ]
    assert of(TimestampNTZType(), NEW_YEAR + 123_456, style=NEW_YORK) == ['"2026-01-01T05:00:00.123"']
    assert of(TimestampType(), NEW_YEAR) == ['"2026-01-01T05:00:00.000Z"']


@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "+05:30:15"]
)
def test_the_offset_of_many_moments_is_that_of_each(name):
    zone = zone_of(name).info
    moments = np.random.default_rng(3).integers(-6_000_000, 120_000_000, 2_000) * 60_000_000 + 59_999_999
    assert offsets_at(moments, zone).tolist() == [offset_at(int(one), zone) for one in moments]
    change = 1_774_746_000_000_000  # summer begins in Berlin
    near = np.array([change - 1, change, change + 1])
    assert offsets_at(near, zone).tolist() == [offset_at(int(one), zone) for one in near]


def test_summer_comes_in_far_years_too():
    berlin = zone_of("Europe/Berlin").info
    july, january = IN_12026 * DAY + 181 * DAY, IN_12026 * DAY
    assert (offset_at(july, berlin), offset_at(january, berlin)) == (7200, 3600)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd HH:mm:ss[.SSSSSS]XXXXX", "1800-01-01 00:00:00.000000-04:56:02"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "1800-01-01T00:00:00.000-04:56"),
        ("X XX XXX XXXX XXXXX", "-0456 -0456 -04:56 -045602 -04:56:02"),
        ("x xx xxx xxxx xxxxx", "-0456 -0456 -04:56 -045602 -04:56:02"),
        ("Z ZZZ ZZZZ ZZZZZ", "-0456 -0456 GMT-04:56:02 -04:56:02"),
        ("LLLL MMM M LL d E EEEE D VV", "January Jan 1 01 1 Wed Wednesday 1 America/New_York"),
        ("yyyy''x''''y", "1800'-0456'1800"),
        ("yy yyyyyy y", "00 001800 1800"),
        ("h K k H a SSSSSSSSS", "12 0 24 0 AM 000000000"),
        ("'a''b'[[HH]]", "a'b00"),
        ("", ""),
    ],
)
def test_a_pattern_writes_what_java_does(pattern, text):
    moment = local_moment(-62_091, 0, -17_762, "America/New_York")
    assert compile_pattern(pattern)(moment) == text


@pytest.mark.parametrize(
    "pattern", ["YYYY", "e", "MMMMM", "ddd", "yyyyyyy", "SSSSSSSSSS", "z", "G", "[HH", "HH]", "{", "'a"]
)
def test_a_pattern_that_is_not_known_is_refused(pattern):
    with pytest.raises(ValueError, match="it has"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("timestampFormat", "YYYY", "option 'timestampFormat' is 'YYYY', which is no pattern"),
        (
            "timestampNTZFormat",
            "XXX",
            "option 'timestampNtzFormat' is 'XXX', which does not fit: it has no time zone",
        ),
        ("dateFormat", "HH", "option 'dateFormat' is 'HH', which does not fit: a date has no time"),
    ],
)
def test_an_option_that_fits_no_moment_is_refused(option, value, message):
    options = parse_options({"url": "sqlite:///a.db", "queue": "q", option: value}, "push")
    with pytest.raises(OptionError, match=message):
        check_style(options.formats, options.content, StructType([]))


def test_patterns_of_the_user_are_used_for_each_type():
    style = JsonStyle(
        MomentStyle(
            ZoneInfo("America/New_York"), compile_pattern("yyyy\"HH:mmXXX"), compile_pattern("HH:mm:ss.SSSSSS"),
            compile_pattern("d.M.y"),
        )
    )  # fmt: skip
    assert of(TimestampType(), NEW_YEAR, None, style=style) == ['"2026\\"00:00-05:00"', ""]
    assert of(TimestampNTZType(), 1_000_001, style=style) == ['"00:00:01.000001"']
    assert of(DateType(), 20_454, IN_12026, style=style) == ['"1.1.2026"', '"1.1.12026"']


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("UTC", 0), ("Z", 0), ("GMT0", 0), ("UT+5", 18_000), ("+5", 18_000), ("+0530", 19_800), ("UTC-1:5", -3_900),
        ("EST", -18_000), ("PST", -25_200), ("JST", 32_400), ("Etc/GMT+5", -18_000), ("+18:00", 64_800),
        ("Europe/Berlin", 7_200),
    ],
)  # fmt: skip
def test_a_zone_has_the_names_of_java(name, seconds):
    assert offset_at(1_782_864_000_000_000, zone_of(name).info) == seconds  # 2026-07-01


@pytest.mark.parametrize(
    ("session", "registered", "zone"),
    [
        ("Europe/Berlin", "America/New_York", "Europe/Berlin"),
        (None, "America/New_York", "America/New_York"),
        (None, None, "UTC"),
    ],
)
def test_the_zone_of_the_option_comes_before_that_of_the_session(session, registered, zone, sqlite_url, monkeypatch):
    given = {"url": sqlite_url, "queue": "q"}
    schema = StructType().add("payload", StructType().add("at", TimestampType()))
    monkeypatch.setattr(QueueDataSource, "zone", registered)

    def zone_of_write(**option):
        style = source(given | option)._operation(schema, streaming=False).style
        assert style is not None
        return str(style.moments.zone)

    with task() as context:
        if session:
            context._localProperties["spark.sql.session.timeZone"] = session
        assert zone_of_write() == zone
        assert zone_of_write(timeZone="Asia/Tokyo") == "Asia/Tokyo"


def test_a_zone_that_python_does_not_know_matters_only_where_json_is_written(sqlite_url):
    given = {"url": sqlite_url, "queue": "q"}
    text, nested = (StructType().add("payload", kind) for kind in (StringType(), ArrayType(TimestampType())))
    with task() as context:
        context._localProperties["spark.sql.session.timeZone"] = "SystemV/PST8"
        assert source(given)._operation(text, streaming=False).style is None
        with pytest.raises(OptionError, match="the session's time zone is 'SystemV/PST8', which Python's"):
            source(given)._operation(nested, streaming=False).style  # noqa: B018


def test_null_fields_follow_the_option_then_the_session():
    given = {"url": "sqlite:///a.db", "queue": "q"}
    options = parse_options(given, "push")
    assert style_of(options.content, options.formats).ignore_nulls
    with task() as context:
        assert style_of(options.content, options.formats).ignore_nulls
        context._localProperties["spark.sql.jsonGenerator.ignoreNullFields"] = "false"
        assert not style_of(options.content, options.formats).ignore_nulls
        options = parse_options(given | {"ignoreNullFields": "true"}, "push")
        assert style_of(options.content, options.formats).ignore_nulls


# --- intervals, times -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "micros", "text"),
    [
        ((0, 3), 93_784_500_000, "'1 02:03:04.5' DAY TO SECOND"),
        ((0, 3), -93_784_000_001, "'-1 02:03:04.000001' DAY TO SECOND"),
        ((0, 0), 5 * DAY, "'5' DAY"),
        ((0, 1), 5 * DAY + 3 * 3_600_000_000, "'5 03' DAY TO HOUR"),
        ((0, 2), 5 * DAY + 182 * 60_000_000, "'5 03:02' DAY TO MINUTE"),
        ((1, 1), 30 * 3_600_000_000, "'30' HOUR"),
        ((1, 3), 108_062_500_000, "'30:01:02.5' HOUR TO SECOND"),
        ((2, 3), 5_403_100_000, "'90:03.1' MINUTE TO SECOND"),
        ((3, 3), 5_000_000, "'05' SECOND"),
        ((3, 3), -500_000, "'-00.5' SECOND"),
        ((0, 3), -(2**63), "'-106751991 04:00:54.775808' DAY TO SECOND"),
    ],
)
def test_an_interval_of_days_is_written_as_spark_does(fields, micros, text):
    kind = DayTimeIntervalType(*fields)
    assert day_time_text(micros, kind) == f"INTERVAL {text}"
    assert of(kind, micros) == [f'"INTERVAL {text}"']


@pytest.mark.parametrize(
    ("fields", "months", "text"),
    [
        ((0, 1), 14, "'1-2' YEAR TO MONTH"), ((0, 1), -14, "'-1-2' YEAR TO MONTH"), ((0, 0), 36, "'3' YEAR"),
        ((1, 1), -14, "'-14' MONTH"), ((0, 1), -(2**31), "'-178956970-8' YEAR TO MONTH"),
    ],
)  # fmt: skip
def test_an_interval_of_months_is_written_as_spark_does(fields, months, text):
    assert year_month_text(months, YearMonthIntervalType(*fields)) == f"INTERVAL {text}"


def test_a_time_of_day_has_the_digits_that_it_needs():
    assert [time_text(one) for one in (0, 45_296_123_456_000, 45_296_500_000_000)] == [
        "00:00:00", "12:34:56.123456", "12:34:56.5",
    ]  # fmt: skip


# --- VARIANT --------------------------------------------------------------------------------------

NO_NAMES = b"\x01\x00\x00"


@pytest.mark.parametrize(
    ("type", "content", "text"),
    [
        (14, struct.pack("<f", 19.99), "19.99"),
        (7, struct.pack("<d", 1e10), "1.0E10"),
        (7, struct.pack("<d", float("nan")), '"NaN"'),
        (8, b"\x02" + struct.pack("<i", 150), "1.5"),
        (10, b"\x0a" + (10**37).to_bytes(16, "little"), "1000000000000000000000000000"),
        (9, b"\x0a" + bytes(8), "0"),
        (
            10,
            b"\x12" + (-(10**38) + 1).to_bytes(16, "little", signed=True),
            "-99999999999999999999.999999999999999999",
        ),
        (11, struct.pack("<i", IN_12026), '"+12026-01-01"'),
        (12, struct.pack("<q", NEW_YEAR + 123_400), '"2026-01-01 00:00:00.1234-05:00"'),
        (12, struct.pack("<q", MINUS_44 * DAY), '"-0044-03-14 19:03:58-04:56"'),
        (13, struct.pack("<q", NEW_YEAR), '"2026-01-01 05:00:00"'),
        (15, struct.pack("<i", 2) + b"\x00\xff", '"AP8="'),
        (16, struct.pack("<i", 2) + b'\x1f"', '"\\u001F\\""'),
        (20, bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
    ],
)
def test_a_variant_is_written_as_spark_does(type, content, text):
    assert variant_text(bytes([type << 2]) + content, NO_NAMES, NEW_YORK.moments).decode() == text


@pytest.mark.parametrize("value", [b"", bytes([12 << 2, 1]), bytes([2, 255, 255]), bytes([60 << 2])])
def test_an_invalid_variant_is_an_error_of_its_row(value):
    with pytest.raises(ValueError, match="VARIANT"):
        variant_text(value, NO_NAMES, MomentStyle())


# --- types ----------------------------------------------------------------------------------------


def test_a_type_that_to_json_does_not_write_is_refused():
    class ShapeType(DataType):
        pass

    with pytest.raises(SchemaError, match=r"payload\.a\[\] cannot be shape"):
        check_json_type(StructType().add("a", ArrayType(ShapeType())), "payload")
    deep: DataType = LongType()
    for _ in range(70):
        deep = ArrayType(deep)
    with pytest.raises(SchemaError, match="nested more than 60 levels deep"):
        check_json_type(deep, "payload")
    assert arrow_schema_of(ArrayType(LongType()))


def test_an_interval_of_months_is_written_though_pyarrow_has_no_array_of_it():
    ffi = pytest.importorskip("pyarrow.cffi").ffi
    months, format = YearMonthIntervalType(0, 1), ffi.new("char[]", b"tiM")
    kind = StructType().add("x", months).add("l", ArrayType(months)).add("m", MapType(months, months))
    kind = kind.add("n", ArrayType(NullType())).add("v", NullType())
    inner = {"x": pa.int32(), "l": pa.list_(pa.int32()), "m": pa.map_(pa.int32(), pa.int32())}
    inner |= {"n": pa.list_(pa.null()), "v": pa.null()}
    row = {"x": 14, "l": [-14, None], "m": [(3, 0)], "n": [None, None], "v": None}
    numbers = pa.array([row, None, row], pa.struct(inner))
    schema, array = ffi.new("struct ArrowSchema*"), ffi.new("struct ArrowArray*")
    numbers._export_to_c(int(ffi.cast("uintptr_t", array)), int(ffi.cast("uintptr_t", schema)))

    def retype(one):
        if ffi.string(one.format) == b"i":
            one.format = format
        for child in range(one.n_children):
            retype(one.children[child])

    retype(schema)
    column = pa.Array._import_from_c(int(ffi.cast("uintptr_t", array)), int(ffi.cast("uintptr_t", schema)))
    assert "month_interval" in str(column.type)
    year_month = "INTERVAL '{}' YEAR TO MONTH".format
    first = f'{{"x":"{year_month("1-2")}","l":["{year_month("-1-2")}",null],"m":{{"3":"{year_month("0-0")}"}}'
    texts = [f'{first},"n":[null,null]}}'.encode(), None, f'{first},"n":[null,null]}}'.encode()]
    for start in range(3):
        assert encode_json_column(column.slice(start), kind) == (pa.array(texts[start:], pa.binary()), {})
