"""The ids of messages: the form of an ObjectId, made in order."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from hashlib import sha256

import pyarrow as pa

LONGEST_ID = 200  #: bytes of UTF-8
PLAIN_ID = re.compile(f"[-_.:/A-Za-z0-9]{{1,{LONGEST_ID}}}")  #: what most of them are

#: An id as we make them: see `_Ids`.
OBJECT_ID = re.compile("[0-9a-f]{24}")


#: Rows that are sooner done one by one: to work on whole columns costs some tenths of a millisecond to begin with.
FEW = 16


class _Ids:
    """Makes ids of 24 hex digits that sort in the order they were made in, within one process.

    The form is that of a MongoDB ObjectId (4 bytes of seconds, 5 of the process, 3 of a counter), so that every
    store and every client of the layouts we share can keep them; the counter starts anew each second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._renew()

    def _renew(self) -> None:
        self._pid, self._process = os.getpid(), os.urandom(5).hex()
        self._second, self._counter = 0, 0

    def take(self, n: int) -> pa.Array:
        made: list[pa.Array] = []
        left = n
        with self._lock:
            if self._pid != os.getpid():  # a fork must not go on with its parent's numbers
                self._renew()
            while left:
                second = int(time.time())
                if second > self._second:
                    self._second, self._counter = second, 0
                elif self._counter >= 1 << 24:
                    self._second, self._counter = self._second + 1, 0
                stop = min(self._counter + left, 1 << 24)
                made.append(_numbered(f"{self._second:08x}{self._process}", self._counter, stop))
                left -= stop - self._counter
                self._counter = stop
        if len(made) == 1:
            return made[0]
        return pa.concat_arrays(made) if made else pa.array([], pa.string())


_ids = _Ids()


def new_ids(n: int) -> list[str]:
    """`n` new ids, each greater than all before it in this process."""
    made: list[str] = new_id_array(n).to_pylist()
    return made


def new_id_array(n: int) -> pa.Array:
    """The same as an Arrow array, which is made many times as fast."""
    return _ids.take(n)


class DerivedIds:
    """Makes the ids of the rows of one part of a batch: the same whenever it is written again.

    24 hex digits: SHA-256 over the part's name (and the number of each 16,777,216 rows), 9 bytes of it, and 3 of a
    counter, so that they sort in the order of the rows.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._made = 0

    def take(self, n: int) -> pa.Array:
        """The ids of the next `n` rows."""
        made: list[pa.Array] = []
        end = self._made + n
        while self._made < end:
            block, counter = divmod(self._made, 1 << 24)
            stop = min(counter + end - self._made, 1 << 24)
            made.append(_numbered(sha256(f"{self._part}\0{block}".encode()).hexdigest()[:18], counter, stop))
            self._made += stop - counter
        return pa.concat_arrays(made) if made else pa.array([], pa.string())


@functools.cache
def _hex() -> list[bytes]:
    """All numbers of three hex digits."""
    return [b"%03x" % i for i in range(1 << 12)]


def _numbered(prefix: str, start: int, stop: int) -> pa.Array:
    """The prefix with each number of the range, in six hex digits."""
    n = stop - start
    if n <= FEW:
        return pa.array([f"{prefix}{number:06x}" for number in range(start, stop)], pa.string())
    runs: list[bytes] = []  # of ids that differ in their last three digits only, which then join them
    while start < stop:
        high, low = divmod(start, 1 << 12)
        end = min(1 << 12, low + stop - start)
        runs.append((b"%b%03x" % (prefix.encode(), high)).join([b"", *_hex()[low:end]]))
        start += end - low
    same_size = pa.binary(len(prefix) + 6)
    return (
        pa.Array.from_buffers(same_size, n, [None, pa.py_buffer(b"".join(runs))]).cast(pa.binary()).cast(pa.string())
    )
