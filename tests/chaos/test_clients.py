"""Programs without Spark that are killed with SIGKILL in the middle of their work."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.processes import kill, read_log, start

pytestmark = pytest.mark.full


def messages_at(url, queue):
    with open_store(url, retry_timeout=70_000) as store:
        return [message for batch in store.peek(queue) for message in messages(batch)]


def settled(url, *queues):
    """Wait until a server is through with what dead clients have asked of it; give all messages of each queue."""
    before, now = None, []
    while before != now:
        before, now = now, [sorted(message.id for message in messages_at(url, queue)) for queue in queues]
        time.sleep(0.3)
    return [messages_at(url, queue) for queue in queues]


# --- producers ------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_to_a_killed_producer_is_in_the_queue_and_nothing_else(any_url, name, rng, tmp_path):
    logs = {producer: tmp_path / f"{producer}.log" for producer in "abc"}
    begun, acknowledged = set(), set()

    def run(producer):
        done = [one["last"] for one in read_log(logs[producer]) if one["did"] == "push"]
        first = done[-1] + 1 if done else 0  # what was in flight is pushed again
        return start(
            "push", url=any_url, queue=name, log=str(logs[producer]), producer=producer, first=first, most=80,
            seed=rng.random(),
        )  # fmt: skip

    def pushed(producer):
        return sum(one["did"] == "push" for one in read_log(logs[producer]))

    for _life in range(2):
        counts = {producer: pushed(producer) for producer in logs}
        running = {producer: run(producer) for producer in logs}
        try:
            for producer, process in rng.sample(list(running.items()), len(running)):
                wait_until(lambda producer=producer, counts=counts: pushed(producer) > counts[producer], 30, 0.01)
                time.sleep(rng.uniform(0, 0.2))
                assert process.poll() is None, "it pushes until it is killed"
                kill(process)
        finally:
            for process in running.values():
                kill(process)
        batches = []
        for producer, log in logs.items():
            for one in read_log(log):
                numbers = [f"{producer}-{n}" for n in range(one["first"], one["last"] + 1)]
                (acknowledged if one["did"] == "push" else begun).update(numbers)
                if one["did"] == "begin":
                    batches.append(numbers)
        (found,) = settled(any_url, name)
        ids = [message.id for message in found]
        assert len(ids) == len(set(ids))
        assert acknowledged <= set(ids), "lost"
        assert set(ids) <= begun, "invented"
        assert all(f"{one.payload['producer']}-{one.payload['n']}" == one.id for one in found)
        if not any_url.startswith("mongodb"):  # where a push of few messages is atomic
            whole = {number for numbers in batches if set(numbers) <= set(ids) for number in numbers}
            assert set(ids) == whole, "a part of a batch"  # what was in flight may be pushed again in other batches


def test_a_large_push_to_sqlite_that_is_killed_is_in_the_queue_as_a_whole_or_not_at_all(
    sqlite_url, name, rng, tmp_path
):
    rows, log = 20_000, tmp_path / "log"
    process = start("push_at_once", url=sqlite_url, queue=name, log=str(log), rows=rows)
    outcomes = []
    try:
        for _ in range(3):
            done = len(read_log(log))
            wait_until(lambda done=done: len(read_log(log)) >= done + 4, 60, 0.01)
            first, last = [one["at"] for one in read_log(log) if "at" in one][:2]
            wait_until(lambda: read_log(log)[-1]["did"] == "begin", 60, 0.001)
            time.sleep(rng.uniform(0.1, 0.9) * (last - first))
            kill(process)
            facts = read_log(log)
            pushed = {one["batch"] for one in facts if one["did"] == "push"}
            found = Counter(message.payload["batch"] for message in messages_at(sqlite_url, name))
            assert set(found.values()) <= {rows}, "a part of a batch"
            assert pushed <= found.keys() <= {one["batch"] for one in facts if one["did"] == "begin"}
            outcomes.append(facts[-1]["did"])
            with open_store(sqlite_url) as store:
                store.drop(name)
            log.unlink()
            process = start("push_at_once", url=sqlite_url, queue=name, log=str(log), rows=rows)
    finally:
        kill(process)
    assert "begin" in outcomes, "none was killed in the middle of a push"


# --- consumers ------------------------------------------------------------------------------------------------------


def test_killed_consumers_lose_nothing_and_what_they_have_committed_never_comes_again(any_url, name, rng, tmp_path):
    lease, kills = 0.4, 8
    log = tmp_path / "log"
    ids = set()

    def feed(seconds):
        """Push little, so that what a lease gives back does not wait behind much else."""
        end = time.monotonic() + seconds
        with Queue(any_url, name) as queue:
            while time.monotonic() < end:
                ids.update(queue.push_many([len(ids), len(ids) + 1]))
                time.sleep(0.05)

    def run(number):
        return start(
            "consume", url=any_url, queue=name, log=str(log), consumer=f"c{number}", lease=lease, seed=rng.random()
        )

    running = [run(number) for number in range(4)]
    try:
        feed(1)
        wait_until(lambda: len(read_log(log)) > 6, 30)
        for number in range(4, 4 + kills):
            feed(rng.uniform(0.3, 0.8))
            victim = running.pop(rng.randrange(len(running)))
            assert victim.poll() is None, "it consumes until it is killed"
            kill(victim)
            running.append(run(number))
        feed(rng.uniform(0.5, 1))
    finally:
        for process in running:
            kill(process)

    time.sleep(lease + 0.2)
    facts = read_log(log)
    reserved = [one for one in facts if one["did"] == "reserve"]
    commits = [one for one in facts if one["did"] == "commit"]
    with Queue(any_url, name) as queue:
        assert queue.sizes().reserved == 0, "leases end"
        begun = time.monotonic()
        rest = []
        while batch := queue.reserve(500):
            rest += [message.id for message in batch]
            assert queue.commit(*batch) == len(batch)
        assert queue.sizes().total == 0
        assert len(rest) == len(set(rest))
        reserved.append({"by": "rest", "ids": rest, "begun": begun, "ended": time.monotonic()})

    seen = {id for one in reserved for id in one["ids"]}
    assert ids <= seen, "lost"
    assert seen <= ids, "invented"
    times = Counter(one["id"] for one in commits)
    assert not [id for id, n in times.items() if n > 1], "committed twice"
    assert not times.keys() & set(rest), "committed, and still there"
    by_id = defaultdict(list)
    for one in reserved:
        for id in one["ids"]:
            by_id[id].append(one)
    for commit in commits:
        for other in by_id[commit["id"]]:
            assert other["begun"] < commit["ended"], "it came after its commit was acknowledged"
            between = commit["got"] < other["begun"] and other["ended"] < commit["begun"]
            assert not between, f"{commit['by']} has committed what {other['by']} had taken over"
    assert any(len(takers) > 1 for takers in by_id.values()), "no lease has ended"


# --- movers ---------------------------------------------------------------------------------------------------------


def test_a_killed_move_leaves_each_message_in_exactly_one_queue(any_url, name, rng, tmp_path):
    each, log, dead = 12_000, tmp_path / "log", f"{name}.dead"
    ids = Counter()

    def push():
        with Queue(any_url, name) as queue:
            payloads = [{"n": len(ids) + n} for n in range(each)]
            ids.update(queue.push_many(payloads, headers={"h": "x"}))

    def steps():
        return sum(one["did"] == "begin" for one in read_log(log))

    def run():
        return start("move", url=any_url, queue=name, to=dead, log=str(log), seed=rng.random())

    for _ in range(2):
        push()  # enough for several steps, however much the one killed before has moved
        before = steps()
        process = run()
        try:
            # MongoDB ends the transaction of a client that died in it after some 60 seconds: till then others wait.
            wait_until(lambda before=before: steps() > before + 1, 150, 0.002)
            time.sleep(rng.uniform(0, 0.1))
        finally:
            kill(process)
        left, moved = settled(any_url, name, dead)
        assert Counter(message.id for message in left + moved) == ids
    with open_store(any_url) as store:
        wait_until(lambda: store.sizes(name).reserved == 0, 10)
    process = run()  # the repeat
    assert process.wait(180) == 0
    left, moved = settled(any_url, name, dead)
    assert left == []
    assert Counter(message.id for message in moved) == ids
    assert sorted(message.payload["n"] for message in moved) == list(range(2 * each))
    assert {message.headers["h"] for message in moved} == {"x"}
