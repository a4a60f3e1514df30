"""Generated expressions of Spark's grammar: none with a forbidden part passes, wherever it stands."""

from __future__ import annotations

import random
import re

import pytest
from pyspark.errors import PySparkException

from spark_queue.errors import GraphError
from spark_queue.runner.sql.compile import parse_checked

FORBIDDEN = [
    "reflect('java.lang.System', 'getenv', 'A')", "java_method('java.lang.System', 'getenv', 'A')",
    "try_reflect('a', 'b')", "`Reflect`('a', 'b')", "system.builtin.reflect('a', 'b')", "input_file_name()",
    "current_user()", "version()", "my_function(id)", "spark_catalog.default.lower(id)",
    "IDENTIFIER('reflect')('a', 'b')", "IDENTIFIER('id')", "IDENTIFIER(:n)", "(SELECT 1)", "(FROM t)", "(TABLE t)",
    "(VALUES (1))", "(WITH a AS (SELECT 1) SELECT * FROM a)", "(MAP 1 USING 'sh' AS o)",
    "(REDUCE 1 USING 'sh' AS o)", "(SELECT TRANSFORM(1) USING 'sh' AS (o))", "exists(SELECT 1)",
    "(id IN (SELECT 1))", "((1, 2) IN (SELECT 1, 2))", "(id = ANY (SELECT 1))", "(SELECT /*+ BROADCAST(t) */ 1)",
    "(1 FROM t)", "*", "t.*", "struct(*)", "count(*)", ":p", "?", "session.v", "system.session.v", "_metadata",
    "_metadata.file_path", "_json", "_answer0", "_goes0", "_over", "`_copy`", "current_user", "session_user",
    "current_catalog", "sum(tries)", "count(DISTINCT id)", "first(id)", "any_value(id)", "last(id) IGNORE NULLS",
    "collect_list(id)", "row_number() OVER (ORDER BY id)", "lag(tries) OVER w", "abs(DISTINCT tries)",
    "abs(tries) FILTER (WHERE true)", "listagg(id) WITHIN GROUP (ORDER BY id)",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY tries)", "explode(array(1))", "posexplode(array(1))",
    "inline(array(struct(1)))", "stack(1, 2)", "json_tuple(payload, 'a')", "mask(id, upperChar => 'X')",
    "from_protobuf(payload, 'a', '/etc/passwd')", "from_avro(payload, '{}')", "from_json(payload, payload)",
    "named_struct(payload, 1)", "schema_of_json(payload)", "from_csv(payload, concat('a', ' INT'))",
    "repeat(payload, 99)", "repeat(payload, tries)", "space(2147483647)", "sequence(1, 2147483647)",
    "lpad(id, 1000000000)", "array_repeat(payload, 1000)", "rlike(payload, '(a+)+')",
    "aggregate(sequence(1, 30), payload, (a, x) -> concat(a, a))", "(payload RLIKE id)", "(payload LIKE payload)",
    "(x -> x)", "abs(x -> x)", "read_files('/etc')", "secret('a', 'b')", "assert(1)", "typeof(sum(1))",
]  # fmt: skip

TEMPLATES = [
    "{a}", "({a})", "{a} = {b}", "not ({a})", "-({a})", "coalesce({a}, {b})", "CASE WHEN {a} THEN {b} ELSE {c} END",
    "CASE {a} WHEN {b} THEN {c} END", "if({a}, {b}, {c})", "array({a}, {b})[0]", "map('k', {a})['k']",
    "cast({a} AS string)", "{a}::int", "try_cast({a} AS decimal(10,2))", "struct({a} AS `select`, {b}).`select`",
    "named_struct('a', {a}).a", "exists(array({a}), begin -> begin = {b})",
    "transform(array({a}), (call, i) -> {b})", "filter(array(1), x -> {a})",
    "aggregate(array(1), 0, (acc, x) -> length({a}), acc -> {b})", "zip_with(array({a}), array(2), (x, y) -> {b})",
    "map_filter(headers, (k, v) -> {a})", "({a}, {b}) = ({c}, 1)", "{a} IN ({b}, {c})", "{a} BETWEEN {b} AND {c}",
    "{a} IS NOT NULL", "{a} IS DISTINCT FROM {b}", "{a} || {b}", "concat({a}, {b})", "headers[{a}]",
    "{a} LIKE 'x%'", "extract(year FROM {a})", "trim(BOTH {a} FROM {b})", "substring({a} FROM 1 FOR 2)",
    "position({a} IN {b})", "timestampadd(HOUR, {a}, mature)", "{a} COLLATE UTF8_LCASE",
    "exists(array(1), from -> struct({a} `from`).`from`)", "overlay({a} PLACING {b} FROM 1)", "/* x */ {a}",
    "{a} -- y\n", "{a}\n+\t{b}", "elt(1, {a})", "greatest({a}, {b})",
]  # fmt: skip

LEAVES = [
    "id", "queue", "payload", "headers", "headers['a']", "tries", "mature", "1", "'a'", "NULL", "true", "`id`",
    "state['x']",
]  # fmt: skip

FULL = [pytest.mark.full, pytest.mark.timeout(2000)]


def generated(chance, depth, forbidden=None):
    """An expression of Spark's grammar, with the forbidden part in one of its places."""
    if depth == 0:
        return forbidden or chance.choice(LEAVES)
    template = chance.choice(TEMPLATES)
    places = sorted(set(re.findall(r"\{(\w)\}", template)))
    chosen = chance.choice(places)
    parts = {
        one: generated(chance, depth - 1, forbidden) if one == chosen else generated(chance, chance.randrange(2))
        for one in places
    }
    return template.format(**parts)


def spelled(chance, text):
    """The same expression for Spark, in other letters."""
    spellings = [str, str.upper, str.swapcase, lambda one: one.replace(" ", "\n ")]
    return text if "'" in text else chance.choice(spellings)(text)


def passes(spark, text):
    try:
        parse_checked(spark, text)
    except (GraphError, PySparkException):
        return False
    return True


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=FULL) for seed in (1, 2, 3, 4))])
def test_no_expression_with_a_forbidden_part_passes(spark, seed):
    """The seeds of `make test-all` have 25,000 expressions each."""
    chance = random.Random(seed)
    through = []
    for number in range(25_000 if seed else 500):
        forbidden = FORBIDDEN[number % len(FORBIDDEN)]
        text = spelled(chance, generated(chance, chance.randrange(4), forbidden))
        if passes(spark, text):
            through.append(text)
    assert through == []


def test_expressions_without_a_forbidden_part_pass(spark):
    chance = random.Random(1)
    texts = [generated(chance, chance.randrange(4)) for _ in range(100)]
    assert sum(passes(spark, one) for one in texts) > 80, "so the other test can fail"
