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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from common import say
from report import Table

from spark_queue import Queue, open_store
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.schema import PUSHES
from tests.crowds import (
    OPERATOR,
    TAKER,
    VIEWER,
    crowded_server,
    crowding,
    open_files,
    peak_memory,
    percentile,
    push_beside,
    wake_beside,
)
from tests.serving import Serving

#: Messages of the large queue, queues of the scrapes, silent connections, and queues waited for.
MESSAGES, QUEUES, SILENT, WAITED_FOR = 500_000, 20_000, 1_500, 3_000

#: How long another caller pushes (s), and messages of its waiting pop.
DURING, WOKEN = 10.0, 20

#: A crowd: its kind, its number, the path of its calls, and its credential.
Crowd = tuple[str, int, str, str]


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

        def row(beside: str, crowds: Sequence[Crowd], *tls: object, wake: bool = False, after: float = 5) -> None:
            path = f"/q/r/{name}.beside"
            with ExitStack() as block:
                server = block.enter_context(crowded_server(folder, url, *tls))
                for kind, number, called, token in crowds:
                    block.enter_context(crowding(kind, server.url, number, called, token))
                files = block.enter_context(most_files(server))
                time.sleep(after if crowds else 0.5)
                act = (lambda: wake_beside(server.url, path, OPERATOR, WOKEN)) if wake else pushes(server, path)
                times: list[float] = asyncio.run(act())  # type: ignore[arg-type]
                memory = peak_memory(server.process.pid)
            numbers = (percentile(times, 0.5), percentile(times, 0.95), max(times))
            found = (
                beside, "from a push to a waiting pop" if wake else "push", *(f"{one:.0f}" for one in numbers),
                str(memory), str(files[0]),
            )  # fmt: skip
            say("  ".join(found))
            rows.append(found)

        try:
            say("filling …")
            fill(url, name)
            row("nothing", [])
            attacks: dict[str, Crowd] = {
                "32 filtered looks of a viewer": ("calls", 32, f"{looks}?min_tries=5", VIEWER),
                "32 looks at pages of 10,000": ("calls", 32, f"{looks}?limit=10000", VIEWER),
                "32 lists of all queues": ("calls", 32, "/q/r", VIEWER),
                "40 scrapes without credentials": ("calls", 40, "/metrics", ""),
            }
            for beside, crowd in attacks.items():
                row(beside, [crowd])
            waits: Crowd = ("calls", WAITED_FOR, f"/q/r/{name}.w{{}}?to=60000", TAKER)
            for beside, crowd in {"": waits, " by the same caller": (*waits[:3], OPERATOR)}.items():
                for wake in (False, True):
                    row(f"{WAITED_FOR:,} queues waited for{beside}", [crowd], wake=wake, after=10)
                    row(f"{WAITED_FOR:,} queues waited for{beside}, at first", [crowd], wake=wake, after=0)
            if shutil.which("openssl"):
                run = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=localhost"
                subprocess.run(run.split(), cwd=folder, check=True, capture_output=True)
                tls = ("--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem")
                row(f"{SILENT:,} silent connections, TLS", [("silent", SILENT, "", "")], *tls)
            for wake in (False, True):
                row("all of them but TLS", [*attacks.values(), waits], wake=wake, after=10)
        finally:
            say("removing …")
            with open_store(url) as store:
                for queue in [one for one in store.queues() if one.startswith(name)]:
                    store.drop(queue)
    return rows
