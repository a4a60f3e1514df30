"""How long and how deeply nested an expression may be, before a parser gets it."""

from __future__ import annotations

import pytest

from spark_queue.graph.sql_functions import sql_mistake
from spark_queue.graph.sql_limits import MAX_TEXT

DEEP = {
    "parentheses": "(" * 3000 + "1" + ")" * 3000,
    "brackets": "array(1)" + "[0]" * 300,
    "arrays": "array(" * 300 + "1" + ")" * 300,
    "NOT": "not " * 300 + "true",
    "signs": "- " * 300 + "1",
    "tildes": "~" * 300 + "1",
    "sums": "1" + "+1" * 300,
    "texts": "'a'" + "||'a'" * 300,
    "casts": "1" + "::int" * 300,
    "fields": "payload" + ".a" * 300,
    "CASE": "case when true then " * 300 + "1" + " end" * 300,
    "CASE with names that end it": "case when end then " * 300 + "1" + " end" * 300,
    "lambdas": "transform(array(1), x -> " * 210 + "1" + ")" * 210,
    "names that look like operators": "1+and" * 300 + "+1",
}

FLAT = {
    "a list": f"id in ({', '.join(map(str, range(3000)))})",
    "OR": " or ".join(f"headers['a'] = '{n}'" for n in range(1000)),
    "AND and OR": " or ".join("id = 'a' and queue <> 'b'" for _ in range(500)),
    "WHEN": "case " + " ".join(f"when tries = {n} then {n}" for n in range(500)) + " else 0 end > 3",
    "levels below the limit": "(" * 190 + "1" + ")" * 190,
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_nesting_is_refused(kind):
    assert sql_mistake(DEEP[kind]).startswith("nested at most 200 levels deep")


@pytest.mark.parametrize("kind", FLAT)
def test_many_parts_side_by_side_are_allowed(kind):
    assert sql_mistake(FLAT[kind]) == ""


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_long_text_is_refused(letter):
    many = (MAX_TEXT - 2) // len(letter.encode())
    assert sql_mistake(f"'{letter * many}'") == ""
    assert "at most 65,536 bytes long" in sql_mistake(f"'{letter * (many + 1)}'")
