"""Read JSON documents as columns: those that `orjson` reads without a loss, else one by one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, StructType

from spark_queue.options.time_zones import Zone
from spark_queue.spark.typed.columns import Field, Rows
from spark_queue.spark.typed.documents import compact_text, load_all, read_document, written_text
from spark_queue.spark.typed.values import PartlyRead, TypeRules, root_parser
from spark_queue.spark.typed.written import part_of, replace_all


class DocumentReader:
    """Reads documents as a type."""

    def __init__(self, kind: DataType, arrow: pa.DataType, zone: Zone) -> None:
        compact = TypeRules(compact_text, zone)
        self._root = Field.create(kind, "payload", compact, arrow, root_parser(kind, "payload", compact))
        self._parse_odd = root_parser(kind, "payload", TypeRules(written_text, zone))
        self._arrow = arrow
        self._part = part_of(kind)
        self._is_list_of_structs = isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType)

    def read(self, texts: pa.Array) -> tuple[pa.Array, Rows]:
        """Return the values of texts, and the rows that do not fit, or only in part."""
        with _paused_collector():
            return self._read(texts.cast(pa.binary()).to_pylist())

    def _read(self, documents: list[bytes]) -> tuple[pa.Array, Rows]:
        odd: list[int] = []
        values = self._load(documents, 0, odd)
        if values is None:
            values = []
            for row, one in enumerate(documents):
                found = self._load([one], row, odd)
                values += [None] if found is None else found
                if found is None:
                    odd.append(row)
        array, bad = self._root.make(values)
        if odd:
            others = []
            for row in odd:
                value, fits = self._read_odd(documents[row].decode())
                others.append(value)
                if not fits:
                    bad.add(row)
            places = list(range(len(values)))
            for number, row in enumerate(odd):
                places[row] = len(values) + number
            array = pa.concat_arrays([array, pa.array(others, self._arrow)]).take(pa.array(places))
        return array, bad

    def _load(self, documents: list[bytes], first: int, odd: list[int]) -> list[Any] | None:
        """Return the values of documents, or `None` if one of them needs to be read by itself.

        Adds to `odd` the rows of which only the texts of parts are unknown. `first`: the first row.
        """
        loaded = load_all(documents)
        if loaded is None:
            return None
        values = loaded.values
        if self._is_list_of_structs:  # Spark takes one object as an array with one item
            for row, value in enumerate(values):
                if type(value) is dict:
                    values[row], documents[row] = [value], b"[" + documents[row] + b"]"
        if self._part is not None and not loaded.is_same:
            for row in replace_all(self._part, loaded, documents):
                values[row] = None
                odd.append(first + row)
        return values

    def _read_odd(self, text: str) -> tuple[Any, bool]:
        """Return the value of a text, and whether it fits."""
        try:
            value = read_document(text)
            return None if value is None else self._parse_odd(value), True
        except EOFError:  # it is blank
            return None, True
        except PartlyRead as part:
            return part.value, False
        except (ValueError, RecursionError):
            return None, False


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Pause Python's collector of cycles.

    It would look at all values again and again while they are made, and JSON has no cycles.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()
