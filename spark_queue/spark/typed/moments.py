"""Dates, timestamps and times of day in the forms that Spark takes, as numbers.

A date is days since 1970, a timestamp microseconds, a time of day nanoseconds: Python's own types
lack years that Spark has.
"""

from __future__ import annotations

import re
from datetime import date

from spark_queue.options.time_zones import Zone, zone_of

_DAY = r"([+-]?)([0-9]{4,%s})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
_DATE = re.compile(_DAY % 7 + r"(?:[ T].*)?)?)?", re.DOTALL)
_TIME = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9].*)?)?)?"
_MOMENT = re.compile(_DAY % 6 + rf"(?:[ T]{_TIME})?)?)?", re.DOTALL)
_CLOCK = re.compile(r"(?:T(?=.)|(?=[0-9]{1,2}:))" + _TIME, re.DOTALL)
_NOON = re.compile(r"(.*?[0-9]) ?([AaPp])[Mm]", re.DOTALL)
_DAYS = re.compile(r"[+-]?[0-9]{1,10}")

#: What Spark removes from both ends of a text.
_TRIMMED = "".join(map(chr, [*range(33), 127]))

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_MICROS = 1_000_000
_DAY_SECONDS = 86_400
_MAX_INT, _MAX_LONG = 2**31, 2**63

#: Before this day, a number of days that stands for a date is one of the Julian calendar.
_GREGORIAN = -141_427


def days_of(text: str) -> int:
    """Return the days of a date. Anything may follow it after a space or `T`.

    A number that is no year is itself days since 1970. Raises `ValueError` for another text.
    """
    try:
        return _date(text)
    except ValueError:
        pass
    try:
        return _date(_without_gmt(text))
    except ValueError:
        if not _DAYS.fullmatch(text) or not _GREGORIAN <= int(text) < _MAX_INT:
            raise
        return int(text)


def micros_of(text: str, zone: Zone) -> int:
    """Return the microseconds of a timestamp. `zone`: of one that names none.

    Raises `ValueError` for another text, and for a time without a date: that would be a time of
    today, and another one in a replay.
    """
    try:
        return _micros(text, zone)
    except ValueError:
        if "GMT" not in text:
            raise
        return _micros(_without_gmt(text), zone)


def local_micros_of(text: str) -> int:
    """Return the microseconds of a timestamp without a zone.

    Raises `ValueError` for another text.
    """
    return _micros(text, None)


def nanos_of(text: str) -> int:
    """Return the nanoseconds of a time of day. Raises `ValueError` for another text."""
    text = text.strip(_TRIMMED)
    half = _NOON.fullmatch(text)
    found = _CLOCK.fullmatch(half[1] if half else text)
    if found is None or found[1] is None or found[5]:
        raise ValueError
    seconds, fraction = _seconds(found[1], found[2], found[3]), found[4] or ""
    if half:
        hour = int(found[1])
        if not 1 <= hour <= 12:
            raise ValueError
        seconds += 3600 * ((hour % 12 + (12 if half[2] in "pP" else 0)) - hour)
    return seconds * 1_000_000_000 + int(fraction[:9].ljust(9, "0"))


def checked_micros(micros: int) -> int:
    """Return microseconds. Raises `ValueError` if Spark has no such timestamp."""
    if not -_MAX_LONG <= micros < _MAX_LONG:
        raise ValueError
    return micros


def _date(text: str) -> int:
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    if found is None:
        raise ValueError
    days = _days(found[1], found[2], found[3], found[4])
    if not -_MAX_INT <= days < _MAX_INT:
        raise ValueError
    return days


def _micros(text: str, zone: Zone | None) -> int:
    """Return the microseconds of a timestamp. If `zone` is `None`, it may not name one.

    Raises `ValueError` for another text.
    """
    found = _MOMENT.fullmatch(text.strip(_TRIMMED))
    if found is None:
        raise ValueError
    sign, year, month, day, hour, minute, second, fraction, named = found.groups()
    if named is not None:
        if zone is None:
            raise ValueError
        zone = zone_of(named.strip(_TRIMMED))
    days, seconds = _days(sign, year, month, day), _seconds(hour, minute, second)
    offset = 0 if zone is None else zone.offset(days, seconds)
    whole = (days * _DAY_SECONDS + seconds - offset) * _MICROS
    return checked_micros(whole + (int(fraction[:6].ljust(6, "0")) if fraction else 0))


def _days(sign: str, year: str, month: str | None, day: str | None) -> int:
    number = -int(year) if sign == "-" else int(year)
    cycles = 0
    if not 1 <= number <= 9999:
        cycles, number = divmod(number, _CYCLE_YEARS)
        cycles, number = cycles - 1, number + _CYCLE_YEARS
    return date(number, int(month or 1), int(day or 1)).toordinal() - _EPOCH_DAY + cycles * _CYCLE_DAYS


def _seconds(hour: str | None, minute: str | None, second: str | None) -> int:
    h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
    if h > 23 or m > 59 or s > 59:
        raise ValueError
    return 3600 * h + 60 * m + s


def _without_gmt(text: str) -> str:
    return text.replace("GMT", "")
