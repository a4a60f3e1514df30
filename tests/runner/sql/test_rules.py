"""What may be in an expression of a file or a caller is listed; Spark's own tree is what is checked."""

from __future__ import annotations

import re

import pytest

from spark_queue.errors import GraphError
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.parts import FROM_HTTP, ForeignSql
from spark_queue.runner.selector import EXPRESSION_COLUMNS, ExpressionCompiler
from spark_queue.runner.sql.compile import parse_checked
from spark_queue.runner.sql.fields import JSON_COLUMN
from spark_queue.runner.sql.rules import is_builtin_type
from tests.graph.test_sql_functions import ALLOWED

REFUSED = {
    # what runs programs, reads files or tables, or calls Java
    """(MAP 1 USING 'sh -c "id > /tmp/x; echo 1"' AS o) = '1'""": "a query is not one of them",
    "exists(array(1), begin -> struct(begin call).call = reflect('java.lang.System', 'getenv', 'A'))": "reflect()",
    "exists(array(1), begin -> struct(begin call).call = (select 1))": "a query is not one of them",
    "system.builtin.reflect('a', 'b') = ''": "system.builtin.reflect() is not one of them",
    "`reflect`('a', 'b') = ''": "reflect() is not one of them",
    "IDENTIFIER('reflect')('a', 'b') = ''": "IDENTIFIER() is not one of them",
    "IDENTIFIER('id') = ''": "IDENTIFIER() is not one of them",
    "id in (select 1)": "a query is not one of them",
    "exists(select 1)": "a query is not one of them",
    "(table t) = 1": "a query is not one of them",
    "(values 1) = 1": "a query is not one of them",
    # what is no part of one message
    "*": "* is not one of them",
    "struct(a.*)": "* is not one of them",
    "`i.*`": "'i.*' is none",
    "_metadata.file_path = ''": "'_metadata' is none",
    "_json is null": "'_json' is none",
    "_answer0 is null": "'_answer0' is none",
    "session.x = 1": "'session' is none",
    "current_user = ''": "'current_user' is none",
    "current_user() = ''": "current_user() is not one of them",
    "json.`/etc/hosts` = ''": "'json' is none",
    "`\u017ftate`['a'] = ''": "is none",
    ":x = 1": "a parameter is not one of them",
    "? = 1": "a parameter is not one of them",
    "mask(id, upperChar => 'X') = ''": "a named argument is not one of them",
    "count(distinct id) = 1": "count() has DISTINCT",
    "abs(distinct tries) = 1": "abs() has DISTINCT",
    "abs(tries) filter (where true) = 1": "abs() has FILTER",
    "get(array(1), 0) ignore nulls = 1": "get() has IGNORE NULLS",
    "abs(1) within group (order by id) = 1": "abs() has ORDER BY",
    "abs(tries) over () = 1": "a window is not one of them",
    "first(id) = ''": "an aggregate is not one of them",
    "explode(array(1)) = 1": "explode() is not one of them",
    "x -> x": "a lambda is none",
    "abs(x -> x) = 1": "must not have a lambda as an argument of abs()",
    # what Spark computes while it analyses
    "from_json(payload, payload).a = 1": "must have a literal as argument 2 of from_json()",
    "from_json(payload, concat('a', ' INT')).a = 1": "must have a literal as argument 2 of from_json()",
    "from_json(payload, 'a INT', map('mode', headers['m'])).a = 1": "must have a literal as argument 3",
    "to_json(struct(id), map('a', id)) = ''": "must have a literal as argument 2 of to_json()",
    "schema_of_json(repeat('[', 9)) = ''": "must have a literal as argument 1",
    "named_struct(id, 1).a = 1": "must have a literal as argument 1 of named_struct()",
    "to_char(tries, headers['f']) = ''": "must have a literal as argument 2",
    "date_format(mature, id) = ''": "must have a literal as argument 2",
    # patterns
    "payload rlike '(a+)+b'": "must have a pattern",
    "regexp_like(payload, '(a|b)*c')": "must have a pattern",
    "payload rlike headers['p']": "must have a literal as the pattern of RLIKE",
    "payload like headers['p']": "must have a literal as the pattern of LIKE",
    "split(payload, id)[0] = ''": "must have a literal as argument 2 of split()",
    "str_to_map(payload, '(a*)*')['a'] = ''": "must have a pattern",
    "parse_url(id, 'QUERY', '(a+)+b') = ''": "must have a pattern",
}

MORE_ALLOWED = [
    "exists(array(1), begin -> struct(begin call).call = 1)",
    "exists(array(1), _json -> _json = 1)",
    "headers.class = 'late' and HEADERS['a'] <=> 'b' and `id` is not null",
    "CASE id WHEN 'a' THEN true ELSE false END",
    "id in ('x', 'y') or id like any ('x%', 'y%') or not id like all ('a') or id ilike 'x' or id rlike '^a.*z$'",
    "current_timestamp > mature and current_date >= date '2020-01-01'",
    "tries between 1 and 2 and tries is distinct from 3 and (tries = 1) is not unknown",
    "position('a' in id) + length(substring(id from 1 for 2)) > 1",
    "overlay(id placing 'x' from 1 for 2) = 'x' and trim(leading 'a' from id) = 'b'",
    "timestampadd(HOUR, 1, mature) > now() and timestampdiff(DAY, mature, now()) = 0",
    "(1, 'a') = (2, 'b')",
    "id collate UTF8_LCASE = 'a'",
    "tries << 2 >> 1 >>> 1 | 3 & 1 ^ ~2 = -3",
    "from_json(payload, 'a INT', map('mode', 'FAILFAST')).a = -1",
    "map_filter(headers, (k, v) -> k like 'x-%' and v <> id)['x-a'] = '1'",
    "transform(split(payload:tags, ','), (tag, i) -> concat(tag, i))[0] = 'a0'",
    "aggregate(from_json(payload, 'array<int>'), 0, (sum, x) -> sum + x, sum -> sum * 2) > 3",
    "x'12' = to_binary('12', 'hex') and 1.5BD + 1e3 + 2.0f + 3Y > 0",
]


@pytest.fixture
def compiled(spark):
    frame = spark.createDataFrame([], EXPRESSION_COLUMNS)

    def compile_text(text):
        mistakes: list[Mistake] = []
        ExpressionCompiler(frame, ("it",), mistakes).compile(ForeignSql(text, FROM_HTTP))
        return "; ".join(one.text for one in mistakes)

    return compile_text


@pytest.mark.parametrize("text", [*ALLOWED, *MORE_ALLOWED])
def test_an_expression_over_the_message_becomes_a_column(compiled, text):
    assert compiled(text) == ""


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_listed_is_refused_as_spark_reads_it(spark, text):
    with pytest.raises(GraphError, match=re.escape(REFUSED[text])):
        parse_checked(spark, text)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_listed_becomes_no_column(compiled, text):
    assert compiled(text)


def test_the_column_of_the_parsed_payload_has_an_unguessable_name(spark, compiled):
    assert re.fullmatch("_json_[0-9a-f]{16}", JSON_COLUMN)
    assert compiled("payload:a.b[0]::int > 3 and state:x = 'a' and state:y.z = 'b'") == ""
    with pytest.raises(GraphError):
        parse_checked(spark, f"{JSON_COLUMN} is null")
    parse_checked(spark, f"{JSON_COLUMN} is null", frozenset((JSON_COLUMN,)))


def test_spark_parses_a_text_once(spark, compiled, monkeypatch):
    monkeypatch.setattr("spark_queue.runner.selector.F.expr", lambda text: pytest.fail(f"{text} is parsed again"))
    assert compiled("payload:a = 'x'") == ""


def test_nothing_is_computed_before_the_check_is_complete(compiled, tmp_path):
    mark = tmp_path / "mark"
    call = f"reflect('java.nio.file.Files', 'createFile', reflect('java.nio.file.Path', 'of', '{mark}'))"
    assert compiled(f"from_json(payload, concat('a INT', {call} is null)).a = 1")
    assert compiled(f"(MAP 1 USING 'touch {mark}' AS o) = '1'")
    assert not mark.exists()


def test_a_function_of_the_session_takes_no_name_of_spark(spark, compiled):
    session = spark.newSession()
    session.udf.register("soundex", lambda text: text)
    with pytest.raises(GraphError, match=r"this session has another soundex\(\)"):
        parse_checked(session, "SoundEx(id) = 'a'")
    parse_checked(spark, "soundex(id) = 'a'")
    parse_checked(session, "lower(id) = 'a'")


@pytest.mark.parametrize(
    "kind",
    ["string collate UTF8_LCASE", "decimal(10,2)", "interval day to second", "varchar(3)", "variant", "timestamp_ntz",
     {"type": "array", "elementType": {"type": "map", "keyType": "string", "valueType": "long"}},
     {"type": "struct", "fields": [{"name": "a", "type": "date"}]}],
)  # fmt: skip
def test_types_of_sql_are_known(kind):
    assert is_builtin_type(kind)


@pytest.mark.parametrize(
    "kind",
    ["udt", "object", {"type": "udt", "class": "x"}, {"type": "array", "elementType": {"type": "udt"}},
     {"type": "struct", "fields": [{"name": "a", "type": "object"}]}],
)  # fmt: skip
def test_other_types_are_refused(kind):
    assert not is_builtin_type(kind)
