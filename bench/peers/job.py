"""What the programs of the Python peers share: the documents, the no-op job with its tally, and how they tell."""

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

#: What the benchmark tells its programs, in Python and in Node.js.
URL = os.environ.get("PEERS_URL", "")
QUEUE = os.environ.get("PEERS_QUEUE", "")
MESSAGES = int(os.environ.get("PEERS_MESSAGES", "0"))
TALLIES = os.environ.get("PEERS_TALLIES", "")

#: The head of a tally: when the first and the last job ran, in s since 1970. How often each ran follows, by bytes.
HEAD = struct.Struct("<dd")
LAST = struct.Struct("<d")

_tally: mmap.mmap | None = None
_lock = threading.Lock()


def payload(number: int) -> dict[str, Any]:
    """A document of 100 bytes of JSON."""
    return {"n": number, "carrier": "UA", "origin": "EWR", "text": "x" * (54 - len(str(number)))}


def payloads(size: int = 1_000) -> Iterator[list[dict[str, Any]]]:
    """All documents, `size` by `size`."""
    for first in range(0, MESSAGES, size):
        yield [payload(number) for number in range(first, min(first + size, MESSAGES))]


def done(message: Mapping[str, Any]) -> None:
    """The job: note that it ran. Memory is all it touches: a tally is a file, but one that is mapped."""
    tally = _tally or _open()
    tally[HEAD.size + int(message["n"])] += 1
    LAST.pack_into(tally, LAST.size, time.time())


def told(push: Callable[[], object], *packages: str) -> None:
    """Push, and print how long it took and by which versions."""
    begun = time.perf_counter()
    push()
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "version": ", ".join(f"{one} {version(one)}" for one in packages)}))


def _open() -> mmap.mmap:
    """The tally of this process, made by its first job."""
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
