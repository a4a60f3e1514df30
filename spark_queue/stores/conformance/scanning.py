"""The part of the conformance suite about scans: pages of messages in order, by cursors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from spark_queue.errors import OptionError
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import ids_of, payloads_of
from spark_queue.stores.conformance.order import LONG_AGO
from spark_queue.stores.conformance.waiting import MINUTE_MS, end_lease
from spark_queue.stores.support.cursors import Cursor
from spark_queue.stores.support.scan import Scan
from spark_queue.stores.types import Condition, View

#: Places that no store returns, in a cursor that is not damaged.
WRONG_PLACES: list[Any] = [
    [], [[]], [None], [None, None], [True, False, True], [{"$gt": ""}], ['[{"$gt":""}]'], ["{"], [1, 2, 3, 4, 5],
    [2**80, "id"], [0, "a", None], "text", {"a": 1}, 7,
]  # fmt: skip

#: By which factor the work of a later page may exceed that of the first one.
SAME_COST = 1.5


def moment(ms: int) -> datetime:
    """Return a time (ms) as a moment."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def pages_of(
    store: Store,
    queue: str,
    limit: int,
    where: Sequence[Condition] = (),
    view: View = "messages",
    between: Callable[[int], object] = lambda page: None,
) -> list[list[str]]:
    """Return the ids of each page; `between` is called after each, with its number."""
    found: list[list[str]] = []
    cursor = None
    while True:
        page = store.scan(Scan(queue, where, limit, view, cursor))
        found.append(ids_of(page.batches))
        assert len(found[-1]) <= limit
        between(len(found))
        cursor = page.cursor
        if cursor is None:
            return found
        assert len(found[-1]) == limit, "only the last page is shorter"


def all_of(pages: Sequence[Sequence[str]]) -> list[str]:
    """Return the ids of all pages, each of them once."""
    ids = [id for page in pages for id in page]
    assert max(Counter(ids).values(), default=1) == 1, "no message comes twice"
    return ids


class ScanContract:
    """Scans: all messages once, none twice, and each page at the same price."""

    #: Whether a message is found by its id, wherever it is in the queue.
    looks_up_ids: ClassVar[bool] = True

    def server_work(self, store: Store, act: Callable[[], object], queue: str) -> int | None:
        """Return the work of the server for `act`: see `StoreContract`."""
        raise NotImplementedError

    def fill_for_scans(self, store: Store, queue: str) -> list[Any]:
        """Push messages of all kinds and reserve some; return the payloads of the due ones."""
        rows = [{"n": f"old {number}"} for number in range(11)]
        store.push(queue, pushes(rows, ids=[f"own-{40 - number}" for number in range(11)], mature=LONG_AGO))
        now = moment(store.now() - MINUTE_MS)
        store.push(queue, pushes([{"n": f"now {number}"} for number in range(23)], mature=now))
        store.push(queue, pushes([{"n": f"later {number}"} for number in range(9)], delay=10 * MINUTE_MS))
        for number in range(3):
            store.reserve(queue, f"c/{number}", 6)
        return [{"n": f"old {one}"} for one in range(11)] + [{"n": f"now {one}"} for one in range(23)]

    def test_the_pages_have_all_messages_once_in_order(self, store: Store, peer: Store, queue: str) -> None:
        due = self.fill_for_scans(store, queue)
        whole = ids_of(store.peek(queue))
        for limit in (5, 17, 100):
            found = all_of(pages_of(store, queue, limit))
            assert sorted(found) == sorted(whole), limit
            assert found == ids_of(peer.peek(queue, limit=1_000)), "a look is in the same order"
        if "order" not in store.unsupported:
            assert payloads_of(store.scan(Scan(queue, limit=len(due))).batches) == due
        assert pages_of(store, f"{queue}.none", 5) == [[]]
        with pytest.raises(OptionError, match="limit must be 1 or more"):
            store.scan(Scan(queue, limit=0))

    def test_no_message_comes_twice_while_others_work(self, store: Store, peer: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("messages of this layout have no place that stays")
        self.fill_for_scans(store, queue)
        whole = set(ids_of(store.peek(queue)))
        gone: set[str] = set()

        def act(page: int) -> None:
            tag = f"d/{page}"
            if page % 4 == 1:
                peer.reserve(queue, tag, 3)
            elif page % 4 == 2:
                peer.rollback(queue, f"d/{page - 1}", delay=None)
                peer.rollback(queue, "c/1", delay=None)
            elif page % 4 == 3:
                peer.reserve(queue, tag, 2)
                end_lease(peer, queue, tag)
                peer.ready(queue, 1)
            else:
                peer.reserve(queue, tag, 1)
                gone.update(peer.held_ids(queue, f"{tag}/0"))
                peer.commit(queue, tag)
                peer.push(queue, pushes([{"n": "new"}]))

        found = all_of(pages_of(store, queue, 4, between=act))
        assert whole - gone <= set(found), "each that was there all the time comes"

    def test_a_message_that_is_due_when_a_lease_ends_comes_once(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": str(number)} for number in range(9)]))
        store.reserve(queue, "c/1", 3, lease=MINUTE_MS)
        store.reserve(queue, "c/2", 3, lease=None)
        (until,) = [one.until for one in store.reservations(queue, "c/1")]
        for due in (until, MAX_TIME_MS):
            store.push(queue, pushes([{"n": str(due)}], mature=moment(due or 0)))
        for limit in (2, 5, 100):
            assert sorted(all_of(pages_of(store, queue, limit))) == sorted(ids_of(store.peek(queue)))

    def test_messages_beside_one_that_is_moved_keep_their_places(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("messages of this layout have no place that stays")
        ids = [f"own-{40 - number}" for number in range(12)]
        store.push(queue, pushes([{"n": str(number)} for number in range(12)], ids=ids, mature=LONG_AGO))
        for moved in (ids[4], ids[10]):  # of a bucket, if there are any
            assert store.move(queue, f"{queue}.other", ids=[moved]) == 1
            ids.remove(moved)
            assert all_of(pages_of(store, queue, 5)) == ids

    def test_pages_with_conditions(self, store: Store, queue: str) -> None:
        first = store.now() - MINUTE_MS
        ids = new_ids(30)
        for number in range(30):
            batch = pushes([{"n": str(number)}], ids=[ids[number]], mature=moment(first + number), tries=number % 3)
            store.push(queue, batch)
        for held in (False, True):
            if held:
                store.reserve(queue, "c/1", 12)
            named = (*ids[::4], "stranger")
            for where, expected in (
                ([Condition("tries", ">=", 1)], [id for number, id in enumerate(ids) if number % 3]),
                ([Condition("tries", ">=", 9)], []),
                ([Condition("mature", ">=", first + 7), Condition("mature", "<", first + 22)], ids[7:22]),
                ([Condition("id", "in", named)], ids[::4]),
                ([Condition("id", "in", named), Condition("mature", ">", first + 8)], ids[12::4]),
                ([Condition("id", "=", ids[5]), Condition("tries", "=", 0)], []),
            ):
                for limit in (4, 50):
                    assert all_of(pages_of(store, queue, limit, where)) == expected, (where, limit, held)

    def test_the_pages_of_a_history_have_all_of_it_once(self, store: Store, queue: str) -> None:
        for number in range(3):
            store.push(queue, pushes([{"n": str(row)} for row in range(8)]))
            store.reserve(queue, f"c/{number}", 100)
            store.commit(queue, f"c/{number}", history=MINUTE_MS + number, outcome=("commit", "done")[number % 2])
        whole = ids_of(store.peek(queue, view="history"))
        assert len(whole) == 24
        for limit in (5, 100):
            assert sorted(all_of(pages_of(store, queue, limit, view="history"))) == sorted(whole)
        done = [Condition("outcome", "=", "done")]
        assert len(all_of(pages_of(store, queue, 3, done, "history"))) == 8
        one = [Condition("id", "=", whole[3])]
        assert pages_of(store, queue, 3, one, "history")[0] == [whole[3]]
        with pytest.raises(OptionError, match="only the history"):
            store.scan(Scan(queue, done))

    def test_a_cursor_that_is_damaged_or_of_another_queue_is_refused(
        self, store: Store, peer: Store, queue: str
    ) -> None:
        for name in (queue, f"{queue}.other"):
            store.push(name, pushes([{"n": str(number)} for number in range(6)]))
        cursor = store.scan(Scan(queue, limit=2)).cursor
        assert cursor is not None
        rest = peer.scan(Scan(queue, limit=2, cursor=cursor))  # another process, as after a restart
        assert ids_of(rest.batches) == ids_of(store.peek(queue, limit=4))[2:]
        middle = len(cursor) // 2
        changed = cursor[:middle] + ("A" if cursor[middle] != "A" else "B") + cursor[middle + 1 :]
        for wrong in ("", "x", "WzFd", cursor[:-2], changed, f"{cursor}AAAA", "ä\ud800", "{}"):
            with pytest.raises(OptionError, match="is not that of a page"):
                store.scan(Scan(queue, cursor=wrong))
        for other in (Scan(f"{queue}.other", cursor=cursor), Scan(queue, view="history", cursor=cursor)):
            with pytest.raises(OptionError, match="of another queue, view or layout"):
                store.scan(other)

    @pytest.mark.parametrize("place", WRONG_PLACES, ids=repr)
    def test_a_place_that_no_page_returned_is_refused(self, store: Store, queue: str, place: Any) -> None:
        store.push(queue, pushes([{"n": "1"}]))
        for view in ("messages", "history"):
            scan = Scan(queue, view=view)
            forged = Cursor(place).text(store.scan_scope(scan))
            with pytest.raises(OptionError, match="cursor"):
                store.scan(replace(scan, cursor=forged))

    def test_a_later_page_costs_no_more_than_the_first(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("a page of this layout reads the whole list")
        number, limit = 600, 60
        store.push(queue, pushes([{"n": str(row)} for row in range(number)], mature=LONG_AGO))
        store.push(queue, pushes([{"n": str(row)} for row in range(number)], tries=1))
        store.reserve(queue, "c/1", 150)
        store.reserve(queue, "c/2", 150)
        whole = ids_of(store.peek(queue))
        for where in (
            [],
            [Condition("tries", ">=", 0)],
            [Condition("mature", ">=", 0)],
            *([[Condition("id", "in", tuple(whole[:90]))]] if self.looks_up_ids else []),
        ):
            first = self.work_of_page(store, Scan(queue, where, limit))
            if first is None:
                return
            cursor = None
            for page in range(1 if len(where) and where[0].column == "id" else 2 * number // limit - 3):
                cursor = store.scan(Scan(queue, where, limit, cursor=cursor)).cursor
                assert cursor is not None, page
            later = self.work_of_page(store, Scan(queue, where, limit, cursor=cursor))
            assert later is not None and later <= SAME_COST * first, (where, first, later)
            if not where:
                all_of_it = self.work_of_page(store, Scan(queue, where, 2 * number))
                assert all_of_it is not None and 4 * first < all_of_it, "a page does not examine the whole queue"

    def work_of_page(self, store: Store, scan: Scan) -> int | None:
        """Return the work of the server for a page."""
        return self.server_work(store, lambda: store.scan(scan), scan.queue)
