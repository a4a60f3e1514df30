"""A driver without Spark whose checkpoint is a folder, and that can be stopped at any step; run as a process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from spark_queue import CheckpointError, FencedError
from spark_queue.options.roles import parse_options
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fetch import fetch_messages
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.limits import default_limits
from spark_queue.stores.support.counters import Counters
from tests.spark.drive import TEXT, Write, task

#: For how long a silent owner counts as alive, and how often it sends a heartbeat.
LIFE = {"owner_timeout_ms": 300, "heartbeat": 0.05}


class Refused(Exception):
    """Spark's log has a batch of this number already."""


class Log:
    """A log of Spark's: a file for each batch, which must not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> list[Any]:
        found = sorted((int(one.name), one) for one in self.folder.iterdir() if one.name.isdigit())
        return [json.loads(one.read_text()) for _, one in found]

    def add(self, batch: int, value: Any) -> None:
        mine = self.folder / f".{batch}.{os.getpid()}"
        mine.write_text(json.dumps(value))
        try:
            os.link(mine, self.folder / str(batch))
        except FileExistsError:
            raise Refused(f"{self.folder.name} has batch {batch}") from None


def stop_at(number: int) -> None:
    """Let this process stand still before it asks a database for the `number`-th time.

    Not while another thread of it asks: it would hold the lock of an SQLite file for as long as it stands.
    """
    real, calls, others = Store._attempt, 0, threading.Lock()
    write_counts = Counters.write

    def write(self: Counters) -> None:  # a timer calls it, and it does not come by `_attempt`
        with nullcontext() if threading.current_thread() is threading.main_thread() else others:
            write_counts(self)

    def attempt(self: Store, *arguments: Any) -> Any:
        nonlocal calls
        if threading.current_thread() is not threading.main_thread():
            with others:
                return real(self, *arguments)
        calls += 1
        if calls == number:
            with others:
                os.kill(os.getpid(), signal.SIGSTOP)
        return real(self, *arguments)

    Counters.write = write  # type: ignore[method-assign]
    Store._attempt = attempt  # type: ignore[method-assign, assignment]


def drive(folder: str, step: int, query: str, out: dict[str, str], raw: dict[str, str]) -> None:
    """Work on batches until nothing is ready, and write what came of it to `folder`/ended.

    `out`: the options of the sink, `raw`: those of the source.
    """
    limits = default_limits(**LIFE)
    limits.__enter__()  # until the end of the process
    said = "done"
    stop_at(step)
    options = parse_options({"waitTimeout": "0s"} | raw, "stream")
    consumer = Consumer(options)
    try:
        for _ in _batches(consumer, options, Path(folder), query, out):
            pass
    except (FencedError, CheckpointError, Refused) as error:
        said = f"{type(error).__name__}: {error}"
    finally:
        with suppress(FencedError):
            consumer.close()
    Path(folder, "ended").joinpath(str(os.getpid())).write_text(said)


def _batches(consumer: Consumer, options: StreamOptions, folder: Path, query: str, out: Any) -> Iterator[int]:
    offsets, commits = Log(folder / "offsets"), Log(folder / "commits")
    known, finished = offsets.read(), len(commits.read())
    start = known[finished - 1] if finished else consumer.initial
    for number in range(finished, finished + 1_000):
        if number < len(known):
            end = known[number]
        else:
            end = consumer.next(start, 1)
            if end == start:
                return
            offsets.add(number, end)
        shares = consumer.plan(start, end)
        with task(0, query, number):
            batches = [batch.select(["payload"]) for share in shares for batch in fetch_messages(options, share)]
        rows = [batch.set_column(0, "payload", batch.column("payload").cast("string")) for batch in batches]
        # With at least once, the sink stages as well: what comes again does so in a later batch.
        Write(TEXT, query=query, batch=number, **out).run(*rows)
        commits.add(number, {})
        yield number
        start = end
