"""A queue that Spark reads must exist, or `failIfMissing` decides: a misspelt name is reported."""

from __future__ import annotations

import pytest

from spark_queue import OptionError, Queue
from tests.spark.drive import Query, snapshot


@pytest.mark.every_store
@pytest.mark.parametrize("view", [{}, {"view": "history"}, {"mode": "log"}], ids=["messages", "history", "log"])
def test_a_batch_read_of_a_queue_that_does_not_exist_fails_and_names_the_nearest(any_url, name, view):
    with Queue(any_url, name) as queue:
        queue.push({"n": 1})
    with pytest.raises(OptionError, match=f"queue '{name[:-1]}' does not exist.*'{name}'.*failIfMissing=false"):
        snapshot(url=any_url, queue=name[:-1], **view)
    assert snapshot(url=any_url, queue=name[:-1], failIfMissing="false", **view) == []
    with pytest.raises(OptionError, match="does not exist"):
        snapshot(url=any_url, queue=name[:-1], **view)  # to read it as empty has not made it


def test_a_batch_read_of_a_drained_queue_and_of_its_dead_letters_is_empty(any_url, name):
    with Queue(any_url, name) as queue:
        queue.push({"n": 1})
        queue.commit(queue.reserve(1)[0])
    assert snapshot(url=any_url, queue=name) == snapshot(url=any_url, queue=f"{name}.dead") == []


@pytest.mark.every_store
@pytest.mark.parametrize("mode", ["queue", "log"])
def test_a_stream_is_warned_once_or_fails_before_it_makes_anything(any_url, name, caplog, mode):
    with Queue(any_url, name) as queue:
        queue.push({"n": 1})
    wrong, seen = name[:-1], []
    with pytest.raises(OptionError, match=f"queue '{wrong}' does not exist.*'{name}'"):
        Query(seen.append, url=any_url, queue=wrong, mode=mode, failIfMissing="true").run()
    assert not caplog.messages
    for _ in range(2):
        Query(seen.append, url=any_url, queue=wrong, mode=mode).run()
    (warning,) = caplog.messages
    assert f"queue '{wrong}' does not exist" in warning and f"'{name}'" in warning, "the second run had a consumer"
    Query(seen.append, url=any_url, queue=name, mode=mode, failIfMissing="true").run()
    assert len(seen) == 1


def test_a_batch_read_makes_no_sqlite_file(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    with pytest.raises(OptionError, match=f"there is no file '{tmp_path}/shop.db'"):
        snapshot(url=url, queue="orders")
    assert snapshot(url=url, queue="orders", failIfMissing="false") == []
    with pytest.raises(OptionError, match="there is no file"):
        Query(print, url=url, queue="orders", failIfMissing="true").run()
    assert list(tmp_path.iterdir()) == []
    Query(print, url=url, queue="orders").run()
    assert (tmp_path / "shop.db").exists()
