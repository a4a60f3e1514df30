"""The largest result of an expression is computed, and refused above 64 MB."""

from __future__ import annotations

import pytest

from spark_queue.errors import GraphError
from spark_queue.runner.sql.compile import parse_checked
from tests.spark_session import SPARK

extraction = pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 cannot parse payload:n")

SMALL = [
    "repeat(payload, 4) = ''",
    "concat(payload, payload, payload, payload) = ''",
    "repeat('a', least(tries, 100)) = ''",
    "repeat(left(payload, 1), 1000000) = ''",
    "aggregate(sequence(1, 30), 0, (a, x) -> a + x) > 3",
    "aggregate(from_json(payload, 'array<string>'), '', (a, x) -> greatest(a, x)) = 'z'",
    "transform(from_json(payload, 'array<string>'), x -> upper(x))[0] = 'A'",
    "transform(split(payload, ','), x -> concat(x, 'abc'))[0] = 'A'",
    "split(payload, ',')[0] = 'x'",
    "filter(split(payload, ','), x -> x like 'a%')[0] = 'ab'",
    "regexp_replace(payload, '\\\\d{16}', 'REDACTED') = 'x'",
    "replace(payload, 'abcd', 'abcdefgh') = 'x'",
    "sequence(1, pmod(tries, 100))[0] = 1",
    "sequence(1, greatest(1, least(tries, 1000)))[0] = 1",
    "lpad(id, 10, '0') = '0000000001'",
    "to_json(named_struct('a', payload)) = ''",
    "hex(payload) = '' and base64(payload) = '' and url_encode(payload) = ''",
    "zip_with(array(1), array(2), (x, y) -> x + y)[0] = 3",
    "transform(sequence(1, 100), x -> transform(sequence(1, 100), y -> concat(x, y)))[0][0] = '11'",
    "format_string('%-20s %05d', id, tries) = ''",
    "array_insert(array(1), 2, 3)[0] = 1",
]

LARGE = {
    "size(flatten(transform(sequence(1,2000), x -> array_repeat(repeat(payload,100000),100000)))) > 0": "repeat()",
    "repeat(payload, 5) = ''": "repeat() may return 80 MB",
    "repeat(payload, tries) = ''": "repeat()",
    "repeat('a', payload:n::int) = ''": "repeat() may return any number of bytes",
    "repeat('a', get_json_object(payload, '$.n')::int) = ''": "repeat() may return any number of bytes",
    "repeat('a', -(-1000000000)) = ''": "repeat()",
    "repeat('a', 40000 * 40000) = ''": "repeat()",
    "repeat('a', 2000000000 - 5) = ''": "repeat()",
    "repeat('a', 1000000000::string) = ''": "repeat()",
    "repeat('a', length(payload) * 10) = ''": "repeat()",
    "repeat('a', CASE WHEN tries = 1 THEN 3 ELSE 1000000000 END) = ''": "repeat()",
    "repeat(repeat(repeat('a', 10000), 10000), 10000) = ''": "repeat()",
    "concat(payload, payload, payload, payload, payload) = ''": "concat()",
    "payload || payload || payload || payload || payload = ''": "may return",
    "concat_ws(payload, 'a', 'b', 'c', 'd', 'e', 'f', 'g') = ''": "concat_ws()",
    "array_join(split(payload, ''), 'abcdefgh') = ''": "array_join()",
    "lpad(payload, 1000000000, 'x') = ''": "lpad()",
    "rpad('a', 1000000000) = ''": "rpad()",
    "space(1000000000) = ''": "space()",
    "format_string('%1000000000d', 1) = ''": "format_string()",
    "printf('%2$900000000s', id, id) = ''": "printf()",
    "format_number(1.5, 1000000000) = ''": "format_number()",
    "array_insert(array(1), 1000000000, 2)[0] = 1": "array_insert()",
    "array_insert(array(1), -1000000000, 2)[0] = 1": "array_insert()",
    "array_repeat(payload, 10)[0] = ''": "array_repeat()",
    "array_repeat(array_repeat(array_repeat(1, 9000), 9000), 9000)[0][0][0] = 1": "array_repeat()",
    "sequence(1, 1000000000)[0] = 1": "sequence()",
    "sequence(-1000000000, 1)[0] = 1": "sequence()",
    "sequence(1, least(tries, 5))[0] = 1": "sequence()",
    "sequence(mature, now(), interval 1 microsecond)[0] = mature": "sequence()",
    "sequence(date '2000-01-01', date '2020-01-01', interval 1 second)[0] is null": "sequence()",
    "transform(sequence(1, 10000), x -> sequence(1, 10000))[0][0] = 1": "transform()",
    "transform(sequence(1, 10000), x -> payload)[0] = ''": "transform()",
    "transform(split(payload, ''), x -> payload)[0] = ''": "transform()",
    "transform(split(payload, ''), x -> concat(x, 'abcdefghijk'))[0] = ''": "transform()",
    "transform(split(payload, ','), x -> transform(split(id, ','), y -> concat(x, y)))[0][0] = ''": "transform()",
    "zip_with(split(payload, ''), split(payload, ''), (x, y) -> payload)[0] = ''": "zip_with()",
    "transform_values(headers, (k, v) -> payload)['a'] = ''": "transform_values()",
    "map_zip_with(headers, headers, (k, v, w) -> concat(v, w, payload))['a'] = ''": "map_zip_with()",
    "replace(payload, 'a', 'bbbbbbbbb') = ''": "replace()",
    "replace(payload, 'a', payload) = ''": "replace()",
    "regexp_replace(payload, '', 'xxxx') = ''": "regexp_replace()",
    "regexp_replace(payload, '.+', '$0$0$0$0$0') = ''": "regexp_replace()",
    "hex(hex(hex(payload))) = ''": "hex()",
    "url_encode(url_encode(payload)) = ''": "url_encode()",
    "exists(sequence(1, 10), x -> repeat(payload, 100) = '')": "repeat()",
    "map_from_arrays(array('a'), array_repeat(payload, 20))['a'] = ''": "array_repeat()",
    "randstr(1000000000) = ''": "randstr()",
}


@pytest.mark.parametrize("text", SMALL)
def test_a_result_that_fits_is_allowed(spark, text):
    parse_checked(spark, text)


@pytest.mark.parametrize("text", [pytest.param(text, marks=extraction) if ":n" in text else text for text in LARGE])
def test_a_result_that_may_be_large_is_refused(spark, text):
    with pytest.raises(GraphError, match="must return at most 64 MB at each step") as refused:
        parse_checked(spark, text)
    assert LARGE[text] in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "aggregate(sequence(1, 30), payload, (a, x) -> concat(a, a)) = ''",
        "reduce(sequence(1, 30), 'a', (a, x) -> a || 'b') = ''",
        "aggregate(split(payload, ','), array(''), (a, x) -> array_append(a, x))[0] = ''",
        "aggregate(sequence(1, 9), named_struct('a', 'x'), (s, x) -> named_struct('a', repeat(s.a, 9))).a = ''",
    ],
)
def test_an_accumulator_that_grows_is_refused(spark, text):
    with pytest.raises(GraphError, match="must not grow the accumulator"):
        parse_checked(spark, text)
