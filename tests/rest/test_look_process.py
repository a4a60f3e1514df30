"""Looks run in a process of their own, which ends with its server, and may end before it."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import httpx
import pytest

from spark_queue import Queue
from spark_queue.errors import OptionError, StoreUnavailable
from spark_queue.graph.model import Graph, Namespace
from spark_queue.rest import Settings, create_app
from spark_queue.rest.errors import NotFound, Overloaded
from spark_queue.rest.looks.contents import Contents, Setup, look_at
from spark_queue.rest.looks.process import NICENESS, ProcessLooks
from spark_queue.stores.conformance.waiting import wait_until
from tests.crowds import children
from tests.rest.in_process import calling
from tests.serving import Serving, serving


@look_at
def sizes_by_queue(contents: Contents, ns: str) -> dict[str, int]:
    return {queue: contents.stores[ns].sizes(queue).total for queue in contents.stores[ns].queues()}


def process_id(contents: Contents) -> int:
    return os.getpid()


def refuse(contents: Contents, name: str) -> None:
    raise NotFound(f"no {name}", name=name)


def read_wrong_name(contents: Contents) -> None:
    contents.stores["a"].check_queue("")


def fail(contents: Contents) -> None:
    raise ZeroDivisionError("a defect")


def end_the_process(contents: Contents) -> None:
    os._exit(3)


@pytest.fixture
def url(tmp_path):
    found = f"sqlite:///{tmp_path}/q.db"
    with Queue(found, "work") as queue:
        queue.push_many([1, 2, 3])
    return found


@pytest.fixture
def looks(url):
    setup = Setup({"a": url}, Graph({"a": Namespace(url)}), 2_000)
    found = ProcessLooks(setup, 2)
    yield found
    found.close()


def is_there(pid: int) -> bool:
    """Whether a process is there, and not only waits for its parent to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_look_runs_elsewhere_with_the_stores_of_the_server(looks):
    assert looks.run(sizes_by_queue, "a") == {"work": 3}
    pid = looks.run(process_id)
    assert pid != os.getpid()
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
    looks.close()
    assert not is_there(pid)


def test_an_error_of_a_look_comes_back_with_its_facts(looks):
    with pytest.raises(NotFound, match="no ann") as error:
        looks.run(refuse, "ann")
    assert error.value.facts == {"name": "ann"}
    with pytest.raises(OptionError, match="cannot name a queue"):
        looks.run(read_wrong_name)
    assert looks.run(sizes_by_queue, "a") == {"work": 3}


def test_a_defect_comes_back_with_its_trace(looks):
    with pytest.raises(RuntimeError, match=r"(?s)in fail\n.*ZeroDivisionError: a defect"):
        looks.run(fail)


def test_another_process_follows_one_that_has_ended(looks):
    before = looks.run(process_id)
    with pytest.raises(Overloaded, match="has ended: try again"):
        looks.run(end_the_process)
    assert looks.run(process_id) != before
    os.kill(looks.run(process_id), signal.SIGKILL)
    with pytest.raises(Overloaded, match="has ended: try again"):
        looks.run(sizes_by_queue, "a")
    assert looks.run(sizes_by_queue, "a") == {"work": 3}


def test_a_process_that_cannot_start_is_tried_again_at_the_next_look(looks):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), limits[1]))
    try:
        with pytest.raises(Overloaded, match=r"cannot start \(.*Too many open files.*\): try again later"):
            looks.run(sizes_by_queue, "a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert looks.run(sizes_by_queue, "a") == {"work": 3}


def test_a_look_asks_no_database_but_its_own(tmp_path, url, monkeypatch):
    """Another one may be away, and its counts are written first."""
    graph = Graph({"a": Namespace(url), "b": Namespace(f"sqlite:///{tmp_path}/b.db")})
    app = create_app(Settings(graph=graph))
    with calling(app) as client:

        def write_counts() -> None:
            raise StoreUnavailable("b is away")

        monkeypatch.setattr(app.state.service.stores["b"], "write_counts", write_counts)
        for path in (
            "/q/a",
            "/q/a/work/status",
            "/v1/queues?ns=a",
            "/v1/queues/a/work",
            "/v1/queues/a/work/messages",
        ):
            assert client.get(path).status_code == 200, path
        assert client.get("/v1/queues").status_code == 503  # it needs both


# --- the process of a server ----------------------------------------------------------------------


def look_processes(server: Serving) -> list[int]:
    return [pid for pid in children(server.process.pid) if is_there(pid)]


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_the_process_ends_with_its_server(tmp_path, url, ends):
    with serving(tmp_path, "--url", f"a={url}") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert look_processes(server) == []  # it starts when it is needed
        for path in ("/q/a", "/v1/queues", "/v1/queues/a/work/messages", "/x", "/metrics", "/q/a/work/status"):
            assert client.get(path).status_code == 200, path
        assert client.get("/x/none").status_code == 404
        [pid] = look_processes(server)
        client.put("/q/a/work", json=4)
        assert client.get("/q/a/work/status").json()["stats"]["put"] == 4  # also what this server did just now
        getattr(server, ends)()
        wait_until(lambda: not is_there(pid))


def test_a_server_whose_look_process_was_killed_answers_again(tmp_path, url):
    with serving(tmp_path, "--url", f"a={url}") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/v1/queues/a/work").json()["ready"] == 3
        [pid] = look_processes(server)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_there(pid))
        answer = client.get("/v1/queues/a/work")
        assert answer.status_code == 503 and "try again" in answer.json()["detail"]
        assert client.get("/v1/queues/a/work").json()["ready"] == 3
        assert client.put("/q/a/work", json=4).status_code == 200
