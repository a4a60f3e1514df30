"""Refuse a query that reads a queue twice, before it reserves a message.

If a stream is joined with itself, Spark creates two readers of its source, and each would get other
messages. Spark passes no reader the id of its query. But it follows an order: a query creates all
its readers first, then one thread asks them for messages, one after the other. So a reader that is
asked looks for readers of the same queue that were not asked yet. One of another query is asked
soon. One of the same query is not, as long as this reader does not answer.

A reader is marked by a locked file from its creation until it is asked. The file is in a folder for
temporary files, of its Spark application or of the machine. The lock ends with the process of the
reader.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from spark_queue.errors import UsageError
from spark_queue.options.inputs import QUEUE
from spark_queue.options.stream import StreamOptions

log = logging.getLogger(__name__)

#: How long (s) a reader waits until the others are asked, and the time between two looks (s).
ASK_TIMEOUT, ASK_POLL = 10.0, 0.05

#: Spark sets this variable for its Python processes: local folders of the application.
_LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"

#: The names of marks begin so.
_PREFIX = "spark_queue_reader"


class UnaskedReader:
    """The marks of a reader that was not asked for messages yet: one for each of its queues."""

    def __init__(self, options: StreamOptions, folders: Sequence[Path]) -> None:
        """Create the marks in the first folder that can be written.

        All readers of a Spark application look into the same folders. Raises `UsageError` if none
        can be written.
        """
        self._queues = {_key(one): one.queue for one in _queues_of(options)}
        self._folders = folders
        self._marks: dict[str, FileIO] = {}  # by key
        for folder in folders:
            for other in folder.glob(f"{_PREFIX}.*"):
                _is_unasked(other)  # removes what a reader that was killed has left
        for key in self._queues:
            self._marks[key] = self._create_mark(f"{_group(key)}.{os.getpid()}.{id(self)}")

    @classmethod
    def create(cls, options: StreamOptions) -> UnaskedReader:
        """Return a marked reader of this application. Raises `UsageError` as `UnaskedReader`."""
        local = [one for one in os.environ.get(_LOCAL_FOLDERS, "").split(",") if one]
        with suppress(FileNotFoundError):
            local.append(tempfile.gettempdir())
        return cls(options, [Path(one) for one in local])

    def _create_mark(self, name: str) -> FileIO:
        for folder in self._folders:
            try:
                return _create_locked(folder / name)
            except OSError as error:
                log.debug("cannot mark this reader in %s: %s", folder, error)
        raise UsageError(
            f"no file can be created in {', '.join(map(str, self._folders)) or 'any folder for temporary files'}. A "
            "reader marks itself there, so that a query which reads a queue twice is refused before it reserves "
            "messages. Set spark.local.dir, or the variable TMPDIR of the driver, to a folder that can be written"
        )

    def end(self) -> None:
        """Remove the marks: this reader is asked now."""
        while self._marks:
            _, mark = self._marks.popitem()
            Path(str(mark.name)).unlink(missing_ok=True)
            mark.close()

    def check(self) -> None:
        """Remove the marks, and wait until the other readers of these queues are asked.

        Raises `UsageError` if one is not: its query waits for this reader.
        """
        if not self._marks:
            return
        self.end()
        end = time.monotonic() + ASK_TIMEOUT
        others = {
            key: [one for folder in self._folders for one in folder.glob(f"{_group(key)}.*")] for key in self._queues
        }
        while waiting := [queue for key, queue in self._queues.items() if any(map(_is_unasked, others[key]))]:
            if time.monotonic() >= end:
                raise _read_twice(waiting)
            time.sleep(ASK_POLL)


def _queues_of(options: StreamOptions) -> Iterator[StreamOptions]:
    """Yield the options of each queue that a reader reserves messages of."""
    yield from (one for one in options.each_queue if one.reading.mode == QUEUE)


def _key(options: StreamOptions) -> str:
    """Return a key of a queue and the option `consumer`, without secrets, for the name of a file.

    As in `query_binding.bind`, a query may read a queue twice if these options differ.
    """
    text = "\0".join((options.database.url, options.queue, options.consumer or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _group(key: str) -> str:
    """Return how the names of the marks of a queue begin: all readers have the driver as parent."""
    return f"{_PREFIX}.{os.getppid()}.{key}"


def _create_locked(path: Path) -> FileIO:
    """Create a mark. Raises `OSError` if that is impossible."""
    while True:
        mark = FileIO(path, "x")
        fcntl.flock(mark, fcntl.LOCK_EX)
        if path.exists():
            return mark
        mark.close()  # another reader took it for one of a dead process before it was locked


def _is_unasked(mark: Path) -> bool:
    """Return whether the reader of a mark lives, and was not asked yet. Remove it if not."""
    with suppress(OSError), FileIO(mark) as opened:  # another user's, or it was just removed
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        mark.unlink()  # its process has died
    return False


def _read_twice(queues: Sequence[str]) -> UsageError:
    names = " and ".join(repr(one) for one in queues)
    return UsageError(
        f"this query seems to read queue {names} twice: another reader of it was created with the same options, and "
        f"has not been asked for messages in {ASK_TIMEOUT:.0f} s, while this one waited. Nothing was reserved. Each "
        "message goes to one reader, so a stream cannot be joined with itself: join within foreachBatch, where a "
        "batch may be used twice. df.union(df) works, too. If two readers are to share the messages, set a different "
        "option 'consumer' for each load(). If another query of this program was starting meanwhile, start again",
        queues=list(queues),
    )
