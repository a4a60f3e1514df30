"""Any sequence of operations of several clients, on every store, against the model of the contract.

For a longer run: SPARK_QUEUE_MODEL_EXAMPLES=1000 (the number of sequences). A failure prints the
operations that led to it, and how to run just these again.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from spark_queue.messages.buckets import Record
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores import STORES, base, open_store
from spark_queue.stores import types as facts
from spark_queue.stores.mongodb import stages as mongodb_stages
from spark_queue.stores.mongodb import store as mongodb
from spark_queue.stores.redis import store as redis
from spark_queue.stores.sqlite import store as sqlite
from spark_queue.stores.types import Commit, Condition, DeadLetterInfo, HandOut, Rollback, unseen_tag
from tests.stores.model import Item, Model, Order, known

EXAMPLES = os.environ.get("SPARK_QUEUE_MODEL_EXAMPLES")
STEPS = 30
FEW = 20  #: sequences, where the time for more is not there

HOUR = 3_600_000
SHORT = 30  #: ms: a lease that is waited out
START = datetime(2020, 1, 1, tzinfo=UTC)


#: By the kind of server: the order that the contract leaves to a store, and how many sequences take
#: half a minute.
ORDERS = {"mongodb": (Order(by_end=True, staged=True), 50), "redis": (Order(seen=True), 150)}
USUAL = (Order(), 150)

#: Few, so that operations meet; the last two are no ObjectIds.
IDS = [*(f"{number:024x}" for number in range(12)), "flight 1545", "ü/ñ"]
QUEUES = ["one", "two", "dead"]
TAGS = ["c/1", "c/2", "c/10", "d/1"]
TREES = [*TAGS, "c", "d", "c/1/0", "c/1/1", "c/3", "c/3/unseen", "nobody"]
TARGETS = ["c/1/0", "c/7/0"]
STAGES = ["0/a", "0/ab", "1/a"]
KEYS = ["a", "ü:b/c", "one"]

clients = st.integers(0, 2)
queues = st.sampled_from(QUEUES)
some_ids = st.none() | st.none() | st.lists(st.sampled_from(IDS), max_size=10)
mostly_not = st.sampled_from([False, False, True])

#: Which of the queues or tags that have something: drawn at random, most would have nothing.
aims = st.integers(0, 999)

leases = st.sampled_from([HOUR, 2 * HOUR, None])
delays = st.sampled_from([0, HOUR])
tries = st.integers(0, 3)

#: Ids, and when each is due: at second 0, 1, …; now; in an hour.
rows = st.lists(
    st.tuples(st.sampled_from(IDS), st.sampled_from([0, 1, 2, 3, "now", "later"])), min_size=3, max_size=9
)
limits = st.sampled_from([3, 5, 9, 2, 1, 0])


class Machine(RuleBasedStateMachine):
    """Each run has queues, a sink and notes of its own; the clients outlive it."""

    def __init__(self, stores, order):
        super().__init__()
        self.stores = stores
        self.model = Model(order)
        self.prefix = f"t{uuid.uuid4().hex[:16]}"
        self.made = 0

    def teardown(self):
        store = self.stores[0]
        store.unstage(self.prefix)
        for queue in QUEUES:
            store.drop(self.named(queue))
        for key in self.model.notes:
            if note := store.note(self.key(key)):
                store.set_note(self.key(key), None, note.version)

    # --- names, moments, messages -----------------------------------------------------------------

    def named(self, queue):
        return f"{self.prefix}.{queue}"

    def staging(self, stage):
        return f"{self.prefix}/{stage}"

    def key(self, name):
        """The key of a note: about a queue, or another one."""
        return facts.queue_note_key(self.named(name), "note") if name in QUEUES else self.staging(name)

    def begin(self, client):
        """The client of an operation that begins now."""
        self.model.now = self.stores[client].now()
        return self.stores[client]

    def after(self, ms):
        """The moment `ms` after the operation that has just ended."""
        return None if ms is None else (self.model.now + ms, self.stores[0].now() + ms)

    def peeked(self, client, queue, *arguments, **options):
        batches = self.stores[client].peek(self.named(queue), *arguments, **options)
        return [message for batch in batches for message in messages(batch)]

    def wait_until(self, moment):
        while self.stores[0].now() <= moment:
            time.sleep(0.002)

    def source(self, aim):
        """A queue with something to take, if there is one."""
        found = [queue for queue in QUEUES if self.model.free(queue)] or QUEUES
        return found[aim % len(found)]

    def holder(self, aim):
        """A queue and a tag that holds something there, mostly, by itself or below it."""
        tags = {(queue, one.tag) for queue in QUEUES for one in self.model.queue(queue).values() if one.tag}
        trees = sorted({(queue, "/".join(tag.split("/")[:depth])) for queue, tag in tags for depth in (1, 2, 3)})
        return trees[aim % len(trees)] if trees and aim % 10 else (QUEUES[aim % 3], TREES[aim % len(TREES)])

    def make(self, rows, tries):
        """A batch, and what makes the items of it once it is pushed.

        No two messages have the same content.
        """
        numbers = range(self.made, self.made + len(rows))
        self.made += len(rows)
        payloads = [{"n": number} for number in numbers]
        headers = [{"h": f"{number}"} if number % 3 else {} for number in numbers]
        moments = [START + timedelta(seconds=due) if isinstance(due, int) else None for _, due in rows]
        delays = [HOUR if due == "later" else None for _, due in rows]
        ids = [id for id, _ in rows]

        def items():
            pushed = None if "pushed" in self.stores[0].unsupported else self.after(0)
            return [
                Item(id, payload, own, tries, self.after(delay or 0) if moment is None else ms(moment), pushed=pushed)
                for id, payload, own, moment, delay in zip(ids, payloads, headers, moments, delays, strict=True)
            ]

        return pushes(payloads, ids=ids, headers=headers, mature=moments, delay=delays, tries=tries), items

    # --- the comparison ---------------------------------------------------------------------------

    def compare(self, *queues):
        """What the clients see is what the model has."""
        for queue in queues:
            store, name = self.begin(self.made % 3), self.named(queue)
            seen = {one.id: item(one) for one in self.peeked(self.made % 3, queue, rows=5)}
            held = {one.tag: list(self.fetched(store, name, one)) for one in store.reservations(name)}
            for tag, items in held.items():
                for one in items:
                    assert seen[one.id].tag is None, f"{one.id} is held by {seen[one.id].tag} and by {tag}"
                    assert replace(one, tag=None, until=None) == seen[one.id]
                    seen[one.id] = one
            self.model.agree(queue, seen)
            if self.model.order.seen:
                for place, one in enumerate(self.peeked(self.made % 3, queue, limit=1_000)):
                    self.model.queue(queue)[one.id].place = place
            for tag, items in held.items():
                assert [one.id for one in items] == [one.id for one in self.model.held(queue, tag) if one.tag == tag]
            self.model.now = store.now()
            assert store.sizes(name) == self.model.sizes(queue)
            due = store.next_mature(name)
            assert (due is not None and due <= 0) == (self.model.sizes(queue).ready > 0)

    def fetched(self, store, name, reservation):
        """What a reservation holds, as the clients see it."""
        batches = list(store.fetch(name, reservation.tag, 4))
        assert sum(batch.num_rows for batch in batches) == reservation.rows
        for batch in batches:
            for message in messages(batch):
                yield replace(item(message), tag=reservation.tag, until=reservation.until)

    # --- messages in ------------------------------------------------------------------------------

    @initialize(rows=rows, tries=tries, limit=limits, lease=leases)
    def begin_with_something(self, rows, tries, limit, lease):
        every_id = [(id, 0) for id in IDS[:9]]
        self.push(0, "one", rows + every_id, tries, again=False)
        self.reserve(1, 0, "c/1", limit, 2, lease, MAX_TIME_MS)
        self.stage(2, "two", "0/a", rows, tries)
        self.stage(0, "one", "0/ab", rows, tries)

    @rule(client=clients, queue=queues, rows=rows, tries=tries, again=st.booleans())
    def push(self, client, queue, rows, tries, again):
        batch, items = self.make(rows, tries)
        pushed = self.begin(client).push(self.named(queue), batch)
        assert pushed == self.model.push(queue, items())
        if again:
            assert self.stores[client - 1].push(self.named(queue), batch) == 0
        self.compare(queue)

    @rule(client=clients, queue=queues, stage=st.sampled_from(STAGES), rows=rows, tries=tries)
    def stage(self, client, queue, stage, rows, tries):
        batch, items = self.make(rows, tries)
        staged = self.begin(client).stage(self.named(queue), self.staging(stage), batch)
        assert staged == self.model.stage(queue, stage, items())
        self.compare_stages(client)
        self.compare(queue)

    @rule(client=clients, stages=st.lists(st.sampled_from(STAGES), min_size=1, max_size=4), again=st.booleans())
    def publish(self, client, stages, again):
        names = [self.staging(stage) for stage in stages]
        assert self.begin(client).publish(names) == self.model.publish(stages)
        if again:
            assert self.stores[client - 1].publish(names) == 0
        self.compare_stages(client)
        self.compare(*QUEUES)

    @rule(
        client=clients, stage=st.sampled_from(["0", "0", *STAGES]), keep=st.lists(st.sampled_from(STAGES), max_size=2)
    )
    def unstage(self, client, stage, keep):
        kept = [self.staging(one) for one in keep]
        assert self.begin(client).unstage(self.staging(stage), kept) == self.model.unstage(stage, keep)
        self.compare_stages(client)

    def compare_past(self, client, queue):
        kept = {one.id for one in self.peeked(client, queue, view="history")}
        remembered = self.model.history.get(queue, {})
        assert {id for id, certain in remembered.items() if certain} <= kept <= set(remembered)

    def compare_stages(self, client):
        staged = [
            (one.stage.removeprefix(f"{self.prefix}/"), one.queue.removeprefix(f"{self.prefix}."), one.rows)
            for one in self.stores[client].staged(self.prefix)
        ]
        assert staged == [(one.stage, one.queue, one.rows) for one in self.model.staged()]

    # --- reservations -----------------------------------------------------------------------------

    @rule(
        client=clients,
        aim=aims,
        tag=st.sampled_from(TAGS),
        limit=limits,
        partitions=st.integers(1, 3),
        lease=leases,
        before=st.sampled_from([MAX_TIME_MS, MAX_TIME_MS, MAX_TIME_MS, 1, 2]),
    )
    def reserve(self, client, aim, tag, limit, partitions, lease, before):
        queue = self.source(aim)
        moment = before if before == MAX_TIME_MS else ms(START) + 1000 * before
        store = self.begin(client)
        got = store.reserve(self.named(queue), tag, limit, partitions=partitions, lease=lease, before=moment)
        want = self.model.reserve(queue, tag, limit, partitions, self.after(lease), moment)
        assert got == (want if any(want) else [])
        self.compare(queue)

    @rule(client=clients, aim=aims, tag=st.sampled_from(TAGS))
    def reserve_one_for_a_short_time(self, client, aim, tag):
        queue = self.source(aim)
        got = self.begin(client).reserve(self.named(queue), tag, 1, lease=SHORT)
        want = self.model.reserve(queue, tag, 1, 1, self.after(SHORT), MAX_TIME_MS)
        self.wait_until(self.stores[0].now() + SHORT)
        assert got == (want if any(want) else [])
        self.compare(queue)

    @rule(client=clients, aim=aims, limit=limits, lease=leases)
    def reserve_ahead(self, client, aim, limit, lease):
        queue = self.source(aim)
        got = self.begin(client).reserve(self.named(queue), "c/3", limit, lease=lease, unseen=True)
        want = self.model.reserve(queue, "c/3", limit, 1, self.after(lease), MAX_TIME_MS, unseen=True)
        assert got == (want if any(want) else [])
        self.compare(queue)

    @rule(
        client=clients,
        aim=aims,
        place=st.integers(0, 9),
        others=st.lists(st.sampled_from(IDS), max_size=2),
        next=st.integers(0, 9),
        how=st.sampled_from([Commit(), Commit(history=HOUR), Rollback(), Rollback(None, False), Rollback(HOUR)]),
        lease=leases,
    )
    def settle_and_hand_out(self, client, aim, place, others, next, how, lease):
        queue, seen = self.source(aim), "c/3/0"
        ids = list(dict.fromkeys([*self.ids_of(queue, seen, place), *others]))
        handed_out = {one.id for one in self.model.held(queue, seen)}  # of these, a store counts too few
        (id,) = self.ids_of(queue, unseen_tag("c/3"), next) or [one for one in IDS if one not in handed_out][:1]
        there = self.model.queue(queue)
        record, *records = [Record(one, known(there[one].due) if one in there else 0) for one in [id, *ids]]
        settled = self.begin(client).settle_and_hand_out(
            self.named(queue), seen, records, how, HandOut("c/3", record, lease)
        )
        if isinstance(how, Commit):
            done = self.model.commit(queue, seen, ids, how.history > 0)
        else:
            due = None if how.delay is None else self.after(how.delay)
            done = self.model.rollback(queue, seen, ids, due, how.failed)
        self.model.transfer(queue, unseen_tag("c/3"), seen, [id], self.after(lease))
        assert settled == (done, bool(self.model.held(queue, seen, [id])))
        self.begin(client).renew(self.named(queue), seen, lease)  # as after a transfer
        self.model.renew(queue, seen, self.after(lease))
        self.compare(queue)

    def ids_of(self, queue, tag, place):
        """The id of one of the messages that a tag holds, if it holds any."""
        held = self.model.held(queue, tag)
        return [held[place % len(held)].id] if held else []

    @rule(client=clients, aim=aims, lease=leases)
    def renew(self, client, aim, lease):
        queue, tree = self.holder(aim)
        renewed = self.begin(client).renew(self.named(queue), tree, lease)
        assert renewed == self.model.renew(queue, tree, self.after(lease))
        self.compare(queue)

    @rule(client=clients, aim=aims)
    def let_leases_end(self, client, aim):
        queue, tree = self.holder(aim)
        renewed = self.begin(client).renew(self.named(queue), tree, 1)
        end = self.after(1)
        assert renewed == self.model.renew(queue, tree, end)
        if renewed:
            self.wait_until(end[1])
        self.compare(queue)

    @rule(client=clients, aim=aims, ids=some_ids, history=st.sampled_from([0, HOUR]))
    def commit(self, client, aim, ids, history):
        queue, tree = self.holder(aim)
        removed = self.begin(client).commit(self.named(queue), tree, ids, history=history)
        assert removed == self.model.commit(queue, tree, ids, history > 0)
        assert self.stores[client - 1].commit(self.named(queue), tree, ids, history=history) == 0
        self.compare_past(client, queue)
        self.compare(queue)

    @rule(client=clients, aim=aims, ids=some_ids, delay=st.none() | delays, failed=st.booleans())
    def rollback(self, client, aim, ids, delay, failed):
        queue, tree = self.holder(aim)
        given = self.begin(client).rollback(self.named(queue), tree, ids, delay=delay, failed=failed)
        due = None if delay is None else self.after(delay)
        assert given == self.model.rollback(queue, tree, ids, due, failed)
        assert self.stores[client - 1].rollback(self.named(queue), tree, ids, failed=True) == 0
        self.compare(queue)

    @rule(client=clients, aim=aims, to=st.sampled_from(TARGETS), ids=some_ids, lease=leases)
    def transfer(self, client, aim, to, ids, lease):
        queue, tree = self.holder(aim)
        given = self.begin(client).transfer(self.named(queue), tree, to, ids, lease=lease)
        assert given == self.model.transfer(queue, tree, to, ids, self.after(lease))
        assert self.stores[client - 1].transfer(self.named(queue), tree, to, ids, lease=lease) == 0
        # The lease of what the tag held before is open: it may stay, or become that of the rest.
        renewed = self.begin(client).renew(self.named(queue), to, lease)
        assert renewed == self.model.renew(queue, to, self.after(lease))
        self.compare(queue)

    # --- between queues, and out ------------------------------------------------------------------

    @rule(
        client=clients,
        aim=aims,
        held=st.booleans(),
        further=st.integers(1, 2),
        ids=some_ids,
        limit=st.none() | limits,
        min_tries=st.sampled_from([0, 0, 1, 3]),
        death=st.sampled_from(
            [None, DeadLetterInfo(), DeadLetterInfo('a "bad" one', failed=2), DeadLetterInfo("why", history=HOUR)]
        ),
    )
    def move(self, client, aim, held, further, ids, limit, min_tries, death):
        queue, tag = self.holder(aim) if held else (self.source(aim), None)
        to = QUEUES[QUEUES.index(queue) - further]
        moved = self.begin(client).move(
            self.named(queue), self.named(to), tag=tag, ids=ids, limit=limit, min_tries=min_tries, dead_letter=death
        )
        added = None
        if death:
            added = {"x-dl-from-queue": self.named(queue)} | ({"x-error": death.reason} if death.reason else {})
        failed, history = (death.failed, death.history > 0) if death else (0, False)
        assert moved == self.model.move(queue, to, tag, ids, limit, min_tries, added, failed, history)
        self.compare_past(client, queue)
        self.compare(queue, to)

    @rule(client=clients, aim=aims, ids=some_ids, sure=mostly_not)
    def purge(self, client, aim, ids, sure):
        if sure or ids is not None:
            queue = self.source(aim)
            assert self.begin(client).purge(self.named(queue), ids) == self.model.purge(queue, ids)
            self.compare(queue)

    @rule(client=clients, queue=queues, sure=mostly_not)
    def drop(self, client, queue, sure):
        if sure:
            self.begin(client).drop(self.named(queue))
            self.model.drop(queue)
            self.compare(queue)
            self.compare_notes(client)

    # --- the rest ---------------------------------------------------------------------------------

    @rule(client=clients, queue=queues, limit=st.integers(0, 9), ids=some_ids)
    def peek(self, client, queue, limit, ids):
        where = [] if ids is None else [Condition("id", "in", tuple(ids))]
        got = [one.id for one in self.peeked(client, queue, where, limit=limit)]
        among = [one for one in self.model.queue(queue).values() if ids is None or one.id in ids]
        assert got == [one.id for one in sorted(among, key=self.model.order.due)][:limit]

    @rule(
        client=clients,
        key=st.sampled_from(KEYS),
        ahead=st.sampled_from([0, 0, 1, -1]),
        value=st.none() | st.integers(0, 2),
    )
    def set_note(self, client, key, ahead, value):
        store, new = self.begin(client), None if value is None else {"value": value}
        note = self.model.notes.get(key)
        version = max(0, ahead + (note.version if note else 0))
        assert store.set_note(self.key(key), new, version) == self.model.set_note(key, new, version)
        self.compare_notes(client)

    def compare_notes(self, client):
        for key in KEYS:
            assert self.stores[client - 1].note(self.key(key)) == self.model.notes.get(key)

    @rule(client=clients, reopen=st.booleans())
    def look_everywhere(self, client, reopen):
        if reopen:
            self.stores[client].close()
        names = self.begin(client).queues()
        assert {self.named(queue) for queue in QUEUES if self.model.queue(queue)} <= set(names)
        self.compare(*QUEUES)
        self.compare_stages(client)


def item(message):
    """A message as it was seen; when it died cannot be known before."""
    headers = {name: value for name, value in message.headers.items() if name != "x-dl-t"}
    pushed = None if message.pushed is None else ms(message.pushed)
    return Item(message.id, message.payload, headers, message.tries, ms(message.mature), pushed=pushed)


def ms(moment):
    return round(moment.timestamp() * 1000)


@pytest.fixture
def small_steps(monkeypatch):
    """Few messages are enough for several partitions, and for several steps of an operation."""
    monkeypatch.setattr(base, "SMALLEST_PARTITION", 2)
    monkeypatch.setattr(mongodb, "COMMAND_CHUNK", 3)
    monkeypatch.setattr(mongodb, "TRANSACTION_CHUNK", 2)
    monkeypatch.setattr(
        mongodb.MongoStore._filters_for, "__defaults__", (3,)
    )  # COMMAND_CHUNK, as it was at the import
    monkeypatch.setattr(mongodb_stages, "CHUNK_ROWS", 3)
    monkeypatch.setattr(sqlite, "BLOB_BYTES", 300)
    monkeypatch.setattr(redis, "SCRIPT_CHUNK", 3)
    monkeypatch.setattr(redis, "SCRIPTS", redis.load_scripts(chunk=3, page=300))


def explore(url, order, examples):
    """Run that many sequences of operations of three clients."""
    with open_store(url) as one, open_store(one.url) as two, open_store(one.url) as three:
        run_state_machine_as_test(
            lambda: Machine([one, two, three], order),
            settings=settings(
                max_examples=int(EXAMPLES or examples),
                stateful_step_count=STEPS,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )


pytestmark = pytest.mark.timeout(900)  # a failure is made small, which takes five minutes at most


@pytest.mark.every_store
def test_some_sequences_of_operations_do_what_the_contract_says(scheme, any_url, small_steps):
    order, _ = ORDERS.get(STORES[scheme].server, USUAL)
    explore(any_url, order, FEW)


@pytest.mark.full
def test_every_sequence_of_operations_does_what_the_contract_says(scheme, any_url, small_steps):
    explore(any_url, *ORDERS.get(STORES[scheme].server, USUAL))


@pytest.mark.full
def test_every_sequence_does_so_on_a_server_without_transactions(mongodb_url, small_steps, monkeypatch):
    hello = mongodb.MongoStore._hello
    monkeypatch.setattr(mongodb.MongoStore, "_hello", lambda self: (hello(self)[0], False))
    order, _ = ORDERS["mongodb"]
    explore(mongodb_url, order, FEW)
