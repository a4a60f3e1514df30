"""The part of the conformance suite about stages and notes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import ids_of, messages_of, payloads_of, push_and_reserve
from spark_queue.stores.conformance.waiting import DEADLINE, run_together
from spark_queue.stores.types import Note, RawNote, Sizes, Staged, queue_note_key


class StagingContract:
    """Tests for `StoreContract`, which has the fixtures `store`, `peer`, `queue` and `url`."""

    @pytest.fixture
    def sink(self, store: Store) -> Iterator[str]:
        name = f"s{uuid.uuid4().hex[:16]}"
        yield name
        store.unstage(name)
        for key, note in store.notes(name).items():
            store.set_note(key, None, note.version)

    # --- stages -----------------------------------------------------------------------------------

    def test_staged_messages_are_invisible(self, store: Store, queue: str, sink: str) -> None:
        assert store.stage(queue, f"{sink}/0/a", pushes(["x", "y"])) == 2
        assert store.sizes(queue) == Sizes(0, 0, 0)
        assert list(store.peek(queue)) == []
        assert queue not in store.queues()
        assert store.next_mature(queue) is None
        assert store.reserve(queue, "c/1", 10) == []
        assert store.move(queue, f"{queue}.other") == store.purge(queue) == 0
        assert store.staged(sink) == [Staged(f"{sink}/0/a", queue, 2)]

    def test_published_messages_come_as_they_were_staged(self, store: Store, queue: str, sink: str) -> None:
        odd = "text \u0000 ünï"
        payloads: list[Any] = [{"n": 1, "deep": [None, {"a": 1.5}]}, odd, b"\0\xff", [1, 2], 2**63 - 1, "", b""]
        batch = pushes(payloads, headers={"h": 'v"1'}, tries=3)
        store.stage(queue, f"{sink}/0/a", batch)
        assert store.publish([f"{sink}/0/a"]) == len(payloads)
        assert store.staged(sink) == []
        store.reserve(queue, "c/1", 100)
        got = messages_of(store.fetch(queue, "c/1/0"))
        assert [one.payload for one in got] == payloads
        assert [one.id for one in got] == batch.column("id").to_pylist()
        assert {(one.tries, one.headers["h"]) for one in got} == {(3, 'v"1')}
        assert abs(got[0].mature.timestamp() * 1000 - store.now()) < 60_000

    def test_delays_and_moments_of_staged_messages_are_kept(self, store: Store, queue: str, sink: str) -> None:
        moment = datetime(2101, 2, 3, 4, 5, 6, tzinfo=UTC)
        store.stage(queue, f"{sink}/0/a", pushes(["then"], mature=moment))
        store.stage(queue, f"{sink}/0/a", pushes(["later"], delay=60_000))
        store.publish([f"{sink}/0/a"])
        assert store.sizes(queue) == Sizes(0, 2, 0)
        due = {one.payload: one.mature for one in messages_of(store.peek(queue))}
        assert due["then"] == moment
        assert 0 < due["later"].timestamp() * 1000 - store.now() <= 60_000

    def test_a_stage_keeps_its_order_over_several_batches(self, store: Store, queue: str, sink: str) -> None:
        moment = datetime.fromtimestamp(store.now() / 1000 - 10, UTC)
        for part in range(3):
            store.stage(queue, f"{sink}/0/a", pushes([f"{part} {i}" for i in range(5)], mature=moment))
        store.publish([f"{sink}/0/a"])
        store.reserve(queue, "c/1", 100)
        assert payloads_of(store.fetch(queue, "c/1/0")) == [f"{part} {i}" for part in range(3) for i in range(5)]

    def test_a_stage_holds_messages_for_several_queues(self, store: Store, queue: str, sink: str) -> None:
        other = f"{queue}.other"
        for name, n in ((queue, 3), (other, 2), (queue, 1)):
            store.stage(name, f"{sink}/7/a", pushes([f"{name} {n}"] * n))
        assert store.staged(f"{sink}/7") == [Staged(f"{sink}/7/a", queue, 4), Staged(f"{sink}/7/a", other, 2)]
        assert store.publish([f"{sink}/7/a"]) == 6
        assert (store.sizes(queue).ready, store.sizes(other).ready) == (4, 2)

    def test_a_publish_may_be_repeated_even_when_its_messages_are_gone(
        self, store: Store, peer: Store, queue: str, sink: str
    ) -> None:
        store.stage(queue, f"{sink}/0/a", pushes(["x", "y"]))
        assert store.publish([f"{sink}/0/a"]) == 2
        assert peer.reserve(queue, "c/1", 10) == [2]
        assert peer.commit(queue, "c/1") == 2
        assert store.publish([f"{sink}/0/a"]) == 0
        assert store.sizes(queue) == Sizes(0, 0, 0)

    def test_only_the_named_stages_are_published(self, store: Store, queue: str, sink: str) -> None:
        for stage in ("0/a", "0/b", "0/ab", "1/a"):
            store.stage(queue, f"{sink}/{stage}", pushes([stage]))
        assert store.publish([f"{sink}/0/a", f"{sink}/1/a", f"{sink}/9/none"]) == 2
        assert sorted(payloads_of(store.peek(queue))) == ["0/a", "1/a"]
        assert [one.stage for one in store.staged(sink)] == [f"{sink}/0/ab", f"{sink}/0/b"]
        assert store.publish([]) == 0

    def test_stages_with_the_same_ids_do_not_disturb_each_other(self, store: Store, queue: str, sink: str) -> None:
        ids = new_ids(3)
        store.stage(queue, f"{sink}/0/loser", pushes(["l"] * 3, ids=ids))
        store.stage(queue, f"{sink}/0/winner", pushes(["w"] * 3, ids=ids))
        assert store.publish([f"{sink}/0/winner"]) == 3
        assert store.unstage(f"{sink}/0") == 3
        assert payloads_of(store.peek(queue)) == ["w"] * 3

    def test_an_id_that_the_queue_holds_is_left_as_it_is(self, store: Store, queue: str, sink: str) -> None:
        push_and_reserve(store, queue, pushes(["old"], ids=["mine"]))
        store.stage(queue, f"{sink}/0/a", pushes(["new", "other", "twice"], ids=["mine", "free", "free"]))
        assert store.publish([f"{sink}/0/a"]) == 1
        assert sorted(payloads_of(store.peek(queue))) == ["old", "other"]
        assert store.commit(queue, "c/1") == 1
        assert store.staged(sink) == []

    def test_unstage_removes_all_but_what_is_to_be_kept(self, store: Store, queue: str, sink: str) -> None:
        for stage in ("3/a", "3/b", "4/a"):
            store.stage(queue, f"{sink}/{stage}", pushes([stage, stage]))
        store.stage(queue, f"{sink}0/3/a", pushes(["another sink"]))
        try:
            assert store.unstage(sink, keep=[f"{sink}/3/b"]) == 4
            assert [one.stage for one in store.staged(sink)] == [f"{sink}/3/b"]
            assert store.unstage(f"{sink}/3/b") == 2
            assert store.unstage(sink) == 0
            assert [one.rows for one in store.staged(f"{sink}0")] == [1]
            for stage in ("1/a", "10/a", "1/a/b"):
                store.stage(queue, f"{sink}/{stage}", pushes([stage]))
            assert store.publish([f"{sink}/1/a"]) == 1, "nothing below it"
            assert store.unstage(f"{sink}/1") == 1, "nothing beside it"
            assert [one.stage for one in store.staged(sink)] == [f"{sink}/10/a"]
        finally:
            store.unstage(f"{sink}0")

    def test_all_stages_are_listed(self, store: Store, queue: str, sink: str) -> None:
        store.stage(queue, f"{sink}/0/a", pushes(["x"]))
        assert Staged(f"{sink}/0/a", queue, 1) in store.staged()

    def test_a_row_that_breaks_a_rule_is_not_staged_nor_its_batch(self, store: Store, queue: str, sink: str) -> None:
        batch = pushes(["good", "bad"], ids=["a", ""])
        with pytest.raises(MessageError) as caught:
            store.stage(queue, f"{sink}/0/a", batch)
        assert list(caught.value.rows) == [1]
        assert store.staged(sink) == []
        with pytest.raises(OptionError):
            store.stage(queue, "no stage!", pushes(["x"]))
        assert store.stage(queue, f"{sink}/0/a", pushes([])) == 0

    def test_a_large_stage_is_published_whole(self, store: Store, queue: str, sink: str) -> None:
        large = pushes([{"n": n, "pad": "x" * 100} for n in range(23_456)])
        store.stage(queue, f"{sink}/0/a", large)
        store.stage(queue, f"{sink}/0/a", pushes(["y" * (1 << 20)] * 40))
        assert store.staged(sink) == [Staged(f"{sink}/0/a", queue, 23_496)]
        assert store.publish([f"{sink}/0/a"]) == 23_496
        assert store.sizes(queue).ready == 23_496
        assert set(large.column("id").to_pylist()) < set(ids_of(store.peek(queue)))

    def test_two_publishers_of_one_stage_publish_each_message_once(
        self, store: Store, url: str, queue: str, sink: str
    ) -> None:
        for part in range(6):
            store.stage(queue, f"{sink}/0/a", pushes([f"{part} {i}" for i in range(500)]))
        published: list[int] = []
        taken: list[int] = []

        def publish() -> None:
            with open_store(url, retry_timeout=20_000) as mine:
                published.append(mine.publish([f"{sink}/0/a"]))

        def consume() -> None:
            with open_store(url, retry_timeout=20_000) as mine:
                sequence, end = 0, time.monotonic() + DEADLINE
                while sum(taken) < 3_000 and time.monotonic() < end:
                    sequence += 1
                    if mine.reserve(queue, f"c/{sequence}", 400):
                        taken.append(mine.commit(queue, f"c/{sequence}"))

        run_together(publish, publish, consume)
        assert sum(published) == sum(taken) == 3_000
        assert store.sizes(queue).total == 0
        assert store.staged(sink) == []

    def test_drop_leaves_stages_alone(self, store: Store, queue: str, sink: str) -> None:
        store.stage(queue, f"{sink}/0/a", pushes(["x"]))
        store.drop(queue)
        assert store.publish([f"{sink}/0/a"]) == 1
        assert store.sizes(queue).ready == 1

    # --- notes ------------------------------------------------------------------------------------

    def test_a_note_is_written_with_its_version(self, store: Store, peer: Store, sink: str) -> None:
        key = f"{sink}/a key with ünï:codé"
        assert store.note(key) is None
        assert store.set_note(key, {"a": [1, None, "ü"], "big": 2**53}, 0)
        assert peer.note(key) == Note({"a": [1, None, "ü"], "big": 2**53}, 1)
        assert not peer.set_note(key, {"b": 1}, 0), "the note exists already"
        assert not peer.set_note(key, {"b": 1}, 2), "it does not have that version yet"
        assert peer.set_note(key, {"b": 1}, 1)
        assert not store.set_note(key, None, 1)
        assert store.note(key) == Note({"b": 1}, 2)
        assert store.set_note(key, None, 2)
        assert store.note(key) is None
        assert store.set_note(key, None, 0), "the note is removed already"
        assert not store.set_note(key, None, 1)
        assert store.set_note(key, {}, 0), "it can be created again"
        assert not peer.set_note(key, {}, 0), "a second write of the same value fails"

    def test_a_note_says_when_it_was_written_last(self, store: Store, peer: Store, sink: str) -> None:
        moments = [store.now()]
        for version in range(2):
            assert store.set_note(f"{sink}/a", {"n": version}, version)
            note = peer.note(f"{sink}/a")
            assert note is not None
            assert note == store.notes(f"{sink}/a")[f"{sink}/a"]
            assert note.written == store.notes(f"{sink}/a")[f"{sink}/a"].written
            assert note.written is not None
            moments += [note.written, store.now()]
        assert moments == sorted(moments)

    def test_notes_are_listed_by_prefix(self, store: Store, sink: str) -> None:
        for key in ("a/1", "a/2", "a*", "b"):
            store.set_note(f"{sink}/{key}", {"key": key}, 0)
        assert list(store.notes(f"{sink}/a/")) == [f"{sink}/a/1", f"{sink}/a/2"]
        assert {note.value["key"] for note in store.notes(sink).values()} == {"a/1", "a/2", "a*", "b"}
        assert list(store.notes(f"{sink}/a*")) == [f"{sink}/a*"]

    def test_notes_are_no_queues(self, store: Store, sink: str) -> None:
        before = set(store.queues())
        store.set_note(f"{sink}/a", {}, 0)
        assert not {name for name in set(store.queues()) - before if "note" in name or sink in name}

    def test_notes_about_a_queue_go_with_it(self, store: Store, queue: str) -> None:
        other = f"{queue}/2"
        for name in (queue, other):
            store.set_note(queue_note_key(name, "kind", "x/y"), {}, 0)
        store.drop(queue)
        assert (len(store.notes(queue_note_key(queue))), len(store.notes(queue_note_key(other)))) == (0, 1)
        store.drop(other)

    def test_a_note_that_changes_while_its_queue_is_dropped_is_removed(
        self, store: Store, peer: Store, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key, list_notes = queue_note_key(queue, "kind", "x"), store._notes
        store.set_note(key, {"n": 1}, 0)

        def list_and_change(prefix: str) -> dict[str, RawNote]:
            found = list_notes(prefix)
            assert peer.set_note(key, {"n": 2}, 1)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(store, "_notes", list_and_change)
            store.drop(queue)
        assert store.note(key) is None

    def test_of_writers_that_race_each_counts(self, store: Store, url: str, sink: str) -> None:
        key = f"{sink}/n"

        def count() -> None:
            with open_store(url, retry_timeout=20_000) as mine:
                for _ in range(25):
                    while True:
                        note = mine.note(key) or Note({"n": 0}, 0)
                        value = {"n": note.value["n"] + 1, "by": uuid.uuid4().hex}
                        if mine.set_note(key, value, note.version):
                            break

        run_together(*[count] * 4)
        found = store.note(key)
        assert found is not None and (found.value["n"], found.version) == (100, 100)
