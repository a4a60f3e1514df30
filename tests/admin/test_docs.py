"""docs/operations.md: its commands and snippets run in order and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_queue import CheckpointError, FencedError, Queue, StoreError, open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.policy import QueuePolicy
from spark_queue.stores.services import owner
from spark_queue.stores.services.ledger import LEDGER_PREFIX, Writer, is_decided, stage_of
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.poison import MAX_FAILED_RUNS, PoisonMessageHandler
from spark_queue.stores.services.query_binding import QueryBinding, bind
from spark_queue.stores.sqlite import file as sqlite_file

pytest.importorskip("typer")

from typer.testing import CliRunner

from spark_queue.cli import app
from tests.pages import blocks, calls, plain

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
URL = "sqlite:///queues.db"

QUERY, OTHER = "8b0f4c52-6d1e-4a53-9f27-0c9b8a7d6e51", "c3d2a1b0-91f4-4f0e-8a5d-5e6f7a8b9c0d"
LOST = "f07c6b2d-52e1-4d0f-9a3b-6c8d1e2f3a4b"


@pytest.fixture
def living(tmp_path, monkeypatch, set_limits):
    """The store of the page, in a folder of its own; returns the claim of the running query."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_QUEUE_URL", "")
    set_limits(owner_timeout_ms=600_000)  # a busy machine may be slow
    died = datetime(2026, 11, 20, 9, tzinfo=UTC)
    with open_store(URL) as store:
        store.push("departures", pushes([{"flight": n} for n in range(5_000)]))
        store.reserve("departures", "etl/0b51d2/31.1", 1_000, partitions=2, lease=None)
        store.reserve("departures", "etl/3fa9c1/12.1", 1_000, partitions=2, lease=None)
        store.reserve("departures", "rechecks/77d0aa/4.1", 3)
        isolation = PoisonMessageHandler(
            store.queue("departures", QueuePolicy(lease=120_000, max_tries=5)), "rechecks/77d0aa"
        )
        for _ in range(MAX_FAILED_RUNS):
            isolation.handle_rerun("rechecks/77d0aa/4.1")
        with Queue(store, "departures", consumer="checker") as queue:
            queue._holdings._branch = "checker/5b0e9c"
            queue.reserve(1)
            queue._holdings.clear()

        store.push("boarding", pushes([{"gate": n} for n in range(3_000)]))
        Log(store, "boarding").latest()

        reasons = ["no such flight: UA 1545", "Connection to 10.0.0.7 timed out"]
        headers = [
            {"x-dl-from-queue": "departures", "x-dl-tries": "5", "x-error": reasons[n > 0],
             "x-dl-t": (died + timedelta(minutes=n)).isoformat(timespec="milliseconds").replace("+00:00", "Z")}
            for n in range(4)
        ]  # fmt: skip
        ids = [f"6b01b3b5957fe46c7200000{n}" for n in range(4)]
        store.push("departures.dead", pushes([{"flight": n} for n in range(4)], ids=ids, headers=headers))

        stages = [stage_of(QUERY, 41, f"00000{n}-5e0f1a2b3c4d") for n in range(2)]
        for stage in [*stages, stage_of(QUERY, 42, "000000-9a8b7c6d5e4f")]:
            store.stage("late", stage, pushes(list(range(500))))
        store.set_note(LEDGER_PREFIX + QUERY, {"v": 1, "batch": 41, "stages": stages}, 0)
        store.publish(stages[:1])  # then its driver died
        store.set_note(f"{LEDGER_PREFIX}nightly-load", {"v": 1, "batch": 7, "stages": []}, 0)
        store.set_note(LEDGER_PREFIX + LOST, {"v": 1, "batch": 30, "stages": []}, 0)
        bind(store, "departures", "etl", QueryBinding(LOST, "etl/0b51d2", 30, "31.1"))
        dead = Ownership(store, "departures", "etl/0b51d2")
        dead.take()
        dead.start(Batch(30))
        dead.start(Batch(31, 1))
        owner.revoke(store, "departures", "etl/0b51d2")
        ownership = Ownership(store, "departures", "etl/3fa9c1")
        ownership.take()
        ownership.start(Batch(11))
        ownership.start(Batch(12, 1))
        yield ownership


def run_command(command):
    """What a command of the page prints."""
    program, *args = shlex.split(command, comments=True)
    if program == "export":
        name, _, value = args[0].partition("=")
        os.environ[name] = value
        return ""
    assert program == "spark-queue", command
    done = CliRunner().invoke(app, args, prog_name="spark-queue")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def test_the_page_runs_as_it_is_written(living):
    names: dict[str, object] = {}
    for kind, text in blocks(PAGE):
        if kind == "console":
            for command, shown in calls(text):
                assert plain(run_command(command)) == plain(shown), command
        elif kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(text, names)
            (reported,) = re.findall(r"```python\n" + re.escape(text) + r"```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
            assert plain(printed.getvalue()) == plain(reported)


def test_what_a_query_says_is_on_the_page(living, monkeypatch, caplog):
    page = plain(PAGE)
    (isolated,) = caplog.get_records("setup")
    assert plain(isolated.getMessage()) in page
    with open_store(URL) as store:
        real = store.now

        def now():
            living.renew()  # the query that lives gives a sign of life whenever another one looks
            return real()

        monkeypatch.setattr(store, "now", now)
        with pytest.raises(FencedError) as refused:
            Ownership(store, "departures", "etl/3fa9c1").take(Batch(12, 1))
        with pytest.raises(CheckpointError) as older:
            Ownership(store, "departures", "etl/3fa9c1").take(Batch(11, 1))
        with pytest.raises(CheckpointError) as newer:
            living.check_newest(Batch(13, 1))
        with pytest.raises(CheckpointError) as dropped:
            Ownership(store, "departures", "etl/77d0aa").take(Batch(4, 1))
        bind(store, "departures", None, QueryBinding(QUERY, "etl/0b51d2"))
        with pytest.raises(CheckpointError) as first:
            bind(store, "departures", None, QueryBinding(QUERY, "etl/3fa9c1"))
        owner.revoke(store, "departures", "etl/3fa9c1")
    with pytest.raises(FencedError) as revoked:
        living.check()
    with pytest.raises(CheckpointError) as lost:
        is_decided(None, OTHER, 43, Writer.STREAM)
    for error in (refused, older, newer, dropped, first, revoked, lost):
        assert plain(f"{error.typename}: {error.value}") in page


def test_every_command_is_on_the_page():
    for command in ("reservations", "release", "deadletter list", "deadletter redrive", "ledger list", "recover",
                    "ledger recover", "ledger forget", "ledger set", "layout", "compact", "log list",
                    "log trim"):  # fmt: skip
        assert f"$ spark-queue {command}" in PAGE


def test_what_is_said_of_a_sqlite_file_is_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-3")
    gone = sqlite_file.file_mismatch("/data/queues.db", sqlite_file.FileId("another", 1, 2, "etl-1"))
    assert gone in PAGE
    url = f"sqlite:///{tmp_path}/queues.db"
    with open_store(url) as store:
        store.now()
        (tmp_path / "queues.db").unlink()
        with pytest.raises(StoreError) as lost:
            store.now()
    assert str(lost.value).replace(str(tmp_path), "/data") in PAGE
