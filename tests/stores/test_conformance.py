"""Every registered store keeps the contract, in each of its layouts, on its real server.

A store registered under a new scheme joins by itself; one with a server needs a fixture
`<server>_url` in tests/conftest.py. `make test` runs the default layouts.
"""

from __future__ import annotations

import base64
import uuid

import orjson
import pyarrow as pa
import pytest
import redis

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store, store_class
from spark_queue.stores.base import PAGE_ROWS
from spark_queue.stores.conformance.conformance import StoreContract
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.conformance.limits import limits_of
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.redis.lists import RfqStore
from tests import registered
from tests.layouts import use_layout
from tests.tiers import param


def has_only_buckets(kind):
    """Whether the layout has nothing but buckets."""
    scheme, layout = kind.split(" ")
    return isinstance(store_class(registered.in_layout(f"{scheme}://host/db", layout)).default_layout, Buckets)


class Enveloped(RfqStore):
    """Any payload as the flat map of strings that the layout has for messages: {kind: text}."""

    unsupported_payloads = ()  # but tests/interop/test_rfq.py has what it refuses without this

    def push(self, queue, batch, **how):
        return super().push(queue, self.enveloped(queue, batch), **how)

    def stage(self, queue, stage, batch, **how):
        return super().stage(queue, stage, self.enveloped(queue, batch), **how)

    def read_reserved(self, queue, tag, rows=PAGE_ROWS, **how):
        for page in super().read_reserved(queue, tag, rows, **how):
            yield page._replace(batch=self.opened(page.batch))

    def peek(self, queue, *arguments, **named):
        return map(self.opened, super().peek(queue, *arguments, **named))

    def enveloped(self, queue, batch):
        self._check_push(queue, batch)  # what all stores refuse is refused as such
        columns = (batch.column(name).to_pylist() for name in ("payload", "payload_kind"))
        pairs = [
            (kind, base64.b64encode(one) if kind == "binary" else one) for one, kind in zip(*columns, strict=True)
        ]
        return self.with_payloads(batch, [(orjson.dumps({kind: one.decode()}), "json") for kind, one in pairs])

    def opened(self, batch):
        found = []
        for payload in batch.column("payload").to_pylist():
            ((kind, text),) = orjson.loads(payload).items()
            found.append((base64.b64decode(text) if kind == "binary" else text.encode(), kind))
        return self.with_payloads(batch, found)

    @staticmethod
    def with_payloads(batch, found):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["payload"] = pa.array([payload for payload, _ in found], pa.binary())
        columns["payload_kind"] = pa.array([kind for _, kind in found], pa.string())
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def sqlite_work(store, act, queue):
    """The instructions of SQLite's virtual machine: one at least for each row."""
    steps = []
    with store._connection.use() as db:
        pass
    db.set_progress_handler(lambda: steps.append(10), 10)
    try:
        act()
    finally:
        db.set_progress_handler(None, 10)
    return sum(steps)


def mongodb_work(store, act, queue):
    """The keys and documents that the server's profiler counts in this database of the test."""
    database = store._database()
    database["system.profile"].drop()
    database.command("profile", 2)
    try:
        act()
    finally:
        database.command("profile", 0)
    found = list(database["system.profile"].find())
    database["system.profile"].drop()
    return sum(one.get(name, 0) for one in found for name in ("keysExamined", "docsExamined", "ninserted"))


#: What Redis reads as a whole, or a range of it.
RANGES = ("ZRANGE", "ZREVRANGE", "ZSCAN", "HGETALL", "HKEYS", "HVALS", "HSCAN", "LRANGE", "SMEMBERS", "SSCAN", "KEYS")


def redis_work(store, act, queue):
    """The words of all commands about the queue, also within scripts, and the size of ranges."""
    with redis.Redis.from_url(store._address.url, protocol=2) as client:
        mark, words = uuid.uuid4().hex, 0
        with client.monitor() as monitor:
            act()
            client.echo(mark)
            seen = []
            while mark not in (command := monitor.next_command()["command"]):
                seen.append(command.split(" "))
        for name, *rest in seen:
            if any(queue in word for word in rest):
                words += len(rest)
                if name.upper().startswith(RANGES):
                    plain = [word.encode().decode("unicode_escape").encode("latin-1") for word in rest]
                    words += len(client.execute_command(name, *plain))
    return words


WORK = {"sqlite": sqlite_work, "mongodb": mongodb_work, "redis": redis_work}


class _EachKind(StoreContract):
    @pytest.fixture(autouse=True)
    def _counts(self, kind):
        self._work = WORK.get(kind.partition(" ")[0])

    def server_work(self, store, act, queue):
        return self._work and self._work(store, act, queue)

    def open_client(self, url, **limits):
        store = super().open_client(url, **limits)
        return Enveloped(url, limits=limits_of(url, **limits)) if "payloads" in store.unsupported else store

    @pytest.fixture
    def url(self, kind, url_of):
        scheme, layout = kind.split(" ")
        return registered.in_layout(url_of(scheme), layout)

    @pytest.fixture
    def unreachable(self, kind):
        scheme, layout = kind.split(" ")
        unreachable = f"{scheme}://user:sesame@127.0.0.1:1/0"
        return None if registered.embedded(scheme) else registered.in_layout(unreachable, layout)


class TestStore(_EachKind):
    @pytest.fixture(
        params=[
            param(one, fast=registered.is_default(one)) for one in registered.kinds() if not has_only_buckets(one)
        ]
    )
    def kind(self, request):
        return request.param


class TestBuckets(_EachKind):
    """The conformance suite on buckets, most of them of three messages.

    A reserve takes whole buckets. So it may return fewer messages than its limit, and partitions
    differ in size. A push does not compare its ids with those in buckets. The tests of these rules
    are overridden here.
    """

    size = 3
    looks_up_ids = False  # a bucket does not say which messages it has

    @pytest.fixture(
        params=[
            *(param(f"{scheme} ", fast=registered.embedded(scheme)) for scheme in registered.schemes()),
            *(param(one, fast=False) for one in registered.kinds() if has_only_buckets(one)),
        ]
    )
    def kind(self, request):
        return request.param

    def open_client(self, url, **limits):
        store = open_store(url, limits=limits_of(url, **limits))
        use_layout(store, Buckets(self.size))
        return store

    def test_a_push_may_be_repeated(self, store, queue):
        batch = pushes([1, 2, 3, 4])
        assert store.push(queue, batch) == 4
        assert store.push(queue, batch) == 0
        assert store.sizes(queue).ready == 4

    def test_an_id_that_the_queue_holds_is_left_as_it_is(self, store, queue, sink):
        batch = pushes(["new", "other"], ids=["mine", "free"])
        store.stage(queue, f"{sink}/0/a", batch)
        store.stage(queue, f"{sink}/0/b", batch)
        assert store.publish([f"{sink}/0/a"]) == 2
        assert store.publish([f"{sink}/0/b"]) == 0
        assert sorted(ids_of(store.peek(queue))) == ["free", "mine"]

    def test_a_move_onto_an_id_that_is_there_replaces_nothing(self, store, queue):
        other, batch = f"{queue}.other", pushes(["first", "second"], ids=["a", "b"])
        store.push(queue, batch)
        store.push(other, batch)
        assert store.move(queue, other) == 2
        assert store.sizes(other).total == 2
        assert store.sizes(queue).total == 0

    def test_a_large_batch_is_pushed_and_comes_back_whole(self, store, queue):
        use_layout(store, Buckets(1_000))
        self.check_large_batch(store, queue, page=400, taken=22_000)

    def test_a_reserve_takes_the_first_in_order_up_to_its_limit(self, store, queue):
        store.push(queue, pushes(list(range(10))))
        assert store.reserve(queue, "c/1", 4) == [3]
        assert store.reserve(queue, "c/2", 2) == [2], "a bucket that is too large is split"
        assert store.reserve(queue, "c/3", 4) == [4]
        assert store.reserve(queue, "c/4", 4) == [1]
        found = [[one.payload for one in messages_of(store.fetch(queue, f"c/{n}/0"))] for n in (1, 2, 3, 4)]
        assert found == [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]

    @pytest.mark.parametrize("partitions", [1, 4])
    def test_the_same_tag_gets_the_same_messages_again(self, store, queue, partitions):
        super().test_the_same_tag_gets_the_same_messages_again(store, queue, partitions)

    def test_partitions_share_the_messages_in_order(self, store, queue):
        use_layout(store, Buckets(900))
        store.push(queue, pushes(list(range(4_000))))
        rows = store.reserve(queue, "c/1", 4_000, partitions=4)
        assert rows == [1_800, 1_800, 400]
        got = [[one.payload for one in messages_of(store.fetch(queue, f"c/1/{p}"))] for p in range(3)]
        assert got == [list(range(1_800)), list(range(1_800, 3_600)), list(range(3_600, 4_000))]

    def test_few_messages_make_as_many_partitions_as_are_wanted(self, store, queue):
        use_layout(store, Buckets(1))
        super().test_few_messages_make_as_many_partitions_as_are_wanted(store, queue)

    def test_a_reserve_that_was_cut_short_is_resumed(self, store, peer, queue):
        use_layout(store, Buckets(StoreLimits.smallest_partition))
        super().test_a_reserve_that_was_cut_short_is_resumed(store, peer, queue)

    def test_reservations_list_tags_rows_and_leases(self, store, queue):
        use_layout(store, Buckets(1))
        super().test_reservations_list_tags_rows_and_leases(store, queue)

    def test_a_whole_tree_passes_to_a_tag_that_holds_some_already(self, store, queue):
        use_layout(store, Buckets(1))
        super().test_a_whole_tree_passes_to_a_tag_that_holds_some_already(store, queue)

    def test_forget_removes_history_by_id(self, store, queue):
        store.push(queue, pushes(["a", "b"], ids=["a", "b"]))
        store.reserve(queue, "c/1", 2)
        store.commit(queue, "c", ["a"], history=60_000)
        assert store.delete_history(queue, ["a"]) == 0, "what was in a bucket stays"
        assert ids_of(store.peek(queue, view="history")) == ["a"]

    def test_scheduled_messages_do_not_slow_the_ready_ones(self, store, queue):
        self.check_scheduled(store, queue, records=20_000 // self.size)

    def test_a_large_stage_is_published_whole(self, store, queue, sink):
        use_layout(store, Buckets(100))
        super().test_a_large_stage_is_published_whole(store, queue, sink)

    @pytest.mark.full
    def test_a_million_scheduled_messages_do_not_slow_the_ready_ones(self, store, queue):
        use_layout(store, Buckets())
        super().test_a_million_scheduled_messages_do_not_slow_the_ready_ones(store, queue)
