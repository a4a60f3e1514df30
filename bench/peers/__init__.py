"""Other work queues on the same servers, set up as their documentation advises for many short jobs.

`measure` pushes no-op jobs with documents of 100 bytes, as fast as the API of the peer allows. Then
it starts the workers of the peer, and measures the time from the first to the last job. A run
counts only if each job ran exactly once and nothing is left. `PEERS` has the settings of each peer.
`make peers` installs Python peers in environments of their own (`.venv-peers*`), and Node.js peers
in `node_modules`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from measured import Measured

from peers.job import HEAD
from peers.places import MongoPlace, PeerError, Place, RedisPlace
from peers.programs import Program, memory

__all__ = ["PEERS", "Peer", "PeerError", "Run", "jobs", "keuss", "measure", "names", "ready"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEUSS = ROOT / "tests" / "interop" / "keuss_driver" / "node_modules"

STALL_TIMEOUT_S = 60  # a drain fails if no job runs for this long; workers start faster
MIN_PUSH_RATE = 100  # messages/s; a slower push fails
JOBS = 20_000  # per round, by default
MIN_JOBS = 100  # fewer give no useful time from the first to the last job


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of one run of one peer.

    A drain lasts from the first to the last job. CPU of the client is that of the programs that
    push or work, including their start. CPU of the server is all that it used during the run.
    """

    push: Measured
    drain: Measured
    version: str


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Settings of a peer. In commands and patterns, `{queue}` is the queue of the run."""

    server: Literal["redis", "mongodb"]
    installed: Path  # exists if the peer is installed
    push: tuple[str, ...]
    work: tuple[str, ...]
    workers: int = 1  # processes of `work`
    max_jobs: int | None = None  # per round, for a slow peer
    stop: signal.Signals = signal.SIGTERM  # stops a worker cleanly
    keys: tuple[str, ...] = ()  # patterns of all keys that it creates in Redis
    jobs: tuple[str, ...] = ()  # patterns of the keys that exist only while jobs do
    settings: str


def _python(*words: str, environment: str = ".venv-peers") -> tuple[str, ...]:
    return (str(ROOT / environment / "bin" / "python"), "-m", *words)


def _node(program: str, *words: str) -> tuple[str, ...]:
    return ("node", str(HERE / program), *words)


def _rq(workers: int) -> Peer:
    """Return rq with one worker, or with a pool of them. Both have the same `settings`."""
    simple = ("--worker-class", "rq.worker.SimpleWorker", "--burst", "--quiet", "{queue}")
    pool = ("worker-pool", "--num-workers", str(workers)) if workers > 1 else ("worker",)
    return Peer(
        server="redis",
        installed=ROOT / ".venv-peers" / "bin" / "rq",
        push=_python("peers.rq"),
        work=_python("rq.cli", *pool, *simple),
        keys=("rq:*",),
        jobs=("rq:queue:*", "rq:job:*", "rq:wip:*", "rq:failed:*"),
        settings="result_ttl=0; push: enqueue_many of 1,000; work: rq worker --burst, SimpleWorker; "
        "rq-pool: the same with rq worker-pool --num-workers 2 (docs: python-rq.org/docs 'Bulk Job Enqueueing', "
        "/docs/results, /docs/workers; its docs/benchmark.md)",
    )


def keuss(backend: str, act: Literal["reserve", "pop"], loops: int = 8) -> Peer:
    """Return keuss on one of its backends, with `loops` concurrent loops of `act`.

    All of the same `loops` have the same `settings`.
    """
    server: Literal["redis", "mongodb"] = "redis" if backend.startswith("redis") else "mongodb"
    return Peer(
        server=server,
        installed=KEUSS / "keuss",
        push=_node("keuss.js", "push", backend, "64"),
        work=_node("keuss.js", act, backend, str(loops)),
        max_jobs=5_000 if backend == "mongo" else None,
        keys=("keuss:q:ordered_queue:*:{queue}",),
        jobs=("keuss:q:ordered_queue:*:{queue}",),
        settings="the backend in the name, local signals, stats in memory; push: 64 at a time; work: "
        f"{loops} loops of reserve and ok (-pop: of pop) in one process (docs: "
        "pepmartinez.github.io/keuss/docs/quickstart; no advice on the number of loops)",
    )


PEERS: dict[str, Peer] = {
    **{f"keuss-{one}": keuss(one, "reserve") for one in ("mongo", "redis-oq", "bucket-mongo-safe")},
    **{f"keuss-{one}-pop": keuss(one, "pop") for one in ("mongo", "redis-oq", "bucket-mongo-safe")},
    "rfq": Peer(
        server="redis",
        installed=ROOT / ".venv-peers-rfq" / "bin" / "rfq",
        push=_python("peers.rfq", "push", environment=".venv-peers-rfq"),
        work=_python("peers.rfq", "work", environment=".venv-peers-rfq"),
        workers=2,
        keys=("rfq:{queue}:*",),
        jobs=("rfq:{queue}:*",),
        settings="hiredis; push: publish_batch of 1,000; work: 2 processes, each a loop of consume and done "
        "(docs: the README; no advice on speed)",
    ),
    "rq": _rq(1),
    "rq-pool": _rq(2),
    "celery": Peer(
        server="redis",
        installed=ROOT / ".venv-peers" / "bin" / "celery",
        push=_python("peers.celery"),
        work=_python("celery", "-A", "peers.celery", "worker", "--concurrency", "2", "--loglevel", "WARNING"),
        keys=("{queue}:*",),
        jobs=("{queue}:jobs", "{queue}:unacked*"),
        settings="JSON, no results, acknowledged early (its default); push: apply_async, one producer; work: "
        "prefork, --concurrency 2, worker_prefetch_multiplier=128 (docs: docs.celeryq.dev, user guide: "
        "Optimizing 'Prefetch Limits', Tasks 'Ignore results you don't want', Calling 'Connections')",
    ),
    "dramatiq": Peer(
        server="redis",
        installed=ROOT / ".venv-peers" / "bin" / "dramatiq",
        push=_python("peers.dramatiq"),
        work=_python("dramatiq", "peers.dramatiq:broker", "--processes", "2", "--threads", "8"),
        keys=("{queue}:*",),
        jobs=("{queue}:default*", "{queue}:__acks__*"),
        settings="default middleware, no results; push: send; work: dramatiq --processes 2 --threads 8, its defaults "
        "on 2 cores (docs: dramatiq.io/guide.html 'Workers')",
    ),
    "huey": Peer(
        server="redis",
        installed=ROOT / ".venv-peers" / "bin" / "huey_consumer",
        push=_python("peers.huey"),
        work=_python("huey.bin.huey_consumer", "peers.huey.huey", "-k", "process", "-w", "4", "-n", "-q"),
        stop=signal.SIGINT,
        keys=("huey.*.{queue}*",),
        jobs=("huey.redis.{queue}", "huey.schedule.{queue}"),
        settings="RedisHuey (blocking), results=False; push: one call each; work: huey_consumer -k process -w 4 "
        "-n -q (docs: its README; huey.readthedocs.io/en/latest/consumer.html 'Options')",
    ),
    "bullmq": Peer(
        server="redis",
        installed=HERE / "node_modules" / "bullmq",
        push=_node("bullmq.js", "push"),
        work=_node("bullmq.js", "work", "100"),
        workers=2,
        keys=("{queue}:*",),
        jobs=tuple(f"{{queue}}:jobs:{state}" for state in ("wait", "active", "delayed", "prioritized", "failed")),
        settings="ioredis, removeOnComplete; push: addBulk of 1,000; work: 2 processes, concurrency 100 (docs: "
        "docs.bullmq.io/guide: queues/adding-bulks, queues/auto-removal-of-jobs, parallelism-and-concurrency)",
    ),
}


def names(text: str) -> list[str]:
    """Return the names of peers in a comma-separated list."""
    found = text.split(",")
    if unknown := [one for one in found if one not in PEERS]:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return found


def jobs(peer: str, wanted: int) -> int:
    """Return the number of jobs of this peer in a round of `wanted` jobs."""
    return min(wanted, PEERS[peer].max_jobs or wanted)


def ready(peer: str, urls: Mapping[str, str]) -> None:
    """Raise `PeerError` with the command to type if the peer is not installed or has no server."""
    wanted = PEERS[peer]
    if not wanted.installed.exists() or not shutil.which(wanted.push[0]):
        needs = " (it needs Node.js 18 or later, with npm)" if wanted.push[0] == "node" else ""
        raise PeerError(f"{peer} is not installed: type 'make peers'{needs}")
    if wanted.server not in urls:
        raise PeerError(f"{peer}: no {wanted.server} server: type 'make services'")


def measure(peer: str, urls: Mapping[str, str], messages: int) -> Run:
    """Push and drain `messages` jobs, and remove the data of the run.

    `urls`: those of `redis` and `mongodb`. Raises `PeerError` with the log of the peer if it is not
    installed, does not start, stalls, or does not run each job exactly once.
    """
    ready(peer, urls)
    return _Run(peer, urls, messages).measure()


def seconds(tallies: Sequence[bytes]) -> float:
    """Return the seconds from the first to the last job, by the tallies of all processes.

    Raises `ValueError` unless each job ran exactly once.
    """
    ran = Counter(map(sum, zip(*(one[HEAD.size :] for one in tallies), strict=True)))
    del ran[1]
    if ran:
        raise ValueError(", ".join(f"{jobs:,} jobs ran {times} times" for times, jobs in sorted(ran.items())))
    first, last = zip(*(HEAD.unpack_from(one) for one in tallies), strict=True)
    return float(max(last) - min(first))


class _Run:
    """One run of one peer."""

    def __init__(self, name: str, urls: Mapping[str, str], messages: int) -> None:
        self.name, self.peer, self.messages = name, PEERS[name], messages
        self.server = urls[self.peer.server]
        self.peak = 0

    def measure(self) -> Run:
        with tempfile.TemporaryDirectory(prefix="spark-queue-peers-") as folder, self._place() as place:
            self.folder, self.place = Path(folder), place
            self.tallies = self.folder / "tallies"
            self.tallies.mkdir()
            served = place.cpu()
            with self._running(self.peer.push) as pushers:
                pushed = self._push(pushers)
            push = self._took(pushed["seconds"], pushers, served)
            served, self.peak = place.cpu(), 0
            with self._running(self.peer.work, self.peer.workers) as workers:
                self._drain(workers)
            drain = self._took(self._checked(), workers, served)
            return Run(push=push, drain=drain, version=pushed["version"])

    def _took(self, seconds: float, ended: Sequence[Program], served: float) -> Measured:
        """Return the cost of ended programs, and of the server since its CPU was `served`."""
        client, server = sum(one.cpu for one in ended), self.place.cpu() - served
        return Measured.of(self.messages, seconds=seconds, client=client, server=server, peak=self.peak)

    def _place(self) -> Place:
        if self.peer.server == "mongodb":
            return MongoPlace(self.server)
        return RedisPlace(self.server, self.peer.keys, self.peer.jobs)

    @contextmanager
    def _running(self, command: Sequence[str], number: int = 1) -> Iterator[list[Program]]:
        """Start `number` programs, and stop them at the end of the block."""
        environment = os.environ | {
            "PYTHONPATH": str(HERE.parent),
            "NODE_PATH": str(KEUSS),
            "PEERS_URL": self.place.url,
            "RQ_REDIS_URL": self.place.url,
            "PEERS_QUEUE": self.place.queue,
            "PEERS_MESSAGES": str(self.messages),
            "PEERS_TALLIES": str(self.tallies),
        }
        words = [one.format(queue=self.place.queue) for one in command]
        programs: list[Program] = []
        try:
            for _ in range(number):
                programs.append(Program(words, environment, self.folder))
            yield programs
        finally:
            for one in programs:
                one.stop(self.peer.stop)

    def _push(self, programs: Sequence[Program]) -> Any:
        """Wait for the pusher. Return its report: `seconds` and `version`."""
        deadline = time.monotonic() + STALL_TIMEOUT_S + self.messages / MIN_PUSH_RATE
        (program,) = programs
        while not program.ended():
            if time.monotonic() > deadline:
                raise self._error("timed out while it pushed", programs)
            self._watch(programs)
        if program.code:
            raise self._error(f"could not push (exit code {program.code})", programs)
        return json.loads(program.stdout().splitlines()[-1])

    def _drain(self, programs: Sequence[Program]) -> None:
        before, deadline = 0, time.monotonic() + STALL_TIMEOUT_S
        while (ran := self._ran()) < self.messages or self.place.left():
            if ran > before:
                before, deadline = ran, time.monotonic() + STALL_TIMEOUT_S
            ended = [one.ended() for one in programs]
            if any(one.code for one in programs) or (all(ended) and ran < self.messages):
                raise self._error(f"workers ended after {ran:,} of {self.messages:,} jobs", programs)
            if time.monotonic() > deadline:
                left = f"{self.place.left():,} keys or documents are left"
                raise self._error(f"stalled after {ran:,} of {self.messages:,} jobs, {left}", programs)
            self._watch(programs)
        self._watch(programs, 0)

    def _watch(self, programs: Sequence[Program], seconds: float = 0.25) -> None:
        time.sleep(seconds)
        self.peak = max(self.peak, memory({one.pid for one in programs}))

    def _tallied(self) -> list[bytes]:
        """Return the tally of each process that worked."""
        tallies = [one.read_bytes() for one in self.tallies.iterdir()]
        # A shorter file is being created.
        return [one for one in tallies if len(one) == HEAD.size + self.messages]

    def _ran(self) -> int:
        """Return the number of jobs that ran. Those that ran twice may count twice."""
        return sum(self.messages - one.count(0, HEAD.size) for one in self._tallied())

    def _checked(self) -> float:
        """Return the seconds of the drain. Raises `PeerError` unless each job ran exactly once."""
        if left := self.place.left():
            raise PeerError(f"{self.name} is not reliable: {left:,} keys or documents are left")
        try:
            return seconds(self._tallied())
        except ValueError as exc:
            raise PeerError(f"{self.name} is not reliable: {exc}") from exc

    def _error(self, what: str, programs: Sequence[Program]) -> PeerError:
        logs = "\n".join(one.log() for one in programs).strip()
        return PeerError(f"{self.name} {what}; the end of its log:\n{logs or '(empty)'}")
