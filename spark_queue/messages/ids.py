"""The ids of messages: they have the form of an ObjectId, and sort in the order of creation."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from hashlib import sha256

import orjson
import pyarrow as pa

from spark_queue.fork_locks import add_lock

MAX_ID_BYTES = 200  #: bytes of UTF-8
PLAIN_ID = re.compile(f"[-_.:/A-Za-z0-9]{{1,{MAX_ID_BYTES}}}")  #: the form of most ids

#: The form of generated ids: see `_IdGenerator`.
OBJECT_ID = re.compile("[0-9a-f]{24}")


#: Up to this number of rows, a Python loop is faster than Arrow kernels: to start a kernel takes
#: some tenths of a ms.
SMALL_BATCH = 16


#: The beginning of an id that stands for an `_id` of MongoDB of another type than ObjectId.
FOREIGN_ID_PREFIX = '{"_id":'

#: The names that begin with $ of an object that is a type of Extended JSON.
_EXTENDED_JSON = {
    frozenset(names.split())
    for names in (
        "$oid", "$symbol", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$binary", "$uuid",
        "$code", "$code $scope", "$timestamp", "$regularExpression", "$dbPointer", "$date", "$ref $id",
        "$ref $id $db", "$minKey", "$maxKey", "$undefined",
    )
}  # fmt: skip


def has_operator(id: bytes) -> bool:
    """Return whether an id stands for an `_id` that no document of MongoDB can have.

    It has a name that begins with $, and is no type of Extended JSON: `{"_id":{"$gt":""}}`.
    """
    if len(id) > MAX_ID_BYTES:  # refused for that
        return False
    try:
        value = orjson.loads(id)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.keys() == {"_id"} and _has_operator(value["_id"])


def _has_operator(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_operator, value))
    if not isinstance(value, dict):
        return False
    marked = frozenset(name for name in value if name.startswith("$"))
    return (bool(marked) and marked not in _EXTENDED_JSON) or any(map(_has_operator, value.values()))


class _IdGenerator:
    """A generator of ids of 24 hex digits, which sort in the order of creation within one process.

    An id has the form of a MongoDB ObjectId: 4 bytes of seconds, 5 of the process, 3 of a counter.
    So every store can keep it, and every client of the layouts that we share. The counter restarts
    each second.
    """

    _lock: threading.Lock

    def __init__(self) -> None:
        add_lock(self, "_lock")
        self._pid = self._second = self._counter = 0
        self._process = ""

    def next_ids(self, n: int) -> pa.Array:
        chunks: list[pa.Array] = []
        left = n
        with self._lock:
            if self._pid != os.getpid():  # a forked process must not continue its parent's numbers
                self._pid, self._process, self._second = os.getpid(), os.urandom(5).hex(), 0
            while left:
                second = int(time.time())
                if second > self._second:
                    self._second, self._counter = second, 0
                elif self._counter >= 1 << 24:
                    self._second, self._counter = self._second + 1, 0
                stop = min(self._counter + left, 1 << 24)
                chunks.append(_number_ids(f"{self._second:08x}{self._process}", self._counter, stop))
                left -= stop - self._counter
                self._counter = stop
        if len(chunks) == 1:
            return chunks[0]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


_ids = _IdGenerator()


def new_ids(n: int) -> list[str]:
    """Return `n` new ids, each greater than all earlier ones of this process."""
    ids: list[str] = new_id_array(n).to_pylist()
    return ids


def new_id_array(n: int) -> pa.Array:
    """Return `n` new ids as an Arrow array; many times as fast as `new_ids`."""
    return _ids.next_ids(n)


class DerivedIds:
    """The ids of the rows of one part of a batch. They are the same if the part is written again.

    An id has 24 hex digits: 9 bytes of a SHA-256 and 3 of a counter, so ids sort in the order of
    the rows. The SHA-256 is that of the part's name and the number of the block of 16,777,216 rows.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._made = 0

    def next_ids(self, n: int) -> pa.Array:
        """Return the ids of the next `n` rows."""
        chunks: list[pa.Array] = []
        end = self._made + n
        while self._made < end:
            block, counter = divmod(self._made, 1 << 24)
            stop = min(counter + end - self._made, 1 << 24)
            chunks.append(_number_ids(sha256(f"{self._part}\0{block}".encode()).hexdigest()[:18], counter, stop))
            self._made += stop - counter
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


@functools.cache
def _three_hex_digits() -> list[bytes]:
    """Return all numbers of three hex digits."""
    return [b"%03x" % i for i in range(1 << 12)]


def _number_ids(prefix: str, start: int, stop: int) -> pa.Array:
    """Return the prefix with each number of the range, in six hex digits."""
    n = stop - start
    if n <= SMALL_BATCH:
        return pa.array([f"{prefix}{number:06x}" for number in range(start, stop)], pa.string())
    runs: list[bytes] = []  # each: the ids that differ only in their last three digits
    while start < stop:
        high, low = divmod(start, 1 << 12)
        end = min(1 << 12, low + stop - start)
        runs.append((b"%b%03x" % (prefix.encode(), high)).join([b"", *_three_hex_digits()[low:end]]))
        start += end - low
    ids = pa.Array.from_buffers(pa.binary(len(prefix) + 6), n, [None, pa.py_buffer(b"".join(runs))])
    return ids.cast(pa.binary()).cast(pa.string())
