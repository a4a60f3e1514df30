"""Mistakes on the command line: each call is refused with the right one; nothing is opened."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("typer")

from typer.main import get_command

from spark_queue import __version__
from spark_queue.cli import app, mistakes, params
from tests.command_line import Run

URL = "sqlite:///queues.db"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    monkeypatch.delenv(params.URL_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


#: A call, and what its error says.
WRONG = {
    "no URL": (
        "pop departures",
        f"URL of the store is missing. Give it first:\n  spark-queue pop {URL} departures",
    ),
    "no URL, with other arguments": ("commit departures etl/1", f"  spark-queue commit {URL} departures etl/1\n"),
    "no URL, with a file": (
        "push departures x",
        f"  spark-queue push {URL} departures x\n",
    ),
    "no URL, of a subcommand": ("log trim q --older-than 1d", f"  spark-queue log trim {URL} q\n"),
    "neither URL nor queue": ("pop", f"  spark-queue pop {URL} QUEUE\n"),
    "no queue": (f"pop {URL}", f"QUEUE is missing: spark-queue pop {URL} QUEUE"),
    "no queue, where rfq has an option": (f"peek {URL}", "QUEUE is missing: name the queue after the URL, or with"),
    "no tag": (f"commit {URL} departures", f"TAG is missing: spark-queue commit {URL} departures TAG"),
    "swapped": (f"pop departures {URL}", f"the URL comes before the queue: spark-queue pop {URL} departures"),
    "a path": ("pop queues.db departures", "'queues.db' is a path, not a URL; write sqlite:///queues.db"),
    "an absolute path": ("pop /srv/q.db departures", "'/srv/q.db' is a path, not a URL; write sqlite:////srv/q.db"),
    "one slash": ("pop sqlite:/q.db departures", "'sqlite:/q.db' is not a URL; write sqlite:///q.db"),
    "no slash": ("pop redis:localhost departures", "'redis:localhost' is not a URL; write redis://localhost"),
    "a misspelt scheme": (
        "pop sqlit:///q.db departures",
        "no database that spark_queue knows; did you mean sqlite://?",
    ),
    "another database": ("pop ftp://h/d q", "it must begin with sqlite://, mongodb:// or redis://"),
    "no URL at all": ("doctor departures", f"departures is not a URL; write {URL}, "),
    "a misspelt command": ("popp x", "spark-queue has no command 'popp'; did you mean 'pop'?"),
    "a command of other tools": ("send x", "spark-queue has no command 'send'; did you mean 'push'?"),
    "a misspelt subcommand": ("deadletter lst", "spark-queue deadletter has no command 'lst'; did you mean 'list'?"),
    "no subcommand": ("deadletter departures", "has no command 'departures'; its commands are list, redrive"),
    "the URL before the command": (f"{URL} pop q", f"the command comes before the URL: spark-queue pop {URL} q"),
    "a misspelt option": (f"pop {URL} q --limt 3", "spark-queue pop has no option --limt; did you mean '--limit'"),
    "the option of another": (
        f"pop {URL} q --lease 3s",
        "pop has no option --lease; it belongs to reserve",
    ),
    "an option for all": (
        f"pop {URL} q --layout rfq",
        "--layout goes before the command: spark-queue --layout",
    ),
    "an option too early": ("--lease 3s reserve", "has no option --lease; it belongs to reserve, and goes after the"),
    "arguments as options": (
        f"pop --url {URL} --queue q",
        "URL and QUEUE are arguments here, not options: ",
    ),
    "too many": (f"pop {URL} q more", "too many arguments: more. The call is spark-queue pop URL QUEUE"),
    "no number": (f"pop {URL} q --limit x", "'--limit': 'x' is not a whole number"),
    "too small": (f"pop {URL} q --limit 0", "0 is too small: it must be 1 or more"),
    "too large": ("serve --port 70000", "70000 is too large: it must be 65535 or less"),
    "no choice": (f"layout {URL} q buckt", "'buckt' is not one of 'single', 'bucket'"),
    "no unit": (
        f"pop {URL} q --timeout 5",
        "'5' is not a duration such as 500ms, 30s, 2m, 1h or 7d; did you mean 5s",
    ),
    "no moment": (f"history {URL} q --since now", "'now' is neither a moment such as 2026-01-31T12:00 (UTC) nor"),
    "no header": (f"push {URL} q --header gate", "--header 'gate' must be K=V, such as --header gate=B12"),
    "no option": (f"log trim {URL} q", "option --older-than is missing"),
    "no such file": (f"push {URL} q nowhere.jsonl", "nowhere.jsonl: no such file"),
    "no such graph": ("graph nowhere.yaml", "nowhere.yaml: no such file"),
}


@pytest.mark.parametrize(("call", "expected"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_answered_with_the_right_one(call, expected, tmp_path):
    done = Run(*call.split())
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert "Value error" not in done.err and "Input should" not in done.err
    assert not list(tmp_path.iterdir())


FROM_ENVIRONMENT = {
    "swapped": (f"pop departures {URL}", "the URL comes before the queue"),
    "too many": (
        "pop departures more",
        "more. The call is spark-queue pop QUEUE; the URL comes from SPARK_QUEUE_URL",
    ),
    "no queue": ("pop", "QUEUE is missing: spark-queue pop QUEUE"),
    "a path": ("pop queues.db departures", "'queues.db' is a path, not a URL"),
    "a broken URL": ("pop redis:localhost departures", "'redis:localhost' is not a URL"),
}


@pytest.mark.parametrize(("call", "expected"), FROM_ENVIRONMENT.values(), ids=FROM_ENVIRONMENT)
def test_a_wrong_call_whose_url_comes_from_the_environment(call, expected, tmp_path):
    done = Run(*call.split(), env={params.URL_VARIABLE: URL})
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert not list(tmp_path.iterdir())


def test_the_source_of_an_event_may_be_the_url_of_a_database(tmp_path):
    env = {params.URL_VARIABLE: f"sqlite:///{tmp_path}/q.db"}
    assert Run("event", "create", "hub", "redis://host/0", "landed", env=env).code == 0
    assert "comes before the queue" in Run("event", "create", "hub", "redis://host/0", "landed", "x").err


@pytest.mark.parametrize(
    "call",
    ["pop redis:/u:hunter2@h q", "pop redis:u:hunter2@h q", "pop mongodb//u:hunter2@h/d q", "pop u:hunter2@h q",
     "pop q redis://u:hunter2@h", "pop q redis:/u:hunter2@h", "redis://u:hunter2@h pop q", "redis:/u:hunter2@h pop q",
     "pop mysql://u:hunter2@h/d q", "pop redis://u:hunter2@h", "size --x redis://u:hunter2@h",
     "commit redis://u:hunter2@h/0?ssl_password=hunter2 q", "version u:hunter2@h", "u:hunter2@h"],
)  # fmt: skip
def test_no_password_is_repeated(call):
    for env in ({}, {params.URL_VARIABLE: "sqlite:////nowhere/q.db"}):
        done = Run(*call.split(), env=env)
        assert done.code == 2
        assert "hunter2" not in done.out + done.err


def test_the_version():
    assert Run("--version").out == f"spark-queue {__version__}\n"


#: Words of the house, which a reader has to guess.
PRIVATE = re.compile(
    r"\b(?:by word|is told|tells?|whoever|so many|in vain|by hand|outlives?|meant|somebody|nobody|anybody|who|"
    r"gives? back|this very|what is|what was|of them)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("group", ["", "--layout rfq", "deadletter", "ledger", "log", "event"])
def test_the_first_sentence_of_each_command_is_short_enough_for_the_list(group):
    shown = Run(*group.split(), "--help").out
    assert not [line for line in shown.splitlines() if line.startswith("  ") and line.endswith("...")]


@pytest.mark.parametrize("path", [path for path, _ in mistakes.walk_commands(get_command(app))])
def test_help_is_in_plain_words(path):
    shown = " ".join(Run(*path.split(), "--help").out.split())
    assert not PRIVATE.findall(shown)
    assert Run(*path.split(), "-h").out.split() == Run(*path.split(), "--help").out.split()
