"""The error tree: one root, facts that travel, helpful names, no passwords."""

from __future__ import annotations

import builtins
import inspect
import pickle

import pytest

from spark_queue import errors
from spark_queue.errors import (
    DriverMissing,
    MessageError,
    OptionError,
    QueueError,
    StoreError,
    StoreUnavailable,
    did_you_mean,
)
from spark_queue.stores import STORES, Registration, open_store, store_class
from spark_queue.stores.sqlite.limits import SqliteLimits

TREE = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, Exception)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_has_the_root_and_survives_a_pickle(kind):
    error = kind("what went wrong", queue="flights")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, QueueError)
    assert (type(again), str(again), again.facts["queue"]) == (kind, "what went wrong", "flights")


def test_rows_travel_with_a_message_error():
    again = pickle.loads(pickle.dumps(MessageError("bad", rows={3: "its payload is NULL"})))
    assert again.rows == {3: "its payload is NULL"}


def test_a_docstring_is_the_default_message():
    assert str(StoreUnavailable()) == "The database cannot be reached."


def test_near_names():
    assert did_you_mean("quue", ["queue", "consumer"]) == "; did you mean 'queue'?"
    assert did_you_mean("zzz", ["queue"]) == ""


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/db", "no store for mysql://; known are sqlite://, mongodb://"),
        ("mongo://host/db", "no store for mongo://; did you mean 'mongodb'"),
        (
            "queues.db",
            "it must begin with sqlite://, mongodb://, mongodb+srv://, redis://, rediss://, redis+sentinel:// or "
            "rediss+sentinel://, such as sqlite:///",
        ),
        ("sqlite://queues.db", "names no file; write sqlite:///relative/path.db"),
        ("sqlite:///", "names no file"),
    ],
)
def test_a_url_without_a_store_is_refused(url, message):
    with pytest.raises(OptionError) as caught:
        open_store(url)
    assert message in str(caught.value)


@pytest.mark.stores(server=True)
def test_a_missing_driver_names_its_extra(scheme, monkeypatch):
    import sys

    driver, module = STORES[scheme].driver, STORES[scheme].path.partition(":")[0]
    for name in list(sys.modules):
        if name.partition(".")[0] in (driver, "bson") or name.startswith(module):
            monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == driver and (kwargs.get("level") or (args[3] if len(args) > 3 else 0)) == 0:
            raise ModuleNotFoundError(f"No module named {driver!r}", name=driver)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DriverMissing) as caught:
        store_class(f"{scheme}://host/db")
    assert f"pip install 'spark-queue[{scheme}]'" in str(caught.value)


def test_a_typo_of_our_own_is_not_blamed_on_a_driver(monkeypatch):
    monkeypatch.setitem(STORES, "oops", Registration("spark_queue.stores.nowhere:Nothing", extra="oops"))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        store_class("oops://x")


# --- SQLite files that are none -------------------------------------------------------------------


def test_a_file_that_is_not_a_database(tmp_path):
    (tmp_path / "q.db").write_text("hello " * 500)
    with open_store(f"sqlite:///{tmp_path}/q.db") as store, pytest.raises(StoreError, match="not a database"):
        store.sizes("a")
    assert (tmp_path / "q.db").read_text().startswith("hello")


def test_a_database_of_another_program(tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "q.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with open_store(f"sqlite:///{tmp_path}/q.db") as store, pytest.raises(StoreError, match="of another program"):
        store.sizes("a")


def test_a_file_of_a_newer_version(tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "q.db") as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with open_store(f"sqlite:///{tmp_path}/q.db") as store, pytest.raises(StoreError, match="newer version"):
        store.sizes("a")


def test_a_folder_that_does_not_exist(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/no/q.db") as store, pytest.raises(StoreError, match="does not exist"):
        store.sizes("a")


def test_a_folder_in_the_place_of_a_file(tmp_path):
    with open_store(f"sqlite:///{tmp_path}") as store, pytest.raises(StoreError, match="unable to open"):
        store.sizes("a")


def test_a_read_only_file(tmp_path):
    """Root may write anything, so the file is made read-only in SQLite's own way."""
    import sqlite3

    from spark_queue.stores.sqlite.store import SqliteStore

    class ReadOnly(SqliteStore):
        def _open(self):
            opened = super()._open()
            opened.execute("PRAGMA query_only = ON")
            return opened

    assert sqlite3.sqlite_version
    from spark_queue.messages.message import pushes

    with (
        ReadOnly(f"sqlite:///{tmp_path}/q.db") as store,
        pytest.raises(StoreError, match="make the file and its folder writable"),
    ):
        store.push("a", pushes([1]))


def test_a_file_that_another_process_holds(tmp_path):
    import sqlite3

    url = f"sqlite:///{tmp_path}/q.db"
    with open_store(url) as store:
        store.sizes("a")
    holder = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with open_store(url, retry_timeout=200, limits=SqliteLimits(busy_timeout=0.05)) as store:
            assert store.sizes("a").total == 0, "readers need not wait"
            with pytest.raises(StoreUnavailable, match="another process holds"):
                store.drop("a")
    finally:
        holder.close()
