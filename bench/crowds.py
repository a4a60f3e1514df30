"""Crowds of callers that take what a server has, and how long another caller waits beside them.

`python bench/rest.py --hostile` measures them, on Redis.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
from common import say
from report import Table

from spark_queue import Queue, open_store
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.schema import PUSHES
from tests.crowds import (
    OPERATOR,
    VIEWER,
    crowding,
    open_files,
    peak_memory,
    percentile,
    push_beside,
    wake_beside,
)
from tests.serving import Serving, serving

#: Messages of the large queue, queues of the scrapes, silent connections, and queues waited for.
MESSAGES, QUEUES, SILENT, WAITED_FOR = 500_000, 20_000, 1_500, 3_000

#: How long a crowd calls before another caller is measured, and how long that takes (s); messages
#: of a waiting pop.
BEFORE, DURING, WOKEN = 5.0, 10.0, 20


@contextmanager
def most_files(server: Serving) -> Iterator[list[int]]:
    """Yield a list whose one number is that of the most open files within the block."""
    most, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            most[0] = max(most[0], open_files(server.process.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        ended.set()
        watching.join()


def pushes(server: Serving, path: str) -> Callable[[], Awaitable[list[float]]]:
    """Return a function that pushes for a while and returns the ms of each push."""

    def act() -> Awaitable[list[float]]:
        end = time.monotonic() + DURING
        return push_beside(server.url, path, OPERATOR, lambda _: time.monotonic() < end)

    return act


def fill(url: str, name: str) -> None:
    """Push the large queue, and one message to each of the many queues."""
    with Queue(url, name) as queue:
        for start in range(0, MESSAGES, 10_000):
            queue.push_many([{"n": n, "text": "x" * 50} for n in range(start, start + 10_000)])
    with open_store(url) as store:
        for number, id in enumerate(new_id_array(QUEUES).to_pylist()):
            row = {
                "id": id,
                "payload": b"1",
                "payload_kind": "json",
                "headers": [],
                "mature": None,
                "delay": 0,
                "tries": 0,
            }
            store.push(f"{name}.{number}", pa.RecordBatch.from_pylist([row], schema=PUSHES))


def measure_crowds(url: str) -> Table:
    """Return the table: how long another caller waits beside each crowd, memory and files."""
    rows: Table = [("beside", "what", "median (ms)", "95th percentile (ms)", "longest (ms)", "memory (MB)", "files")]
    name = f"bench{uuid.uuid4().hex[:12]}"
    looks = f"/v1/queues/r/{name}/messages"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        tokens = folder / "tokens"
        tokens.write_text(f"viewer {VIEWER}\n{OPERATOR}\n")
        tokens.chmod(0o600)
        args = ("--url", f"r={url}", "--token-file", tokens, "--open-metrics")

        def row(beside: str, crowd: tuple[object, ...] | None, server: Serving, *, wake: bool = False) -> None:
            path = f"/q/r/{name}.beside"
            act = (lambda: wake_beside(server.url, path, OPERATOR, WOKEN)) if wake else pushes(server, path)
            with crowding(*crowd) if crowd else nullcontext(), most_files(server) as files:  # type: ignore[arg-type]
                time.sleep(BEFORE if crowd else 0.5)
                times: list[float] = asyncio.run(act())  # type: ignore[arg-type]
            numbers = (percentile(times, 0.5), percentile(times, 0.95), max(times))
            found = (
                beside, "from a push to a waiting pop" if wake else "push", *(f"{one:.0f}" for one in numbers),
                str(peak_memory(server.process.pid)), str(files[0]),
            )  # fmt: skip
            say("  ".join(found))
            rows.append(found)

        try:
            say("filling …")
            fill(url, name)
            for beside, crowd in {
                "nothing": None,
                "32 filtered looks of a viewer": ("calls", 32, f"{looks}?min_tries=5", VIEWER),
                "32 looks at pages of 10,000": ("calls", 32, f"{looks}?limit=10000", VIEWER),
                "32 lists of all queues": ("calls", 32, "/q/r", VIEWER),
                "40 scrapes without credentials": ("calls", 40, "/metrics", ""),
            }.items():
                with serving(folder, *args) as server:
                    row(beside, crowd and (crowd[0], server.url, *crowd[1:]), server)
            waits = ("calls", WAITED_FOR, f"/q/r/{name}.w{{}}?to=60000", OPERATOR)
            for wake in (False, True):
                with serving(folder, *args) as server:
                    row(f"{WAITED_FOR:,} queues waited for", (waits[0], server.url, *waits[1:]), server, wake=wake)
            if shutil.which("openssl"):
                run = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=localhost"
                subprocess.run(run.split(), cwd=folder, check=True, capture_output=True)
                tls = ("--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem")
                with serving(folder, *args, *tls) as server:
                    row(f"{SILENT:,} silent connections, TLS", ("silent", server.url, SILENT), server)
        finally:
            say("removing …")
            with open_store(url) as store:
                for queue in [one for one in store.queues() if one.startswith(name)]:
                    store.drop(queue)
    return rows
