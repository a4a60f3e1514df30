"""Write a moment by a pattern of Java's `DateTimeFormatter`, as `timestampFormat` has it.

The pattern's letters are those of Spark's datetime patterns that need no names of zones or eras,
and no week. Names of months and days are English, as they are in Spark by default.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import NamedTuple

#: The calendar repeats after this number of years, which are this number of days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_EPOCH = date(1970, 1, 1)
DAY_MICROS = 86_400_000_000  # in microseconds

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class LocalMoment(NamedTuple):
    """The parts of a local date, also of a year that Python has not, and of a local time if any."""

    year: int
    day_in_cycle: date  # in a year of the same calendar, 400 years or a multiple of it away
    micros: int | None  # of the day; `None`: this is a date
    offset: int | None  # of its zone, in seconds; `None`: it has no zone
    zone: str


def local_moment(days: int, micros: int | None = None, offset: int | None = None, zone: str = "") -> LocalMoment:
    """Return the moment that is this number of days and microseconds after 1970 in its zone."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    near = _EPOCH + timedelta(rest)
    return LocalMoment(near.year + cycles * _CYCLE_YEARS, near, micros, offset, zone)


def date_text(moment: LocalMoment) -> str:
    """Return the date as `yyyy-MM-dd` writes it: a year beyond 9999 has a sign."""
    return f"{_year(moment.year, 4)}-{moment.day_in_cycle:%m-%d}"


def offset_text(seconds: int, letter: str = "X", count: int = 3, *, with_seconds: bool = False) -> str:
    """Return an offset as the pattern of `count` times `letter` (`X` or `x`) writes it.

    `with_seconds`: also with three letters, as Spark's default pattern does.
    """
    if seconds == 0 and letter == "X":
        return "Z"
    hours, rest = divmod(abs(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    colon = ":" if count in (3, 5) else ""
    text = f"{'-' if seconds < 0 and (hours or minutes or rest) else '+'}{hours:02}"
    if count > 1 or minutes:
        text += f"{colon}{minutes:02}"
    if rest and (count > 3 or with_seconds):
        text += f"{colon}{rest:02}"
    return text


class Unfit(ValueError):
    """A moment has no value for a letter of its pattern, such as the hour of a date."""


#: Returns the text of one part of a moment.
MomentPart = Callable[[LocalMoment], str]


def compile_pattern(pattern: str) -> MomentPart:
    """Return the function that writes moments by this pattern.

    Raises `ValueError` if a letter is none of those that are known.
    """
    parts, end = _sequence(pattern, 0, 0)
    if end != len(pattern):
        raise ValueError("it has a ] without a [")
    return parts


_TOKEN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)


def _sequence(pattern: str, start: int, depth: int) -> tuple[MomentPart, int]:
    """Return the parts from `start` to the end of the pattern or of this optional section.

    Raises `ValueError` if a letter is unknown, or a section does not end.
    """
    parts: list[MomentPart] = []
    place = start
    while place < len(pattern):
        found = _TOKEN.match(pattern, place)
        assert found is not None
        token, place = found[0], found.end()
        if token == "[":
            inner, place = _sequence(pattern, place, depth + 1)
            if pattern[place - 1 : place] != "]":
                raise ValueError("it has a [ without a ]")
            parts.append(_optional(inner))
        elif token == "]":
            if not depth:
                raise ValueError("it has a ] without a [")
            return _joined(parts), place
        elif token[0] == "'":
            if len(token) < 2:
                raise ValueError("it has an odd number of quotes")
            parts.append(_literal("'" if token == "''" else token[1:-1].replace("''", "'")))
        elif token in "#{}":
            raise ValueError(f"it has the character {token}, which is reserved")
        else:
            parts.append(_letters(token) if found[1] else _literal(token))
    return _joined(parts), place if not depth else len(pattern) + 1


def _joined(parts: list[MomentPart]) -> MomentPart:
    return lambda moment: "".join([one(moment) for one in parts])


def _literal(text: str) -> MomentPart:
    return lambda _: text


def _optional(part: MomentPart) -> MomentPart:
    def write(moment: LocalMoment) -> str:
        try:
            return part(moment)
        except Unfit:
            return ""

    return write


def _year(year: int, width: int) -> str:
    sign = "-" if year < 0 else "+" if width > 3 and len(str(year)) > width else ""
    return f"{sign}{abs(year):0{width}}"


def _micros(moment: LocalMoment) -> int:
    if moment.micros is None:
        raise Unfit("a date has no time")
    return moment.micros


def _offset(moment: LocalMoment) -> int:
    if moment.offset is None:
        raise Unfit("it has no time zone")
    return moment.offset


def _hour(moment: LocalMoment) -> int:
    return _micros(moment) // 3_600_000_000


def _zone(moment: LocalMoment) -> str:
    _offset(moment)
    return moment.zone


def _long_offset(moment: LocalMoment) -> str:
    seconds = _offset(moment)
    return "GMT" + (offset_text(seconds, "x", 5) if seconds else "")


#: The numbers that are written with as many digits as the pattern has letters, up to this number.
_NUMBERS: dict[str, tuple[int, Callable[[LocalMoment], int]]] = {
    "M": (2, lambda moment: moment.day_in_cycle.month),
    "L": (2, lambda moment: moment.day_in_cycle.month),
    "d": (2, lambda moment: moment.day_in_cycle.day),
    "D": (3, lambda moment: moment.day_in_cycle.timetuple().tm_yday),
    "H": (2, _hour),
    "k": (2, lambda moment: _hour(moment) or 24),
    "K": (2, lambda moment: _hour(moment) % 12),
    "h": (2, lambda moment: _hour(moment) % 12 or 12),
    "m": (2, lambda moment: _micros(moment) // 60_000_000 % 60),
    "s": (2, lambda moment: _micros(moment) // 1_000_000 % 60),
}
LETTERS = "y M L d D E a H k K h m s S X x Z V"


def _letters(token: str) -> MomentPart:
    """Return the part for a letter that is repeated. Raises `ValueError` if it is unknown."""
    letter, count = token[0], len(token)
    if letter in _NUMBERS and count <= _NUMBERS[letter][0]:
        number = _NUMBERS[letter][1]
        return lambda moment: f"{number(moment):0{count}}"
    match letter:
        case "y" if count == 2:
            return lambda moment: f"{moment.year % 100:02}"
        case "y" if count <= 6:
            return lambda moment: _year(moment.year, count)
        case "M" | "L" if count <= 4:
            return lambda moment: _MONTHS[moment.day_in_cycle.month - 1][: 3 if count == 3 else None]
        case "E" if count <= 4:
            return lambda moment: _WEEKDAYS[moment.day_in_cycle.weekday()][: 3 if count < 4 else None]
        case "a" if count == 1:
            return lambda moment: "AM" if _hour(moment) < 12 else "PM"
        case "S" if count <= 9:
            return lambda moment: f"{_micros(moment) % 1_000_000:06}000"[:count]
        case "X" | "x" if count <= 5:
            return lambda moment: offset_text(_offset(moment), letter, count)
        case "Z" if count <= 3:
            return lambda moment: offset_text(_offset(moment), "x", 2)
        case "Z" if count == 4:
            return _long_offset
        case "Z" if count == 5:
            return lambda moment: offset_text(_offset(moment), "X", 5)
        case "V" if count == 2:
            return _zone
    raise ValueError(f"it has {token}, but the letters are {LETTERS}; for others, write to_json with that pattern")
