"""Parse JSON payloads as struct, map or array columns.

The rules for each type are those of Spark's JSON reader in its permissive mode, row by row: see
`typed/values.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from spark_queue.options.time_zones import UTC_ZONE, Zone, zone_of
from spark_queue.spark.typed.columns import ColumnReader
from spark_queue.spark.typed.documents import (
    compact_text,
    load_all_compact,
    load_loose,
    load_lossless,
    loose_text,
    python_text,
    read_document,
    spaced_text,
    written_text,
)
from spark_queue.spark.typed.values import Parser, PartlyRead, TypeRules, root_parser

#: Rows that are read at once, or one by one if one of them is unusual.
_AT_ONCE = 1024

#: Failures in a row after which it is tried no less often: once in 2^7 times.
_MOST_FAILURES = 7


def parse_json_column(
    texts: Sequence[str] | pa.Array, kind: DataType, arrow: pa.DataType, zone: str | None = None
) -> tuple[pa.Array, pa.Array]:
    """Parse JSON texts as `kind`; return the values, and the texts that do not fit (else NULL).

    A text fits partly if a field in it is of another type: that field is NULL. `zone`: the time
    zone of timestamps that name none, UTC by default. Raises `SchemaError` if JSON cannot be parsed
    as a type in `kind`.
    """
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return _reader(kind, arrow, zone).read(column)


@lru_cache(maxsize=16)
def _reader(kind: DataType, arrow: pa.DataType, zone: str | None) -> _TypedReader:
    return _TypedReader(kind, arrow, UTC_ZONE if zone is None else zone_of(zone))


def json_parser(kind: DataType, path: str) -> Parser:
    """Return the parser of a type, of values that `orjson` has read.

    Raises `SchemaError`, which names the `path`, if JSON cannot be parsed as that type.
    """
    return root_parser(kind, path, TypeRules(compact_text, UTC_ZONE))


class _TypedReader:
    """Reads texts as a type: many at once if they are as usual, else one by one."""

    def __init__(self, kind: DataType, arrow: pa.DataType, zone: Zone) -> None:
        self._arrow = arrow
        self._columns = ColumnReader.create(kind, arrow, zone)
        self._failures = self._skipped = 0

        def parser(text_of: Callable[[Any], str]) -> Parser:
            return root_parser(kind, "payload", TypeRules(text_of, zone))

        self._compact, self._spaced, self._python = map(parser, (compact_text, spaced_text, python_text))
        self._loose, self._exact = map(parser, (loose_text, written_text))

    def read(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the values of texts, and the texts that do not fit."""
        parts: list[pa.Array] = []
        corrupt: list[str | None] = []
        for start in range(0, len(texts), _AT_ONCE):
            some = texts.slice(start, _AT_ONCE)
            part = self._read_at_once(some)
            bad: list[str | None] = [None] * len(some)
            if part is None:
                values, bad = self._read_each(some.cast(pa.binary()).to_pylist())
                part = pa.array(values, self._arrow)
            parts.append(part)
            corrupt += bad
        return pa.concat_arrays(parts) if parts else pa.array([], self._arrow), pa.array(corrupt, pa.string())

    def _read_at_once(self, texts: pa.Array) -> pa.Array | None:
        """Return the values of texts, or `None` if they need to be read one by one.

        After failures it tries less often: then most texts are unusual.
        """
        if self._columns is None:
            return None
        if self._skipped < 2**self._failures - 1:
            self._skipped += 1
            return None
        part = self._columns.read(texts)
        self._skipped, self._failures = 0, 0 if part is not None else min(self._failures + 1, _MOST_FAILURES)
        return part

    def _read_each(self, texts: list[bytes]) -> tuple[list[Any], list[str | None]]:
        values: list[Any] = []
        corrupt: list[str | None] = []
        together = load_all_compact(texts)
        for number, text in enumerate(texts):
            try:
                if together is None:
                    values.append(self._read_one(text))
                else:
                    value = together[number]
                    values.append(None if value is None else self._compact(value))
            except PartlyRead as part:
                values.append(part.value)
            except (ValueError, RecursionError):
                values.append(None)
            else:
                corrupt.append(None)
                continue
            corrupt.append(text.decode())
        return values, corrupt

    def _read_one(self, raw: bytes) -> Any:
        """Return the value of a text. Raises `PartlyRead` or `ValueError` if it does not fit."""
        try:
            value, compact = load_lossless(raw)
        except ValueError:
            return self._read_written(raw.decode())
        if value is None:
            return None
        if compact:
            return self._compact(value)
        with suppress(KeyError):  # the spaces in a part count
            return self._spaced(value)
        if python_text(value).encode() == raw:
            return self._python(value)
        return self._exact(read_document(raw.decode()))

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
