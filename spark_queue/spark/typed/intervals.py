"""Day-time intervals in the forms that Spark casts: `1 02:03:04.5`, `INTERVAL '5' DAY`."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql.types import DayTimeIntervalType

_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_MICROS = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)
#: The digits that Spark takes of the first unit, and between which value each other unit ends.
_DIGITS = (9, 10, 12, 13)
_LIMITS = (None, 24, 60, 60)
_MOST_DAYS = 106_751_991
_MAX_LONG = 2**63
_TRIMMED = "".join(map(chr, [*range(33), 127]))


def interval_parser(kind: DayTimeIntervalType) -> Callable[[str], int]:
    """Return the function that returns the microseconds of an interval of a type.

    It raises `ValueError` for another text.
    """
    first, last = kind.startField or 0, kind.endField or 0
    parts = [rf"(\d{{1,{_DIGITS[first]}}})", *[r"(\d{1,2})"] * (last - first)]
    joint = parts[0] if first == last else parts[0] + (" " if first == 0 else ":") + ":".join(parts[1:])
    body = rf"([+|-])?{joint}" + (r"(\.\d{1,9})?" if last == 3 else "()")
    units = _UNITS[first] if first == last else rf"{_UNITS[first]}\s+TO\s+{_UNITS[last]}"
    plain = re.compile(body, re.ASCII)
    literal = re.compile(rf"INTERVAL\s+([+|-])?'{body}'\s+{units}", re.ASCII | re.IGNORECASE)

    def parse(text: str) -> int:
        text = text.strip(_TRIMMED)
        if found := plain.fullmatch(text):
            signs, numbers = found.groups()[:1], found.groups()[1:]
        elif found := literal.fullmatch(text):
            signs, numbers = found.groups()[:2], found.groups()[2:]
        else:
            raise ValueError
        micros = 0
        for unit, number in zip(range(first, last + 1), numbers, strict=False):
            value, limit = int(number), _LIMITS[unit]
            if unit != first and limit is not None and value >= limit:
                raise ValueError
            micros += value * _MICROS[unit]
        if first == 0 and int(numbers[0]) > _MOST_DAYS:
            raise ValueError
        micros += int(((numbers[-1] or "")[1:7]).ljust(6, "0"))
        if signs.count("-") % 2:
            micros = -micros
        if not -_MAX_LONG <= micros < _MAX_LONG:
            raise ValueError
        return micros

    return parse
