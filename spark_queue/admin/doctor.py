"""Check this machine and the database of a URL: versions, settings, clocks, damage."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version

from spark_queue.admin.common import open_existing
from spark_queue.admin.damage import find_damage
from spark_queue.admin.logs import find_logs
from spark_queue.admin.sinks import find_stale_sinks
from spark_queue.errors import QueueError, StoreError, StoreUnavailable, UsageError, plural
from spark_queue.options.masking import mask
from spark_queue.stores import STORES
from spark_queue.stores.base import Store
from spark_queue.stores.types import CheckState, Finding

#: The oldest versions that work, and for Spark the first one that is not known to work.
MIN_JAVA, SPARK_VERSIONS, MIN_PYTHON = 17, ((4, 0), (4, 4)), (3, 11)

#: Seconds that another program may take to print its version.
PROGRAM_TIMEOUT = 30

#: How long calls are retried if the database cannot be reached (ms): the answer should come soon.
RETRY_TIMEOUT = 1_000

#: Seconds between two clocks that are worth a warning, and number of reads of the server's clock.
CLOCK_TOLERANCE, CLOCK_READS = 5.0, 7

#: A program for another Python: it prints its version and whether it has our package.
_WORKER_SCRIPT = """
import importlib.util, json, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try: return version(name)
    except PackageNotFoundError: return None
print(json.dumps([list(sys.version_info[:3]), importlib.util.find_spec("spark_queue") is not None, of("pyspark")]))
"""


def examine(url: str | None = None) -> Iterator[Finding]:
    """Yield the findings about this machine, and with a URL also about the database.

    Changes nothing. Raises no error for a check that fails: its finding has the state `bad`.
    """
    yield _check_python()
    yield _check_spark()
    yield _check_java()
    yield _check_workers()
    yield from _check_drivers()
    if url is not None:
        yield from _check_database(url)


def server(url: str) -> str:
    """Return the name and the version of the database of a URL: `redis 7.0.15`."""
    with open_existing(url) as store:
        return store.server()


# --- this machine ---------------------------------------------------------------------------------


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_python() -> Finding:
    text = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < MIN_PYTHON:
        return Finding("python", "bad", text, f"use Python {_format_version(MIN_PYTHON)} or later")
    return Finding("python", "good", text)


def _check_spark() -> Finding:
    found = _installed("pyspark")
    if found is None:
        return Finding("spark", "worry", "not installed; queues work without it", "pip install 'spark-queue[spark]'")
    numbers = tuple(int(one) for one in re.findall(r"\d+", found)[:2])
    if not SPARK_VERSIONS[0] <= numbers < SPARK_VERSIONS[1]:
        known = f"{_format_version(SPARK_VERSIONS[0])} to {SPARK_VERSIONS[1][0]}.{SPARK_VERSIONS[1][1] - 1}"
        return Finding("spark", "bad", f"{found}; known to work are {known}", "pip install 'spark-queue[spark]'")
    return Finding("spark", "good", found)


def _format_version(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _check_java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    state: CheckState = "worry" if _installed("pyspark") is None else "bad"
    todo = (
        f"install Java {MIN_JAVA} or later (on Debian: apt-get install openjdk-{MIN_JAVA}-jre-headless), "
        "or set JAVA_HOME"
    )
    path = shutil.which(java)
    if path is None:
        return Finding("java", state, f"none: no {java}" + ("" if home else " on the PATH"), todo)
    done = _run([path, "-version"])
    if isinstance(done, str):
        return Finding("java", state, f"{path}: {done}", todo)
    number = re.search(r'version "(\d+)[^"]*"', done.stderr + done.stdout)
    if number is None:
        return Finding("java", state, f"{path} prints no version", todo)
    if int(number[1]) < MIN_JAVA:
        return Finding("java", state, f"{number[0]}, {path}", todo)
    return Finding("java", "good", f"{number[0].split()[1].strip(chr(34))}, {path}")


def _check_workers() -> Finding:
    """Check the Python of Spark's workers (PYSPARK_PYTHON), which may differ from this one."""
    command = os.environ.get("PYSPARK_PYTHON") or "python3"
    source = "PYSPARK_PYTHON" if os.environ.get("PYSPARK_PYTHON") else "python3 on the PATH"
    todo = f"export PYSPARK_PYTHON={sys.executable}"
    state: CheckState = "worry" if _installed("pyspark") is None else "bad"
    path = shutil.which(command)
    if path is None:
        return Finding("workers", state, f"{source}: {command} does not exist", todo)
    done = _run([path, "-c", _WORKER_SCRIPT])
    if isinstance(done, str):
        return Finding("workers", state, f"{source}: {path}: {done}", todo)
    try:
        numbers, ours, spark = json.loads(done.stdout)
    except ValueError:
        return Finding("workers", state, f"{source}: {path} is not a working Python", todo)
    description = f"{_format_version(tuple(numbers))}, {path} ({source})"
    if tuple(numbers[:2]) != sys.version_info[:2]:
        return Finding("workers", state, f"{description}: Spark needs the same version as this Python", todo)
    if not ours:
        return Finding("workers", state, f"{description}: spark_queue is not installed there", todo)
    if spark != _installed("pyspark"):
        found = f"pyspark {spark} is" if spark else "pyspark is not"
        return Finding("workers", state, f"{description}: {found} installed there", todo)
    return Finding("workers", "good", description)


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | str:
    """Run a program. Return its result, or the reason why it did not run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _check_drivers() -> Iterator[Finding]:
    drivers = {
        one.driver: (f"{scheme}://", f"[{one.extra}]")
        for scheme, one in STORES.items()
        if one.driver and not one.variant_of
    }
    for package, (use, extra) in {"pyarrow": ("everything", ""), **drivers}.items():
        found = _installed(package)
        if found is None:
            yield Finding(package, "worry", f"not installed: {use} needs it", f"pip install 'spark-queue{extra}'")
        else:
            yield Finding(package, "good", found)


# --- the database ---------------------------------------------------------------------------------


def _check_database(url: str) -> Iterator[Finding]:
    shown = mask(url)
    try:
        with open_existing(url, retry_timeout=RETRY_TIMEOUT) as store:
            shown = mask(store.url)
            found = store.server()
            yield Finding("database", "good", f"{found}, {shown}")
            yield from _check_clock(store)
            yield from store.examine()
            yield from find_damage(store)
            for check in (_check_staged, _check_logs):
                try:
                    yield from check(store)
                except StoreUnavailable:
                    raise
                except StoreError as error:  # from a damaged note, which has its own finding
                    yield Finding("database", "bad", str(error), "repair the damage listed here, then run it again")
    except UsageError as error:
        yield Finding("database", "bad", str(error), "correct the URL; the first push creates a SQLite file")
    except QueueError as error:
        yield Finding("database", "bad", str(error), "check the URL, and that the server runs and can be reached")


def _check_clock(store: Store) -> Iterator[Finding]:
    """Measure the round trip to the server, and the difference between its clock and ours."""
    samples = [_measure_clock(store.now) for _ in range(CLOCK_READS)]
    latency = statistics.median(passed for passed, _ in samples)
    yield Finding("latency", "good" if latency < 20 else "worry", f"{latency * 1000:.1f} ms for a round trip")
    offset = min(samples)[1]
    if abs(offset) < CLOCK_TOLERANCE:
        yield Finding("clocks", "good", f"{offset:+.3f} s apart")
    else:
        yield Finding(
            "clocks", "worry", f"the server's clock is {offset:+.1f} s from this machine's; queues use the server's",
            "set the clocks with NTP; until then use delays, not moments",
        )  # fmt: skip


def _check_staged(store: Store) -> Iterator[Finding]:
    """Yield a finding for each sink whose staged rows may never become visible."""
    for sink, idle in find_stale_sinks(store):
        rows = plural(sum(sink.staged.values()), "staged row")
        since = "" if idle is None else f", for {timedelta(milliseconds=idle // 1000 * 1000)}"
        yield Finding(
            "staged", "worry", f"sink {sink.sink} has {rows}{since}: its write is running, or was killed",
            f"if it is not running: spark-queue ledger recover URL {sink.sink}",
        )  # fmt: skip


def _check_logs(store: Store) -> Iterator[Finding]:
    """Yield a finding for each queue that is read as a log: the messages that it retains."""
    for one in find_logs(store, store.queues()):
        text = f"{one.queue} retains {plural(one.messages, 'message')} in {plural(one.segments, 'segment')}"
        if one.oldest is not None:
            text += f", the oldest from {one.oldest:%Y-%m-%d %H:%M:%S} UTC"
        if one.strays:
            todo = f"release them: spark-queue release URL {one.queue} {one.strays[0]}"
            yield Finding("log", "worry", f"{text}; messages of {', '.join(one.strays)} belong to no segment", todo)
        else:
            yield Finding("log", "good", text)


def _measure_clock(now: Callable[[], int]) -> tuple[float, float]:
    """Return the seconds of a round trip, and how many seconds the clock there is ahead of ours."""
    before, began = time.time(), time.perf_counter()
    there = now() / 1000
    passed = time.perf_counter() - began
    return passed, there - before - passed / 2
