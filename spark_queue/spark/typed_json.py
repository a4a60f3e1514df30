"""Parse JSON payloads as struct, map or array columns.

The rules for each type are those of Spark's JSON reader in its permissive mode, row by row: see
`typed/values.py`. Rows that are as usual are read many at once: by Arrow's reader of JSON if it
knows the types, else column by column from what `orjson` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType

from spark_queue.options.time_zones import UTC_ZONE, Zone, zone_of
from spark_queue.spark.typed.arrow_reader import ArrowReader
from spark_queue.spark.typed.columns import Rows
from spark_queue.spark.typed.document_reader import DocumentReader
from spark_queue.spark.typed.documents import compact_text
from spark_queue.spark.typed.values import Parser, TypeRules, root_parser

#: Rows that are read at once.
_AT_ONCE = 1024

#: Failures of Arrow's reader in a row after which it is tried no less often: once in 2^7 times.
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
    """Reads texts as a type, many at once."""

    def __init__(self, kind: DataType, arrow: pa.DataType, zone: Zone) -> None:
        self._arrow = arrow
        self._by_arrow = ArrowReader.create(kind, arrow, zone)
        self._failures = self._skipped = 0
        self._documents = DocumentReader(kind, arrow, zone)

    def read(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the values of texts, and the texts that do not fit."""
        parts = [pa.array([], self._arrow)]
        misfits: Rows = set()
        for start in range(0, len(texts), _AT_ONCE):
            some = texts.slice(start, _AT_ONCE)
            part = self._read_by_arrow(some)
            if part is None:
                part, bad = self._documents.read(some)
                misfits.update(start + row for row in bad)
            parts.append(part)
        corrupt = pa.nulls(len(texts), pa.string())
        if misfits:
            corrupt = pc.if_else(pa.array([row in misfits for row in range(len(texts))]), texts, corrupt)
        return pa.concat_arrays(parts), corrupt

    def _read_by_arrow(self, texts: pa.Array) -> pa.Array | None:
        """Return the values of texts, or `None` if one of them is not as Arrow takes it.

        After failures it tries less often: then most texts are unusual.
        """
        if self._by_arrow is None:
            return None
        if self._skipped < 2**self._failures - 1:
            self._skipped += 1
            return None
        part = self._by_arrow.read(texts)
        self._skipped, self._failures = 0, 0 if part is not None else min(self._failures + 1, _MOST_FAILURES)
        return part
