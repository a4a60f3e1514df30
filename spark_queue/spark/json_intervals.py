"""Intervals and times of day as texts, as Spark's `to_json` writes them."""

from __future__ import annotations

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


def time_text(nanos: int) -> str:
    """Return a time of day, with as many digits of a second as it needs."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    fraction = f".{rest:09}".rstrip("0").rstrip(".")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
