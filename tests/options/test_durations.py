"""Durations and counts that no database can hold are refused, wherever they are given."""

from __future__ import annotations

import math

import pytest

from spark_queue.errors import OptionError
from spark_queue.messages.times import MAX_DURATION_MS, MAX_TIME_MS
from spark_queue.options.arguments import check_count, check_seconds
from spark_queue.options.parsers import batch_number, count, duration
from spark_queue.options.roles import parse_options

#: Numbers of seconds that end after the year 5000; the fourth, in ms, begins again at 0 in 64 bits.
TOO_LONG = [MAX_DURATION_MS / 1000 + 1, 1e300, math.inf, 18446744073709552, 10**400, 10**5000]
LONG_TEXTS = ["127000000000s", "18446744073709552s", "9" * 400 + "d", "9" * 5000 + "ms", "P999999999W"]
DURATION_OPTIONS = {
    "reserveTimeout": "stream",
    "retryDelay": "stream",
    "waitTimeout": "stream",
    "targetBatchDuration": "stream",
    "history": "settle",
    "retryTimeout": "push",
    "retention": "stream",
}


@pytest.mark.parametrize("text", LONG_TEXTS, ids=lambda text: text[:20])
def test_a_duration_that_is_too_long_is_refused(text):
    with pytest.raises(ValueError, match="a duration that ends before the year 5000"):
        duration(text)


def test_the_longest_duration_is_accepted():
    assert duration(f"{MAX_DURATION_MS}ms") == MAX_DURATION_MS
    check_seconds("delay", MAX_DURATION_MS / 1000)
    assert 2 * MAX_DURATION_MS <= MAX_TIME_MS, "a duration that begins now ends at a moment that is allowed"


@pytest.mark.parametrize("option", DURATION_OPTIONS)
@pytest.mark.parametrize("text", LONG_TEXTS, ids=lambda text: text[:20])
def test_each_option_refuses_a_duration_that_is_too_long(option, text):
    role = DURATION_OPTIONS[option]
    needed = {"consumer": "etl"} if role == "settle" else {"mode": "log"} if option == "retention" else {}
    with pytest.raises(OptionError, match="ends before the year 5000") as caught:
        parse_options({"url": "sqlite:///q.db", "queue": "a", option: text, **needed}, role)
    assert caught.value.facts["option"] == option


@pytest.mark.parametrize("seconds", TOO_LONG, ids=lambda one: str(one)[:20] if one < 10**400 else "long")
def test_an_argument_that_is_too_long_is_refused(seconds):
    with pytest.raises(OptionError, match="lease must be a number of seconds that end before the year"):
        check_seconds("lease", seconds)
    with pytest.raises(OptionError, match="delay must be a number of seconds"):
        check_seconds("delay", -seconds, minimum=-math.inf)


@pytest.mark.parametrize("seconds", [math.nan, -1, True, "1"])
def test_what_is_no_number_of_seconds_is_refused(seconds):
    with pytest.raises(OptionError, match="must be a number of seconds, 0 or more"):
        check_seconds("lease", seconds)


def test_counts_are_bounded_too():
    with pytest.raises(OptionError, match="max_tries must be a whole number, at most 2147483647"):
        check_count("max_tries", 10**5000)
    for parse in (count, batch_number):
        with pytest.raises(ValueError, match="a whole number from"):
            parse("9" * 5000)
    assert (count(" +5 "), batch_number("5")) == (5, 5)
