"""A queue that exists is found; else there is an error or a warning with the nearest name."""

from __future__ import annotations

import logging

import pytest

from spark_queue import OptionError, Queue, history, open_store, set_layout
from spark_queue.admin import sizes as admin_sizes
from spark_queue.admin.consume import pop, reserve
from spark_queue.admin.queues import peek, queues
from spark_queue.messages.buckets import Buckets
from spark_queue.stores.services.existence import check_before_read, check_exists, exists, known_queues
from spark_queue.stores.services.ownership import Ownership


@pytest.mark.every_store
def test_a_queue_that_was_drained_is_still_listed_and_read_as_empty(url, name):
    with Queue(url, name) as queue:
        queue.push({"n": 1})
        for message in queue.messages(timeout=0):
            queue.commit(message)
    assert name in queues(url)
    assert peek(url, name) == [] == history(url, name)
    (level,) = admin_sizes.sizes(url, [name])
    assert (level.ready, level.scheduled, level.reserved) == (0, 0, 0)


def test_the_dead_letter_queue_of_a_queue_that_exists_does(store, name):
    assert not exists(store, f"{name}.dead")
    store.count(name)
    assert exists(store, f"{name}.dead") and f"{name}.dead" not in known_queues(store)


def test_what_had_a_consumer_or_has_a_setting_exists(url, store, name):
    Ownership(store, name, "etl/1").take()
    assert exists(store, name) and name in known_queues(store)
    set_layout(url, f"{name}.buckets", Buckets())
    assert exists(store, f"{name}.buckets")


@pytest.mark.every_store
def test_a_queue_that_does_not_exist_is_an_error_with_the_nearest_name(url, store, name):
    store.count(name)
    store.write_counts()
    wrong = name[:-1]
    for call in (peek, history, lambda url, queue: admin_sizes.sizes(url, [queue])):
        with pytest.raises(
            OptionError, match=f"queue '{wrong}' does not exist in .*; did you mean .*'{name}'"
        ) as error:
            call(url, wrong)
        assert error.value.facts == {"option": "queue", "queue": wrong}
    assert wrong not in queues(url), "a look creates nothing"


@pytest.mark.parametrize("take", [pop, reserve])
def test_who_waits_for_a_queue_that_does_not_exist_is_warned(url, store, name, caplog, take):
    store.count(name)
    store.write_counts()
    args = (lambda found: None,) if take is pop else ()
    take(url, name, *args, timeout=0.01)
    take(url, name[:-1], *args, timeout=0)
    assert not caplog.messages
    take(url, name[:-1], *args, timeout=0.01)
    (warning,) = caplog.messages
    assert f"queue '{name[:-1]}' does not exist" in warning and f"did you mean '{name}'" in warning


def test_a_query_is_warned_or_fails(store, name, caplog):
    with pytest.raises(OptionError, match=f"queue '{name}' does not exist.*failIfMissing=false"):
        check_before_read(store, name, fail=True)
    assert not caplog.messages
    check_before_read(store, name, fail=False)
    assert f"queue '{name}' does not exist" in caplog.text
    store.count(name)
    caplog.clear()
    check_before_read(store, name, fail=True)
    check_before_read(store, name, fail=False)
    assert not caplog.messages


@pytest.mark.stores(server=False)
def test_a_file_is_created_by_those_who_may_and_the_log_names_it(tmp_path, caplog):
    path = tmp_path / "shop.db"
    (tmp_path / "shops.db").touch()
    with open_store(f"sqlite:///{path}", create=False) as store:
        for look in (store.now, lambda: store.sizes("orders"), lambda: list(store.peek("orders"))):
            with pytest.raises(OptionError, match=f"there is no file '{path}'; did you mean 'shops.db'") as error:
                look()
            assert error.value.facts == {"option": "url"}
        with pytest.raises(OptionError, match=f"there is no file '{path}'"):
            check_exists(store, "orders")
        assert not exists(store, "orders") and known_queues(store) == set()
    assert not path.exists()
    with caplog.at_level(logging.INFO, "spark_queue"), Queue(f"sqlite:///{path}", "orders") as queue:
        queue.push(1)
        queue.push(2)
    assert [one for one in caplog.messages if "created" in one] == [f"created {path}"]


def test_a_relative_path_is_resolved_when_a_store_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///shop.db") as store:
        monkeypatch.chdir("/")
        store.now()
    assert (tmp_path / "shop.db").exists()
