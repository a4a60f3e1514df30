"""Intervals and times of day as texts, as Spark's `to_json` writes them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import DayTimeIntervalType, YearMonthIntervalType

_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_MICROS = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


def year_month_text(months: int, kind: YearMonthIntervalType) -> str:
    """Return an interval of months as a literal of SQL."""
    years, rest = divmod(abs(months), 12)
    sign = "-" if months < 0 else ""
    if kind.startField == kind.endField:
        return f"INTERVAL '{sign}{years}' YEAR" if kind.startField == kind.YEAR else f"INTERVAL '{months}' MONTH"
    return f"INTERVAL '{sign}{years}-{rest}' YEAR TO MONTH"


def day_time_text(micros: int, kind: DayTimeIntervalType) -> str:
    """Return an interval of microseconds as a literal of SQL."""
    first, last = kind.startField, kind.endField
    text, rest = "-" if micros < 0 else "", abs(micros)
    for field in range(first, last + 1):
        number, left = divmod(rest, _MICROS[field])
        separator = "" if field == first else " " if field == 1 else ":"
        width = 1 if field == 0 else 2
        text += f"{separator}{number:0{width}}"
        rest = left
    if last == len(_UNITS) - 1 and rest:
        text += f".{rest:06}".rstrip("0")
    units = _UNITS[first] if first == last else f"{_UNITS[first]} TO {_UNITS[last]}"
    return f"INTERVAL '{text}' {units}"


def calendar_text(interval: pa.MonthDayNano) -> str:
    """Return an interval of months, days and microseconds, as Spark shows it."""
    months, micros = interval.months, _quotient(interval.nanoseconds, 1000)
    seconds = _remainder(micros, _MICROS[2])
    parts = [
        (_quotient(months, 12), "years"),
        (_remainder(months, 12), "months"),
        (interval.days, "days"),
        (_quotient(micros, _MICROS[1]), "hours"),
        (_quotient(_remainder(micros, _MICROS[1]), _MICROS[2]), "minutes"),
    ]
    texts = [f"{number} {unit}" for number, unit in parts if number]
    if seconds:
        fraction = f".{abs(seconds) % _MICROS[3]:06}".rstrip("0").rstrip(".")
        texts.append(f"{'-' if seconds < 0 else ''}{abs(seconds) // _MICROS[3]}{fraction} seconds")
    return " ".join(texts) or "0 seconds"


def time_text(nanos: int) -> str:
    """Return a time of day, with as many digits of a second as it needs."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    fraction = f".{rest:09}".rstrip("0").rstrip(".")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _quotient(number: int, divisor: int) -> int:
    """Return the quotient that Java has: rounded toward 0."""
    return -(-number // divisor) if number < 0 else number // divisor


def _remainder(number: int, divisor: int) -> int:
    return number - divisor * _quotient(number, divisor)
