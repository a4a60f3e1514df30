"""Spark's parser remembers a bounded number of texts, also of those that are refused."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.java_gateway import get_field

from spark_queue.runner.sql import compile as sql_compile
from spark_queue.runner.sql.parser_memory import PARSER_MEMORY, ParserMemory, contexts
from tests.runner.sql.test_generated import FORBIDDEN, generated, passes, spelled


def texts(seed, characters):
    """Return different expressions that are refused, with about this number of characters in total."""
    chance, found, left = random.Random(seed), [], characters
    while left > 0:
        found.append(spelled(chance, generated(chance, chance.randrange(4), chance.choice(FORBIDDEN))))
        left -= len(found[-1])
    return found


def states(spark):
    """Return the number of states that all parsers share."""
    parser = spark._jvm.org.apache.spark.sql.catalyst.parser.SqlBaseParser(None)
    return sum(len(get_field(one, "states")) for one in get_field(parser.getInterpreter(), "decisionToDFA"))


@pytest.fixture
def forgets_after(spark, monkeypatch):
    """Return a function that clears the parser's memory and sets its limit (characters)."""

    def forget_after(most):
        ParserMemory(0).count(spark._jvm, "")
        monkeypatch.setattr(sql_compile, "PARSER_MEMORY", ParserMemory(most))  # one object for the process

    yield forget_after
    ParserMemory(0).count(spark._jvm, "")


def test_different_texts_fill_no_memory(spark, forgets_after):
    found = {}
    for most in (1_000, 100_000):
        forgets_after(most)
        assert len(contexts(spark._jvm)) == 0
        assert not any(passes(spark, one) for one in texts(1, 20_000))
        found[most] = len(contexts(spark._jvm)), states(spark)
    assert found[1_000][0] < found[100_000][0] / 4 and found[1_000][1] < found[100_000][1] / 2, found


def test_it_forgets_while_others_read(spark, forgets_after):
    forgets_after(200)
    with ThreadPoolExecutor(4) as threads:
        good_texts = (f"get_json_object(payload, '$.a{n}')::int > {n} and headers['a'] = 'b'" for n in range(200))
        good = [threads.submit(passes, spark, one) for one in good_texts]
        bad = [threads.submit(passes, spark, one) for one in texts(2, 10_000)]
        assert all(one.result() for one in good) and not any(one.result() for one in bad)


def test_it_forgets_after_a_text_of_the_largest_size():
    assert PARSER_MEMORY._most == 1 << 16
