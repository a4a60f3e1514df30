"""`spark-queue doctor`: what is wrong is seen, said, and makes the exit code 1."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("typer")

from spark_queue import open_store
from spark_queue.admin import doctor
from spark_queue.cli import params
from spark_queue.messages.message import pushes
from tests.command_line import Run, program


@pytest.fixture(autouse=True)
def healthy(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv(params.URL_VARIABLE, raising=False)


def finding(what: str, *args: str):
    done = Run("doctor", *args, "--json")
    (one,) = [one for one in done.json["findings"] if one["what"] == what]
    assert (done.code == 1) is done.json["failed"]
    return done.code, one["state"], one["told"], one["todo"]


def executable(path, text: str):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_all_is_well_here():
    if not shutil.which("java"):
        pytest.skip("there is no Java")
    done = Run("doctor")
    assert done.code == 0 and "FAILED" not in done.out and done.err == ""


def test_other_pythons_of_workers_are_refused(tmp_path, monkeypatch):
    old = json.dumps([[3, 8, 1], True, doctor._installed("pyspark")])
    bare, other = (json.dumps([list(sys.version_info[:3]), *rest]) for rest in ((False, None), (True, "1.2")))
    cases = {
        executable(tmp_path / "old", f"echo '{old}'"): "needs the same version",
        executable(tmp_path / "bare", f"echo '{bare}'"): "spark_queue is not installed",
        executable(tmp_path / "other", f"echo '{other}'"): "pyspark 1.2",
        executable(tmp_path / "broken", "exit 1"): "not a working Python",
        "no-such-python": "no-such-python does not exist",
    }  # fmt: skip
    for python, expected in cases.items():
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        code, state, said, todo = finding("workers")
        assert (code, state) == (1, "bad") and expected in said, python
        assert todo == f"export PYSPARK_PYTHON={sys.executable}"


def test_java_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, state, reported, todo = finding("java")
    assert (code, state) == (1, "bad") and f"no {tmp_path}/bin/java" in reported and "JAVA_HOME" in todo
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    assert finding("java")[:2] == (1, "bad")
    executable(tmp_path / "bin" / "java", "echo 'openjdk version \"21-ea\" 2023-09-19' >&2")
    assert finding("java")[1:3] == ("good", f"21-ea, {tmp_path}/bin/java")
    executable(tmp_path / "bin" / "java", "echo gibberish")
    assert "prints no version" in finding("java")[2]


def test_versions_of_spark(monkeypatch):
    for version, state in (("3.5.1", "bad"), ("4.0.0", "good"), ("4.4.0", "bad"), ("4.3.0.dev1", "good")):
        monkeypatch.setattr(doctor, "_installed", lambda _, version=version: version)
        assert doctor._check_spark().state == state, version
    monkeypatch.setattr(doctor, "_installed", lambda _: None)
    assert doctor._check_spark().state == doctor._check_java().state.replace("good", "worry") == "worry"


def test_a_server_that_is_away_is_reported_without_its_password():
    code, state, reported, _ = finding("database", "redis://me:secret@127.0.0.1:1/0")
    assert (code, state) == (1, "bad") and "secret" not in reported and "127.0.0.1:1" in reported
    assert finding("database", "sqlite:////nowhere/at/all.db")[:2] == (1, "bad")
    assert Run("doctor", "sqlit:///x.db").code == 2


def test_clocks_that_are_apart(sqlite_url, monkeypatch):
    with open_store(sqlite_url) as store:
        real = store.now
        store.push("q", pushes([1]))
        monkeypatch.setattr(store, "now", lambda: real() + 60_000)
        clock = {one.what: one for one in doctor._check_clock(store)}["clocks"]
    assert clock.state == "worry" and clock.told.startswith("the server's clock is +60.0 s from this")


def test_a_journal_of_another_program(sqlite_url):
    import sqlite3

    Run("push", sqlite_url, "q", input="1")
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    assert finding("journal", sqlite_url)[:3] == (1, "bad", "delete, not WAL")


def test_dropped_indexes(empty_mongodb_url):
    from pymongo import MongoClient

    with open_store(empty_mongodb_url) as store, MongoClient(empty_mongodb_url) as client:
        store.push("bare", pushes([1]))
        assert finding("indexes", empty_mongodb_url)[1:3] == ("good", "complete for 1 queue")
        client.get_default_database()["bare"].drop_indexes()
        state, reported = finding("indexes", empty_mongodb_url)[1:3]
        assert state == "worry" and reported.startswith("missing for bare: ")


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs a redis-server of its own on the PATH")
def test_a_redis_that_forgets(tmp_path):
    from redis import Redis

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(call, stdout=subprocess.DEVNULL) as server:
        url = f"redis://127.0.0.1:{port}/0"
        try:
            with open_store(url, retry_timeout=30_000) as store, Redis(port=port) as client:
                store.now()
                assert finding("append-only file", url)[1] == "worry"
                assert finding("full memory", url)[:2] == (0, "good")
                client.config_set("maxmemory", "100mb")
                client.config_set("maxmemory-policy", "allkeys-lru")
                client.config_set("appendonly", "yes")
                client.config_set("appendfsync", "always")
                assert finding("full memory", url)[:2] == (1, "bad")
                assert finding("append-only file", url)[1:3] == ("good", "on, synced with every write")
                for policy, expected in (("everysec", "every second"), ("no", "by the operating system")):
                    client.config_set("appendfsync", policy)
                    assert expected in finding("append-only file", url)[2]
        finally:
            server.terminate()


# --- the start ------------------------------------------------------------------------------------


def test_help_and_completion_import_nothing_heavy():
    code = (
        "import sys; from spark_queue.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'pyarrow', 'pandas', 'pyspark', 'pymongo', 'redis', 'rich.progress'} & set(sys.modules)))"
    )
    for args in (["--help"], ["push", "--help"], ["completions", "bash"]):
        assert program(*args, code=code).stdout.splitlines()[-1] == "[]", args
    began = time.perf_counter()
    program("--help")
    assert time.perf_counter() - began < 10  # a fifth of a second where nothing else runs
    assert os.environ["PYSPARK_PYTHON"]


def test_the_help_has_every_command_and_the_codes():
    from spark_queue.cli.params import RFQ_COMMANDS, SECTIONS, app

    shown, with_rfq = Run("--help").out, Run("--layout", "rfq", "--help").out
    names = [*(name for names in SECTIONS.values() for name in names), *RFQ_COMMANDS]
    for name in names:
        assert (f"\n  {name} " in shown) is (name not in RFQ_COMMANDS), name
        assert f"\n  {name} " in with_rfq, name
        assert Run(name, "--help").code == 0
    assert "--layout rfq --help" in " ".join(shown.split())
    made = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
    assert made | {one.name for one in app.registered_groups} == set(names)
    for title in SECTIONS:
        assert f"\n{title}:\n" in shown
    assert "130: stopped by Ctrl-C" in " ".join(shown.split())
