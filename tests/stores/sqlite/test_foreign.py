"""A SQLite file of another program is refused, and no byte of it changes."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from spark_queue import StoreError, open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.sqlite.store import SCHEMA, SCHEMA_VERSION

#: Some files of other programs; names and versions of theirs may be those of ours.
TABLES = {
    "other tables": "CREATE TABLE invoice (id INTEGER PRIMARY KEY, total REAL)",
    "tables with our names": "CREATE TABLE queue (id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE message (id TEXT)",
    "an index too": "CREATE TABLE note (key TEXT); CREATE INDEX note_key ON note (key)",
    "almost ours": SCHEMA[0].replace("headers TEXT", "heads TEXT", 1),
}


@pytest.mark.parametrize("version", range(SCHEMA_VERSION + 1))
@pytest.mark.parametrize("tables", TABLES)
def test_a_file_of_another_program_is_not_touched(tmp_path, tables, version):
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"{TABLES[tables]}; PRAGMA user_version = {version}")
        db.commit()
    before = path.read_bytes()
    with open_store(f"sqlite:///{path}") as store:
        acts = [
            lambda: store.push("queue", pushes(["a"])), store.queues, lambda: store.drop("queue"),
            lambda: store.purge("queue"),
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(StoreError, match="of another program"):
                act()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["app.db"]


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_file_of_any_version_of_ours_is_one_of_queues(tmp_path, version):
    path = tmp_path / "queues.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(";".join(SCHEMA[:version]) + f"; PRAGMA user_version = {version}")
        db.execute("CREATE TABLE more (x)")  # a user may have added one
        db.commit()
    with open_store(f"sqlite:///{path}") as store:
        assert store.push("q", pushes(["a"])) == 1
        assert store.sizes("q").ready == 1


def test_a_file_that_others_create_meanwhile_is_one_of_queues(tmp_path):
    def look(path):
        with open_store(f"sqlite:///{path}") as store:
            return store.note("key")

    with ThreadPoolExecutor(8) as threads:
        for number in range(40):
            assert [*threads.map(look, [tmp_path / f"{number}.db"] * 8)] == [None] * 8
