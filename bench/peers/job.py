"""Shared parts of the programs of Python peers: documents, the no-op job, its tally, the report."""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Settings that the benchmark passes to its programs, in Python and Node.js.
URL = os.environ.get("PEERS_URL", "")
QUEUE = os.environ.get("PEERS_QUEUE", "")
MESSAGES = int(os.environ.get("PEERS_MESSAGES", "0"))
TALLIES = os.environ.get("PEERS_TALLIES", "")

#: The head of a tally: times of the first and the last job in s since 1970. After it, one byte per
#: job counts its runs.
HEAD = struct.Struct("<dd")
LAST = struct.Struct("<d")

_tally: mmap.mmap | None = None
_lock = threading.Lock()


def payload(number: int) -> dict[str, Any]:
    """Return a document of 100 bytes of JSON."""
    return {"n": number, "carrier": "UA", "origin": "EWR", "text": "x" * (54 - len(str(number)))}


def payloads(size: int = 1_000) -> Iterator[list[dict[str, Any]]]:
    """Yield all documents in lists of `size`."""
    for first in range(0, MESSAGES, size):
        yield [payload(number) for number in range(first, min(first + size, MESSAGES))]


def done(message: Mapping[str, Any]) -> None:
    """Run the no-op job: count it in the tally, a mapped file. A job only writes to memory."""
    tally = _tally or _open()
    tally[HEAD.size + int(message["n"])] += 1
    LAST.pack_into(tally, LAST.size, time.time())


def report(push: Callable[[], object], *packages: str) -> None:
    """Push, and print the seconds and the versions of the packages."""
    begun = time.perf_counter()
    push()
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "version": ", ".join(f"{one} {version(one)}" for one in packages)}))


def _open() -> mmap.mmap:
    """Return the tally of this process. Its first job creates the file."""
    global _tally
    with _lock:
        if _tally is None:
            with Path(TALLIES, str(os.getpid())).open("w+b") as file:
                file.truncate(HEAD.size + MESSAGES)
                _tally = mmap.mmap(file.fileno(), 0)
            HEAD.pack_into(_tally, 0, time.time(), time.time())
        return _tally


def _forget() -> None:
    global _tally
    _tally = None


os.register_at_fork(after_in_child=_forget)
