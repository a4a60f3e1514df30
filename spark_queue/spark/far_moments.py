"""Dates and timestamps that Python cannot hold, as Spark writes them, such as `+12026-01-01`.

Spark has years from -290308 to 294247, Python those from 1 to 9999. So such values come as numbers:
days or microseconds since 1970.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

_EPOCH = date(1970, 1, 1)
_FIRST, _LAST = (one.toordinal() - _EPOCH.toordinal() for one in (date.min, date.max))

#: The calendar repeats after this number of years, which are this number of days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_DAY = 86_400_000_000  # in microseconds


def date_of(days: int) -> date | str:
    """Return the date, as text if Python cannot hold it."""
    return _EPOCH + timedelta(days) if _FIRST <= days <= _LAST else _far_date(days)


def moment_of(micros: int, *, local: bool) -> datetime | str:
    """Return the timestamp (UTC), as text if Python cannot hold it.

    `local`: without a time zone.
    """
    days, rest = divmod(micros, _DAY)
    time = datetime(1970, 1, 1, tzinfo=None if local else UTC) + timedelta(microseconds=rest)
    if _FIRST <= days <= _LAST:
        return time + timedelta(days)
    return f"{_far_date(days)}T{time.time().isoformat()}{'' if local else 'Z'}"


def _far_date(days: int) -> str:
    cycles, rest = divmod(days, _CYCLE_DAYS)
    near = _EPOCH + timedelta(rest)
    year = near.year + cycles * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{near:%m-%d}"
