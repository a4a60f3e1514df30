"""The conformance suite: the tests that every store passes, run against a real server.

It is part of the package, so a store of another package can run it too. In a test module:

    from spark_queue.stores.conformance.conformance import *  # noqa: F403
    from spark_queue.stores.conformance.conformance import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def url(self): return "mydb://127.0.0.1/tests"

        @pytest.fixture
        def unreachable(self): return "mydb://user:sesame@127.0.0.1:1/tests"

Tests use queues of their own and drop them. They wait for conditions, never for a number of
seconds. `end_lease` ends a lease at once: it calls the primitive `_renew` with an end in the past.
A store that can count the work of its server overrides `server_work`.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_queue.errors import MessageError, OptionError, StoreError, StoreUnavailable
from spark_queue.messages.ids import new_ids
from spark_queue.messages.json_text import load_json
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.payload import as_json
from spark_queue.messages.schema import MESSAGES
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.ahead import AheadContract
from spark_queue.stores.conformance.forwarding import ForwardingContract
from spark_queue.stores.conformance.helpers import (
    check_sizes_up_to,
    ids_of,
    messages_of,
    payloads_of,
    push_and_reserve,
    reserve_again,
)
from spark_queue.stores.conformance.limits import limits_of
from spark_queue.stores.conformance.log import LogContract
from spark_queue.stores.conformance.log_places import LogPlacesContract
from spark_queue.stores.conformance.order import OrderContract
from spark_queue.stores.conformance.pause import PauseContract
from spark_queue.stores.conformance.payloads import PayloadContract
from spark_queue.stores.conformance.price import PriceContract
from spark_queue.stores.conformance.pushed import PushedContract
from spark_queue.stores.conformance.scanning import ScanContract
from spark_queue.stores.conformance.sized import SizedContract
from spark_queue.stores.conformance.sizes import SizesContract
from spark_queue.stores.conformance.spans import SpansContract
from spark_queue.stores.conformance.staging import StagingContract
from spark_queue.stores.conformance.waiting import (
    DEADLINE,
    MINUTE_MS,
    REAL_MS,
    end_lease,
    kill_self_within,
    process_context,
    run_until_killed,
    tick,
    wait_until,
)
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.support.patience import retrying_for
from spark_queue.stores.types import Condition, DeadLetterInfo, Sizes

SMALLEST_PARTITION = StoreLimits.smallest_partition

#: Every shape of JSON that all stores must keep.
JSON_SHAPES: list[Any] = [
    {}, [], "", "text", "ünïcødé \u0000 \u2028 🛫", 0, -1, 1.5, 1e300, -2.5e-10, True, False,
    2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63), 123456789012345,
    {"a": None, "b": [], "c": {}, "d": [None, [[]], {"": 0}]},
    {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    {"a/b": "c/d", "quote": '"', "back\\slash": "\\", "line\nbreak": "\t", "tries": 5, "hdrs": {"mature": 1}},
    {"nested": '","tries":7,"hdrs":{"x":"y"},"mature":1}'},
    [1, "two", 3.0, None, {"four": [5]}], [[[[[[1]]]]]], {"$dollar": 1, "dot.ted": 2},
]  # fmt: skip

#: JSON objects and arrays of any content, with integers of 64 bits. JSON_SHAPES has top-level
#: values of other types.
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
_keys = st.text().filter(lambda key: "\0" not in key and not key.startswith("$"))
JSON_VALUES = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4), max_leaves=12
)
JSON_DOCUMENTS = st.lists(JSON_VALUES, max_size=4) | st.dictionaries(_keys, JSON_VALUES, max_size=4)


def minutes_left(store: Store, queue: str) -> list[int]:
    """Return the minutes until the lease of each tag ends, rounded up, in the order of the tags."""
    return [-(-((one.until or 0) - store.now()) // MINUTE_MS) for one in store.reservations(queue)]


def _compete(url: str, queue: str, consumer: str, barrier: Any, found: Any) -> None:
    """Reserve and commit until the queue is empty, and report the ids. Runs in its own process."""
    with open_store(url, retry_timeout=20_000) as store:
        store.now()  # connected
        barrier.wait(DEADLINE)
        ids: list[str] = []
        for sequence in itertools.count(1):
            rows = store.reserve(queue, f"{consumer}/{sequence}", 70, partitions=3, lease=None)
            if sequence == 1:
                barrier.wait(DEADLINE)  # otherwise one process might take all messages before another starts
            if not rows:
                break
            for partition in range(len(rows)):
                ids += ids_of(store.fetch(queue, f"{consumer}/{sequence}/{partition}"))
            assert store.commit(queue, f"{consumer}/{sequence}") == sum(rows)
        found.put(ids)


def _reserve_until_killed(url: str, queue: str, consumer: str) -> None:
    """Reserve batch after batch until killed. Runs in its own process."""
    with open_store(url, retry_timeout=20_000) as store:
        for sequence in range(1_000_000):
            if sequence == 3:
                kill_self_within(10)
            store.reserve(queue, f"{consumer}/{sequence}", 40, partitions=4, lease=None)


class StoreContract(
    StagingContract,
    AheadContract,
    ForwardingContract,
    PauseContract,
    LogContract,
    OrderContract,
    LogPlacesContract,
    PayloadContract,
    PriceContract,
    SizedContract,
    SizesContract,
    PushedContract,
    SpansContract,
    ScanContract,
):
    """The tests of the contract. Inherit them, and define the fixtures `url` and `unreachable`.

    `unreachable` is `None` for a database without a server.
    """

    def open_client(self, url: str, **limits: Any) -> Store:
        """Return a client of the database that stores messages in the layout under test."""
        return open_store(url, limits=limits_of(url, **limits))

    @pytest.fixture
    def limits(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Return the limits of the stores of this test: see `with_limits`."""
        return getattr(request.function, "limits", {})

    @pytest.fixture
    def store(self, url: str, limits: dict[str, Any]) -> Iterator[Store]:
        with self.open_client(url, **limits) as opened:
            yield opened

    @pytest.fixture
    def queue(self, store: Store) -> Iterator[str]:
        name = f"t{uuid.uuid4().hex[:16]}"
        yield name
        for one in (name, f"{name}.dead", f"{name}.other"):
            store.drop(one)

    @pytest.fixture
    def peer(self, url: str, limits: dict[str, Any]) -> Iterator[Store]:
        """Another client of the same database."""
        with self.open_client(url, **limits) as opened:
            yield opened

    # --- push -------------------------------------------------------------------------------------

    def test_a_pushed_message_comes_back_as_it_was(self, store: Store, queue: str) -> None:
        batch = pushes([{"flight": 1545}], headers={"origin": "EWR", "ünï": "c\nø"}, tries=3)
        assert store.push(queue, batch) == 1
        assert store.reserve(queue, "c/1", 10) == [1]
        (got,) = messages_of(store.fetch(queue, "c/1/0"))
        assert (got.id, got.queue) == (batch.column("id")[0].as_py(), queue)
        assert (got.payload, got.headers, got.tries) == ({"flight": 1545}, {"origin": "EWR", "ünï": "c\nø"}, 3)
        assert abs(got.mature.timestamp() * 1000 - store.now()) < MINUTE_MS

    def test_messages_come_in_the_order_of_their_maturity_then_of_their_push(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("this layout has another order")
        now = datetime.fromtimestamp(store.now() / 1000, UTC)
        late = pushes(["late"], mature=now - timedelta(seconds=1))
        early = pushes(["early 1", "early 2", "early 3"], mature=now - timedelta(seconds=9))
        store.push(queue, late)
        store.push(queue, early)
        store.push(queue, pushes([f"now {i}" for i in range(30)]))
        store.push(queue, pushes([f"then {i}" for i in range(30)]))
        assert store.reserve(queue, "c/1", 2) == [2]
        assert payloads_of(store.fetch(queue, "c/1/0")) == ["early 1", "early 2"]
        store.reserve(queue, "c/2", 100)
        assert payloads_of(store.fetch(queue, "c/2/0")) == [
            "early 3", "late", *(f"now {i}" for i in range(30)), *(f"then {i}" for i in range(30)),
        ]  # fmt: skip

    def test_ids_of_any_form_are_kept(self, store: Store, queue: str) -> None:
        ids = ["flight 1545", "ü/ñ🛫", "5f1d7e", "5f1d7e0123456789abcdef01", "0", str(uuid.uuid4()), "x" * 200]
        store.push(queue, pushes(list(range(len(ids))), ids=ids))
        assert sorted(ids_of(store.peek(queue))) == sorted(ids)
        store.reserve(queue, "c/1", 100)
        assert sorted(ids_of(store.fetch(queue, "c/1/0"))) == sorted(ids)
        assert store.commit(queue, "c/1", ids[:3]) == 3
        assert store.rollback(queue, "c/1", ids[3:4]) == 1
        assert sorted(ids_of(store.fetch(queue, "c/1/0"))) == sorted(ids[4:])

    def test_messages_come_in_the_order_of_the_layout(self, store: Store, queue: str) -> None:
        if "order" not in store.unsupported:
            pytest.skip("the order of this layout is that of maturity")
        now = datetime.fromtimestamp(store.now() / 1000, UTC)
        for n, hours in enumerate([1, 9, 0, 5, 5]):
            ids = [f"{9 - n} {i}" for i in range(40)]
            store.push(queue, pushes([f"{n} {i}" for i in range(40)], ids=ids, mature=now - timedelta(hours=hours)))
        expected = [f"{n} {i}" for n in range(5) for i in range(40)]
        assert store.reserve(queue, "c/1", 70) == [70]
        assert payloads_of(store.fetch(queue, "c/1/0")) == expected[:70]
        assert store.reserve(queue, "c/2", 500) == [130]
        assert payloads_of(store.fetch(queue, "c/2/0")) == expected[70:]
        assert all(one.mature < now + timedelta(minutes=1) for one in messages_of(store.fetch(queue, "c/2/0")))

    def test_a_push_may_be_repeated(self, store: Store, queue: str) -> None:
        if "ids" in store.unsupported:
            pytest.skip("this layout does not see ids")
        batch = pushes([1, 2, 3])
        assert store.push(queue, batch.slice(0, 2)) == 2
        assert store.push(queue, batch) == 1
        assert store.push(queue, batch) == 0
        assert store.sizes(queue).ready == 3

    def test_a_repeated_push_changes_nothing_of_a_message_that_is_held(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["first"], ids=["a"]))
        assert store.push(queue, pushes(["second"], ids=["a"])) == 0
        assert payloads_of(store.fetch(queue, "c/1/0")) == ["first"]
        assert store.commit(queue, "c/1") == 1

    def test_one_push_may_hold_an_id_twice_and_keeps_the_first(self, store: Store, queue: str) -> None:
        assert store.push(queue, pushes(["first", "second"], ids=["a", "a"])) == 1
        assert payloads_of(store.peek(queue)) == ["first"]

    def test_nothing_can_be_pushed(self, store: Store, queue: str) -> None:
        assert store.push(queue, pushes([])) == 0
        assert store.sizes(queue) == Sizes(0, 0, 0)

    def test_a_large_batch_is_pushed_and_comes_back_whole(self, store: Store, queue: str) -> None:
        self.check_large_batch(store, queue, page=4_000, taken=22_222)

    def check_large_batch(self, store: Store, queue: str, *, page: int, taken: int) -> None:
        """Check that `taken` of 25,000 messages are reserved if the limit is 22,222.

        They are fetched in pages of `page` rows.
        """
        batch = pushes([{"n": i} for i in range(25_000)])
        assert store.push(queue, batch) == 25_000
        rows = store.reserve(queue, "c/1", 22_222, partitions=3)
        assert sum(rows) == taken
        got = [one for p in range(3) for one in messages_of(store.fetch(queue, f"c/1/{p}", page))]
        assert [one.payload for one in got] == [{"n": i} for i in range(taken)]
        assert store.commit(queue, "c/1") == taken
        assert store.sizes(queue).total == 25_000 - taken

    def test_a_delayed_message_waits(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(["later", "now"], delay=[MINUTE_MS, None]))
        assert store.sizes(queue) == Sizes(1, 1, 0)
        assert store.reserve(queue, "c/1", 10) == [1]
        assert store.reserve(queue, "c/2", 10) == []
        assert payloads_of(store.fetch(queue, "c/1/0")) == ["now"]

    def test_a_delayed_message_comes_when_the_clock_says_so(self, store: Store, queue: str) -> None:
        before = store.now()
        store.push(queue, pushes(["later", "never"], delay=[REAL_MS, 60 * MINUTE_MS]))
        assert wait_until(lambda: store.reserve(queue, "c/1", 10)) == [1]
        assert store.now() >= before + REAL_MS
        assert payloads_of(store.fetch(queue, "c/1/0")) == ["later"]

    @pytest.mark.parametrize("moment", [0, 1, 999, 1_000_000_000_000, MAX_TIME_MS])
    def test_any_moment_from_1970_to_9999_is_kept(self, store: Store, queue: str, moment: int) -> None:
        due = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)
        store.push(queue, pushes(["x"], mature=due))
        assert [one.mature for one in messages_of(store.peek(queue))] == [due]
        assert (store.reserve(queue, "c/1", 1) == [1]) == (moment < MAX_TIME_MS)

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"payload": None}, "NULL"),
            ({"payload": b"{oops", "payload_kind": "json"}, "not JSON"),
            ({"payload": b"NaN", "payload_kind": "json"}, "not JSON"),
            ({"payload": b"\xff", "payload_kind": "text"}, "not UTF-8"),
            ({"payload": b'"\xff"', "payload_kind": "json"}, "not UTF-8"),
            ({"mature": datetime(1969, 12, 31, tzinfo=UTC)}, "before 1970"),
            ({"delay": -1}, "negative"),
            ({"delay": 5, "mature": datetime(2020, 1, 1, tzinfo=UTC)}, "both"),
            ({"tries": -1}, "negative"),
            ({"id": ""}, "empty"),
            ({"id": None}, "NULL"),
            ({"id": "x" * 201}, "longer than 200"),
            ({"id": "a\0b"}, "NUL"),
        ],
    )
    def test_a_row_that_breaks_a_rule_is_refused_with_all_its_batch(
        self, store: Store, queue: str, change: dict[str, Any], rule: str
    ) -> None:
        good = pushes([1, 2, 3], ids=["one", "two", "three"])
        rows = good.to_pylist()
        rows[1] |= change
        with pytest.raises(MessageError, match=rule) as caught:
            store.push(queue, pa.RecordBatch.from_pylist(rows, schema=good.schema))
        assert list(caught.value.rows) == [1]
        assert store.sizes(queue).total == 0

    def test_a_payload_that_is_too_large_is_refused(self, store: Store, queue: str) -> None:
        if store.max_payload > 32 << 20:
            pytest.skip(f"this store takes {store.max_payload:,} bytes")
        with pytest.raises(MessageError, match=r"'big'.*larger than"):
            store.push(queue, pushes(["x" * (store.max_payload + 1), "small"], ids=["big", "small"]))
        assert store.sizes(queue).total == 0

    # --- payload fidelity -------------------------------------------------------------------------

    def test_json_of_every_shape_survives(self, store: Store, queue: str) -> None:
        shapes = [one for one in [*JSON_SHAPES, None] if not any(one is bad for bad in store.unsupported_payloads)]
        for got, want in zip(reserve_again(store, queue, pushes(shapes)), shapes, strict=True):
            assert (type(got.payload), got.payload) == (type(want), want)
            assert got.tries == 1
        for got, want in zip(messages_of(store.peek(queue, limit=100)), shapes, strict=True):
            assert (type(got.payload), got.payload) == (type(want), want)

    def test_what_the_layout_cannot_keep_is_refused(self, store: Store, queue: str) -> None:
        for payload in store.unsupported_payloads:
            with pytest.raises(MessageError):
                store.push(queue, pushes([cast("Any", payload)]))
        assert store.sizes(queue).total == 0

    @given(documents=st.lists(JSON_DOCUMENTS, min_size=1, max_size=20))
    @settings(
        max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    def test_any_json_document_survives_failures(self, store: Store, queue: str, documents: list[Any]) -> None:
        got = reserve_again(store, queue, pushes(documents, headers={"h": "v"}))
        assert [one.payload for one in got] == documents
        assert {(one.tries, tuple(one.headers.items())) for one in got} == {(1, (("h", "v"),))}
        assert store.commit(queue, "c/2") == len(documents)

    def test_json_keeps_the_order_of_its_keys(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"z": 1, "a": {"y": 2, "b": 3}}]))
        (batch,) = store.peek(queue)
        assert as_json(batch.column("payload")[0].as_py(), batch.column("payload_kind")[0].as_py()) == (
            b'{"z":1,"a":{"y":2,"b":3}}'
        )

    def test_text_that_is_not_json_survives(self, store: Store, queue: str) -> None:
        texts = ["", "plain", "{not json", "null", '"quoted"', "ünï\u0000cødé 🛫", "a\r\nb"]
        store.push(queue, pushes(texts))
        assert payloads_of(store.peek(queue, limit=99)) == texts

    def test_bytes_survive(self, store: Store, queue: str) -> None:
        blobs = [b"", bytes(range(256)), b"\xff\xfe", b'{"json":"like"}']
        push_and_reserve(store, queue, pushes(blobs))
        assert payloads_of(store.fetch(queue, "c/1/0")) == blobs

    def test_a_megabyte_survives_in_every_kind(self, store: Store, queue: str) -> None:
        large: list[Any] = ["ü" * (1 << 19), os.urandom(1 << 20), {"a": ["x" * 1000] * 1000}]
        assert [one.payload for one in reserve_again(store, queue, pushes(large))] == large

    def test_many_large_messages_come_in_pages_of_bounded_size(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes([f"{i}" + "x" * (1 << 20) for i in range(24)]))
        pages = list(store.fetch(queue, "c/1/0"))
        assert max(page.nbytes for page in pages) < 20 << 20
        assert [text.rstrip("x") for text in payloads_of(pages)] == [str(i) for i in range(24)]

    def test_fetch_gives_the_schema_of_messages(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes([1]))
        assert all(batch.schema.equals(MESSAGES) for batch in store.fetch(queue, "c/1/0"))
        assert all(batch.schema.equals(MESSAGES) for batch in store.peek(queue))

    # --- reserve ----------------------------------------------------------------------------------

    def test_a_reserve_of_nothing_is_empty(self, store: Store, queue: str) -> None:
        assert store.reserve(queue, "c/1", 10) == []
        assert store.reserve(queue, "c/1", 10, partitions=4) == []
        assert list(store.fetch(queue, "c/1/0")) == []
        assert store.reservations(queue) == []

    def test_a_reserve_takes_the_first_in_order_up_to_its_limit(self, store: Store, queue: str) -> None:
        assert push_and_reserve(store, queue, pushes(list(range(10))), 4) == [4]
        assert store.reserve(queue, "c/2", 4) == [4]
        assert store.reserve(queue, "c/3", 4) == [2]
        assert payloads_of(store.fetch(queue, "c/2/0")) == [4, 5, 6, 7]

    @pytest.mark.parametrize("partitions", [1, 4])
    def test_a_reserve_can_leave_alone_what_matures_after_a_moment(
        self, store: Store, queue: str, partitions: int
    ) -> None:
        now = store.now()
        due = [datetime.fromtimestamp(now / 1000 + offset, UTC) for offset in (-60, -30, -30, -10)]
        store.push(queue, pushes(["a", "b", "c", "d"], mature=due))
        assert store.reserve(queue, "c/1", 10, partitions=partitions, before=now - MINUTE_MS + 500) == [1]
        assert store.reserve(queue, "c/2", 10, partitions=partitions, before=now - 10_500) == [2]
        assert store.reserve(queue, "c/3", 10, partitions=partitions, before=now - 10_500) == []
        assert store.reserve(queue, "c/4", 10, partitions=partitions) == [1]

    @pytest.mark.parametrize("partitions", [1, 4])
    def test_the_same_tag_gets_the_same_messages_again(self, store: Store, queue: str, partitions: int) -> None:
        batch = pushes(list(range(10 * SMALLEST_PARTITION)))
        rows = push_and_reserve(store, queue, batch, 3 * SMALLEST_PARTITION, partitions=partitions)
        first = [ids_of(store.fetch(queue, f"c/1/{p}")) for p in range(len(rows))]
        store.push(queue, pushes(["more"], mature=datetime(2020, 1, 1, tzinfo=UTC)))
        assert store.reserve(queue, "c/1", 5 * SMALLEST_PARTITION, partitions=partitions) == rows
        assert [ids_of(store.fetch(queue, f"c/1/{p}")) for p in range(len(rows))] == first
        assert store.sizes(queue).reserved == 3 * SMALLEST_PARTITION

    def test_partitions_share_the_messages_in_order(self, store: Store, queue: str) -> None:
        n = SMALLEST_PARTITION
        assert push_and_reserve(store, queue, pushes(list(range(4 * n + 7))), 4 * n, partitions=4) == [n] * 4
        for part in range(4):
            assert payloads_of(store.fetch(queue, f"c/1/{part}")) == list(range(part * n, (part + 1) * n))

    def test_few_messages_make_few_partitions(self, store: Store, queue: str) -> None:
        assert push_and_reserve(store, queue, pushes(list(range(10))), 1000, partitions=8) == [10]

    def test_few_messages_make_as_many_partitions_as_are_wanted(self, store: Store, queue: str) -> None:
        assert push_and_reserve(store, queue, pushes(list(range(10))), 7, partitions=4, min_partitions=3) == [3, 2, 2]
        got = [payloads_of(store.fetch(queue, f"c/1/{p}")) for p in range(3)]
        assert got == [[0, 1, 2], [3, 4], [5, 6]]
        assert store.reserve(queue, "c/1", 7, partitions=4, min_partitions=3) == [3, 2, 2]
        assert store.reserve(queue, "c/2", 7, partitions=8, min_partitions=8) == [1, 1, 1]

    def test_a_reserve_that_was_cut_short_is_resumed(self, store: Store, peer: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(4 * SMALLEST_PARTITION))))
        rows = store.reserve(queue, "c/1", 2 * SMALLEST_PARTITION, partitions=4)  # the part that was done
        assert rows == [SMALLEST_PARTITION] * 2
        assert peer.reserve(queue, "c/1", 4 * SMALLEST_PARTITION, partitions=4) == rows
        assert sum(peer.reserve(queue, "c/2", 10_000, partitions=4)) == 2 * SMALLEST_PARTITION
        assert peer.commit(queue, "c") == 4 * SMALLEST_PARTITION

    def test_a_reserver_killed_anywhere_loses_and_doubles_nothing(self, store: Store, queue: str, url: str) -> None:
        batch = pushes(list(range(3_000)))
        store.push(queue, batch)
        for turn in range(3):
            run_until_killed(_reserve_until_killed, url, queue, f"victim{turn}")
        got: list[str] = []

        def held() -> list[str]:
            """Return the ids that the killed processes hold.

            They grow while the server still executes the last call of one.
            """
            return [id for one in store.reservations(queue) for id in ids_of(store.fetch(queue, one.tag))]

        def complete() -> bool:
            while store.reserve(queue, "rest/1", 10_000):
                got.extend(ids_of(store.fetch(queue, "rest/1/0")))
                store.commit(queue, "rest/1")
            return len(got) + len(held()) >= len(batch)

        wait_until(complete, description="that all messages are found again")
        assert sum(one.rows for one in store.reservations(queue)) == len(held()) >= 300
        assert sorted([*got, *held()]) == sorted(batch.column("id").to_pylist())
        assert store.sizes(queue) == Sizes(0, 0, len(held()))

    def test_processes_that_race_get_each_message_once(self, store: Store, queue: str, url: str) -> None:
        batch = pushes(list(range(5_000)))
        store.push(queue, batch)
        context = process_context()
        found, line = context.Queue(), context.Barrier(4)
        racers = [
            context.Process(target=_compete, args=(url, queue, f"racer{i}", line, found), daemon=True)
            for i in range(4)
        ]
        for one in racers:
            one.start()
        shares = [found.get(timeout=DEADLINE) for _ in racers]
        for one in racers:
            one.join()
        assert sorted(id for share in shares for id in share) == sorted(batch.column("id").to_pylist())
        assert all(shares), "a process got nothing: no race took place"
        assert store.sizes(queue) == Sizes(0, 0, 0)

    def test_fetch_is_repeatable_and_changes_nothing(self, store: Store, peer: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(list(range(100)), headers={"a": "b"}))
        first = messages_of(store.fetch(queue, "c/1/0"))
        assert messages_of(store.fetch(queue, "c/1/0", 7)) == first == messages_of(peer.fetch(queue, "c/1/0"))
        assert store.sizes(queue) == Sizes(0, 0, 100)

    def test_reservations_list_tags_rows_and_leases(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(list(range(10))), 3, "etl/1", lease=MINUTE_MS)
        store.reserve(queue, "etl/10", 4, lease=None)
        store.reserve(queue, "other/1", 2, lease=MINUTE_MS)
        assert [(one.tag, one.rows) for one in store.reservations(queue)] == [
            ("etl/1/0", 3), ("etl/10/0", 4), ("other/1/0", 2),
        ]  # fmt: skip
        assert [one.tag for one in store.reservations(queue, "etl")] == ["etl/1/0", "etl/10/0"]
        (one,) = store.reservations(queue, "etl/1")
        assert one.until is not None and 0 < one.until - store.now() <= MINUTE_MS
        assert [one.until for one in store.reservations(queue, "etl/10")] == [None]
        assert store.reservations(queue, "et") == []

    @pytest.mark.parametrize("tag", ["", "/", "a b", "a//b", "a/", "ü", "a\0"])
    def test_an_invalid_tag_is_refused(self, store: Store, queue: str, tag: str) -> None:
        store.push(queue, pushes([1]))
        for operation in (
            lambda: store.reserve(queue, tag, 1),
            lambda: store.renew(queue, tag, MINUTE_MS),
            lambda: store.commit(queue, tag),
            lambda: store.rollback(queue, tag),
            lambda: store.move(queue, f"{queue}.other", tag=tag),
        ):
            with pytest.raises(OptionError, match="tag"):
                operation()
        assert store.sizes(queue) == Sizes(1, 0, 0)

    # --- leases -----------------------------------------------------------------------------------

    def test_a_lease_ends_when_the_clock_says_so(self, store: Store, peer: Store, queue: str) -> None:
        store.push(queue, pushes(["a", "b"]))
        before = store.now()
        assert store.reserve(queue, "old/1", 2, lease=REAL_MS) == [2]
        assert wait_until(lambda: peer.reserve(queue, "new/1", 2)) == [2]
        assert store.now() >= before + REAL_MS
        assert [one.tries for one in messages_of(peer.fetch(queue, "new/1/0"))] == [1, 1]
        assert store.commit(queue, "old/1") == 0

    def test_an_ended_lease_frees_its_messages_and_counts_a_try(self, store: Store, peer: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a", "b", "c"]), 2, "old/1", lease=MINUTE_MS)
        assert peer.reserve(queue, "new/1", 10) == [1]
        end_lease(store, queue, "old/1")
        assert store.sizes(queue).ready == 2
        assert (store.next_mature(queue) or 0) <= 0
        assert peer.reserve(queue, "new/2", 10) == [2]
        assert [(one.payload, one.tries) for one in messages_of(peer.fetch(queue, "new/2/0"))] == [("a", 1), ("b", 1)]
        assert [one.tries for one in messages_of(peer.fetch(queue, "new/1/0"))] == [0]

    def test_a_freed_message_keeps_its_place_and_its_maturity(self, store: Store, queue: str) -> None:
        due = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
        push_and_reserve(store, queue, pushes(["a"], mature=due), tag="old/1", lease=MINUTE_MS)
        store.push(queue, pushes(["b"]))
        for _ in range(2):
            (held,) = messages_of(store.fetch(queue, "old/1/0"))
            assert held.mature == due
            assert [one.mature for one in messages_of(store.peek(queue, limit=1))] == [due]
            end_lease(store, queue, "old/1")
        assert store.reserve(queue, "new/1", 2) == [2]
        assert {one.payload: one.mature for one in messages_of(store.fetch(queue, "new/1/0"))}["a"] == due

    def test_a_lost_lease_commits_rolls_back_renews_moves_and_fetches_nothing(
        self, store: Store, peer: Store, queue: str
    ) -> None:
        push_and_reserve(store, queue, pushes(["a", "b"]), tag="old/1", lease=MINUTE_MS)
        end_lease(store, queue, "old/1")
        assert peer.reserve(queue, "new/1", 2, lease=MINUTE_MS) == [2]
        assert store.commit(queue, "old/1") == 0
        assert store.commit(queue, "old/1", ids_of(peer.fetch(queue, "new/1/0"))) == 0
        assert store.rollback(queue, "old/1") == 0
        assert store.renew(queue, "old/1", MINUTE_MS) == 0
        assert store.move(queue, f"{queue}.other", tag="old/1") == 0
        assert list(store.fetch(queue, "old/1/0")) == []
        assert [one.tries for one in messages_of(peer.fetch(queue, "new/1/0"))] == [1, 1]
        assert peer.commit(queue, "new/1") == 2

    def test_an_ended_lease_loses_nothing_until_it_is_taken_over(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a", "b", "c"]), 2, lease=MINUTE_MS)
        end_lease(store, queue, "c/1")
        assert len(messages_of(store.fetch(queue, "c/1/0"))) == 2
        assert store.reserve(queue, "c/1", 2) == [2]
        assert store.renew(queue, "c/1", MINUTE_MS) == 2
        assert store.reserve(queue, "d/1", 5) == [1]
        assert [one.tries for one in messages_of(store.fetch(queue, "c/1/0"))] == [0, 0]
        assert store.commit(queue, "c/1") == 2

    def test_a_renewed_lease_lasts(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(list(range(1_200))), partitions=2, lease=20 * MINUTE_MS)
        assert set(minutes_left(store, queue)) == {20}
        for minutes in (30, 5):
            assert store.renew(queue, "c/1", minutes * MINUTE_MS) == 1_200, "a lease can be made shorter, too"
            assert set(minutes_left(store, queue)) == {minutes}
            assert store.reserve(queue, "d/1", 5_000) == []
        assert end_lease(store, queue, "c/1") == 1_200
        assert store.renew(queue, "c/1", MINUTE_MS) == 1_200
        assert store.reserve(queue, "d/1", 5_000) == []
        assert store.sizes(queue) == Sizes(0, 0, 1_200)
        assert end_lease(store, queue, "c/1") == 1_200
        assert store.reserve(queue, "d/1", 5_000) == [1_200]

    def test_a_lease_of_never_lasts(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a"]), lease=None)
        assert store.reserve(queue, "d/1", 1) == []
        assert store.next_mature(queue) is None or (store.next_mature(queue) or 0) > 365 * 24 * 60 * MINUTE_MS
        assert store.sizes(queue) == Sizes(0, 0, 1)
        assert store.renew(queue, "c/1", None) == 1
        assert store.commit(queue, "c/1") == 1

    # --- commit and rollback ----------------------------------------------------------------------

    def test_a_commit_removes_and_may_be_repeated(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(list(range(5))), 3)
        assert store.commit(queue, "c/1") == 3
        assert store.commit(queue, "c/1") == 0
        assert store.commit(queue, "nobody") == 0
        assert store.rollback(queue, "c/1") == 0
        assert payloads_of(store.peek(queue, limit=9)) == [3, 4]
        assert store.reservations(queue) == []

    def test_a_commit_by_ids_leaves_the_rest_held(self, store: Store, queue: str) -> None:
        batch = pushes(list(range(6)))
        ids = batch.column("id").to_pylist()
        push_and_reserve(store, queue, batch, 3)
        store.reserve(queue, "d/1", 2)
        assert store.commit(queue, "c/1", [ids[0], ids[2], ids[3], ids[5], "stranger"]) == 2
        assert ids_of(store.fetch(queue, "c/1/0")) == [ids[1]]
        assert store.commit(queue, "c/1", []) == 0
        assert store.sizes(queue) == Sizes(1, 0, 3)

    def test_a_tag_stands_for_all_below_it_and_for_nothing_else(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(5))))
        for tag in ("c/1", "c/10", "c/2", "cc/1", "c-/1"):
            store.reserve(queue, tag, 1)
        assert store.commit(queue, "c/1") == 1
        assert store.rollback(queue, "c") == 2
        assert [one.tag for one in store.reservations(queue)] == ["c-/1/0", "cc/1/0"]

    def test_a_rollback_gives_back_counts_a_try_and_may_be_repeated(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a", "b"]))
        assert store.rollback(queue, "c/1") == 2
        assert store.rollback(queue, "c/1") == 0
        assert store.commit(queue, "c/1") == 0
        store.reserve(queue, "c/2", 2)
        assert [(one.payload, one.tries) for one in messages_of(store.fetch(queue, "c/2/0"))] == [("a", 1), ("b", 1)]

    def test_a_rollback_by_ids_leaves_the_rest_held(self, store: Store, queue: str) -> None:
        batch = pushes(["a", "b", "c"])
        ids = batch.column("id").to_pylist()
        push_and_reserve(store, queue, batch)
        assert store.rollback(queue, "c/1", [ids[1], "stranger"]) == 1
        assert ids_of(store.fetch(queue, "c/1/0")) == [ids[0], ids[2]]
        assert store.sizes(queue) == Sizes(1, 0, 2)

    def test_a_rollback_without_a_delay_gives_back_the_old_place(self, store: Store, queue: str) -> None:
        due = datetime(2020, 1, 1, tzinfo=UTC)
        push_and_reserve(store, queue, pushes(["old"], mature=due, tries=2))
        store.push(queue, pushes(["new"]))
        assert store.rollback(queue, "c/1", delay=None, failed=False) == 1
        assert store.rollback(queue, "c/1", delay=None) == 0
        (old,) = (one for one in messages_of(store.peek(queue)) if one.payload == "old")
        assert old.tries == 2
        if "order" not in store.unsupported:
            assert old.mature == due
            store.reserve(queue, "c/2", 1)
            assert payloads_of(store.fetch(queue, "c/2/0")) == ["old"]

    def test_a_rollback_may_leave_alone_what_is_held_without_an_end(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(1_200))))
        endless = sum(store.reserve(queue, "c/1", 700, partitions=2, lease=None))
        lapsing = sum(store.reserve(queue, "c/2", 500, lease=MINUTE_MS))
        held = {one.tag: one.rows for one in store.reservations(queue, "c/1")}
        assert sum(held.values()) == endless > 0 and lapsing > 0
        assert store.rollback(queue, "c", delay=None, failed=False, include_endless=False) == lapsing
        assert store.rollback(queue, "c", delay=None, failed=False, include_endless=False) == 0
        assert {one.tag: one.rows for one in store.reservations(queue)} == held
        assert store.sizes(queue).ready == 1_200 - endless
        store.reserve(queue, "d/1", 1_200)
        assert {one.tries for one in messages_of(store.fetch(queue, "d/1/0"))} == {0}
        tag = min(held)
        store.renew(queue, tag, MINUTE_MS)
        assert store.rollback(queue, "c", delay=None, failed=False, include_endless=False) == held[tag]

    def test_a_delayed_rollback_waits(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a"]))
        before = store.now()
        assert store.rollback(queue, "c/1", delay=60 * MINUTE_MS) == 1
        assert store.sizes(queue) == Sizes(0, 1, 0)
        assert store.reserve(queue, "c/2", 1) == []
        (waits,) = messages_of(store.peek(queue))
        assert -2 <= waits.mature.timestamp() * 1000 - before - 60 * MINUTE_MS < MINUTE_MS
        push_and_reserve(store, queue, pushes(["b"]), tag="c/2")
        assert store.rollback(queue, "c/2", delay=10) == 1
        assert wait_until(lambda: store.reserve(queue, "c/2", 2)) == [1]
        assert payloads_of(store.fetch(queue, "c/2/0")) == ["b"]
        with pytest.raises(OptionError, match="-1"):
            store.rollback(queue, "c/2", delay=-1)

    def test_a_release_counts_no_try(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a"], tries=2))
        store.rollback(queue, "c/1", failed=False)
        assert [one.tries for one in messages_of(store.peek(queue))] == [2]
        store.reserve(queue, "c/2", 1)
        assert [one.tries for one in messages_of(store.fetch(queue, "c/2/0"))] == [2]

    def test_what_is_given_back_at_its_place_comes_before_what_came_later(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list("abcdef"), ids=[f"{n:024}" for n in (6, 5, 4, 3, 2, 1)]))
        due = {one.id: one.mature for one in messages_of(store.peek(queue))}
        tick(store)
        assert sum(store.reserve(queue, "c/1", 6)) == 6
        held = ids_of(store.fetch(queue, "c/1/0"))
        tick(store)
        store.push(queue, pushes(["later"], ids=["0" * 24]))
        assert store.rollback(queue, "c/1", held[2:], delay=None, failed=False) == 4
        assert store.rollback(queue, "c/1", held[2:], delay=None, failed=False) == 0
        assert ids_of(store.fetch(queue, "c/1/0")) == held[:2]
        store.rollback(queue, "c/1", delay=None)
        store.reserve(queue, "c/2", 10)
        assert ids_of(store.fetch(queue, "c/2/0")) == [*held, "0" * 24]
        found = messages_of(store.fetch(queue, "c/2/0"))[:6]
        assert [one.tries for one in found] == [1, 1, 0, 0, 0, 0]
        if "order" not in store.unsupported:
            assert {one.id: one.mature for one in found} == due

    def test_ready_counts_what_a_reserve_could_take(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(6)), delay=[0, 0, 0, 0, 0, MINUTE_MS]))
        assert [store.ready(queue, most) for most in (0, 2, 100)] == [0, 2, 5]
        store.reserve(queue, "c/1", 1, lease=MINUTE_MS)
        assert store.ready(queue, 100) == 4
        if "order" not in store.unsupported:  # a list counts its length, whatever is due
            assert store.ready(queue, 100, before=1) == 0
        store.pause(queue)
        assert store.ready(queue, 100) == 0
        store.resume(queue)
        assert store.ready(queue, 100) == 4

    def test_tries_grow_with_each_failure(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(["a"]))
        for attempt in range(4):
            store.reserve(queue, f"c/{attempt}", 1, lease=MINUTE_MS)
            assert [one.tries for one in messages_of(store.fetch(queue, f"c/{attempt}/0"))] == [attempt]
            if attempt % 2:
                store.rollback(queue, f"c/{attempt}")
            else:
                end_lease(store, queue, f"c/{attempt}")

    # --- other tags -------------------------------------------------------------------------------

    def test_a_reservation_passes_to_another_tag(self, store: Store, peer: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(list(range(10)), tries=2), lease=None)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        assert store.transfer(queue, "c/1", "c/2/0", ids[5:], lease=None) == 5
        assert store.transfer(queue, "c/1", "c/2/0", ids[5:], lease=None) == 0, "it may be repeated"
        assert payloads_of(store.fetch(queue, "c/1/0")) == list(range(5))
        got = messages_of(peer.fetch(queue, "c/2/0"))
        assert [(one.payload, one.tries) for one in got] == [(n, 2) for n in range(5, 10)]
        assert peer.reserve(queue, "d/1", 10) == []
        assert [(one.tag, one.rows, one.until) for one in store.reservations(queue)] == [
            ("c/1/0", 5, None), ("c/2/0", 5, None),
        ]  # fmt: skip
        assert store.commit(queue, "c/1") == 5
        assert store.commit(queue, "c/2") == 5
        assert store.sizes(queue) == Sizes(0, 0, 0)

    def test_a_whole_tree_passes_to_a_tag_that_holds_some_already(self, store: Store, queue: str) -> None:
        n = 2 * SMALLEST_PARTITION
        push_and_reserve(store, queue, pushes(list(range(n + 7))), 7)
        assert len(store.reserve(queue, "c/2", n, partitions=2)) == 2
        assert store.transfer(queue, "c/2", "c/1/0", lease=MINUTE_MS) == n
        assert payloads_of(store.fetch(queue, "c/1/0")) == list(range(n + 7))
        assert [one.tag for one in store.reservations(queue)] == ["c/1/0"]
        assert store.transfer(queue, "none", "c/3/0", lease=MINUTE_MS) == 0
        assert store.transfer(queue, "c/1/0", "c/1", lease=MINUTE_MS) == n + 7, "to the tag above it"
        assert store.transfer(queue, "c", "c/1", lease=MINUTE_MS) == 0, "it holds them already"
        assert store.commit(queue, "c") == n + 7

    def test_a_reservation_that_passes_on_gets_a_lease_of_its_own(
        self, store: Store, peer: Store, queue: str
    ) -> None:
        push_and_reserve(store, queue, pushes(["x", "y"]), lease=MINUTE_MS)
        first, second = ids_of(store.fetch(queue, "c/1/0"))
        store.transfer(queue, "c/1", "c/2/0", [second], lease=10 * MINUTE_MS)
        assert minutes_left(store, queue) == [1, 10]
        end_lease(store, queue, "c/2")
        assert peer.reserve(queue, "d/1", 10) == [1]
        assert ids_of(peer.fetch(queue, "d/1/0")) == [second]
        assert store.transfer(queue, "c/2", "c/3/0", lease=MINUTE_MS) == 0, "it is lost"
        assert ids_of(store.fetch(queue, "c/1/0")) == [first]
        assert (store.commit(queue, "c/1"), store.commit(queue, "c/2"), peer.commit(queue, "d/1")) == (1, 0, 1)

    # --- looking ----------------------------------------------------------------------------------

    def test_sizes_follow_the_size_vector_of_keuss(self, store: Store, queue: str) -> None:
        def vector() -> tuple[int, int, int, int]:
            sizes = store.sizes(queue)
            return sizes.total, sizes.ready, sizes.scheduled, sizes.reserved

        assert vector() == (0, 0, 0, 0)
        store.push(queue, pushes(["a", "b", "c"], delay=[None, None, MINUTE_MS]))
        assert vector() == (3, 2, 1, 0)
        store.reserve(queue, "c/1", 1)
        assert vector() == (3, 1, 1, 1)
        store.rollback(queue, "c/1")
        assert vector() == (3, 2, 1, 0)
        store.reserve(queue, "c/2", 1)
        assert vector() == (3, 1, 1, 1)
        store.commit(queue, "c/2")
        assert vector() == (2, 1, 1, 0)

    def test_sizes_up_to_a_limit_are_exact_or_lower_bounds(self, store: Store, queue: str) -> None:
        assert not check_sizes_up_to(10, store, queue)
        store.push(queue, pushes(range(30)))
        store.push(queue, pushes(range(30), delay=MINUTE_MS))
        for number in range(12):
            store.reserve(queue, f"c/{number}", 1, lease=MINUTE_MS)
        for limit in (1, 10, 12, 13, 18, 25, 30, 31):
            check_sizes_up_to(limit, store, queue)
        assert not check_sizes_up_to(100, store, queue)

    def test_sizes_have_the_age_of_the_oldest_ready_message(self, store: Store, queue: str) -> None:
        assert store.sizes(queue).oldest_ready_age is None
        now, hour = datetime.fromtimestamp(store.now() / 1000, UTC), timedelta(hours=1)
        store.push(queue, pushes(["new", "old", "later"], mature=[now, now - hour, now + hour]))
        age = store.sizes(queue).oldest_ready_age
        first = 0 if "order" in store.unsupported else 60 * MINUTE_MS  # there it is the age of the next message
        assert age is not None and first <= age < first + MINUTE_MS

    def test_next_mature(self, store: Store, queue: str) -> None:
        assert store.next_mature(queue) is None
        store.push(queue, pushes(["a", "b"], delay=[60 * MINUTE_MS, 2 * MINUTE_MS]))
        assert 1.9 * MINUTE_MS < (store.next_mature(queue) or 0) <= 2 * MINUTE_MS
        store.push(queue, pushes(["c"]))
        assert (store.next_mature(queue) or 0) <= 0
        store.reserve(queue, "c/1", 1, lease=MINUTE_MS)
        assert 0.9 * MINUTE_MS < (store.next_mature(queue) or 0) <= MINUTE_MS

    def test_wait_answers_as_soon_as_a_message_is_due(self, store: Store, queue: str) -> None:
        assert not store.wait(queue, 0)
        store.push(queue, pushes(["a"], delay=20))
        begun = time.monotonic()
        assert store.wait(queue, 2 * DEADLINE * 1000)
        assert time.monotonic() - begun < DEADLINE
        assert store.reserve(queue, "c/1", 1) == [1]

    def test_peek_shows_all_in_order_and_changes_nothing(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["old"], mature=datetime(2020, 1, 1, tzinfo=UTC)))
        store.push(queue, pushes(["now", "later"], delay=[None, MINUTE_MS]))
        assert payloads_of(store.peek(queue, limit=10)) == ["old", "now", "later"]
        assert payloads_of(store.peek(queue, limit=2)) == ["old", "now"]
        assert sorted(payloads_of(store.peek(queue, rows=1))) == ["later", "now", "old"]
        assert store.sizes(queue).reserved == 1
        assert ids_of(store.fetch(queue, "c/1/0")) == ids_of(store.peek(queue, limit=1))

    def test_peek_filters(self, store: Store, queue: str) -> None:
        at = [datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
        ids = new_ids(4)
        for i, moment in enumerate(at):
            store.push(queue, pushes([i], ids=[ids[i]], mature=moment, tries=i))
        ms = [round(one.timestamp() * 1000) for one in at]

        def found(*where: Condition) -> list[Any]:
            return payloads_of(store.peek(queue, where, limit=10))

        for held in (False, True):
            if held:
                store.reserve(queue, "c/1", 2)
            assert found(Condition("id", "=", ids[1])) == [1]
            assert found(Condition("id", "in", (ids[3], ids[0], "stranger"))) == [0, 3]
            assert found(Condition("id", "in", ())) == []
            assert found(Condition("tries", ">=", 2)) == [2, 3]
            assert found(Condition("tries", "in", (0, 3))) == [0, 3]
            assert found(Condition("mature", "<", ms[2])) == [0, 1]
            assert found(Condition("mature", "<=", ms[2]), Condition("mature", ">", ms[0])) == [1, 2]
            assert found(Condition("mature", "=", ms[3]), Condition("tries", "=", 3)) == [3]
            assert found(Condition("mature", "=", ms[3]), Condition("tries", "=", 2)) == []
            assert found(Condition("mature", "in", (ms[0], ms[3]))) == [0, 3]

    def test_peek_gives_no_message_twice_while_others_work(self, store: Store, peer: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(3_000))))
        looking = store.peek(queue, rows=500)
        seen = ids_of([next(looking)])
        peer.reserve(queue, "c/1", 1_000)
        peer.rollback(queue, "c/1")
        peer.reserve(queue, "c/2", 2_000)
        seen += ids_of(looking)
        assert len(seen) == len(set(seen)) == 3_000

    def test_queues_are_listed(self, store: Store, queue: str) -> None:
        assert queue not in store.queues()
        store.push(queue, pushes(["a"]))
        store.push(f"{queue}.other", pushes(["a"], delay=MINUTE_MS))
        assert {queue, f"{queue}.other"} <= set(store.queues())
        store.reserve(queue, "c/1", 1)
        assert queue in store.queues()
        listed = store.queues()
        assert listed == sorted(listed)
        store.drop(queue)
        assert queue not in store.queues()

    def test_a_queue_exists_from_its_first_message_until_it_is_dropped(
        self, store: Store, peer: Store, queue: str
    ) -> None:
        def seen() -> list[tuple[bool, bool]]:
            store.write_counts()
            return [(one.exists(queue), queue in one.queues()) for one in (store, peer)]

        assert seen() == [(False, False)] * 2
        assert not list(store.peek(queue)) and store.sizes(queue) == Sizes(0, 0, 0)
        assert seen() == [(False, False)] * 2, "reading creates no queue"
        store.push(queue, pushes(["a"]))
        assert seen() == [(True, True)] * 2
        store.reserve(queue, "c/1", 1)
        store.commit(queue, "c/1")
        assert seen() == [(True, True)] * 2, "a drained queue stays"
        peer.drop(queue)
        assert seen() == [(False, False)] * 2

    def test_a_queue_that_is_only_counted_exists(self, store: Store, peer: Store, queue: str) -> None:
        store.count(queue)
        store.write_counts()
        assert peer.exists(queue) and queue in peer.queues()
        assert not peer.exists(f"{queue}.other")

    # --- between queues ---------------------------------------------------------------------------

    def test_a_move_takes_what_is_free(self, store: Store, queue: str) -> None:
        other, delays = f"{queue}.other", [None, None, None, MINUTE_MS]
        push_and_reserve(store, queue, pushes(list("abcd"), headers={"h": "1"}, delay=delays, tries=2), 1)
        assert store.move(queue, other, limit=1) == 1
        assert store.move(queue, other) == 2
        assert store.move(queue, other) == 0
        got = messages_of(store.peek(other, limit=9))
        assert [(one.payload, one.headers, one.tries, one.queue) for one in got] == [
            (name, {"h": "1"}, 0, other) for name in "bcd"
        ]
        assert store.sizes(other) == Sizes(2, 1, 0)
        assert store.sizes(queue) == Sizes(0, 0, 1)
        assert store.commit(queue, "c/1") == 1

    def test_a_move_by_ids_and_tries(self, store: Store, queue: str) -> None:
        other, ids = f"{queue}.other", new_ids(3)
        for tries, id in enumerate(ids):
            store.push(queue, pushes([tries], ids=[id], tries=tries))
        assert store.move(queue, other, ids=[ids[0], "stranger"]) == 1
        assert store.move(queue, other, ids=ids, min_tries=2) == 1
        assert sorted(ids_of(store.peek(other))) == [ids[0], ids[2]]
        assert ids_of(store.peek(queue)) == [ids[1]]

    def test_a_move_of_what_a_tag_holds(self, store: Store, queue: str) -> None:
        other = f"{queue}.other"
        push_and_reserve(store, queue, pushes(["a", "b", "c"], mature=datetime(2020, 1, 1, tzinfo=UTC)), 2)
        assert store.move(queue, other, tag="c/1", limit=1) == 1
        assert store.move(queue, other, tag="c") == 1
        assert [one.mature.year for one in messages_of(store.peek(other))] == [2020, 2020]
        assert store.reserve(other, "d/1", 9) == [2]
        assert store.reservations(queue) == []
        assert store.sizes(queue).total == 1

    def test_a_move_onto_an_id_that_is_there_replaces_nothing(self, store: Store, queue: str) -> None:
        if "ids" in store.unsupported:
            pytest.skip("this layout does not see ids")
        other = f"{queue}.other"
        store.push(queue, pushes(["new", "free"], ids=["a", "b"]))
        store.push(other, pushes(["old"], ids=["a"]))
        store.move(queue, other)
        kept = "new" if store.ids_unique_per_store else "old"
        assert sorted(payloads_of(store.peek(other))) == ["free", kept]
        assert store.sizes(queue).total == 0

    def test_a_large_move(self, store: Store, queue: str) -> None:
        batch = pushes(list(range(12_000)))
        store.push(queue, batch)
        assert store.move(queue, f"{queue}.other") == 12_000
        assert sorted(ids_of(store.peek(f"{queue}.other"))) == sorted(batch.column("id").to_pylist())

    def test_a_queue_is_not_moved_to_itself(self, store: Store, queue: str) -> None:
        with pytest.raises(OptionError, match="itself"):
            store.move(queue, queue)

    def test_a_moved_message_is_never_in_two_queues_nor_in_none(
        self, store: Store, peer: Store, queue: str, atomic_moves: bool
    ) -> None:
        if not atomic_moves:
            pytest.skip("this database has no transactions")
        other, n = f"{queue}.other", 900
        store.push(queue, pushes(list(range(n))))
        seen: list[int] = []
        for _ in range(9):
            peer.move(queue, other, limit=100)
            seen.append(len(set(ids_of(store.peek(queue))) | set(ids_of(store.peek(other)))))
            assert not set(ids_of(store.peek(queue))) & set(ids_of(store.peek(other)))
        assert seen == [n] * 9

    @pytest.fixture
    def atomic_moves(self) -> bool:
        return True

    def test_a_dead_letter_names_the_queue_it_comes_from(self, store: Store, queue: str) -> None:
        dead = f"{queue}.dead"
        store.push(queue, pushes([{"n": 1}, {"n": 2}], headers={"h": "1", "hdrs": "x"}, tries=3))
        push_and_reserve(store, queue, pushes(["young"]), 3)
        before, dead_letter = store.now(), DeadLetterInfo('bad "value"\n\\', failed=1)
        assert store.move(queue, dead, tag="c/1", min_tries=2, dead_letter=dead_letter) == 2
        got = messages_of(store.peek(dead, limit=9))
        assert [one.payload for one in got] == [{"n": 1}, {"n": 2}]
        for one in got:
            moment = datetime.fromisoformat(one.headers.pop("x-dl-t"))
            assert -2 <= moment.timestamp() * 1000 - before < MINUTE_MS
            assert one.headers == {
                "h": "1", "hdrs": "x", "x-dl-from-queue": queue, "x-dl-tries": "4", "x-error": 'bad "value"\n\\',
            }  # fmt: skip
            assert one.tries == 0
        assert store.commit(queue, "c/1") == 1

    # --- history ----------------------------------------------------------------------------------

    def test_committed_messages_are_history_for_a_while(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(["a", "b", "c"], headers={"h": "1"}, tries=1))
        ids = ids_of(store.fetch(queue, "c/1/0"))
        before = store.now()
        assert store.commit(queue, "c/1", ids[:2], history=MINUTE_MS) == 2
        assert store.commit(queue, "c/1", history=0) == 1
        (batch,) = store.peek(queue, view="history", limit=5)
        kept = ids if store.always_keeps_history else ids[:2]
        assert [(one.id, one.payload, one.headers) for one in messages(batch)] == [
            (id, payload, {"h": "1"}) for id, payload in zip(kept, "abc", strict=False)
        ]
        for moment in batch.column("processed").to_pylist():
            assert -2 <= moment.timestamp() * 1000 - before < MINUTE_MS
        assert store.sizes(queue) == Sizes(0, 0, 0)
        assert store.next_mature(queue) is None or (store.next_mature(queue) or 0) > MINUTE_MS
        assert list(store.peek(queue)) == []
        assert store.reserve(queue, "c/2", 9) == []
        assert ids_of(store.peek(queue, [Condition("id", "=", ids[1])], view="history")) == [ids[1]]

    def test_history_ends(self, store: Store, queue: str) -> None:
        for payload, history in (("kept", MINUTE_MS), ("gone", 10)):
            push_and_reserve(store, queue, pushes([payload]))
            store.commit(queue, "c/1", history=history)
        wait_until(lambda: "gone" not in payloads_of(store.peek(queue, view="history")))
        assert payloads_of(store.peek(queue, view="history")) == ["kept"]

    def test_history_has_time_consumer_and_outcome(self, store: Store, queue: str) -> None:
        dead = f"{queue}.dead"
        batch = pushes([{"n": str(n)} for n in range(4)], mature=datetime(2020, 1, 1, tzinfo=UTC))
        ids = batch.column("id").to_pylist()
        push_and_reserve(store, queue, batch, tag="etl/run/7")
        due = {one.id: one.mature for one in messages_of(store.fetch(queue, "etl/run/7/0"))}
        before = store.now()
        store.commit(queue, "etl/run", ids[:1], history=MINUTE_MS)
        dead_letter = DeadLetterInfo('not "sound"', failed=2, history=MINUTE_MS)
        store.move(queue, dead, tag="etl", ids=ids[1:2], dead_letter=dead_letter)
        store.rollback(queue, "etl/run/7", ids[2:3])
        store.reserve(queue, "other/1", 1)
        store.commit(queue, "other", history=MINUTE_MS)
        found = {row["id"]: row for batch in store.peek(queue, view="history") for row in batch.to_pylist()}
        expected = {ids[0]: ("etl", "commit", 0), ids[1]: ("etl", "dead", 2), ids[2]: ("other", "commit", 1)}
        if store.ids_unique_per_store:  # the history lacks messages that moved to another queue
            del expected[ids[1]]
        assert {id: (row["consumer"], row["outcome"], row["tries"]) for id, row in found.items()} == expected
        for row in found.values():
            assert before <= row["processed"].timestamp() * 1000 < before + MINUTE_MS
        assert found[ids[0]]["mature"] == due[ids[0]]
        (letter,) = messages_of(store.peek(dead))
        assert letter.payload == {"n": "1"}
        if not store.ids_unique_per_store:
            assert found[ids[1]]["mature"] == due[ids[1]]
            assert dict(found[ids[1]]["headers"]) == letter.headers
            assert letter.headers["x-error"] == 'not "sound"' and letter.headers["x-dl-tries"] == "2"

    def test_a_commit_may_set_its_outcome(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes([{"n": str(n)} for n in range(3)]))
        ids = ids_of(store.fetch(queue, "c/1/0"))
        own = "http://example.org/status/half-done?50%"
        assert store.commit(queue, "c", ids[:1], history=MINUTE_MS, outcome=own) == 1
        assert store.commit(queue, "c", ids[:1], history=MINUTE_MS, outcome="failed") == 0
        assert store.commit(queue, "c", history=MINUTE_MS, outcome="failed") == 2
        for outcome, expected in ((own, ids[:1]), ("failed", ids[1:]), ("commit", [])):
            where = [Condition("outcome", "=", outcome)]
            assert sorted(ids_of(store.peek(queue, where, view="history"))) == expected
        for wrong in ("", "two words", 'a"quote', "back\\slash", "line\n", "x" * 201):
            with pytest.raises(OptionError, match="cannot be an outcome"):
                store.commit(queue, "c", outcome=wrong)

    def test_forget_removes_history_by_id(self, store: Store, queue: str) -> None:
        batch = pushes([{"n": str(n)} for n in range(4)])
        ids = batch.column("id").to_pylist()
        push_and_reserve(store, queue, batch)
        for id in ids[:3]:  # one by one: a bucket committed as a whole stays a bucket
            store.commit(queue, "c", [id], history=MINUTE_MS)
        assert store.delete_history(queue, [ids[0], ids[2], ids[3], "stranger"]) == 2
        assert store.delete_history(queue, ids[:1]) == store.delete_history(queue, []) == 0
        assert ids_of(store.peek(queue, view="history")) == ids[1:2]
        assert store.commit(queue, "c") == 1, "reserved messages stay"

    def test_history_is_filtered_by_its_columns(self, store: Store, queue: str) -> None:
        batch = pushes([{"n": str(n)} for n in range(6)])
        ids = batch.column("id").to_pylist()
        push_and_reserve(store, queue, batch)
        for consumer, some in (("a", ids[:2]), ("b", ids[2:5]), ("c", ids[5:])):
            store.transfer(queue, "c/1", f"{consumer}/2/0", some, lease=MINUTE_MS)
            tick(store)
            store.commit(queue, consumer, history=MINUTE_MS)
        rows = [row for batch in store.peek(queue, view="history") for row in batch.to_pylist()]
        moments = {row["consumer"]: round(row["processed"].timestamp() * 1000) for row in rows}
        conditions = [
            (Condition("consumer", "=", "b"), ids[2:5]),
            (Condition("consumer", "in", ("a", "c", "stranger")), [*ids[:2], ids[5]]),
            (Condition("consumer", ">", "a"), ids[2:]),
            (Condition("outcome", "=", "commit"), ids),
            (Condition("outcome", "in", ("dead", "pop")), []),
            (Condition("processed", "=", moments["b"]), ids[2:5]),
            (Condition("processed", "<", moments["b"]), ids[:2]),
            (Condition("processed", ">=", moments["b"]), ids[2:]),
            (Condition("processed", "in", (moments["a"], moments["c"])), [*ids[:2], ids[5]]),
        ]
        for condition, wanted in conditions:
            assert sorted(ids_of(store.peek(queue, [condition], view="history"))) == wanted, condition
        both = [Condition("consumer", "=", "b"), Condition("id", "in", tuple(ids[3:]))]
        assert sorted(ids_of(store.peek(queue, both, view="history", limit=9))) == ids[3:5]
        with pytest.raises(OptionError, match="only the history has a column 'consumer'"):
            list(store.peek(queue, both))

    # --- housekeeping -----------------------------------------------------------------------------

    def test_purge_removes_unreserved_messages(self, store: Store, queue: str) -> None:
        batch = pushes(list(range(5)), delay=[None, None, None, None, MINUTE_MS])
        push_and_reserve(store, queue, batch, 1, lease=MINUTE_MS)
        store.reserve(queue, "d/1", 1, lease=MINUTE_MS)
        end_lease(store, queue, "d/1")
        assert store.purge(queue) == 4
        assert store.purge(queue) == 0
        assert store.sizes(queue) == Sizes(0, 0, 1)
        assert store.commit(queue, "c/1") == 1

    def test_purge_of_ids_removes_those_that_are_not_reserved(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(6)), delay=[None, None, None, None, None, MINUTE_MS]))
        ids = ids_of(store.peek(queue))
        by_payload = {one: number for number, one in enumerate(ids)}
        assert sum(store.reserve(queue, "c/1", 1, lease=MINUTE_MS)) == 1
        (held,) = store.held_ids(queue, "c/1/0")
        free = [id for id in ids if id != held]
        assert store.purge(queue, [held]) == store.purge(queue, []) == store.purge(queue, ["no-such-id"]) == 0
        assert store.purge(queue, [free[1], held, "no-such-id", free[1]]) == 1
        assert store.purge(queue, [free[1]]) == 0
        assert sorted(ids_of(store.peek(queue)), key=by_payload.__getitem__) == [id for id in ids if id != free[1]]
        end_lease(store, queue, "c/1")
        assert store.purge(queue, [held, free[-1]]) == 2
        assert store.sizes(queue) == Sizes(3, 0, 0)

    def test_drop_removes_all(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes(list(range(5)), delay=[None, None, None, None, MINUTE_MS]), 2)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        store.commit(queue, "c/1", ids[:1], history=MINUTE_MS)
        store.drop(queue)
        store.drop(queue)
        assert store.sizes(queue) == Sizes(0, 0, 0)
        assert store.reservations(queue) == []
        assert list(store.peek(queue)) == [] == list(store.peek(queue, view="history"))
        assert store.commit(queue, "c/1") == 0
        assert store.push(queue, pushes(["again"])) == 1

    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 201])
    def test_a_name_that_no_database_takes_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(OptionError, match="queue"):
            store.push(name, pushes(["a"]))
        with pytest.raises(OptionError, match="queue"):
            store.reserve(name, "c/1", 1)

    def test_queues_with_names_alike_do_not_mix(self, store: Store, queue: str) -> None:
        names = [queue, f"{queue}.dead", f"{queue}.other"]
        for name in names:
            store.push(name, pushes([name], ids=[f"of {name}" if store.ids_unique_per_store else "same"]))
        for name in names:
            assert store.reserve(name, "c/1", 9) == [1]
            assert payloads_of(store.fetch(name, "c/1/0")) == [name]
        assert [store.commit(name, "c/1") for name in names] == [1, 1, 1]

    def test_a_closed_store_opens_again(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(["a"]))
        store.close()
        store.close()
        assert store.sizes(queue).ready == 1

    # --- time and failure -------------------------------------------------------------------------

    @pytest.mark.parametrize("hours", [-1, 1])
    def test_the_clock_of_a_client_does_not_matter(
        self, url: str, peer: Store, queue: str, hours: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real_time, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real_time() + hours * 3600)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3600 * 10**9)
        with self.open_client(url) as wrong:
            wrong.push(queue, pushes(["now", "later"], delay=[None, MINUTE_MS]))
            assert wrong.reserve(queue, "wrong/1", 9, lease=2 * MINUTE_MS) == [1]
            monkeypatch.undo()
            assert peer.sizes(queue) == Sizes(0, 1, 1)
            assert peer.reserve(queue, "right/1", 9) == []
            assert 0 < (peer.next_mature(queue) or 0) <= MINUTE_MS
            assert abs(wrong.now() - peer.now()) < MINUTE_MS
            (held,) = peer.reservations(queue)
            assert MINUTE_MS < (held.until or 0) - peer.now() <= 2 * MINUTE_MS
            assert wrong.rollback(queue, "wrong/1") == 1
        assert peer.reserve(queue, "right/1", 9) == [1]

    def test_an_unreachable_server_is_an_error_within_seconds(self, unreachable: str | None) -> None:
        if unreachable is None:
            pytest.skip("this database has no server")
        begun = time.monotonic()
        with open_store(unreachable, retry_timeout=100) as store, pytest.raises(StoreUnavailable) as caught:
            store.sizes("any")
        assert time.monotonic() - begun < 30
        assert "sesame" not in str(caught.value) and "***" in str(caught.value)
        assert isinstance(caught.value, StoreError)

    def test_a_store_survives_a_fork(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(["parent"]))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store.push(queue, pushes(["child"]))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        store.push(queue, pushes(["parent again"]))
        assert sorted(payloads_of(store.peek(queue))) == ["child", "parent", "parent again"]
        assert len(set(ids_of(store.peek(queue)))) == 3

    def cycle(self, store: Store, queue: str) -> None:
        """Push 500 messages, then reserve, fetch and commit them."""
        store.push(queue, pushes(list(range(500))))
        assert (store.next_mature(queue) or 0) <= 0
        assert store.reserve(queue, "c/1", 500) == [500]
        assert sum(batch.num_rows for batch in store.fetch(queue, "c/1/0")) == 500
        assert store.commit(queue, "c/1") == 500

    def server_work(self, store: Store, act: Callable[[], object], queue: str) -> int | None:
        """Call `act` and return how much the server worked: at least 1 for each record it read.

        Return `None` if the store cannot count it.
        """
        return None

    def test_scheduled_messages_do_not_slow_the_ready_ones(self, store: Store, queue: str) -> None:
        self.check_scheduled(store, queue, records=20_000)
        assert store.ready(queue, 1_000) == 0
        counted = self.server_work(store, lambda: store.ready(queue, 1_000), queue)
        assert counted is not None and counted < 10_000

    def check_scheduled(self, store: Store, queue: str, records: int) -> None:
        """Check that the server does not read the records of 20,000 scheduled messages.

        `records` is the number of these records.
        """
        self.cycle(store, queue)
        few = self.server_work(store, lambda: self.cycle(store, queue), queue)
        if few is None:
            pytest.skip("this store cannot count the work of its server")
        assert few >= 500, "the work is not counted"
        store.push(queue, pushes([{"n": i} for i in range(20_000)], delay=60 * MINUTE_MS))
        many = self.server_work(store, lambda: self.cycle(store, queue), queue)
        assert store.sizes(queue) == Sizes(0, 20_000, 0)
        assert many is not None and many < few + records / 2, f"{many} steps, with none scheduled {few}"

    @pytest.mark.full
    def test_a_million_scheduled_messages_do_not_slow_the_ready_ones(self, store: Store, queue: str) -> None:
        with retrying_for(DEADLINE * 1000):
            self._check_million_scheduled(store, queue)

    def _check_million_scheduled(self, store: Store, queue: str) -> None:
        def cycle() -> None:
            self.cycle(store, queue)

        def seconds() -> float:
            begun = time.perf_counter()
            cycle()
            return time.perf_counter() - begun

        few, steps = min(seconds() for _ in range(9)), self.server_work(store, cycle, queue)
        part = pushes([{"n": i} for i in range(50_000)], delay=60 * MINUTE_MS)
        ids = part.schema.get_field_index("id")
        for _ in range(20):
            store.push(queue, part.set_column(ids, part.schema.field(ids), pa.array(new_ids(50_000))))
        assert steps is None or (self.server_work(store, cycle, queue) or 0) < steps + 10_000
        # A scan of the million takes hundreds of ms on any machine. A busy machine gets time to
        # recover.
        wait_until(lambda: seconds() < 4 * few + 0.05, description="a cycle as fast as with none scheduled")
        assert store.sizes(queue) == Sizes(0, 1_000_000, 0)

    def test_payloads_compare_as_json(self) -> None:
        assert load_json(b'{"a": 123456789012345678901234567890}') == {"a": 123456789012345678901234567890}
