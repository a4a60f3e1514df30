"""Parse JSON payloads as struct, map or array columns.

The rules for each type are those of Spark's JSON reader in its permissive mode, row by row: see
`typed/values.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from spark_queue.options.time_zones import UTC_ZONE, Zone, zone_of
from spark_queue.spark.typed.columns import ColumnReader
from spark_queue.spark.typed.documents import (
    compact_text,
    load_compact,
    load_loose,
    loose_text,
    read_document,
    written_text,
)
from spark_queue.spark.typed.values import Parser, PartlyRead, Reading, root_parser

#: Rows that are read one by one if Arrow refuses them, and how many times in a row it may do so
#: until it is not asked again.
_SMALLEST, _MOST_FAILURES = 64, 3


def parse_json_column(
    texts: Sequence[str] | pa.Array, kind: DataType, arrow: pa.DataType, zone: str | None = None
) -> tuple[pa.Array, pa.Array]:
    """Parse JSON texts as `kind`; return the values, and the texts that do not fit (else NULL).

    A text fits partly if a field in it is of another type: that field is NULL. `zone`: the time zone
    of timestamps that name none, UTC by default. Raises `SchemaError` if JSON cannot be parsed as a
    type in `kind`.
    """
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return _TypedReader(kind, arrow, UTC_ZONE if zone is None else zone_of(zone)).read(column)


def json_parser(kind: DataType, path: str) -> Parser:
    """Return the parser of a type, of values that `orjson` has read.

    Raises `SchemaError`, which names the `path`, if JSON cannot be parsed as that type.
    """
    return root_parser(kind, path, Reading(compact_text, UTC_ZONE))


class _TypedReader:
    """Reads texts as a type: many at once if they are as usual, else one by one."""

    def __init__(self, kind: DataType, arrow: pa.DataType, zone: Zone) -> None:
        self._arrow = arrow
        self._columns = ColumnReader.create(kind, arrow, zone)
        self._compact, self._loose, self._exact = (
            root_parser(kind, "payload", Reading(text_of, zone))
            for text_of in (compact_text, loose_text, written_text)
        )

    def read(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the values of texts, and the texts that do not fit."""
        parts: list[pa.Array] = []
        corrupt: list[str | None] = []
        at, size, failures = 0, len(texts), 0
        while at < len(texts):
            some = texts.slice(at, size)
            part = None
            if self._columns is not None and failures < _MOST_FAILURES:
                part = self._columns.read(some)
                if part is None and len(some) > _SMALLEST:
                    size = max(len(some) // 8, _SMALLEST)
                    continue
                failures += part is None
            else:
                some = texts.slice(at)
            if part is None:
                values, bad = self._read_each(some.to_pylist())
                part = pa.array(values, self._arrow)
                corrupt += bad
            else:
                corrupt += [None] * len(some)
                size, failures = 2 * size, 0
            parts.append(part)
            at += len(some)
        return pa.concat_arrays(parts) if parts else pa.array([], self._arrow), pa.array(corrupt, pa.string())

    def _read_each(self, texts: list[str]) -> tuple[list[Any], list[str | None]]:
        values: list[Any] = []
        corrupt: list[str | None] = []
        for text in texts:
            try:
                value, fits = self._read_one(text), True
            except PartlyRead as part:
                value, fits = part.value, False
            except (ValueError, RecursionError):
                value, fits = None, False
            values.append(value)
            corrupt.append(None if fits else text)
        return values, corrupt

    def _read_one(self, text: str) -> Any:
        """Return the value of a text. Raises `PartlyRead` or `ValueError` if it does not fit."""
        try:
            value = load_compact(text)
        except ValueError:
            return self._read_written(text)
        return None if value is None else self._compact(value)

    def _read_written(self, text: str) -> Any:
        try:
            loose = load_loose(text)
        except (ValueError, RecursionError):
            pass  # Spark takes more than JSON
        else:
            with suppress(KeyError):
                return None if loose is None else self._loose(loose)
        try:
            value = read_document(text)
        except EOFError:
            return None
        return None if value is None else self._exact(value)
