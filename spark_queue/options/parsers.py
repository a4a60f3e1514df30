"""Parsers of option values. Each raises `ValueError`, whose text continues the words "must be"."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from spark_queue.errors import did_you_mean
from spark_queue.messages.buckets import MAX_BUCKET_ROWS
from spark_queue.messages.times import MAX_DURATION_MS, MAX_TIME_MS
from spark_queue.options.inputs import LOG
from spark_queue.options.time_zones import zone_of
from spark_queue.options.values import AUTO, MAX_COUNT, NEVER, REST

HOUR, DAY = 3_600_000, 86_400_000  #: in ms
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": HOUR, "d": DAY}
_UNIT_NAMES = {
    "millisecond": "ms", "milliseconds": "ms", "second": "s", "seconds": "s", "sec": "s", "secs": "s",
    "minute": "m", "minutes": "m", "min": "m", "mins": "m", "hour": "h", "hours": "h", "day": "d", "days": "d",
}  # fmt: skip
_ISO = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)

#: The form of the name of a consumer or a replay.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,100}")


def duration(text: str) -> int:
    """Return the ms of a duration such as `500ms`, `30s`, `2 minutes`, `1.5h`, `7d` or `PT1H30M`.

    The last form is that of ISO 8601. Raises `ValueError` for other text, for a duration that does
    not end before the year 5000, and for years and months: their length varies.
    """
    if (iso := _ISO.fullmatch(text.strip())) and iso.lastindex:
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return _whole_ms(1000 * (((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60 + seconds))
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", text)
    unit = _UNIT_NAMES.get(match[2].lower(), match[2].lower()) if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError("a duration such as 500ms, 30s, 2m, 1h or 7d")
    return _whole_ms(float(match[1]) * _UNITS[unit])


def _whole_ms(ms: float) -> int:
    if ms > MAX_DURATION_MS:  # no time that is computed from it can be too large for a database
        raise ValueError("a duration that ends before the year 5000")
    return round(ms)


def lease(text: str) -> int | None:
    """Return the ms of a lease, `None` for `never`. Raises `ValueError` below 100 ms."""
    found = _word_or(NEVER, duration, text)
    return None if found is None else _at_least_100_ms(found)


def _word_or(word: str, parse: Callable[[str], int], text: str) -> int | None:
    """Return `None` for a word, else the result of `parse`.

    Raises the `ValueError` of `parse`, which then names the word, too.
    """
    if text.strip().lower() == word:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{error}, or {word!r}") from None


def _at_least_100_ms(found: int) -> int:
    if found < 100:
        raise ValueError("at least 100ms")
    return found


def count(text: str) -> int:
    """Return a whole number, 1 to 2147483647. Raises `ValueError` for other text."""
    found = _whole_number(text)
    if found is None or not 0 < found <= MAX_COUNT:
        raise ValueError("a whole number from 1 to 2147483647")
    return found


def _whole_number(text: str) -> int | None:
    """Return a whole number of up to 30 digits (Python has a limit, too); `None` for other text."""
    return int(text) if re.fullmatch(r"\s*\+?\d{1,30}\s*", text) else None


def count_or_auto(text: str) -> int | None:
    """Return a whole number as `count`, `None` for `auto`. Raises `ValueError` for other text."""
    return _word_or(AUTO, count, text)


def log_position(*words: str) -> Callable[[str], str | int]:
    """Return a parser for one of these words, or the number of a position in a log.

    It raises `ValueError` for other text, such as the JSON by partition of Kafka.
    """

    def parse(text: str) -> str | int:
        if (position := _whole_number(text)) is not None and position < 2**63:
            return position
        try:
            return one_of(*words)(text)
        except ValueError as error:
            parts = ": a log has no partitions" if text.lstrip().startswith("{") else ""
            raise ValueError(f"{error}, or a position such as 1000{parts}") from None

    return parse


#: Numbers that are ms of early 1970, and seconds of this century.
_SECONDS = range(10**9, 10**10)


def moment(text: str) -> int:
    """Return a time in ms since 1970. Raises `ValueError` for other text, and for seconds."""
    expected = "a time in ms since 1970, such as 1767225600000"
    found = _whole_number(text)
    if found is None:
        with suppress(ValueError):
            named = datetime.fromisoformat(text.strip())
            if named.tzinfo is not None:
                expected = f"a time in ms since 1970, here {round(named.timestamp() * 1000)}"
        raise ValueError(expected)
    if found in _SECONDS:
        raise ValueError(f"a time in ms since 1970; {found} seconds are {found * 1000}")
    if found > MAX_TIME_MS:
        raise ValueError(f"{expected}, before the year 10000")
    return found


def byte_size(text: str) -> int:
    """Return the bytes of a size such as `1048576`, `512k`, `64m` or `2g`, as Spark reads sizes.

    Raises `ValueError` for other text, and for 0.
    """
    match = re.fullmatch(r"\s*(\d{1,15})\s*(?:([kmgt])?(?:i?b)?)\s*", text.lower())
    if match is None or not int(match[1]):
        raise ValueError("a size such as 512k, 64m, 2g, or a number of bytes")
    return int(match[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}.get(match[2] or "", 0)


def target(text: str) -> int:
    """Return the ms that a batch may take. Raises `ValueError` below 100 ms."""
    return _at_least_100_ms(duration(text))


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser for one of these words in any letter case. It raises `ValueError`."""
    spelled = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        word = spelled.get(text.strip().lower())
        if word is None:
            raise ValueError("one of " + ", ".join(words) + did_you_mean(text, words))
        return word

    return parse


def word(text: str) -> str:
    """Return a word in lower case. Raises `ValueError` if it is blank."""
    return not_empty(text).strip().lower()


def flag(text: str) -> bool:
    """Return whether the text is `true` or `false`. Raises `ValueError` for other text."""
    return one_of("true", "false")(text) == "true"


def bucket_rows(text: str) -> int:
    """Return the number of messages in a bucket. Raises `ValueError` if it is not 1 to 100000."""
    size = count(text)
    if size > MAX_BUCKET_ROWS:
        raise ValueError(f"at most {MAX_BUCKET_ROWS}")
    return size


def batch_number(text: str) -> int:
    """Return a whole number, 0 or more. Raises `ValueError` for other text."""
    found = _whole_number(text)
    if found is None or found >= 2**63:
        raise ValueError("a whole number from 0")
    return found


def consumer_name(text: str) -> str:
    """Return the name of a consumer, which becomes part of tags.

    Raises `ValueError` if it has other characters than letters, digits and `_.:@-`.
    """
    if not PLAIN_NAME.fullmatch(text):
        raise ValueError("1 to 100 letters, digits and _ . : @ -")
    return text


def reserving_consumer_name(text: str) -> str:
    """Return the name of a consumer that reserves messages.

    Raises `ValueError` as `consumer_name` does, for `log`, under which logs hold messages, and for
    `rest`, under which callers over HTTP do.
    """
    if text == LOG:
        raise ValueError(f"another name than {LOG!r}, under which logs hold their messages")
    if text == REST:
        raise ValueError(
            f"another name than {REST!r}, under which spark-queue serve holds the messages of its callers"
        )
    return consumer_name(text)


def url_map(text: str) -> dict[str, str]:
    """Return the URLs by name of a JSON object. Raises `ValueError` for other text."""
    try:
        urls = json.loads(text)
    except ValueError:
        urls = None
    if not isinstance(urls, dict) or not urls or not all(isinstance(one, str) and one for one in urls.values()):
        raise ValueError('a JSON object such as {"one": "sqlite:///queues.db", "two": "redis://localhost/0"}')
    return urls


def not_empty(text: str) -> str:
    """Return the text unchanged. Raises `ValueError` if it is blank."""
    if not text.strip():
        raise ValueError("non-empty")
    return text


def zone_name(text: str) -> str:
    """Return the name of a time zone. Raises `ValueError` if there is none of that name."""
    try:
        zone_of(text)
    except ValueError:
        raise ValueError("a time zone such as Europe/Paris, UTC or +01:00") from None
    return text
