"""Which owner of a consumer counts as alive: other PID namespaces, machines, set-back clocks.

The namespaces are real if this system lets a user make one: root, sudo without a password, or every
user (user namespaces). Else a process only says that it is in another one.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_queue import open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.limits import limits_of, with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.services import owner, ownership
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.owner import UNKNOWN_BOOT, Batch, Owner, consumers
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.types import queue_note_key
from tests.owners import owner_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are of Linux")

#: Takes the consumer, says so, and gives signs of life until its input ends.
HOLD = """
import select, sys
from spark_queue import FencedError, open_store
from spark_queue.stores.conformance.limits import limits_of
from spark_queue.stores.services import owner, ownership
if sys.argv[3:]:
    owner._boot_id = lambda: sys.argv[3]
limits = limits_of(sys.argv[1], owner_timeout_ms=3_600_000)  # a busy machine may be slow
with open_store(sys.argv[1], limits=limits) as store:
    mine = ownership.Ownership(store, sys.argv[2], "c/1")
    try:
        mine.take()
    except FencedError as error:
        sys.exit(f"refused: {error}")
    print("taken", owner._boot_id(), flush=True)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        mine.renew()
"""

#: Where a process runs: options of `unshare`, and what runs before it there.
PLACES = {
    "here": (),
    "another PID namespace": ("--pid", "--fork", "--kill-child", "--mount-proc"),
    "another PID namespace, with the /proc of this one": ("--pid", "--fork", "--kill-child"),
    "another machine": ("--uts",),
    "another time namespace": ("--time", "--boottime", "1000", "--fork", "--kill-child"),
}


@cache
def unshare():
    """The command that makes namespaces; empty where the system forbids that."""
    assert shutil.which("unshare"), "no unshare on PATH: apt-get install util-linux"
    ways = (["unshare"], ["unshare", "--map-root-user"], ["sudo", "-n", "--preserve-env", "unshare"])
    for way in ways:
        call = [*way, "--pid", "--fork", "--mount-proc", "true"]
        if shutil.which(way[0]) and subprocess.run(call, check=False, capture_output=True).returncode == 0:
            return way
    return []


class Process:
    """A process that runs the consumer, somewhere."""

    def __init__(self, place, url, queue):
        call = [sys.executable, "-c", HOLD, url, queue]
        if PLACES[place]:
            named = ["sh", "-c", 'hostname elsewhere; exec "$@"', "-"] if place == "another machine" else []
            said = UNKNOWN_BOOT if place.endswith("with the /proc of this one") else place
            call = [*unshare(), *PLACES[place], *named, *call] if unshare() else [*call, said]
        self._process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.says = self._process.stdout.readline()

    def refused(self):
        return self._process.communicate()[1]

    def kill(self):
        """Kill it, and wait until it is gone: then no process holds the other end of its output.

        What sudo has started may not be killed, and ends with its input: it takes no leave either.
        """
        with suppress(PermissionError):
            self._process.kill()
        if self._process.returncode is None:
            self._process.communicate()


@pytest.fixture
def start(sqlite_url, name):
    started = []

    def start(place):
        started.append(Process(place, sqlite_url, name))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def store(sqlite_url):
    with open_store(sqlite_url) as opened:
        opened.now()  # makes the file
        yield opened


@pytest.fixture
def note_of(store, name):
    """Change fields of the owner in the note of the consumer; `None` leaves one out."""
    key = queue_note_key(name, "consumer", "c/1")

    def change(**changed):
        note = store.note(key)
        fields = {one: value for one, value in (note.value["owner"] | changed).items() if value is not None}
        assert store.set_note(key, note.value | {"owner": fields}, note.version)

    return change


@pytest.mark.parametrize(
    "places",
    [
        pytest.param((first, second), id=f"{first} then {second}", marks=() if fast else pytest.mark.full)
        for first, second, fast in [
            ("another PID namespace", "here", True),
            ("here", "another PID namespace", True),
            ("another PID namespace", "another PID namespace", False),
            ("another PID namespace, with the /proc of this one", "here", False),
            ("here", "another PID namespace, with the /proc of this one", False),
            ("another machine", "here", False),
            ("another time namespace", "here", False),
        ]
    ],
)
def test_a_second_query_is_refused_wherever_the_first_one_lives(start, url, name, places):
    first, second = places
    one = start(first)
    assert one.says.startswith("taken")
    assert (one.says.split()[1] == UNKNOWN_BOOT) == first.endswith("with the /proc of this one")
    two = start(second)
    assert two.says == "" and "a second query on a copy of its checkpoint" in two.refused()
    one.kill()
    # The note is valid for an hour yet. So the one who waits goes by the signs of life, or knows
    # that it is gone.
    began = time.monotonic()
    with open_store(url, limits=limits_of(url, owner_timeout_ms=300)) as store:
        Ownership(store, name, "c/1").take()
    assert (time.monotonic() - began >= 0.3) == (first != "here")


def test_processes_of_one_container_know_at_once_that_the_owner_has_ended(start, store, name):
    one = start("here")
    assert owner_of(store, name, "c/1") is not None
    one.kill()
    assert owner_of(store, name, "c/1") is None


@with_limits(owner_timeout_ms=200)
@pytest.mark.parametrize("version", [1, 2])
def test_of_an_owner_noted_without_its_namespace_the_heartbeat_decides(store, name, version):
    """Earlier versions wrote the id of the machine's start alone."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        start = file.read().strip()
    fields = {
        "token": "t", "host": os.uname().nodename, "boot": start, "pid": 2**22 + 1, "started": 7,
        "until": store.now() + 3_600_000, "leaves": False,
    }  # fmt: skip
    value = {"v": 1} | fields if version == 1 else {"v": 2, "number": 4, "started": [9, 3], "owner": fields}
    store.set_note(queue_note_key(name, "consumer", "c/1"), value, 0)
    assert owner_of(store, name, "c/1") == Owner(**fields), "no process has this number here"
    assert [one for *_, one in consumers(store, name)] == [Owner(**fields)]
    mine = Ownership(store, name, "c/1")
    mine.take(Batch(9, 3))
    assert mine.number == (1 if version == 1 else 5)


def test_a_note_has_no_field_that_earlier_versions_do_not_know(store, name):
    """They refuse it else, and a query of an earlier version cannot follow on one of this."""
    Ownership(store, name, "c/1").take()
    note = store.note(queue_note_key(name, "consumer", "c/1"))
    assert note.value["v"] == 2
    assert set(note.value["owner"]) == {"token", "host", "boot", "pid", "started", "until", "leaves"}


@pytest.mark.parametrize("shown", [FileNotFoundError, PermissionError])
def test_a_process_that_proc_hides_is_not_taken_for_dead(store, name, monkeypatch, shown):
    """`hidepid` hides processes of other users: their folders are missing (2) or unreadable (1)."""
    Ownership(store, name, "c/1").take()
    read = Path.read_text

    def read_text(path, *rest):
        if str(path) == f"/proc/{os.getpid()}/stat":
            raise shown(path)
        return read(path, *rest)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert owner_of(store, name, "c/1") is not None


# --- clocks ---------------------------------------------------------------------------------------


def test_an_owner_that_is_silent_counts_as_dead_though_the_databases_clock_was_set_back(
    store, name, note_of, monkeypatch, caplog
):
    Ownership(store, name, "c/1").take()
    note_of(host="elsewhere", until=store.now() + 5 * 3_600_000)  # as a clock that goes back by five hours leaves it
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        assert len(slept) < 1_000, "it waits forever"

    clock = SimpleNamespace(monotonic=lambda: 50 + sum(slept), sleep=sleep)
    monkeypatch.setattr(ownership, "time", clock)
    monkeypatch.setattr(owner, "time", clock)
    with caplog.at_level(logging.WARNING):
        Ownership(store, name, "c/1").take()
    assert sum(slept) == pytest.approx(StoreLimits.owner_timeout_ms / 1000, abs=2 * StoreLimits.takeover_poll)
    who = f"consumer c/1 of queue {name!r}: "
    process = f"process {os.getpid()} on elsewhere"
    assert [one.getMessage() for one in caplog.records] == [
        f"{who}waiting for {process}, which ran it last and may have died, for 1 s so far",
        f"{who}{process} counts as dead, it has sent no heartbeat. Its note is valid for longer, so the "
        "database's clock was set back",
    ]


@with_limits(takeover_poll=1)
def test_a_process_that_waits_long_logs_it_again_but_rarely(store, name, monkeypatch, caplog):
    first = Ownership(store, name, "c/1")
    first.take()
    first.announce_exit()
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if sum(slept) < 100:
            first.renew()

    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=sleep)
    monkeypatch.setattr(ownership, "time", clock)
    monkeypatch.setattr(owner, "time", clock)
    with caplog.at_level(logging.WARNING):
        Ownership(store, name, "c/1").take()
    said = [one.getMessage().rpartition(", for ")[2] for one in caplog.records[:-1]]
    assert said == ["1 s so far", "31 s so far", "61 s so far", "91 s so far"]
    assert "which is about to end" in caplog.text


@with_limits(owner_timeout_ms=200)
def test_a_process_that_dies_as_it_seals_a_log_blocks_no_other_though_the_databases_clock_was_set_back(store, name):
    reader = Log(store, name)
    start = reader.first()
    store.push(name, pushes(list(range(5))))
    key = queue_note_key(name, "log")
    note = store.note(key)
    gone = {
        "token": "t", "host": "elsewhere", "boot": "b", "pid": 1, "started": 1, "until": store.now() + 3_600_000,
        "leaves": False,
    }  # fmt: skip
    sealing = {"tag": "0/abc", "after": [], "by": gone}
    assert store.set_note(key, note.value | {"sealing": sealing}, note.version)
    assert reader.seal() == 0, "it may be alive"
    assert wait_until(lambda: reader.next_ranges(start, 10))[0].rows == 5
