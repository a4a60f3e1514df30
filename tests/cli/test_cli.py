"""The command line `spark-queue`: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from spark_queue import Queue, open_store
from spark_queue.cli import deadletter, output, params
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.services.ledger import LEDGER_PREFIX, create_ledger, delete_sink, stage_of
from spark_queue.stores.services.ownership import Ownership
from tests.command_line import Run, program


@pytest.fixture
def file(sqlite_url):
    """A SQLite store with one message that `etl/3fa9c1` holds, and three dead letters."""
    with Queue(sqlite_url, "departures") as queue:
        queue.push_many([1, 2, 3])
        queue.dead_letter(*queue.reserve(3), reason="no such flight")
        queue.push({"n": 4})
        queue.store.reserve("departures", "etl/3fa9c1/1", 1, lease=None)
    return sqlite_url


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.delenv(params.URL_VARIABLE, raising=False)


# --- commands, on every store ---------------------------------------------------------------------


def test_reservations_and_release(url, store, name):
    store.push(name, pushes(list(range(1_500))))
    store.reserve(name, "etl/3fa9c1/7", 1_200, lease=None)
    store.reserve(name, "py/ab/1", 5)
    shown = Run("reservations", url, name)
    assert shown.code == 0 and shown.err == ""
    etl, py = shown.rows
    assert etl == [name, "etl/3fa9c1/7/0", "1,200", "never"]
    assert datetime.fromisoformat(" ".join(py[3:])).year > 2000
    reported = Run("reservations", url, name, "--json").json
    assert [(one["tag"], one["rows"], one["owner"]) for one in reported] == [
        ("etl/3fa9c1/7/0", 1200, None),
        ("py/ab/1/0", 5, None),
    ]
    assert reported[0]["until"] is None
    assert reported[1]["until"].endswith("Z") and datetime.fromisoformat(reported[1]["until"]).year > 2000
    assert [one for one in Run("reservations", url, "--json").json if one["queue"] == name] == reported

    released = Run("release", url, name, "etl", "--yes", "--delay", "10m", "--failed")
    assert (released.code, released.out, released.err) == (0, f"1,200 messages of {name} released\n", "")
    assert store.sizes(name).scheduled == 1_200
    assert Run("release", url, name, "py", "-y", "--json").json == {"queue": name, "tag": "py", "released": 5}
    again = Run("release", url, name, "py", "--yes")
    assert (again.code, again.out) == (0, f"0 messages of {name} released\n")
    assert f"tag py holds no messages of {name}" in again.err
    nothing = Run("reservations", url, name)
    assert (nothing.code, nothing.out, nothing.err) == (0, "", f"no messages are reserved in {name}\n")
    assert Run("reservations", url, name, "--json").json == []


@with_limits(owner_timeout_ms=600_000)
def test_a_living_query_is_released_with_force_only(url, store, name):
    store.push(name, pushes([1]))
    store.reserve(name, "etl/3fa9c1/1", 1, lease=None)
    Ownership(store, name, "etl/3fa9c1").take()
    assert f"process {os.getpid()} on" in Run("reservations", url, name).out
    for tag in ("etl", "etl/3fa9c1", "etl/3fa9c1/1/0"):
        refused = Run("release", url, name, tag)
        assert refused.code == 2 and refused.out == ""
        assert f"is run by process {os.getpid()} on" in refused.err and "--force" in refused.err
    assert Run("release", url, name, "etl", "--force", "--yes").code == 0
    assert Run("reservations", url, name).out == ""


def test_dead_letters_and_redrive(url, store, name):
    with Queue(url, name, max_tries=1) as queue:
        queue.push_many([{"n": n} for n in range(3)])
        queue.dead_letter(*queue.reserve(1), reason="no such flight")
        queue.dead_letter(*queue.reserve(2), reason="timeout")
    listed = Run("deadletter", "list", url, name, "--reason", "NO SUCH")
    assert listed.code == 0 and listed.err == ""
    (row,) = listed.rows
    assert row[3:5] == [name, "1"] and row[5:] == ["no", "such", "flight", '{"n":', "0}"]
    reported = Run("deadletter", "list", url, name, "--json", "--limit", 2)
    assert [one["payload"] for one in reported.json] == [{"n": 0}, {"n": 1}]
    assert reported.json[0]["headers"]["x-error"] == reported.json[0]["error"] == "no such flight"
    assert reported.json[0]["died"].endswith("Z") and reported.json[0]["from_queue"] == name
    assert reported.err == "only 2 dead letters shown; for more, set --limit\n"

    dead = f"{name}.dead"
    dry = Run("deadletter", "redrive", url, name, "--dry-run")
    assert (dry.code, dry.out) == (0, f"3 messages would be moved from {dead} to {name}\n")
    store.push(name, pushes([0]))
    wrong = Run("deadletter", "redrive", url, name, "--to", f"{name}x")
    assert wrong.code == 2 and "--create" in wrong.err and f"'{name}'" in wrong.err
    one = Run("deadletter", "redrive", url, name, "--to", f"{name}.other", "--create", "--id", reported.json[1]["id"])
    assert one.out == f"1 message moved from {dead} to {name}.other\n"
    store.reserve(dead, "looker/a/1", 1)
    rest = Run("deadletter", "redrive", url, name, "--json", "--rate", 1000)
    assert rest.json == {"dead": dead, "dry_run": False, "moved": {name: 1}, "passed_over": 1}
    assert rest.err == "1 dead letter skipped: reserved by a consumer, or gone\n"
    store.rollback(dead, "looker")
    assert Run("deadletter", "redrive", url, name, "--since", "1h").out.startswith("1 message moved")
    empty = Run("deadletter", "redrive", url, name)
    assert (empty.code, empty.out, empty.err) == (0, "", f"no dead letters of this kind in {dead}\n")
    assert Run("deadletter", "list", url, name).code == 0
    assert Run("deadletter", "list", url, name, "--json").json == []


def test_ledgers(url, store, name):
    winner, later = stage_of(name, 3, "a"), stage_of(name, 4, "a")
    store.stage(name, winner, pushes([1, 2, 3]))
    store.stage(name, later, pushes([1, 2]))
    store.set_note(LEDGER_PREFIX + name, {"v": 1, "batch": 3, "stages": [winner]}, 0)
    shown = Run("ledger", "list", url)
    (line,) = [line for line in shown.out.splitlines() if name in line]
    assert "batch 3: 3, batch 4: 2" in line and "half published: 3 left" in line
    (reported,) = [one for one in Run("ledger", "list", url, "--json").json if one["sink"] == name]
    assert reported == {"sink": name, "batch": 3, "staged": {"3": 3, "4": 2}, "unpublished": 3}
    refused = Run("ledger", "set", url, name, 4)
    assert refused.code == 2 and f"spark-queue ledger recover URL {name}" in refused.err
    assert Run("ledger", "recover", url, name).out == "3 messages published, 2 staged rows dropped\n"
    assert Run("ledger", "recover", url, name, "--json").json == {
        "sink": name,
        "published": 0,
        "dropped": 0,
        "kept": 0,
    }
    assert Run("ledger", "set", url, name, 9).out == f"sink {name} set to batch 9; before: batch 3\n"
    assert Run("ledger", "set", url, name, 10, "--json").json == {"sink": name, "batch": 10, "before": 9}
    delete_sink(store, name)


def test_a_write_whose_driver_has_died_is_recovered_and_forgotten(url, store, name):
    sink = f"write-{name}"
    create_ledger(store, sink)
    store.stage(name, stage_of(sink, 0, "a"), pushes([1, 2, 3]))
    (line,) = [line for line in Run("ledger", "list", url).out.splitlines() if sink in line]
    assert "batch 0: 3" in line and "nothing published" in line
    assert Run("ledger", "recover", url, sink).out == "0 messages published, 3 staged rows dropped\n"
    assert sink not in Run("ledger", "list", url).out
    assert Run("ledger", "recover", url, sink).code == 2
    assert Run("ledger", "set", url, name, 0).out == f"sink {name} set to batch 0; before: no ledger\n"
    unknown = Run("ledger", "recover", url, f"{name}x")
    assert unknown.code == 2 and f"did you mean '{name}'" in unknown.err


# --- how it is called -----------------------------------------------------------------------------

WRONG = {
    "no command": [],
    "an unknown command": ["reservation", "URL"],
    "no queue": ["release", "URL"],
    "no tag": ["release", "URL", "departures"],
    "no store": ["reservations", "queues.db"],
    "an unknown store": ["reservations", "sqlit:///queues.db"],
    "no file": ["reservations", "sqlite:///nowhere.db"],
    "an unknown queue": ["release", "URL", "depatures", "etl", "--yes"],
    "a wrong tag": ["release", "URL", "departures", "a//b", "--yes"],
    "a wrong delay": ["release", "URL", "departures", "etl", "--yes", "--delay", "10 parsecs"],
    "nobody to answer": ["release", "URL", "departures", "etl"],
    "no queue of dead letters": ["deadletter", "list", "URL"],
    "a wrong moment": ["deadletter", "list", "URL", "departures", "--since", "yesterday"],
    "a moment too long ago": ["deadletter", "list", "URL", "departures", "--since", "999999999d"],
    "a moment beyond all numbers": ["deadletter", "list", "URL", "departures", "--since", "9999999999999d"],
    "a wrong limit": ["deadletter", "list", "URL", "departures", "--limit", "0"],
    "a wrong rate": ["deadletter", "redrive", "URL", "departures", "--rate", "0"],
    "an unknown target": ["deadletter", "redrive", "URL", "departures", "--to", "departurs"],
    "an unknown option": ["deadletter", "redrive", "URL", "departures", "--dryrun"],
    "an unknown sink": ["ledger", "recover", "URL", "sink"],
    "a wrong batch": ["ledger", "set", "URL", "sink", "one"],
    "a negative batch": ["ledger", "set", "URL", "sink", "--", "-1"],
}


@pytest.mark.parametrize("args", WRONG.values(), ids=WRONG)
def test_a_mistake_ends_with_code_2_and_a_message(file, args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(file) as store:
        before = store.sizes("departures"), store.sizes("departures.dead")
    done = Run(*[file if one == "URL" else one for one in args])
    assert done.code == 2
    assert done.err if args else done.out + done.err
    assert "Traceback" not in done.err
    with open_store(file) as store:
        assert (store.sizes("departures"), store.sizes("departures.dead")) == before
        assert store.notes(LEDGER_PREFIX) == {}
    assert not Path("nowhere.db").exists()


def test_similar_names_are_suggested(file):
    assert "did you mean 'departures'" in Run("release", file, "depatures", "etl", "--yes").err
    assert "did you mean 'etl/3fa9c1'" in Run("release", file, "departures", "etl/3fa9", "--yes").err
    assert "did you mean 'departures'" in Run("reservations", file, "depatures").err
    assert "did you mean 'departures'" in Run("deadletter", "list", file, "depatures").err
    assert "did you mean 'departures'" in Run("deadletter", "redrive", file, "depatures").err
    assert "did you mean 'reservations'" in Run("reservatons", file).err


def test_the_url_may_come_from_the_environment(file):
    env = {params.URL_VARIABLE: file}
    assert Run("reservations", env=env).out == Run("reservations", file).out
    assert Run("reservations", "departures", env=env).code == 0
    assert Run("reservations", file, "departures", env={params.URL_VARIABLE: "redis://nowhere"}).code == 0
    assert len(Run("deadletter", "list", "--reason", "flight", "departures", "--json", env=env).json) == 3
    assert Run("deadletter", "list", "departures", "--reason", "sqlite:///x", "--json", env=env).json == []
    assert Run("release", "departures", "etl", "--yes", env=env).out == "1 message of departures released\n"
    assert Run("ledger", "set", "sink", "4", env=env).code == 0
    assert "the URL of the store is missing" in Run("ledger", "list").err


def test_a_release_asks(file, monkeypatch):
    monkeypatch.setattr(output, "can_ask", lambda: True)
    no = Run("release", file, "departures", "etl", input="n\n")
    assert no.code == 1 and "Release 1 message of departures held under tag etl?" in no.err
    assert len(Run("reservations", file).rows) == 1
    assert Run("release", file, "departures", "etl", input="y\n").code == 0
    assert Run("reservations", file).out == ""


def test_a_limit_that_is_just_reached_is_no_limit(file):
    assert Run("deadletter", "list", file, "departures", "--limit", "3").err == ""


def test_what_a_terminal_would_obey_is_not_printed(file):
    with Queue(file, "departures") as queue:
        queue.push("\x1b[31mred [bold]\n" + "x" * 5_000, id="evil\x9b")
        queue.dead_letter(*queue.reserve(1), reason="\x1b]0;title\x07[/] end\n")
    shown = Run("deadletter", "list", file, "departures").out
    assert not [one for one in shown if not one.isprintable() and one != "\n"]
    assert "[bold]" in shown and "[/] end" in shown and "xxx…" in shown
    assert len(shown.splitlines()) == 6
    assert Run("deadletter", "list", file, "departures", "--json").json[-1]["error"] == "\x1b]0;title\x07[/] end\n"
    with open_store(file) as store:
        store.push("departures.dead", pushes([1], headers={"x-dl-from-queue": "a\x1b[31mb"}))
    moved = Run("deadletter", "redrive", file, "departures").out
    assert "\x1b" not in moved and "1 message moved from departures.dead to a [31mb" in moved


def test_bytes_are_extended_json(file):
    with Queue(file, "departures") as queue:
        queue.push(b"\0\xff")
        queue.dead_letter(*queue.reserve(1))
    payload = Run("deadletter", "list", file, "departures", "--json").json[-1]["payload"]
    assert payload == {"$binary": {"base64": "AP8=", "subType": "00"}}
    assert '{"$binary":' in Run("deadletter", "list", file, "departures").out


def test_a_redrive_that_is_stopped_reports_how_far_it_came(file, monkeypatch):
    letters = sys.modules["spark_queue.admin.dead_letters"]
    monkeypatch.setattr(letters, "LETTERS_STEP", 2)  # the steps of a command, which takes no limits
    real, calls = deadletter.RedriveProgress.step, []

    def step(self, moved, found):
        real(self, moved, found)
        calls.append(moved)
        raise KeyboardInterrupt

    monkeypatch.setattr(deadletter.RedriveProgress, "step", step)
    stopped = Run("deadletter", "redrive", file, "departures")
    assert (stopped.code, stopped.out) == (130, "")
    assert "moved 2 of 3 dead letters; to move the rest, repeat the call" in stopped.err
    monkeypatch.setattr(deadletter.RedriveProgress, "step", real)
    assert Run("deadletter", "redrive", file, "departures").out.startswith("1 message moved")


def test_a_database_that_fails_ends_with_code_1(tmp_path, monkeypatch):
    monkeypatch.setitem(open_store.__kwdefaults__, "retry_timeout", 100)
    (tmp_path / "other.db").write_text("this is no database at all, but a text of some length")
    done = Run("reservations", f"sqlite:///{tmp_path}/other.db")
    assert done.code == 1 and done.out == "" and "file is not a database" in done.err
    gone = Run("ledger", "list", "redis://me:secret@127.0.0.1:1/0")
    assert gone.code == 1 and "cannot be reached" in gone.err and "secret" not in gone.err


def test_a_ledger_of_a_newer_version_ends_with_code_1(file):
    with open_store(file) as store:
        store.set_note(f"{LEDGER_PREFIX}s", {"v": 2}, 0)
    for args in (["list", file], ["recover", file, "s"], ["set", file, "s", "1"]):
        done = Run("ledger", *args)
        assert done.code == 1 and "upgrade spark_queue" in done.err


@pytest.mark.parametrize(
    "command",
    ["", "reservations", "release", "deadletter", "deadletter list", "deadletter redrive", "ledger", "ledger list",
     "ledger recover", "ledger set", "graph"],
)  # fmt: skip
def test_every_command_has_help(command):
    shown = Run(*command.split(), "--help")
    assert shown.code == 0 and f"Usage: spark-queue {command}".rstrip() in shown.out


# --- as a program ---------------------------------------------------------------------------------


def test_it_is_a_program(file):
    done = program("reservations", file, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["tag"] == "etl/3fa9c1/1/0"
    wrong = program("release", file, "departurs", "etl", "--yes")
    assert wrong.returncode == 2 and wrong.stdout == ""
    assert wrong.stderr.startswith("spark-queue: ") and len(wrong.stderr.splitlines()) == 1
    usage = program("release", file)
    assert usage.returncode == 2 and "Usage: spark-queue release" in usage.stderr


def test_a_graph_is_drawn(file, tmp_path):
    conf = tmp_path / "graph.yaml"
    conf.write_text(
        f"namespaces: {{here: {file}, gone: 'sqlite:///{tmp_path}/none.db'}}\n"
        "exchanges:\n"
        "  x: {src: here/departures, dst: [{queue: late, selector: 'payload:delay::int > 60'}, gone/all]}\n"
        "  y: {src: here/late, dst: [departures]}\n"
    )
    drawn = Run("graph", conf)
    assert drawn.code == 0
    assert drawn.out.splitlines() == [
        "here/departures (1 reserved)",
        "  x",
        "    → here/late (empty) if payload:delay::int > 60 ↻ cycle",
        "    → gone/all",
        "here/late (empty)",
        "  y",
        "    → here/departures (1 reserved) ↻ cycle",
    ]
    assert f"namespace 'gone': there is no file '{tmp_path}/none.db'" in drawn.err
    assert "a message leaves it after 17 hops" in drawn.err
    reported = Run("graph", conf, "--json").json
    assert reported["queues"][0] == {"queue": "here/departures", "ready": 0, "scheduled": 0, "reserved": 1}
    assert [to["cycle"] for to in reported["exchanges"][0]["dst"]] == [True, False]
    made = Run("graph", conf, "--format", "dot", "--no-sizes", "--output", tmp_path / "graph.dot")
    assert made.code == 0 and made.out == ""
    assert (tmp_path / "graph.dot").read_text().startswith("digraph exchanges {")
    assert Run("graph", tmp_path / "nope.yaml").code == 2
    conf.write_text("namespaces: {here: x}\nexchanges: {x: {src: a, dst: [b], dts: 1}}")
    wrong = Run("graph", conf)
    assert wrong.code == 2
    assert "line 2, exchange 'x', dts: unknown key; did you mean 'dst'?" in wrong.err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_the_package_to_install_is_named(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import spark_queue.cli"
    done = program(code=code)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.endswith("install it with: pip install 'spark-queue[cli]'\n") and missing in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["yaml", "networkx", "graphviz"])
def test_a_missing_package_for_graphs_is_named(missing, tmp_path):
    (tmp_path / "x.yaml").write_text("namespaces: {}")
    code = f"import sys; sys.modules[{missing!r}] = None; from spark_queue.cli import main; main()"
    done = program("graph", str(tmp_path / "x.yaml"), code=code)
    assert done.returncode == 2 and done.stdout == ""
    assert missing in done.stderr and "pip install 'spark-queue[graph]'" in done.stderr
