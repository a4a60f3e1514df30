"""Regular expressions that could take years, or end the JVM, are refused."""

from __future__ import annotations

import pytest

from spark_queue.graph.patterns import pattern_mistake, shortest_match

ALLOWED = {
    r"^\d{16}$": 16,
    r"(\d{1,3}\.){3}\d{1,3}": 7,
    r"(foo|bar)?x+": 1,
    r"[a-z]+@[a-z]+\.com": 7,
    r"(?i)late": 4,
    r"\Qa+\E": 1,
    r"[]a]+": 1,
    r"[^]]*[a-z&&[^b]]": 1,
    r"(a*)?": 0,
    r"(\s*,\s*)?x": 1,
    r"(ab){0,100}": 0,
    r"(-?\d{4}){3}": 12,
    r"\p{L}+\bx": 2,
    r"a|bcd": 1,
    r"(?:a|bc){2}": 2,
    r"x(?=abc)": 1,
}

REFUSED = {
    r"(a+)+b": "groups repeat at most 100 times",
    r"([a-z]+)*$": "groups repeat at most 100 times",
    r"(a|b)*c": "groups repeat at most 100 times",
    r"(?:.|\n)+": "groups repeat at most 100 times",
    r"((ab){50}){101}": "groups repeat at most 100 times",
    r"(a+){2}": "a repetition in a repetition",
    r"(a?){30}a{30}": "a repetition in a repetition",
    r"((a?){30}){30}": "a repetition in a repetition",
    r"(a|a){20}": "a repetition in a repetition",
    r"(?:(?:a{0,9}){3}){3}": "a repetition in a repetition",
    r"a{1,2000}": "repeats at most 1,000 times",
    r"a**": "a repetition of a repetition",
    r"a{2}{3}": "a repetition of a repetition",
    r"(a)\1": "without references to its groups",
    r"(?<n>a)\k<n>": "without references to its groups",
    "(?x)(a +)": "without the flag x",
    "(" * 60 + "a" + ")" * 60: "at most 50 groups within each other",
}


@pytest.mark.parametrize("pattern", ALLOWED)
def test_a_pattern_that_takes_little_time_is_allowed(pattern):
    assert pattern_mistake(pattern) == ""
    assert shortest_match(pattern) == ALLOWED[pattern]


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_may_take_years_is_refused(pattern):
    assert REFUSED[pattern] in pattern_mistake(pattern)
    assert shortest_match(pattern) == 0


@pytest.mark.parametrize("pattern", ["(", ")", "[", "[^", "\\", "a{", "(?<", "a|", "*", "\\p", "\\Q"])
def test_a_malformed_pattern_is_left_to_java(pattern):
    pattern_mistake(pattern)
