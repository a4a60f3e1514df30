"""Measure REST: push, and reserve and commit, of single messages and batches, compared with keuss.

    # all stores, and keuss on Redis and MongoDB; --docs updates docs/benchmarks.md
    python bench/rest.py --docs
    # how long a message is under way to a pop that waits; --docs as above
    python bench/rest.py --waits
    # how long a caller waits beside hostile requests; --docs as above
    python bench/rest.py --hostile
    # 64 clients on all stores at once: fails if a message is lost or delivered to two clients
    python bench/rest.py --load --seconds 60

keuss-server is not on npm. Instead, the real keuss 2.0.6 runs behind a minimal HTTP server in
Node.js (`keuss_rest.js`), on the same database and with the same client. It has no batches, so our
batches are compared with its single messages. Each rate is a median of rounds, in which both take
turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import ROOT, STORES, arguments, check, databases, keep, say, setup_of
from crowds import MESSAGES, QUEUES, measure_crowds
from report import Table, aligned, piped, renew

from spark_queue import open_store
from spark_queue.options.url import StoreUrl
from tests.hostile import TOKEN, Attack, Hostile, kinds
from tests.http_load import JSON, Caller, load
from tests.serving import serving

#: Concurrent connections, messages of a batch, and batches for each thousand single messages.
CALLERS, BATCH, BATCHES = 16, 500, 100

#: Backends of keuss with the same layout.
KEUSS = {"mongodb": "mongo", "redis": "redis-oq"}
MODULES = ROOT / "tests" / "interop" / "keuss_driver" / "node_modules"

PAYLOAD = json.dumps({"n": 1, "carrier": "UA", "origin": "EWR", "text": "x" * 50}).encode()

Rates = dict[str, float]


async def rate_of(url: str, messages: int, each: int, step: Callable[[Caller], Awaitable[int]]) -> float:
    """Run steps of `each` messages over CALLERS connections. Return messages per second."""
    steps, done = iter(range(0, messages, each)), 0

    async def work() -> None:
        nonlocal done
        async with Caller(url) as caller:
            for _ in steps:
                got = await step(caller)
                done += got

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CALLERS)))
    took = time.perf_counter() - start
    check(done, messages)
    return done / took


async def singles(url: str, path: str, messages: int) -> Rates:
    """Push messages one by one, then reserve and commit them one by one."""

    async def push(caller: Caller) -> int:
        status, _, _ = await caller.call("PUT", path, PAYLOAD, JSON)
        return int(status == 200)

    async def work(caller: Caller) -> int:
        status, headers, _ = await caller.call("GET", f"{path}?reserve=1&to=20000")
        if status != 200:
            return 0
        status, _, _ = await caller.call("PATCH", f"{path}/commit/{headers['x-ks-id']}")
        return int(status == 200)

    pushed = await rate_of(url, messages, 1, push)
    return {"push": pushed, "reserve+commit": await rate_of(url, messages, 1, work)}


async def batches(url: str, path: str, messages: int) -> Rates:
    """Push messages in batches, then reserve and commit them in batches."""
    body = b"[" + b",".join([b'{"payload":%b}' % PAYLOAD] * BATCH) + b"]"

    async def push(caller: Caller) -> int:
        status, _, _ = await caller.call("POST", f"{path}/messages", body, JSON)
        return BATCH * (status == 200)

    async def work(caller: Caller) -> int:
        _, _, text = await caller.call("POST", f"{path}/reserve", json.dumps({"limit": BATCH}).encode(), JSON)
        taken = json.loads(text)
        if not taken["messages"]:
            return 0
        held = json.dumps({"receipts": [taken["receipt"]]}).encode()
        _, _, text = await caller.call("POST", f"{path}/commit", held, JSON)
        return int(json.loads(text)["committed"])

    pushed = await rate_of(url, messages, BATCH, push)
    return {"push, batches": pushed, "reserve+commit, batches": await rate_of(url, messages, BATCH, work)}


@contextmanager
def keuss(backend: str, url: str) -> Iterator[str]:
    """Start keuss behind HTTP, and yield its URL."""
    run = ["node", str(Path(__file__).with_name("keuss_rest.js")), backend, url]
    env = os.environ | {"NODE_PATH": str(MODULES)}
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure(store: str, url: str, messages: int, rounds: int) -> dict[str, Rates]:
    """Return the medians of ours and, if keuss has this store, of keuss."""
    found: dict[str, list[Rates]] = {"ours": [], "keuss": []}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), "--url", f"ns={url}") as server:
        for number in range(rounds + 1):  # the first is the warm-up
            name = f"bench{uuid.uuid4().hex[:12]}"
            ours = asyncio.run(singles(server.url, f"/q/ns/{name}", messages))
            ours |= asyncio.run(batches(server.url, f"/v1/queues/ns/{name}", messages * BATCHES // 1_000 * BATCH))
            theirs: Rates = {}
            if store in KEUSS and shutil.which("node") and MODULES.exists():
                with keuss(KEUSS[store], url) as other:
                    theirs = asyncio.run(singles(other, f"/q/ns/{name}", messages))
            with open_store(url) as opened:
                check(opened.sizes(name).total, 0)
                opened.drop(name)
            if number:
                found["ours"].append(ours)
                found["keuss"].append(theirs)
    return {who: {way: statistics.median(one[way] for one in all) for way in all[0]} for who, all in found.items()}


# --- waits ----------------------------------------------------------------------------------------

#: Layouts with the longest medians that are wanted (ms): after a delay, and from a push to a pop.
WAITS = {"redis-oq": (10, 10), "redis-list": (None, 10), "mongo": (40, 60)}

#: Messages of a median.
WAITED = 40

#: The delay of a message (s), and times between which a push follows a pop that waits (s).
DELAY, PAUSES = 0.3, (0.05, 0.25)


async def late(caller: Caller, other: Caller, path: str) -> float:
    """Push a message with a delay, and pop it. Return how late it came (ms)."""
    await other.call("PUT", f"{path}?delay={DELAY}", PAYLOAD, JSON)
    status, headers, _ = await caller.call("GET", f"{path}?to=20000")
    came = time.time()
    check(status, 200)
    return (came - datetime.fromisoformat(headers["x-ks-mature"]).timestamp()) * 1000


async def woken(caller: Caller, other: Caller, path: str) -> float:
    """Push a message while a pop waits. Return the ms from the push to the end of the pop."""
    waiting = asyncio.ensure_future(caller.call("GET", f"{path}?to=20000"))
    await asyncio.sleep(random.uniform(*PAUSES))
    began = time.perf_counter()
    await other.call("PUT", path, PAYLOAD, JSON)
    status, _, _ = await waiting
    check(status, 200)
    return (time.perf_counter() - began) * 1000


async def waits_of(url: str, path: str, n: int, way: Callable[[Caller, Caller, str], Awaitable[float]]) -> float:
    """Return the median of `n` waits, after three that warm up."""
    async with Caller(url) as caller, Caller(url) as other:
        found = [await way(caller, other, path) for _ in range(n + 3)]
    return statistics.median(found[3:])


def measure_waits(urls: dict[str, str], n: int) -> Table:
    """Return the table of waits."""
    layouts = {"redis-oq": "redis", "redis-list": "redis", "mongo": "mongodb"}
    rows: Table = [("layout", "after a delay (ms)", "wanted", "from a push to a waiting pop (ms)", "wanted")]
    for layout, store in layouts.items():
        if store not in urls:
            continue
        url, name = StoreUrl.parse(urls[store]).with_layout(layout), f"bench{uuid.uuid4().hex[:12]}"
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder), "--url", f"ns={url}") as server:
            path, (longest_late, longest_woken) = f"/q/ns/{name}", WAITS[layout]
            after = "" if longest_late is None else f"{asyncio.run(waits_of(server.url, path, n, late)):.1f}"
            push = asyncio.run(waits_of(server.url, path, n, woken))
            rows.append((layout, after, str(longest_late or ""), f"{push:.1f}", str(longest_woken)))
        with open_store(url) as opened:
            opened.drop(name)
    return rows


# --- hostile requests -----------------------------------------------------------------------------

#: Hostile requests of each kind, and of all kinds together.
EACH, TOGETHER = 40, 500


def answered_beside(url: str, requests: Iterable[Hostile], number: int) -> list[float]:
    """Send hostile requests from four callers. Return the ms of calls of another one meanwhile."""

    async def call(attack: Attack | None, n: int = 0) -> list[float]:
        times: list[float] = []
        async with Caller(url) as caller:
            while attack.runs if attack else len(times) < n:
                began = time.perf_counter()
                status, _, _ = await caller.call("GET", "/q", b"", {"authorization": f"Bearer {TOKEN}"})
                check(status, 200)
                times.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(0.01)
        return times

    if not number:
        return asyncio.run(call(None, 100))
    with Attack(url, requests, number) as attack:
        times = asyncio.run(call(attack))
    if attack.wrong:
        raise SystemExit("\n".join(attack.wrong[:20]))
    return times


def measure_hostile() -> Table:
    """Return the table of how long another caller waits beside hostile requests."""
    rows: Table = [("beside", "requests", "median (ms)", "95th percentile (ms)", "longest (ms)")]
    found = kinds()
    ways: dict[str, tuple[int, list[Hostile]]] = {"nothing": (0, [])} | {
        name: (EACH, [one]) for name, one in found.items()
    }
    ways |= {"all of them": (TOGETHER, list(found.values()))}
    with tempfile.TemporaryDirectory() as folder:
        args = ("--url", f"a=sqlite:///{folder}/q.db", "--events", "a/events")
        with serving(Path(folder), *args, env={"SPARK_QUEUE_REST_TOKEN": TOKEN}) as server:
            for name, (number, requests) in ways.items():
                times = sorted(answered_beside(server.url, requests, number))
                high = times[int(0.95 * (len(times) - 1))]
                row = (
                    name,
                    str(number or ""),
                    *(f"{one:.0f}" for one in (statistics.median(times), high, times[-1])),
                )
                say("  ".join(row))
                rows.append(row)
    return rows


def under_load(urls: dict[str, str], seconds: float) -> None:
    """Run 64 clients on all stores. Exit if a message is lost or shared, or a call fails."""
    name = f"bench{uuid.uuid4().hex[:12]}"
    spaces = [one for ns, url in urls.items() for one in ("--url", f"{ns}={url}")]
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), *spaces) as server:
        tally = asyncio.run(load(server.url, [f"/q/{ns}/{name}" for ns in urls], 64, seconds))
    for url in urls.values():
        with open_store(url) as opened:
            check(opened.sizes(name).total, 0)
            opened.drop(name)
    print(
        f"64 clients, {seconds:g} s: {tally.calls:,} calls, {len(tally.pushed):,} messages pushed, "
        f"{len(tally.received & tally.pushed):,} of them received, {len(tally.wrong)} errors"
    )
    if tally.wrong:
        raise SystemExit("\n".join(tally.wrong[:20]))


def main() -> int:
    parser = arguments(__doc__ or "", messages=1_000, rounds=3)
    parser.add_argument("--waits", action="store_true", help="instead, measure how long messages are under way")
    parser.add_argument("--hostile", action="store_true", help="instead, measure waits beside hostile requests")
    parser.add_argument("--load", action="store_true", help="instead, run 64 clients on all stores at once")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument("--seconds", type=float, default=60, help="duration of --load (default %(default)s)")
    args = parser.parse_args()
    print(setup_of())
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        urls = databases(folder, args.only or list(STORES))
        if args.load:
            under_load(urls, args.seconds)
            return 0
        if args.hostile:
            show(
                "rest hostile",
                measure_hostile(),
                "four callers send, and a fifth one calls GET /q every 10 ms",
                args.docs,
            )
            if "redis" in urls:
                ran = f"{MESSAGES:,} messages and {QUEUES:,} queues on Redis; another caller pushes every 20 ms"
                show("rest crowds", measure_crowds(urls["redis"]), ran, args.docs)
            return 0
        if args.waits:
            ran = f"medians of {WAITED} messages, one after the other"
            show("rest waits", measure_waits(urls, WAITED), ran, args.docs)
            return 0
        results: dict[str, Any] = {}
        for store, url in urls.items():
            say(f"{store} …")
            results[store] = measure(store, url, args.messages, args.rounds)
        show("rest", table(results), f"{args.rounds} rounds of {args.messages:,} messages", args.docs)
    keep(args.json, results)
    return 0


def show(part: str, rows: Table, ran: str, docs: bool) -> None:
    """Print a table, and with `docs` renew that part of the page."""
    print(*aligned(rows), sep="\n")
    if docs:
        measured = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {setup_of()}; {ran}."
        renew(part, "\n".join([measured, "", *piped(rows)]))


def table(results: dict[str, dict[str, Rates]]) -> Table:
    """Return messages per second by store and way, and the ratio to keuss."""
    rows = []
    for store, found in results.items():
        for way, rate in found["ours"].items():
            theirs = found["keuss"].get(way.partition(",")[0])
            beside = (f"{theirs:,.0f}/s", f"{rate / theirs:.1f}") if theirs else ("", "")
            rows.append((store, way, f"{rate:,.0f}/s", *beside))
    return [("store", "what", "spark-queue serve", "keuss, one by one", "times as fast"), *rows]


if __name__ == "__main__":
    sys.exit(main())
