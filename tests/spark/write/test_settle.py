"""Writes with `operation=settle`, without Spark: outcomes, retries, several tasks, lost leases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_queue import MessageError, OptionError, Queue, SchemaError, open_store
from spark_queue.stores import store_class
from spark_queue.stores.services.owner import Batch, revoke
from spark_queue.stores.services.ownership import Ownership
from tests import registered
from tests.spark.begun import begin_batch
from tests.spark.drive import Query, Write, found, payloads

pytestmark = pytest.mark.every_store


def fill(url, name, total):
    with Queue(url, name) as queue:
        return queue.push_many([{"n": n} for n in range(total)])


def sizes(url, name):
    with Queue(url, name) as queue:
        return queue.sizes()


def outcomes(ids, outcome, **columns):
    """Rows that say what becomes of these messages; a column is a list, or one value for all."""
    made = {"id": list(ids), "outcome": outcome} | columns
    return pa.record_batch({name: one if isinstance(one, list) else [one] * len(ids) for name, one in made.items()})


def settling(batch, url, name, **options):
    return Write(batch.schema, url=url, queue=name, **{"operation": "settle", "consumer": "etl"} | options)


def settle(batch, url, name, **options):
    settling(batch, url, name, **options).run(batch)


#: The batch that a query of the consumer `etl` works on.
BATCH = "etl/1/1.1"


def hold(url, name):
    """Let a query of the consumer `etl` work on eight messages, and return their ids."""
    ids = fill(url, name, 8)
    begin_batch(url, name)
    return ids


@pytest.fixture
def held(any_url, name):
    """The ids of eight messages that the consumer `etl` holds."""
    return hold(any_url, name)


#: Layouts in which a message can be changed and moved in one step.
FORWARDING = [
    kind
    for kind in registered.kinds()
    for scheme, _, layout in [kind.partition(" ")]
    if store_class(registered.in_layout(f"{scheme}://host/db", layout)).supports_forward
]


@pytest.fixture(params=FORWARDING)
def forwarding_url(request, url_of):
    scheme, _, layout = request.param.partition(" ")
    return registered.in_layout(url_of(scheme), layout)


def test_settle_gives_every_message_its_own_outcome(any_url, name):
    fill(any_url, name, 8)

    def work(batch):
        given = {row["id"]: n for row, n in zip(batch.rows, (one["n"] for one in batch.payloads), strict=True)}
        some = {id: n for id, n in given.items() if n < 5}
        ways = ["commit", "rollback", "rollback", "dead", "dead"]
        what = outcomes(
            some,
            [ways[n] for n in some.values()],
            delay=[3_600 if n == 2 else 0 for n in some.values()],
            reason=["hopeless" if n == 3 else None for n in some.values()],
        )
        settling(what, any_url, name).run(what.slice(0, 3), what.slice(3))

    Query(work, url=any_url, queue=name, consumer="etl", numPartitions="2").run()
    left = {one.payload["n"]: one.tries for one in found(any_url, name)}
    assert left == {1: 1, 2: 1}, "5, 6 and 7 were committed by the query, 0 by settle"
    now = sizes(any_url, name)
    assert (now.ready, now.scheduled, now.reserved, now.dead) == (1, 1, 0, 2)
    dead = {one.payload["n"]: one for one in found(any_url, f"{name}.dead")}
    assert {n: one.headers.get("x-error") for n, one in dead.items()} == {3: "hopeless", 4: None}
    assert {one.headers["x-dl-from-queue"] for one in dead.values()} == {name}


def test_settling_in_a_batch_is_no_loss(any_url, name):
    fill(any_url, name, 20)
    sizes_seen = []

    def work(batch):
        rows = batch.rows
        sizes_seen.append(len(rows))
        some = outcomes([row["id"] for row in rows[:5]], "rollback", delay=3_600)
        settle(some, any_url, name)
        sizes_seen.append(len(batch.rows))

    Query(work, url=any_url, queue=name, consumer="etl", delivery="exactly-once").run()
    assert sizes_seen == [20, 15]
    now = sizes(any_url, name)
    assert (now.scheduled, now.total) == (5, 5)


def test_tasks_that_settle_at_the_same_time_are_no_loss(any_url, name):
    fill(any_url, name, 40)

    def work(batch):
        ids = [row["id"] for row in batch.rows]
        what = outcomes(ids, (["commit", "rollback", "dead", "commit"] * 10), delay=3_600)
        write = settling(what, any_url, name)
        with ThreadPoolExecutor(4) as tasks:
            written = list(tasks.map(lambda n: write.writer.write(iter([what.slice(10 * n, 10)])), range(4)))
        write.commit(*written)
        assert sum(one.rows for one in written) == 40

    Query(work, url=any_url, queue=name, consumer="etl", numPartitions="2").run()
    now = sizes(any_url, name)
    assert (now.ready, now.scheduled, now.reserved, now.dead) == (0, 10, 0, 10)


@pytest.mark.parametrize("outcome", ["commit", "rollback", "dead"])
def test_a_task_that_is_tried_again_changes_nothing_more(any_url, name, held, outcome):
    what = outcomes(held[:3], outcome, reason="why")
    write = settling(what, any_url, name)

    def breaks():
        yield what
        raise RuntimeError("on purpose")

    write.task([what])  # settled, and its message to the driver is lost
    with pytest.raises(RuntimeError):
        write.task(breaks())
    write.commit(write.task([what]))
    tries = {one.id: one.tries for one in found(any_url, name)}
    stays = dict.fromkeys(held[3:], 0) | (dict.fromkeys(held[:3], 1) if outcome == "rollback" else {})
    assert tries == stays
    dead = found(any_url, f"{name}.dead")
    assert [(one.headers["x-error"], one.tries) for one in dead] == [("why", 0)] * (3 if outcome == "dead" else 0)
    assert sizes(any_url, name).reserved == 5


@pytest.mark.parametrize("outcome", ["commit", "rollback", "dead"])
def test_messages_that_were_taken_by_another_are_not_settled(any_url, name, held, outcome):
    what = outcomes(held, outcome, delay=3_600, reason="why")
    taken_by_another(any_url, name, held, what, {"rollback": name, "dead": f"{name}.dead"}.get(outcome))


def test_messages_that_were_taken_by_another_do_not_move_on(forwarding_url, name):
    held = hold(forwarding_url, name)
    taken_by_another(forwarding_url, name, held, outcomes(held, "move", to=f"{name}.other"), f"{name}.other")


def taken_by_another(url, name, held, what, rest):
    """Settle messages of which three were lost; the rest of the others is in the queue `rest`."""
    with open_store(url) as store:
        store.transfer(name, BATCH, "thief/0", held[:3], lease=None)
        settle(what, url, name)
        assert {one.tag: one.rows for one in store.reservations(name)} == {"thief/0": 3}
        (batch,) = store.fetch(name, "thief/0")
        assert (batch.column("id").to_pylist(), batch.column("tries").to_pylist()) == (held[:3], [0, 0, 0])
        assert store.commit(name, "thief") == 3
    for queue in (name, f"{name}.dead", f"{name}.other"):
        ids = sorted(one.headers.get("x-dl-id", one.id) for one in found(url, queue))
        assert ids == (sorted(held[3:]) if queue == rest else [])


@pytest.mark.parametrize("outcome", ["commit", "rollback", "dead"])
def test_an_attempt_that_outlives_its_batch_settles_nothing(any_url, name, held, outcome):
    what = outcomes(held, outcome, reason="why")
    late = settling(what, any_url, name)  # planned in the first batch
    with open_store(any_url) as store:
        assert store.rollback(name, BATCH, failed=False) == 8
        revoke(store, name, "etl/1")
        tag = begin_batch(any_url, name, Batch(1, 1))
        assert tag == "etl/1/2.2", "the same consumer has the same messages, in another batch"
        late.task([what])
        assert {one.tag: one.rows for one in store.reservations(name)} == {f"{tag}/0": 8}
        settle(what, any_url, name)
        assert not list(store.reservations(name))


def test_what_is_reserved_ahead_is_not_settled(any_url, name, held):
    ahead = fill(any_url, name, 4)
    with open_store(any_url) as store:
        store.reserve(name, "etl/1/2.1", 4, lease=None)
        settle(outcomes(held + ahead, "commit"), any_url, name)
        assert {one.tag: one.rows for one in store.reservations(name)} == {"etl/1/2.1/0": 4}


def test_settling_outside_a_batch_is_refused(any_url, name):
    ids = fill(any_url, name, 8)
    what = outcomes(ids, "commit")
    nothing = "no query that reads queue .* as consumer 'etl' works on a batch"
    with open_store(any_url) as store:
        store.reserve(name, "etl/1/1.1", 8, lease=None)
        with pytest.raises(OptionError, match=nothing):
            settle(what, any_url, name)
        owner = Ownership(store, name, "etl/1")
        owner.take()
        with pytest.raises(OptionError, match=nothing):  # reserved, not started
            settle(what, any_url, name)
        owner.start(Batch(1, owner.number))
        with pytest.raises(OptionError, match="consumer 'elt' works on a batch; did you mean 'etl'"):
            settle(what, any_url, name, consumer="elt")
        settle(what.slice(0, 1), any_url, name)
        revoke(store, name, "etl/1")
        with pytest.raises(OptionError, match=nothing):  # released
            settle(what, any_url, name)
        assert {one.tag: one.rows for one in store.reservations(name)} == {"etl/1/1.1/0": 7}


def test_a_consumer_settles_only_what_it_holds(any_url, name, held):
    with open_store(any_url) as store:
        settle(outcomes(["stranger"], "commit"), any_url, name)
        assert {one.tag: one.rows for one in store.reservations(name)} == {f"{BATCH}/0": 8}
        settle(outcomes(held[:2], "commit"), any_url, name)
        assert {one.tag: one.rows for one in store.reservations(name)} == {f"{BATCH}/0": 6}


def test_a_message_that_is_given_back_too_often_dies_with_its_reason(any_url, name):
    fill(any_url, name, 2)
    runs = []

    def work(batch):
        rows = batch.rows
        runs.append([row["tries"] for row in rows])
        bad = [row["id"] for row in rows if '"n":0' in row["payload"]]
        settle(outcomes(bad, "rollback", reason=f"failure {len(runs)}"), any_url, name, maxTries="3")

    query = Query(work, url=any_url, queue=name, consumer="etl")
    for _ in range(6):  # what is given back is for the next run
        query.run()
    assert runs == [[0, 0], [1], [2]]
    (dead,) = found(any_url, f"{name}.dead")
    assert (dead.payload, dead.headers["x-error"], dead.headers["x-dl-tries"]) == ({"n": 0}, "failure 3", "3")
    assert sizes(any_url, name).total == 0


def test_messages_move_on_with_what_is_new_of_them(forwarding_url, name):
    held, other = hold(forwarding_url, name), f"{name}.other"
    headers = pa.array([[("h", "1")], None, None, None], pa.map_(pa.string(), pa.string()))
    what = outcomes(
        held[:4], "move", to=[other, other, f"{other}2", other], payload=['{"new":1}', None, None, "no json"]
    ).append_column("headers", headers)
    with pytest.raises(MessageError, match="its payload is not JSON"):
        settle(what, forwarding_url, name)
    settle(what, forwarding_url, name, onBadRow="deadLetter")
    assert {one.id: (one.payload, one.headers) for one in found(forwarding_url, other)} == {
        held[0]: ({"new": 1}, {"h": "1"}),
        held[1]: ({"n": 1}, {}),
    }
    assert [(one.id, one.payload) for one in found(forwarding_url, f"{other}2")] == [(held[2], {"n": 2})]
    (dead,) = found(forwarding_url, f"{name}.dead")
    assert dead.payload == {"n": 3}
    assert dead.headers["x-error"].startswith("its payload is not JSON")
    assert sizes(forwarding_url, name).reserved == 4


def test_a_target_that_is_null_or_no_text_is_one_bad_row(forwarding_url, name):
    held, other = hold(forwarding_url, name), f"{name}.other"
    to = pa.array([other.encode(), None, b"caf\xe9"], pa.binary()).view(pa.string())
    what = outcomes(held[:3], "move").append_column("to", to)
    with pytest.raises(MessageError, match=r"its to is NULL: .*the column 'to'.* \(and 1 more row\)"):
        settle(what, forwarding_url, name)
    settle(what, forwarding_url, name, onBadRow="deadLetter")
    assert [one.id for one in found(forwarding_url, other)] == [held[0]]
    letters = {one.id: one.headers["x-error"] for one in found(forwarding_url, f"{name}.dead")}
    assert sorted(letters) == held[1:3] and all(one.startswith("its to is ") for one in letters.values())
    assert sizes(forwarding_url, name).reserved == 5


def test_every_way_out_is_history(any_url, name):
    fill(any_url, name, 4)

    def work(batch):
        ids = [row["id"] for row in batch.rows]
        what = outcomes(ids[:3], ["commit", "rollback", "dead"], reason="why")
        settle(what, any_url, name, maxTries="1", history="1h")

    Query(work, url=any_url, queue=name, consumer="etl", history="1h", numPartitions="1").run()
    with open_store(any_url) as store:
        past = [row for batch in store.peek(name, view="history") for row in batch.to_pylist()]
    past.sort(key=lambda row: row["id"])
    assert [(row["payload"], row["outcome"], row["tries"]) for row in past] == [
        (b'{"n":0}', "commit", 0), (b'{"n":1}', "dead", 1), (b'{"n":2}', "dead", 1), (b'{"n":3}', "commit", 0),
    ]  # fmt: skip
    assert {row["consumer"] for row in past} == {"etl"}
    assert sorted(one["n"] for one in payloads(any_url, f"{name}.dead")) == [1, 2]


def test_settle_refuses_what_it_does_not_know(any_url, name, held):
    for what, options, error, message in (
        (outcomes(held, "done"), {}, MessageError, "outcome 'done' must be one of"),
        (outcomes(held, "rollback", delay=-1), {}, MessageError, "delay is negative"),
        (outcomes(held, "commit").select(["id"]), {}, SchemaError, "column 'outcome' is missing"),
        (outcomes(held, "commit", dealy=1), {}, SchemaError, "did you mean 'delay'"),
        (outcomes(held, "move"), {}, MessageError, "needs the column 'to'"),
        (outcomes(held, "commit"), {"consumer": ""}, OptionError, "consumer"),
    ):
        with pytest.raises(error, match=message):
            settle(what, any_url, name, **options)
    with pytest.raises(OptionError, match="option 'consumer' is missing"):
        Write(outcomes(held, "commit").schema, url=any_url, queue=name, operation="settle")
    assert sizes(any_url, name).reserved == 8


@pytest.mark.parametrize(
    ("stream", "settles", "kept"), [("1h", {}, True), ("1h", {"history": "0s"}, False), ("0s", {}, False)]
)
def test_settle_keeps_a_history_as_its_stream_does_unless_it_says_otherwise(any_url, name, stream, settles, kept):
    fill(any_url, name, 3)
    seen = []

    def work(batch):
        seen.append({row["id"] for row in batch.rows})
        ways = ["commit", "dead", "rollback"]
        settle(outcomes(sorted(seen[-1]), ways), any_url, name, consumer="rechecks", maxTries="1", **settles)

    Query(work, url=any_url, queue=name, consumer="rechecks", history=stream, numPartitions="1").run()
    with open_store(any_url) as store:
        told = {row["id"] for batch in store.peek(name, view="history") for row in batch.to_pylist()}
    assert told == (seen[0] if kept else set())


def test_settle_follows_its_stream_when_that_keeps_a_history_no_more(any_url, name):
    for history in ("1h", "0s"):
        fill(any_url, name, 1)
        work = lambda batch: settle(outcomes([row["id"] for row in batch.rows], "commit"), any_url, name)  # noqa: E731
        Query(work, url=any_url, queue=name, consumer="etl", history=history).run()
    with open_store(any_url) as store:
        assert sum(batch.num_rows for batch in store.peek(name, view="history")) == 1
        store.drop(name)
        assert not store.notes(f"queue/{name}/"), "the note goes with the queue"
