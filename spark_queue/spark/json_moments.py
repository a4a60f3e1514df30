"""Dates and timestamps as texts, as Spark's `to_json` writes them.

Spark has years from -290308 to 294247, Python and Arrow those from 1 to 9999. So they are numbers
here: days or microseconds since 1970. Whole columns are written with numpy and Arrow, except for
the moments that these do not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.spark.moment_patterns import DAY_MICROS, MomentPart, date_text, local_moment, offset_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = 3_600_000_000

#: The days that Arrow and Python hold in every zone.
_FIRST, _LAST = date(1, 1, 3).toordinal() - _EPOCH.toordinal(), date(9999, 12, 29).toordinal() - _EPOCH.toordinal()

#: The days that are 400 years, the calendar's cycle.
_CYCLE_DAYS = 146_097

#: Numbers of one column.
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MomentStyle:
    """How dates and timestamps are written: the zone, and patterns in place of Spark's own."""

    zone: tzinfo = UTC
    timestamp: MomentPart | None = None
    timestamp_ntz: MomentPart | None = None
    date: MomentPart | None = None

    @property
    def zone_name(self) -> str:
        """The name of the zone, as the pattern `VV` writes it."""
        return str(getattr(self.zone, "key", "")) or offset_text(offset_at(0, self.zone), "X", 5)


def date_texts(column: pa.Array, style: MomentStyle) -> pa.Array:
    """Return a column of days as texts."""
    write = style.date or date_text
    days, valid = _numbers(column)
    near = (days >= _FIRST) & (days <= _LAST)
    if style.date is not None:
        near &= False
    texts = pa.array(days.clip(_FIRST, _LAST).astype(np.int32)).cast(pa.date32()).cast(pa.string())
    return _replaced(texts, valid, near, lambda row: write(local_moment(int(days[row]))))


def timestamp_texts(column: pa.Array, style: MomentStyle, *, local: bool) -> pa.Array:
    """Return a column of microseconds as texts. `local`: without a time zone.

    Spark's own pattern has three digits of a second.
    """
    micros, valid = _numbers(column)
    pattern = style.timestamp_ntz if local else style.timestamp

    def write(row: int) -> str:
        moment = int(micros[row])
        offset = None if local else offset_at(moment, style.zone)
        days, rest = divmod(moment + 1_000_000 * (offset or 0), DAY_MICROS)
        if pattern is not None:
            return pattern(local_moment(days, rest, offset, style.zone_name))
        return f"{date_text(local_moment(days))}T{_time_text(rest)}{'' if offset is None else _offset(offset)}"

    if pattern is not None:
        return _replaced(pa.nulls(len(column), pa.string()), valid, np.zeros(len(column), bool), write)
    near = (micros >= _FIRST * DAY_MICROS) & (micros <= _LAST * DAY_MICROS)
    nearest = micros.clip(_FIRST * DAY_MICROS, _LAST * DAY_MICROS)
    offsets = np.zeros(len(nearest), np.int64) if local else offsets_at(nearest, style.zone)
    millis = (nearest + 1_000_000 * offsets) // 1000  # rounds down, also before 1970
    texts = pc.binary_replace_slice(pa.array(millis).cast(pa.timestamp("ms")).cast(pa.string()), 10, 11, "T")
    if not local:
        unique, places = np.unique(offsets, return_inverse=True)
        suffixes = pa.array([_offset(int(one)) for one in unique], pa.string()).take(pa.array(places))
        texts = pc.binary_join_element_wise(texts, suffixes, "")
    return _replaced(texts, valid, near, write)


def offset_at(micros: int, zone: tzinfo) -> int:
    """Return the offset of a zone (s) at this moment; beyond Python's years, by the same rules."""
    days, rest = divmod(micros, DAY_MICROS)
    if days > _LAST:  # the rules of the zone for all later years
        days -= -(-(days - _LAST) // _CYCLE_DAYS) * _CYCLE_DAYS
    moment = _EPOCH + timedelta(max(days, _FIRST), microseconds=rest)
    return int((moment.astimezone(zone).utcoffset() or timedelta()).total_seconds())


def offsets_at(micros: Int64s, zone: tzinfo) -> Int64s:
    """Return the offset of a zone (s) at each of these moments.

    Looks it up once an hour of the year, where it does not change within that hour.
    """
    hours, places = np.unique(micros // _HOUR, return_inverse=True)
    starts = np.array([offset_at(int(hour) * _HOUR, zone) for hour in hours], np.int64)
    ends = np.array([offset_at(int(hour + 1) * _HOUR - 1, zone) for hour in hours], np.int64)
    offsets: Int64s = starts[places]
    for row in np.flatnonzero((starts != ends)[places]):
        offsets[row] = offset_at(int(micros[row]), zone)
    return offsets


def _numbers(column: pa.Array) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the values of a column, 0 in place of NULL, and which are not NULL."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64), valid


def _replaced(
    texts: pa.Array, valid: npt.NDArray[np.bool_], near: npt.NDArray[np.bool_], write: Callable[[int], str]
) -> pa.Array:
    """Return the texts, NULL where nothing is valid. Those not `near` are written one by one."""
    far = np.flatnonzero(valid & ~near)
    if len(far):
        mask = pa.array(valid & ~near)
        texts = pc.replace_with_mask(texts, mask, pa.array([write(int(row)) for row in far], pa.string()))
    if not valid.all():
        texts = pc.if_else(pa.array(valid), texts, pa.scalar(None, pa.string()))
    return texts


def _time_text(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 1000:03}"


def _offset(seconds: int) -> str:
    return offset_text(seconds, with_seconds=True)
