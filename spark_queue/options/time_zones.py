"""Time zones by the names that Spark takes, and their offsets at a local time."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

#: Abbreviations of Java that are no names of the time zone database, or another zone there.
_ABBREVIATIONS = {
    "EST": "-05:00", "HST": "-10:00", "MST": "-07:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip

_OFFSET = re.compile(r"([+-])([0-9]{1,2})|([+-])([0-9]{2})(:?)([0-9]{2})(?:\5([0-9]{2}))?")
_ONE_DIGIT = re.compile(r"([+-])([0-9])(?=:)")
_ONE_MINUTE = re.compile(r"([+-][0-9]{2}):([0-9])$")
_PREFIX = re.compile(r"(?:UTC|GMT|UT)(?=[+-])")
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_NOT_OF_JAVA = ("posix", "right", "Factory", "localtime")

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST, _LAST = date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY

#: The calendar, and the rules of all zones, repeat after this number of days: 400 years.
_CYCLE_DAYS = 146_097


class SessionZone(str):
    """The name of a session's time zone. That of a task replaces it, an option replaces both."""


class Zone:
    """A time zone. `name`: as the time zone database has it, else `None`."""

    def __init__(self, name: str | None, offset: int = 0) -> None:
        self.name = name
        self._offset = offset
        self._rules = None if name is None else ZoneInfo(name)

    @property
    def info(self) -> tzinfo:
        """The zone for datetimes of Python."""
        return self._rules or (timezone(timedelta(seconds=self._offset)) if self._offset else UTC)

    def offset(self, days: int, seconds: int) -> int:
        """Return the offset (s) at a local time: `days` since 1970, `seconds` of that day.

        A time that exists twice is the first one. One that does not exist has the offset of before.
        """
        if self._rules is None:
            return self._offset
        if days < _FIRST:
            days = _FIRST + (days - _FIRST) % _CYCLE_DAYS
        elif days > _LAST:
            days = _LAST - _CYCLE_DAYS + 1 + (days - _LAST - 1) % _CYCLE_DAYS
        moment = datetime.fromordinal(days + _EPOCH_DAY) + timedelta(seconds=seconds)
        found = self._rules.utcoffset(moment)
        assert found is not None
        return found.days * 86_400 + found.seconds


@lru_cache(maxsize=256)
def zone_of(name: str) -> Zone:
    """Return the zone of a name: `Europe/Paris`, `+01:00`, `UTC+1`, `Z`, `PST`.

    Raises `ValueError` if there is none.
    """
    text = _ONE_MINUTE.sub(r"\1:0\2", _ONE_DIGIT.sub(r"\g<1>0\2", name))
    text = _ABBREVIATIONS.get(text, text)
    if text in ("Z", "UTC", "GMT", "UT"):
        return Zone(None)
    if prefix := _PREFIX.match(text):
        text = text[prefix.end() :]
    if text[:1] in ("+", "-"):
        return Zone(None, _offset_of(text))
    if not _REGION.fullmatch(text) or text.startswith(_NOT_OF_JAVA):
        raise ValueError(name)
    try:
        return Zone(text)
    except (ZoneInfoNotFoundError, OSError):
        raise ValueError(name) from None


#: The zone of a time without one, if none is known.
UTC_ZONE = Zone(None)


def _offset_of(text: str) -> int:
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hours, minutes, seconds = (int(part or 0) for part in (found[2] or found[4], found[6], found[7]))
    total = 3600 * hours + 60 * minutes + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        raise ValueError(text)
    return -total if text[0] == "-" else total
