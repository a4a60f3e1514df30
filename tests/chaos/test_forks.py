"""Producers and consumers that fork: the short form of `make chaos CHAOS_ARGS='--store "sqlite forks"'`.

There Spark keeps all files open. SQLite begins a new log if all programs have closed a file: so others are alone.
"""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from spark_queue import open_store
from spark_queue.messages.message import messages
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.killer import live
from tests.chaos.kinds import FORKS
from tests.chaos.processes import alive, descendants, kill, kill_tree, read_log, send, start
from tests.chaos.world import World

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_workers_that_are_forked_and_killed_lose_and_double_nothing(scheme, seed, tmp_path):
    world = World(scheme, scheme, seed, tmp_path, kind=FORKS)
    result = live(world, 12, ["fork", "producer", "consumer"])
    print(result)
    assert not result.wrong
    assert result.kills["fork"]


def test_workers_that_have_the_file_alone_lose_and_double_nothing(any_url, name, rng, tmp_path):
    running, logs, kills = {}, {"produce": [], "consume": []}, 30

    def begin(slot):
        life = f"{slot[0]}{len(logs[slot[1]])}"
        logs[slot[1]].append(tmp_path / f"{slot[1]}-{life}.log")
        facts = {"url": any_url, "queue": name, "log": str(logs[slot[1]][-1]), "seed": rng.random()}
        named = {"producer": life} if slot[1] == "produce" else {"consumer": life, "lease": 2.0}
        running[slot] = start(f"{slot[1]}_forked", **facts, **named)

    slots = [("p", "produce"), ("q", "produce"), ("c", "consume")]
    for slot in slots:
        begin(slot)
    below = set()
    try:
        wait_until(lambda: all(any(map(read_log, some)) for some in logs.values()), 60)
        for _ in range(kills):
            time.sleep(rng.uniform(0, 0.5))
            slot = rng.choice(slots)
            assert running[slot].poll() is None, "it has ended by itself"
            workers = list(descendants(running[slot].pid))
            below |= set(workers)
            if rng.random() < 0.85 and workers:
                send(workers[0], signal.SIGKILL)
            else:
                kill(running[slot])
                begin(slot)
    finally:
        for one in running.values():
            kill_tree(one)
    wait_until(lambda: not any(map(alive, below)), 10)
    facts = [one for log in logs["produce"] for one in read_log(log) if one["did"] == "push"]
    committed = Counter(
        id for log in logs["consume"] for one in read_log(log) if one["did"] == "commit" for id in one["ids"]
    )
    with open_store(any_url) as store:
        views = [
            [one for batch in store.peek(name, view=view) for one in messages(batch)]
            for view in ("messages", "history")
        ]
    found = Counter(one.payload["producer"] for view in views for one in view)
    ids = Counter(one.id for view in views for one in view)
    assert sum(found.values()) >= sum(one["last"] - one["first"] + 1 for one in facts) > 0, "lost"
    assert not [id for id, n in (ids | committed).items() if n > 1], "doubled"
    assert committed.keys() <= {one.id for one in views[1]}
