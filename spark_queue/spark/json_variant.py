"""Values of VARIANT as JSON, as Spark's `to_json` writes them.

Spark's own function for Python writes other texts than `to_json` does: of floats, dates, zones.
The format: github.com/apache/parquet-format, VariantEncoding.md.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise

import numpy as np

from spark_queue.spark.json_moments import MomentStyle, offset_at
from spark_queue.spark.json_texts import escape, float_text
from spark_queue.spark.moment_patterns import DAY_MICROS, date_text, local_moment, offset_text

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_VERSION = 1
_BINARY, _LONG_TEXT = 15, 16


def variant_text(value: bytes, metadata: bytes, style: MomentStyle) -> bytes:
    """Return a value as JSON. Raises `ValueError` if it is not in the format of VARIANT."""
    if not value or not metadata or metadata[0] & 0x0F != _VERSION:
        raise ValueError("it is no VARIANT")
    try:
        return _Variant(value, metadata, style).text(0)
    except IndexError as error:
        raise ValueError(f"its VARIANT is cut off ({error})") from None


class _Variant:
    """One value, with the names of its fields. Raises `IndexError` if they are cut off."""

    def __init__(self, value: bytes, metadata: bytes, style: MomentStyle) -> None:
        self._value, self._style = value, style
        self._names = _names(metadata)

    def text(self, place: int) -> bytes:
        """Return the value that begins at `place`.

        Raises `IndexError` if it is cut off, `ValueError` if its type has no JSON.
        """
        header = self._value[place]
        kind, info = header & 3, header >> 2
        if kind == _SHORT_TEXT:
            return b'"' + escape(self._bytes(place + 1, info)) + b'"'
        if kind == _PRIMITIVE:
            return self._primitive(place + 1, info)
        if kind == _ARRAY:
            return b"[" + b",".join([self.text(one) for one in self._elements(place + 1, info, 0)[1]]) + b"]"
        names, places = self._elements(place + 1, info, (info >> 2 & 3) + 1)
        fields = [self._names[name] + self.text(one) for name, one in zip(names, places, strict=True)]
        return b"{" + b",".join(fields) + b"}"

    def _elements(self, place: int, info: int, name_size: int) -> tuple[list[int], list[int]]:
        """Return the numbers of an object's names, and where its values, or an array's, begin.

        Raises `IndexError` if they are cut off.
        """
        large = info >> (4 if name_size else 2) & 1
        count, place = self._unsigned(place, 4 if large else 1), place + (4 if large else 1)
        size = (info & 3) + 1
        offsets = place + count * name_size
        data = offsets + (count + 1) * size
        names = [self._unsigned(place + n * name_size, name_size) for n in range(count if name_size else 0)]
        return names, [data + self._unsigned(offsets + n * size, size) for n in range(count)]

    def _primitive(self, place: int, info: int) -> bytes:
        if info in (_BINARY, _LONG_TEXT):
            content = self._bytes(place + 4, self._unsigned(place, 4))
            return b'"' + (escape(content) if info == _LONG_TEXT else base64.b64encode(content)) + b'"'
        known = _PRIMITIVES.get(info)
        if known is None:
            raise ValueError(f"its VARIANT has a value of type {info}, which to_json does not write")
        size, write = known
        return write(self._bytes(place, size), self._style).encode()

    def _bytes(self, place: int, size: int) -> bytes:
        found = self._value[place : place + size]
        if len(found) < size:
            raise IndexError(f"{size} bytes at {place}")
        return found

    def _unsigned(self, place: int, size: int) -> int:
        return int.from_bytes(self._bytes(place, size), "little")


def _names(metadata: bytes) -> list[bytes]:
    """Return the names of fields, each as the begin of a member of a JSON object.

    Raises `IndexError` if they are cut off.
    """
    size = (metadata[0] >> 6) + 1

    def number(index: int) -> int:
        return int.from_bytes(metadata[1 + index * size : 1 + (index + 1) * size], "little")

    count = number(0)
    start = 1 + (count + 2) * size
    if len(metadata) < start:
        raise IndexError(f"{count} names")
    places = [start + number(1 + index) for index in range(count + 1)]
    return [b'"' + escape(metadata[first:last]) + b'":' for first, last in pairwise(places)]


def _signed(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _decimal(content: bytes, _: MomentStyle) -> str:
    digits = _signed(content[1:])
    number = Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -content[0]))  # of any precision
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _float(content: bytes, _: MomentStyle) -> str:
    number = np.frombuffer(content, "<f4" if len(content) == 4 else "<f8")[0]
    text = float_text(number)
    return text if np.isfinite(number) else f'"{text}"'


def _date(content: bytes, _: MomentStyle) -> str:
    return f'"{date_text(local_moment(_signed(content)))}"'


def _local(content: bytes, _: MomentStyle, suffix: str = "", offset: int = 0) -> str:
    days, rest = divmod(_signed(content) + 1_000_000 * offset, DAY_MICROS)
    seconds, micros = divmod(rest, 1_000_000)
    fraction = f".{micros:06}".rstrip("0").rstrip(".")
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
    return f'"{date_text(local_moment(days))} {time}{suffix}"'


def _timestamp(content: bytes, style: MomentStyle) -> str:
    offset = offset_at(_signed(content), style.zone)
    return _local(content, style, offset_text(offset, "x"), offset)


def _integer(content: bytes, _: MomentStyle) -> str:
    return str(_signed(content))


def _uuid(content: bytes, _: MomentStyle) -> str:
    return f'"{uuid.UUID(bytes=content)}"'


#: By type: the number of bytes, and the function that writes them.
_PRIMITIVES: dict[int, tuple[int, Callable[[bytes, MomentStyle], str]]] = {
    0: (0, lambda *_: "null"),
    1: (0, lambda *_: "true"),
    2: (0, lambda *_: "false"),
    3: (1, _integer),
    4: (2, _integer),
    5: (4, _integer),
    6: (8, _integer),
    7: (8, _float),
    8: (5, _decimal),
    9: (9, _decimal),
    10: (17, _decimal),
    11: (4, _date),
    12: (8, _timestamp),
    13: (8, _local),
    14: (4, _float),
    20: (16, _uuid),
}
