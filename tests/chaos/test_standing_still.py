"""Two drivers of one query: the first stands still at each of its steps in turn, while the second works and ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections import Counter
from pathlib import Path

import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.services.ledger import delete_sink
from tests.chaos.standing import drive


class Drivers:
    """Processes that run one query, from one folder."""

    def __init__(self, url: str, name: str, folder: Path, delivery: str) -> None:
        self.url, self.name, self.folder, self.query = url, name, folder, str(uuid.uuid4())
        (folder / "ended").mkdir(parents=True)
        self.source = {"url": url, "queue": name, "delivery": delivery, "numPartitions": "1"}
        self.sink = {"url": url, "queue": f"{name}.other", "payloadFormat": "text"}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["__main__", "tests.chaos.standing", "pymongo", "redis"])

    def start(self, step: int = 0):
        process = self.context.Process(
            target=drive, args=(str(self.folder), step, self.query, self.sink, self.source)
        )
        process.start()
        return process

    def ended(self, process) -> str:
        """What a process ended with."""
        process.join(60)
        assert process.exitcode == 0
        return (self.folder / "ended" / str(process.pid)).read_text()

    def push(self, payload: str) -> None:
        with Queue(self.url, self.name) as queue:
            queue.push(payload)

    @property
    def written(self) -> Counter[str]:
        with open_store(self.url) as store:
            return Counter(str(one.payload) for batch in store.peek(f"{self.name}.other") for one in messages(batch))


def stands(process) -> bool:
    """Whether the process stands still; whether it has ended instead is for the caller to see."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state == "T"


def stood_still(url: str, name: str, folder: Path, delivery: str, step: int) -> bool:
    """Let a driver stand still at a step while another one works; give whether it had such a step."""
    drivers = Drivers(url, name, folder, delivery)
    drivers.push("first")
    drivers.push("second")
    idle = drivers.start(step)
    try:
        wait_until(lambda: stands(idle) or not idle.is_alive(), description="the driver stands still, or has ended")
        if not stands(idle):
            assert drivers.ended(idle) == "done"
            return False
        drivers.push("third")
        reported = [drivers.ended(drivers.start())]
        drivers.push("fourth")
        os.kill(idle.pid, signal.SIGCONT)
        reported.append(drivers.ended(idle))
        for _ in range(2):  # one that read the checkpoint while it changed is refused once
            with open_store(url) as store:
                for one in store.reservations(name):
                    if one.until is not None:
                        end_lease(store, name, one.tag)
            reported.append(drivers.ended(drivers.start()))
        written = drivers.written
        assert set(written) == {"first", "second", "third", "fourth"}, (step, reported)
        assert delivery != "exactly-once" or set(written.values()) == {1}, (step, reported, written)
        assert reported[-1] == "done", (step, reported)
        with open_store(url) as store:
            assert store.sizes(name).total == 0, (step, reported)
        return True
    finally:
        idle.kill()
        with open_store(url) as store:
            for queue in (name, f"{name}.other"):
                store.drop(queue)
            delete_sink(store, drivers.query)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_driver_that_stands_still_at_any_step_loses_nothing(any_url, name, tmp_path, delivery):
    step = 1
    while stood_still(any_url, name, tmp_path / str(step), delivery, step):
        step += 1
    assert step > 20, "it has taken two batches from one queue to the other"


def test_a_driver_that_stands_still_while_it_idles_loses_nothing(any_url, name, tmp_path):
    for step in (2, 30, 46):
        assert stood_still(any_url, name, tmp_path / str(step), "exactly-once", step)
