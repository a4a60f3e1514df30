"""Stages in Redis."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from redis.connection import AbstractConnection

from spark_queue.messages.message import pushes
from spark_queue.stores.redis.keys import Chunk, queue_keys, registry_key
from spark_queue.stores.types import Staged
from tests.stores.redis.programs import MINUTE, chunk, consumed, cuts, documents


def chunk_keys(raw, queue):
    return sorted(raw.scan_iter(f"spark_queue:{queue}:staged:*"))


def test_what_is_staged_lies_beside_the_queue_as_a_push_would_write_it(small_steps, store, raw, queue, sink):
    batch = pushes([1, "two", b"3", 4], ids=["a", "b", "c", "d"], mature=datetime(2023, 1, 1, tzinfo=UTC))
    store.stage(queue, f"{sink}/7/x", batch)
    first, second = chunk_keys(raw, queue)
    assert [len(chunk(raw, key)) for key in (first, second)] == [13, 5]
    assert chunk(raw, second)[:4] == [b"1", b"1672531200000", b"d", b"d"]
    assert {member.rpartition(b"\0")[2] for member in raw.smembers(registry_key(sink))} == {queue.encode()}
    assert not raw.exists(*queue_keys(queue))
    assert store.publish([f"{sink}/7/x"]) == 4
    store.push(f"{queue}.other", batch)
    found = [
        {id: re.sub(rb'"pushed":\d+', b'"pushed":0', text) for id, text in documents(raw, name).items()}
        for name in (queue, f"{queue}.other")
    ]
    assert found[0] == found[1]


def test_what_is_left_of_a_chunk_passes_away(store, raw, queue, sink):
    store.stage(queue, f"{sink}/7/x", pushes(list(range(100))))
    store.stage(queue, f"{sink}/8/x", pushes(list(range(100))))
    assert (store.publish([f"{sink}/7/x"]), store.unstage(f"{sink}/8")) == (100, 100)
    assert not raw.exists(registry_key(sink))
    left = chunk_keys(raw, queue)
    assert [raw.get(key) for key in left] == [b"", b""]
    assert all(0 < raw.pttl(key) <= 10 * MINUTE for key in left)


def test_a_publish_that_is_cut_off_anywhere_is_completed_by_the_next(
    monkeypatch, redis_url, peer, raw, queue, sink, small_steps
):
    for n, (store, once) in enumerate(cuts(monkeypatch, redis_url)):
        stages = [f"{sink}/{n}/{attempt}" for attempt in "ab"]
        for i, stage in enumerate(stages):
            peer.stage(queue, stage, pushes([10 * i + k for k in range(4)]))
        peer.stage(queue, f"{sink}/{n}/c", pushes(["a loser"]))
        once(store.publish, stages)
        found = consumed(peer, queue)
        peer.publish(stages)
        assert sorted(found + consumed(peer, queue)) == [0, 1, 2, 3, 10, 11, 12, 13]
        assert peer.publish(stages) == 0
        assert [(one.stage, one.rows) for one in peer.staged(f"{sink}/{n}")] == [(f"{sink}/{n}/c", 1)]


def test_a_stage_that_is_cut_off_anywhere_is_completed_or_removed(
    monkeypatch, redis_url, peer, raw, queue, sink, small_steps
):
    batch = pushes(list(range(8)))
    for n, (store, once) in enumerate(cuts(monkeypatch, redis_url)):
        for attempt in "ab":
            once(store._stage, queue, f"{sink}/{n}/{attempt}", f"part{n}", batch)
        peer._stage(queue, f"{sink}/{n}/a", f"part{n}", batch)
        assert peer.unstage(f"{sink}/{n}/b") <= 8
        assert peer.publish([f"{sink}/{n}/a", f"{sink}/{n}/b"]) == 8
        assert consumed(peer, queue) == list(range(8))
        assert not raw.exists(registry_key(sink))
        assert all(raw.get(key) == b"" for key in chunk_keys(raw, queue))


def test_an_unstage_that_is_cut_off_anywhere_is_completed_by_the_next(
    monkeypatch, redis_url, peer, raw, queue, sink, small_steps
):
    for n, (store, once) in enumerate(cuts(monkeypatch, redis_url)):
        peer.stage(queue, f"{sink}/{n}/a", pushes(list(range(8))))
        once(store.unstage, f"{sink}/{n}")
        peer.unstage(f"{sink}/{n}")
        assert peer.staged(sink) == []
        assert not raw.exists(registry_key(sink))
        assert all(raw.get(key) == b"" for key in chunk_keys(raw, queue))


def test_a_stage_of_a_writer_that_died_before_it_wrote_can_be_seen_and_removed(store, raw, queue, sink):
    raw.sadd(registry_key(sink), Chunk(f"{sink}/7/x", "part.000000", queue).member)
    assert store.staged(sink) == [Staged(f"{sink}/7/x", queue, 0)]
    assert store.unstage(f"{sink}/7") == 0
    assert store.staged(sink) == []


@pytest.mark.parametrize("end", ["publish", "unstage"])
def test_what_is_staged_too_late_is_not_published_again(store, peer, raw, queue, sink, end):
    batch = pushes(["x", "y"])
    store._stage(queue, f"{sink}/7/a", "part", batch)
    ended = store.publish([f"{sink}/7/a"]) if end == "publish" else store.unstage(f"{sink}/7")
    assert ended == 2
    assert len(consumed(store, queue)) == (2 if end == "publish" else 0)
    peer._stage(queue, f"{sink}/7/a", "part", batch)  # an attempt whose answer no task waits for
    assert [one.rows for one in store.staged(sink)] == [0]
    assert store.publish([f"{sink}/7/a"]) == 0
    assert store.sizes(queue).total == 0


def test_a_writer_whose_stage_was_swept_meanwhile_leaves_nothing(monkeypatch, store, peer, raw, queue, sink):
    run = store._run

    def swept_before(script, *arguments, **more):
        assert peer.unstage(f"{sink}/7") == 0
        return run(script, *arguments, **more)

    monkeypatch.setattr(store, "_run", swept_before)
    store.stage(queue, f"{sink}/7/a", pushes(["x"]))
    assert [raw.get(key) for key in chunk_keys(raw, queue)] == [b""]
    assert peer.publish([f"{sink}/7/a"]) == 0


def test_stages_whose_names_begin_alike_are_different(store, queue, sink):
    names = ["1/a", "1/a/b", "1/ab", "10/a"]
    for name in names:
        store.stage(queue, f"{sink}/{name}", pushes([name]))
    assert [one.stage for one in store.staged(f"{sink}/1")] == [f"{sink}/{name}" for name in names[:3]]
    assert store.publish([f"{sink}/1/a"]) == 1
    assert consumed(store, queue) == ["1/a"]
    assert store.unstage(f"{sink}/1") == 2
    assert [one.stage for one in store.staged(sink)] == [f"{sink}/10/a"]


def test_of_one_id_that_is_staged_twice_the_first_counts(small_steps, store, queue, sink):
    for n in range(5):
        store.stage(queue, f"{sink}/1/a", pushes([n] * 4, ids=["w", "x", "y", f"z{n}"]))
    assert store.publish([f"{sink}/1/a"]) == 8
    assert sorted(consumed(store, queue)) == [0, 0, 0, 0, 1, 2, 3, 4]


def test_a_chunk_takes_a_few_commands_whatever_it_holds(monkeypatch, store, queue, sink):
    answers = []
    read = AbstractConnection.read_response

    def counted(self, *arguments, **more):
        answers.append(self)
        return read(self, *arguments, **more)

    batch = pushes(list(range(4_000)))
    monkeypatch.setattr(AbstractConnection, "read_response", counted)
    store.stage(queue, f"{sink}/7/a", batch)
    store.publish([f"{sink}/7/a"])
    assert 0 < len(answers) < 20
