"""The part of the conformance suite about the sizes of many queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_queue.errors import OptionError
from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.services.log.log import Log, count_retained
from spark_queue.stores.support.budget import BudgetExceeded, ReadBudget
from spark_queue.stores.support.counters import Statistics
from spark_queue.stores.types import Sizes, queue_note_key

#: Ends of names that a query, a pattern or a path could misread.
ODD_ENDS = (" é'", '"\\', "*[1]?", ":/%", ".a.b", "{x}", "#;--")


def _fill(store: Store, queue: str, ready: int, scheduled: int, reserved: int) -> None:
    if reserved:
        store.push(queue, pushes([{"n": str(n)} for n in range(reserved)]))
        assert sum(store.reserve(queue, "c/1", reserved)) == reserved
    if ready:
        store.push(queue, pushes([{"n": str(n)} for n in range(ready)]))
    if scheduled:
        store.push(queue, pushes([{"n": str(n)} for n in range(scheduled)], delay=3_600_000))


class SizesContract:
    """Tests for `StoreContract`, which has the fixtures `store`, `peer`, `queue` and `url`."""

    open_client: Callable[..., Store]

    @pytest.fixture
    def filled(self, store: Store, queue: str) -> Iterator[dict[str, Sizes]]:
        """Return the sizes of some queues; one was drained, one does not exist."""
        sizes = {queue: Sizes(3, 2, 1), f"{queue}.drained": Sizes(0, 0, 0), f"{queue}.missing": Sizes(0, 0, 0)}
        sizes |= {f"{queue}{end}": Sizes(number % 3, number % 2, number) for number, end in enumerate(ODD_ENDS, 1)}
        for name, one in sizes.items():
            _fill(store, name, one.ready, one.scheduled, one.reserved)
        _fill(store, f"{queue}.drained", 0, 0, 2)
        assert store.commit(f"{queue}.drained", "c/1", history=60_000) == 2
        yield sizes
        for name in sizes:
            store.drop(name)

    def test_the_sizes_of_many_queues_are_those_of_each(self, store: Store, filled: dict[str, Sizes]) -> None:
        found = store.sizes_of(filled)
        assert found == filled and list(found) == list(filled)
        for name, one in found.items():
            alone = store.sizes(name)
            assert alone == one
            assert (alone.oldest_ready_age is None) == (one.oldest_ready_age is None) == (not one.ready)
            wait = store.next_mature(name)
            assert (one.next_mature is None) == (wait is None) == (not one.total)
            if one.next_mature is not None and wait is not None:
                assert (one.next_mature <= 0) == (wait <= 0) == (one.ready > 0)
                assert one.ready or abs(one.next_mature - wait) < 60_000
        assert store.sizes_of([]) == {}

    def test_many_queues_are_counted_up_to_a_limit(self, store: Store, filled: dict[str, Sizes]) -> None:
        for limit in (1, 3, 100):
            for name, one in store.sizes_of(filled, limit).items():
                exact = filled[name]
                for state in ("ready", "scheduled", "reserved"):
                    number, whole = getattr(one, state), getattr(exact, state)
                    assert number <= whole if state in one.capped else number == whole
                assert limit < 100 or not one.capped
                alone = store.sizes(name, limit)
                assert (alone, alone.capped) == (one, one.capped)

    @pytest.mark.parametrize("chunk", [1, 2, 3, 9, 10, 11])
    def test_no_queue_is_missed_between_two_requests(
        self, store: Store, url: str, filled: dict[str, Sizes], chunk: int
    ) -> None:
        store.write_counts()
        with self.open_client(url, queues_chunk=chunk, queues_per_count=chunk) as other:
            assert len(filled) == 10
            assert other.sizes_of([*filled, *filled]) == filled
            counted = other.statistics_of(filled)
            known = {name: other.statistics(name) for name in filled}
            assert counted == {name: one for name, one in known.items() if one != Statistics()}
            keys = [queue_note_key(name, "of a test") for name in filled]
            for key in keys[1:]:
                assert other.set_note(key, {"key": key}, 0)
            assert {key: note.value for key, note in other.notes_of(keys).items()} == {
                key: {"key": key} for key in keys[1:]
            }

    def test_a_look_at_many_queues_ends_with_its_time(self, store: Store, filled: dict[str, Sizes]) -> None:
        with ReadBudget(1, 1, 0.0).applied(), pytest.raises(BudgetExceeded):
            store.sizes_of(filled)

    def test_a_name_that_is_not_allowed_is_refused_among_others(self, store: Store, queue: str) -> None:
        for name in ("", "a..b", "system.x", "a$b"):
            try:
                store.check_queue(name)
            except OptionError:
                if name:
                    with pytest.raises(OptionError):
                        store.sizes_of([queue, name])

    def test_what_logs_retain_is_read_for_many_queues(self, store: Store, queue: str) -> None:
        try:
            store.check_log(queue)
        except OptionError:
            pytest.skip("this layout holds no log")
        other, plain = f"{queue}.other", f"{queue}.plain"
        for name, rows in ((queue, 3), (other, 5), (plain, 2)):
            store.push(name, pushes([{"n": str(n)} for n in range(rows)]))
            if name != plain:
                assert Log(store, name).seal() == rows
        assert count_retained(store, [queue, plain, other]) == {queue: 3, other: 5}
        assert store.sizes_of([queue, plain, other]) == {
            queue: Sizes(0, 0, 3), plain: Sizes(2, 0, 0), other: Sizes(0, 0, 5),
        }  # fmt: skip
        for name in (other, plain):
            store.drop(name)
