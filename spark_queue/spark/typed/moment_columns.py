"""Dates and timestamps by whole columns: from texts, numbers, and dates of MongoDB."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.options.time_zones import Zone
from spark_queue.spark.typed import moments

_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_LOCAL = _DAY + r"[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_ZONED = _LOCAL + r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])$"
#: Years whose rules of time zones Arrow and Python read the same.
_SAFE_LOCAL = _LOCAL.replace("[0-9]{4}", "(?:19[7-9][0-9]|20[0-2][0-9])", 1) + "$"

_MICROS = pa.timestamp("us")
_UTC = pa.timestamp("us", "UTC")
_NONE = type(None)
_TEXTS: frozenset[type] = frozenset((str, _NONE))
_DATES: frozenset[type] = frozenset((dict, _NONE))
_SECONDS: frozenset[type] = frozenset((int, _NONE))


@dataclass(frozen=True)
class DayColumn:
    """Makes DATE."""

    arrow: pa.DataType
    types: ClassVar[frozenset[type]] = _TEXTS | _DATES

    def make(self, values: list[Any]) -> tuple[pa.Array, set[int]]:
        """Return the array. Raises `ValueError` if a value is of another type."""
        kinds = set(map(type, values))
        if kinds <= _TEXTS:
            return self.read(pa.array(values, pa.string())), set()
        return _dates(values, kinds).cast(self.arrow), set()

    def read(self, texts: pa.Array) -> pa.Array:
        """Return texts as dates. Raises `ValueError` if one of them is no date."""
        return _moments(texts, self.arrow, _DAY + "$", moments.days_of, lambda usual: usual.cast(pa.date32()))


@dataclass(frozen=True)
class LocalColumn:
    """Makes TIMESTAMP_NTZ."""

    arrow: pa.DataType
    types: ClassVar[frozenset[type]] = _TEXTS

    def make(self, values: list[Any]) -> tuple[pa.Array, set[int]]:
        """Return the array. Raises `ValueError` if a value is of another type."""
        if not self.types.issuperset(map(type, values)):
            raise ValueError
        return self.read(pa.array(values, pa.string())), set()

    def read(self, texts: pa.Array) -> pa.Array:
        """Return texts as timestamps. Raises `ValueError` if one of them is none."""
        return _moments(texts, self.arrow, _LOCAL + "$", moments.local_micros_of, lambda usual: usual.cast(_MICROS))


@dataclass(frozen=True)
class ZonedColumn:
    """Makes TIMESTAMP. `zone`: that of texts that name none."""

    arrow: pa.DataType
    zone: Zone
    types: ClassVar[frozenset[type]] = _TEXTS | _DATES | _SECONDS

    def make(self, values: list[Any]) -> tuple[pa.Array, set[int]]:
        """Return the array. Raises `ValueError` if a value is of another type."""
        kinds = set(map(type, values))
        if kinds <= _TEXTS:
            return self.read(pa.array(values, pa.string())), set()
        if kinds <= _SECONDS:
            return pc.multiply_checked(pa.array(values, pa.int64()), 1_000_000).cast(self.arrow), set()
        return _dates(values, kinds).cast(self.arrow), set()

    def read(self, texts: pa.Array) -> pa.Array:
        """Return texts as timestamps. Raises `ValueError` if one of them is none."""

        def micros_of(text: str) -> int:
            return moments.micros_of(text, self.zone)

        if _all_match(texts, _ZONED):
            return _moments(texts, self.arrow, _ZONED, micros_of, lambda usual: usual.cast(_UTC))
        return _moments(texts, self.arrow, _SAFE_LOCAL, micros_of, self._in_zone)

    def _in_zone(self, texts: pa.Array) -> pa.Array:
        local = texts.cast(_MICROS)
        if self.zone.name is None:
            micros = pc.subtract(local.cast(pa.int64()), 1_000_000 * self.zone.offset(0, 0))
            return micros.cast(_UTC)
        zoned = pc.assume_timezone(local, self.zone.name, ambiguous="earliest", nonexistent="raise")
        return zoned.cast(_UTC)


def _dates(values: list[Any], kinds: set[type]) -> pa.Array:
    """Return dates of MongoDB as timestamps. Raises `ValueError` if a value is none of them."""
    if not kinds <= _DATES or any(value is not None and [*value] != ["$date"] for value in values):
        raise ValueError
    texts = pa.array([None if value is None else value["$date"] for value in values], pa.string())
    if not _all_match(texts, _ZONED):
        raise ValueError
    return texts.cast(_UTC)


def _moments(
    texts: pa.Array,
    arrow: pa.DataType,
    usual: str,
    parse: Callable[[str], int],
    parse_all: Callable[[pa.Array], pa.Array],
) -> pa.Array:
    """Return texts as moments: all at once if they have the `usual` form, else one by one."""
    if _all_match(texts, usual):
        try:
            return parse_all(texts).cast(arrow)
        except pa.ArrowException:
            pass  # a time that does not exist there, for example
    return pa.array([None if text is None else parse(text) for text in texts.to_pylist()], arrow)


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False
