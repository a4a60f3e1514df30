"""Crowds of callers that take what a server has: looks, scrapes, silent connections, waits.

Each crowd is a process of its own, so that it does not slow down the caller whose waits are measured.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.http_load import Caller
from tests.serving import Serving, serving

ROOT = Path(__file__).parents[1]

#: Credentials of the attackers, who may only look or also take, and of the caller beside them.
VIEWER, TAKER, OPERATOR = "viewer-of-the-crowd", "taker-of-the-crowd", "operator-beside-it"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


async def repeat(url: str, path: str, token: str, pause: float = 0.0) -> None:
    """Call one path again and again, over one connection."""
    async with Caller(url) as caller:
        while True:
            with suppress(OSError, EOFError):
                await caller.call("GET", path, b"", bearer(token))
            await asyncio.sleep(pause)


async def stay_silent(url: str) -> None:
    """Keep a connection open that sends nothing; open another one when it ends."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            await reader.read(1)
            writer.close()
        await asyncio.sleep(0.1)


async def crowd(kind: str, url: str, number: int, path: str, token: str) -> None:
    """Run a crowd, without end. `path` may have `{}`, which stands for the number of a caller."""
    if kind == "silent":
        work: list[Awaitable[None]] = [stay_silent(url) for _ in range(number)]
    else:
        work = [repeat(url, path.format(n), token) for n in range(number)]
    print("here", flush=True)
    await asyncio.gather(*work)


@contextmanager
def crowded_server(folder: Path, url: str, *args: object) -> Iterator[Serving]:
    """Start a server of one store, namespace `r`, for crowds and the caller beside them."""
    tokens = folder / "tokens"
    tokens.write_text(f"viewer {VIEWER}\n{TAKER}\n{OPERATOR}\n")
    tokens.chmod(0o600)
    with serving(folder, "--url", f"r={url}", "--token-file", tokens, "--open-metrics", *args) as started:
        yield started


@contextmanager
def crowding(kind: str, url: str, number: int, path: str = "", token: str = "") -> Iterator[None]:
    """Let a crowd call within the block: `calls` of a path, or `silent` connections."""
    run = [sys.executable, "-m", "tests.crowds", kind, url, str(number), path, token]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(run, cwd=ROOT, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


async def push_beside(url: str, path: str, token: str, runs: Callable[[int], bool]) -> list[float]:
    """Push messages, one every 20 ms, while `runs` of their number says so. Return the ms of each."""
    times: list[float] = []
    async with Caller(url) as caller:
        while runs(len(times)):
            began = time.perf_counter()
            status, _, text = await caller.call(
                "PUT", path, b"1", {"content-type": "application/json"} | bearer(token)
            )
            if status != 200:
                raise AssertionError(f"{status} {text[:200]!r}")
            times.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.02)
    return times


async def wake_beside(url: str, path: str, token: str, number: int) -> list[float]:
    """Push messages, each for a pop that waits already. Return the ms from each push to its pop."""
    times: list[float] = []
    async with Caller(url) as caller, Caller(url) as other:
        for _ in range(number):
            waiting = asyncio.ensure_future(caller.call("GET", f"{path}?to=60000", b"", bearer(token)))
            await asyncio.sleep(0.2)
            began = time.perf_counter()
            await other.call("PUT", path, b"1", {"content-type": "application/json"} | bearer(token))
            status, _, text = await waiting
            if status != 200:
                raise AssertionError(f"{status} {text[:200]!r}")
            times.append((time.perf_counter() - began) * 1000)
    return times


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [
        int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
    ]


def peak_memory(pid: int) -> int:
    """Return the largest memory that a process and those that it started ever had, in MB."""
    found = (Path(f"/proc/{one}/status").read_text() for one in [pid, *children(pid)])
    return sum(int(status.partition("VmHWM:")[2].split()[0]) for status in found) >> 10


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(crowd(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]))
