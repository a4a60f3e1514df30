"""The places of statistics and signals that a URL names: what is refused, before anything is connected to."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from spark_queue import open_store
from spark_queue.errors import OptionError
from spark_queue.stores.mongodb.store import MongoStore

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("parameters", "detail"),
    [
        ("stats=a.b", "must be the name of a database, or a URL with mongodb://"),
        (
            "stats=" + quote(f"redis://:{SECRET}@h/0", safe=""),
            "must be the name of a database, or a URL with mongodb",
        ),
        ("signals=" + quote(f"http://u:{SECRET}@h/0", safe=""), "mongodb:// or mongodb+srv:// or redis:// or rediss"),
        (
            "signals=" + quote(f"mongodb://u:{SECRET}@h", safe=""),
            "its parameter 'signals': option 'url': it names no",
        ),
        ("signals=" + quote(f"redis://u:{SECRET}@h/0?ns=a", safe=""), "can have no parameters of one"),
        ("signals=a&signals=b", "given twice"),
        ("stats=", "has no value"),
        ("statss=a", "statss"),
    ],
)
def test_a_place_that_cannot_be_is_refused(parameters, detail):
    with pytest.raises(OptionError) as refused:
        open_store(f"mongodb://h/db?{parameters}")
    assert detail in str(refused.value) and SECRET not in str(refused.value)


def test_only_mongodb_has_them(tmp_path):
    for url in (f"sqlite:///{tmp_path}/q.db?stats=a", "redis://h/0?stats=a"):
        with pytest.raises(OptionError, match="stats"):
            open_store(url)


@pytest.mark.parametrize("layout", ["mongo", "ps-mongo", "pl-mongo", "bucket-mongo-safe"])
def test_each_layout_of_mongodb_has_them(layout):
    signals = quote("redis://h:1/0", safe="")
    with open_store(f"mongodb://h/db?layout={layout}&stats=keuss_stats&signals={signals}&ns=n1") as store:
        assert isinstance(store, MongoStore)
        assert store._beside.redis is not None
        assert store._beside.redis.topic("q") == store.topic("q") == "keuss:signal:n1:q"
        assert store._beside.statistics().database.name == "keuss_stats"


def test_without_parameters_they_are_beside_the_queues():
    with MongoStore("mongodb://h/db") as store:
        assert store._beside.redis is None
        assert store._beside.statistics().database.name == "db_stats"
    with MongoStore("mongodb://h/db?stats=" + quote("mongodb://other/keuss_stats", safe="")) as store:
        assert store._beside.statistics().full_name == "keuss_stats.keuss_stats"


def test_a_database_of_signals_that_is_down_is_reported_without_its_password(caplog, mongodb_url):
    place = quote(f"redis://u:{SECRET}@127.0.0.1:1/0", safe="")
    with open_store(f"{mongodb_url}{'&' if '?' in mongodb_url else '?'}signals={place}", retry_timeout=0) as store:
        from spark_queue import Queue

        Queue(store, "beside-down").push(1)
        store.drop("beside-down")
    assert "signals of queue" in caplog.text and SECRET not in caplog.text
