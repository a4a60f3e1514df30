"""`size` shows the queues that hold something; empty ones with `--all`, or if they are named."""

from __future__ import annotations

import pytest

from spark_queue import open_store
from spark_queue.cli import params
from spark_queue.messages.message import pushes
from spark_queue.stores.types import DeadLetterInfo
from tests.command_line import Run


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.delenv(params.URL_VARIABLE, raising=False)


@pytest.fixture
def file(sqlite_url):
    """The URL of a file with queues in all states."""
    with open_store(sqlite_url) as store:
        for name in ("drained", "failed", "full", "kept", "later"):
            store.push(name, pushes([1], delay=3_600_000 if name == "later" else 0))
        store.reserve("drained", "c/1", 1)
        store.commit("drained", "c/1", history=3_600_000)
        store.move("failed", "failed.dead", dead_letter=DeadLetterInfo("it failed"))
        store.reserve("kept", "c/1", 1, lease=None)
        store.register("never used")
        store.pause("paused")
    return sqlite_url


def shown(*words):
    """Return the names of the queues that `size` prints as JSON, and its notes."""
    done = Run("size", *words, "--json")
    assert done.code == 0
    return [one["queue"] for one in done.json], done.err


USED = ["failed", "failed.dead", "full", "kept", "later", "paused"]
HIDDEN = "2 empty queues not shown; to see them, set --all\n"


def test_queues_that_are_empty_are_shown_on_demand(file):
    assert shown(file) == (USED, HIDDEN)
    assert shown(file, "--exact") == (USED, HIDDEN)
    assert shown(file, "--all") == (sorted([*USED, "drained", "never used"]), "")
    table = Run("size", file)
    assert ([row[0] for row in table.rows], table.err) == (USED, HIDDEN)
    assert len(Run("size", file, "--all").rows) == 8
    assert ["drained", "0", "0", "0", "0"] in [row[:5] for row in Run("size", file, "--all").rows]


def test_a_paused_queue_and_one_with_dead_letters_only_are_shown(file):
    rows = {row[0]: row[1:] for row in Run("size", file).rows}
    assert rows["paused"] == ["0", "0", "0", "0", "paused"]
    assert rows["failed"][:4] == ["0", "0", "0", "1"]
    Run("resume", file, "paused")
    assert "paused" not in shown(file)[0]


def test_a_queue_that_is_named_is_shown_also_if_it_is_empty(file):
    assert shown(file, "drained") == (["drained"], "")
    assert shown(file, "never used", "full") == (["never used", "full"], "")
    assert shown(file, "drained.dead") == (["drained.dead"], "")
    refused = Run("size", file, "full", "missing")
    assert (refused.code, refused.out) == (2, "") and "queue 'missing' does not exist" in refused.err


def test_the_note_says_what_there_is(sqlite_url):
    with open_store(sqlite_url) as store:
        store.now()
        assert (Run("size", sqlite_url).out, Run("size", sqlite_url).err) == ("", "this store has no queues\n")
        store.register("q")
        store.write_counts()
        only = Run("size", sqlite_url)
        assert (only.code, only.out, only.err) == (0, "", "1 empty queue not shown; to see them, set --all\n")
        assert shown(sqlite_url) == ([], only.err)
        assert shown(sqlite_url, "--all") == (["q"], "")
        assert Run("info", sqlite_url).err == only.err
