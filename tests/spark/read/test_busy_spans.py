"""Batch reads in several partitions, while other clients push, reserve, retry and remove messages."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from spark_queue import Queue, open_store
from spark_queue.messages.message import pushes
from spark_queue.stores.base import SMALLEST_PARTITION
from tests.spark.drive import carried, source, task

PARTS = 4

#: How the ids begin of messages that stay in the queue all the time.
STAYS = "stay-"


def read_parts(**options: str) -> list[list[str]]:
    """Return the ids of each partition of a batch read. The tasks run one after the other, each twice."""
    data_source = source(options)
    reader = data_source.reader(data_source.schema())
    read = []
    for number, part in enumerate(reader.partitions()):
        attempts = []
        for _ in range(2):
            with task(number):
                mine, its = carried((reader, part))
                attempts.append([row["id"] for batch in mine.read(its) for row in batch.to_pylist()])
        first, again = attempts
        assert kept(first) == kept(again), "a task that runs again reads the same"
        read.append(again)
    return read


def kept(ids: list[str]) -> Counter[str]:
    return Counter(id for id in ids if id.startswith(STAYS))


@contextmanager
def repeated(*works: Callable[[], None]):
    """Do each of these again and again in a thread of its own. Yield a function that waits for one round of all."""
    end, rounds = Event(), [0] * len(works)

    def run(number: int) -> None:
        while not end.is_set():
            works[number]()
            rounds[number] += 1

    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(run, number) for number in range(len(works))]

        def next_round() -> None:
            before = list(rounds)
            while any(one == then for one, then in zip(rounds, before, strict=True)):
                assert not any(one.done() for one in running), "one has failed"
                end.wait(0.001)

        try:
            yield next_round
        finally:
            end.set()
            for one in running:
                one.result()


def test_no_message_comes_twice_and_none_that_stays_is_missed(any_url, name):
    stays = [f"{STAYS}{n}-{uuid.uuid4().hex[:8]}" for n in range(PARTS * SMALLEST_PARTITION)]
    with open_store(any_url) as store:
        store.push(name, pushes([{"n": n} for n in range(len(stays))], ids=stays))
    clients = [Queue(any_url, name) for _ in range(3)]
    pusher, retrier, remover = clients

    def push() -> None:
        pusher.push_many(list(range(20)), ids=[uuid.uuid4().hex for _ in range(20)])

    def retry() -> None:
        retrier.rollback(*retrier.reserve(150), delay=0)

    def remove() -> None:
        held = remover.reserve(150)
        going = [one for one in held if not one.id.startswith(STAYS)]
        remover.commit(*going[::2])
        remover.dead_letter(*going[1::2])
        remover.rollback(*(one for one in held if one.id.startswith(STAYS)), delay=0)

    given = {"url": any_url, "queue": name, "numPartitions": str(PARTS)}
    with repeated(push, retry, remove) as next_round:
        for _ in range(3):
            next_round()
            parts = read_parts(**given)
            read = Counter(id for part in parts for id in part)
            assert max(read.values()) == 1, "no message comes twice"
            assert set(stays) <= set(read), "each that stays comes"
    for client in clients:
        client.close()
