"""A SQLite file and processes elsewhere: a task uses the file of the driver, or raises an error."""

from __future__ import annotations

import json
import os
import pickle
import socket
from dataclasses import replace

import pytest

from spark_queue import OptionError, Queue, open_store
from spark_queue.options.masking import mask
from spark_queue.options.roles import parse_options
from spark_queue.stores import pin_databases, resolve_options
from spark_queue.stores.sqlite import file as sqlite_file
from spark_queue.stores.sqlite.file import FileUrl
from tests.elsewhere import HOST, Place, namespaces

PUSH = """
import pickle, sys
from spark_queue import Queue, QueueError
try:
    with Queue(pickle.loads(bytes.fromhex(sys.argv[1])), "q") as queue:
        queue.push("elsewhere")
    print("pushed")
except QueueError as error:
    print(type(error).__name__, error)
"""


def for_tasks(url):
    with open_store(url) as store:
        return store.task_url()


def push_elsewhere(place, url):
    done = place.run(PUSH, pickle.dumps(url).hex())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def here(monkeypatch):
    """Let a process find the file of a `Place`, if its URL is relative to its folder."""
    return lambda place: monkeypatch.chdir(place.home)


def first_payloads(url):
    with Queue(url, "q") as queue:
        return [one.payload for one in queue.peek(10)]


@pytest.mark.parametrize("machine", [False, True], ids=["another container", "another machine"])
@pytest.mark.parametrize("finds", ["none", "another one"])
def test_a_task_that_does_not_find_the_file_of_the_driver_fails(tmp_path, here, machine, finds):
    place = Place(tmp_path, machine=machine)
    here(place)
    url = for_tasks(place.url)
    if finds == "another one":
        assert push_elsewhere(place, str(url)) == "pushed\n"  # what is no task has a file of its own there
    said = push_elsewhere(place, url)
    assert said.startswith("OptionError option 'url': the driver") and f"finds {finds} there" in said
    assert "mongodb://" in said and "redis://" in said and f"{place.url.removeprefix('sqlite:///')!r}" in said
    if namespaces():
        assert f"this task, on host {HOST!r}" in said and f"on host {socket.gethostname()!r}" in said
        assert ("for the processes of one machine" in said) == machine
    assert first_payloads(place.url) == []
    assert (place.other / "queues.db").exists() == (finds == "another one"), "a task creates none"


def test_containers_of_one_machine_share_a_volume(tmp_path, here):
    place = Place(tmp_path, shared=True)
    here(place)
    assert push_elsewhere(place, for_tasks(place.url)) == "pushed\n"
    assert first_payloads(place.url) == ["elsewhere"]


def test_a_path_with_a_link_is_the_same_file(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    url = for_tasks(f"sqlite:///{tmp_path}/link/queues.db")
    for path in ("link", "data"):
        with Queue(FileUrl(f"sqlite:///{tmp_path}/{path}/queues.db", url.file), "q") as queue:
            queue.push(path)
    assert first_payloads(str(url)) == ["link", "data"]


def test_without_a_boot_id_the_host_name_identifies_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "_BOOT", tmp_path / "nothing")  # a file of the system
    sqlite_file._machine_id.cache_clear()
    try:
        url = for_tasks(f"sqlite:///{tmp_path}/queues.db")
        assert url.file.machine == socket.gethostname()
        with Queue(url, "q") as queue:
            queue.push(1)
        other = FileUrl(url, replace(url.file, machine="other"))
        with Queue(other, "q") as queue, pytest.raises(OptionError, match="one machine"):
            queue.push(1)
    finally:
        sqlite_file._machine_id.cache_clear()


def test_a_file_that_was_replaced_after_the_plan_is_refused(tmp_path, sqlite_url):
    url = for_tasks(sqlite_url)
    os.replace(tmp_path / "queues.db", tmp_path / "old.db")
    for made in (False, True):
        if made:
            first_payloads(sqlite_url)
        with open_store(url) as store, pytest.raises(OptionError, match="was replaced meanwhile"):
            store.queues()
        assert (tmp_path / "queues.db").exists() == made


def test_which_file_it_is_travels_unseen(sqlite_url):
    url = pickle.loads(pickle.dumps(for_tasks(sqlite_url)))
    assert url == sqlite_url and hash(url) == hash(sqlite_url) and url.file is not None
    assert f"{url}" == str(url) == mask(url) == sqlite_url
    assert type(mask(url)) is type(str(url)) is str
    with open_store(url) as store:
        assert type(store.url) is str


@pytest.mark.parametrize("create", [True, False])
def test_the_driver_creates_what_tasks_will_write(tmp_path, create):
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in "ab"}
    for given in ({"urls": json.dumps(urls)}, {"url": f"sqlite:///{tmp_path}/a.db"}):
        options = resolve_options(parse_options(given, "push"))
        found = pin_databases(options, create=create)
        assert found == options
        for url in found.database.by_name.values():
            assert isinstance(url, FileUrl) == create
    assert {one.name for one in tmp_path.iterdir()} == ({"a.db", "b.db"} if create else set())


def test_a_server_has_no_file():
    options = parse_options({"url": "redis://nowhere/0", "queue": "q"}, "push")
    assert type(pin_databases(options, create=True).database.url) is str
