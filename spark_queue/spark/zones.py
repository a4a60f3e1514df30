"""The time zone in which JSON has its times: Java's names, and the order in which it is chosen."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from spark_queue.errors import OptionError

#: The local property of a task in which Spark passes the zone of the session, if it was set.
ZONE_PROPERTY = "spark.sql.session.timeZone"

#: Names that Java knows and that are no zones of their own (`ZoneId.SHORT_IDS`).
_SHORT_NAMES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2})(?::?(\d{2}))?)?")
_MAX_OFFSET = timedelta(hours=18)


def zone_of(option: str | None, session: str | None, jvm: str | None) -> tzinfo:
    """Return the zone of the option `timeZone`, else of the session, else of the JVM, else UTC.

    Raises `OptionError` if that is no zone.
    """
    name = option or session or jvm or "UTC"
    try:
        return parse_zone(name)
    except ValueError:
        raise OptionError(
            f"option 'timeZone' is {name!r} but must be a time zone, such as Europe/Berlin, UTC or +02:00; the zone "
            "data of Python may also be missing: install it with pip install tzdata",
            option="timeZone",
        ) from None


def parse_zone(name: str) -> tzinfo:
    """Return the zone with a name of Java: a region, an offset, or one of its short names.

    Raises `ValueError` if there is none.
    """
    name = _SHORT_NAMES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        sign, *parts = found.groups()
        hours, minutes, seconds = (int(one or 0) for one in parts)
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if minutes > 59 or seconds > 59 or offset > _MAX_OFFSET:
            raise ValueError(name)
        return timezone(-offset if sign == "-" else offset) if offset else UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: the name of a folder
        raise ValueError(name) from None
