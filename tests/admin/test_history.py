"""Operations on the past, on every store: show the history, and replay a part of it."""

from __future__ import annotations

import itertools
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from spark_queue import OptionError, Queue, UsageError, history, ledgers, open_store, replay
from spark_queue.messages.buckets import Buckets
from spark_queue.messages.ids import OBJECT_ID, new_ids
from spark_queue.messages.message import messages, pushes
from spark_queue.stores.conformance.waiting import tick
from spark_queue.stores.policy import QueuePolicy
from spark_queue.stores.services.ledger import delete_sink
from spark_queue.stores.services.poison import MAX_FAILED_RUNS, PoisonMessageHandler
from spark_queue.stores.services.replay import Replay, replay_id
from spark_queue.stores.sqlite.store import SCHEMA
from spark_queue.stores.types import DeadLetterInfo

MINUTE = 60_000
DUE = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def past(store, name):
    """Ids of messages: `etl` committed two, one died, and `checks` committed three."""
    batch = pushes([{"n": n} for n in range(6)], headers={"h": "1"}, mature=DUE)
    ids = batch.column("id").to_pylist()
    store.push(name, batch)
    store.reserve(name, "etl/1", 3)
    store.move(name, f"{name}.dead", tag="etl", ids=ids[2:3], dead_letter=DeadLetterInfo("no such flight", 1, MINUTE))
    store.commit(name, "etl", history=MINUTE)
    store.reserve(name, "checks/1", 3)
    store.commit(name, "checks", history=MINUTE)
    yield ids
    for call in ("fix", "again", "slow"):
        delete_sink(store, Replay(name, call, name, None, "").sink)


def messages_in_order(store, queue):
    return sorted(
        (one for batch in store.peek(queue) for one in messages(batch)), key=lambda one: (one.mature, one.id)
    )


# --- looking --------------------------------------------------------------------------------------


def test_the_history_is_listed(url, store, name, past):
    found = history(url, name)
    assert sorted(one.id for one in found) == past
    assert [one.processed for one in found] == sorted(one.processed for one in found)
    reported = {one.id: (one.consumer, one.outcome, one.error, one.tries) for one in found}
    assert reported == {
        **dict.fromkeys(past[:2], ("etl", "commit", None, 0)),
        past[2]: ("etl", "dead", "no such flight", 1),
        **dict.fromkeys(past[3:], ("checks", "commit", None, 0)),
    }
    one = next(one for one in found if one.id == past[0])
    assert (one.payload, one.headers, one.mature) == ({"n": 0}, {"h": "1"}, DUE)
    assert abs(one.processed.timestamp() * 1000 - store.now()) < MINUTE


def test_the_history_is_listed_by_filters(url, store, name, past):
    def ids(**filters):
        return sorted(one.id for one in history(url, name, **filters))

    assert ids(ids=[past[1], past[5], "stranger"]) == [past[1], past[5]]
    assert ids(ids=past[1]) == past[1:2]
    assert ids(consumer="checks") == past[3:]
    assert ids(outcome="dead") == past[2:3]
    assert ids(reason="SUCH flight") == past[2:3]
    assert ids(since=timedelta(minutes=1)) == past
    assert ids(until=timedelta(minutes=1)) == []
    moment = next(one.processed for one in history(url, name) if one.id == past[4])
    assert ids(since=moment, consumer="checks") == past[3:]
    assert ids(until=moment, consumer="checks") == []
    assert ids(until=moment + timedelta(microseconds=1), consumer="checks") == past[3:]
    assert ids(since=moment + timedelta(microseconds=1)) == []
    assert ids(limit=2) == past[4:], "the last ones"
    assert ids(limit=99, outcome="commit") == [*past[:2], *past[3:]]
    tick(store)
    store.push(name, pushes(["late"], ids=["0" * 24], mature=DUE))
    store.reserve(name, "etl/3", 1)
    store.commit(name, "etl/3", history=MINUTE)
    assert ids(limit=1) == ["0" * 24], "the last one by when it was processed"


def test_an_invalid_history_is_refused(url, name):
    for wrong, why in (
        ({"limit": 0}, "limit must be"),
        ({"outcome": "comit"}, "did you mean 'commit'"),
        ({"since": datetime(2026, 1, 1)}, "no time zone"),
    ):
        for call in (lambda **how: history(url, name, **how), lambda **how: replay(url, name, "fix", **how)):
            with pytest.raises(OptionError, match=why):
                call(**wrong)
    with pytest.raises(TypeError, match="unknown filter resaon"):
        history(url, name, resaon="x")  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=f"queue '{name}.none' does not exist"):
        history(url, f"{name}.none")


def test_a_history_knows_outcomes_of_ones_own(url, store, name):
    store.push(name, pushes(["a", "b", "c"], ids=["a", "b", "c"]))
    store.reserve(name, "etl/1", 3)
    for id, outcome in (("a", "finished"), ("b", "comit"), ("c", "http://my/status")):
        store.commit(name, "etl/1", [id], history=MINUTE, outcome=outcome)
        assert [one.id for one in history(url, name, outcome=outcome)] == [id], "even if it is nearly a known one"
    assert history(url, name, outcome="failed") == history(url, name, outcome="pop") == []
    assert history(url, name, outcome="http://your/status") == []
    with pytest.raises(OptionError, match="no messages with outcome 'fialed'; did you mean 'failed'"):
        history(url, name, outcome="fialed")
    with pytest.raises(OptionError, match="cannot be an outcome"):
        history(url, name, outcome="two words")


# --- replays --------------------------------------------------------------------------------------


def test_what_was_processed_is_replayed_as_new_messages(url, store, name, past):
    assert replay(url, name, "fix", dry_run=True) == 5
    assert store.sizes(name).total == 0
    assert replay(url, name, "fix") == 5
    back = messages_in_order(store, name)
    assert [one.payload["n"] for one in back] == [0, 1, 3, 4, 5], "in their old order, without the dead letter"
    for one in back:
        old = past[one.payload["n"]]
        assert one.id == replay_id("fix", old) != old
        assert one.headers == {"h": "1", "x-replay": "fix", "x-replay-of": old}
        assert (one.mature, one.tries) == (DUE, 0)
    assert len(history(url, name)) == 6, "the history stays as it is"
    assert store.staged(Replay(name, "fix", name, None, "").sink) == []


def test_a_replay_is_done_once_whatever_was_consumed_since(url, store, name, past):
    assert replay(url, name, "fix", consumer="checks") == 3
    store.reserve(name, "etl/2", 9)
    assert store.commit(name, "etl/2", history=MINUTE) == 3
    assert replay(url, name, "fix", consumer="checks", dry_run=True) == 0
    assert replay(url, name, "fix", consumer="checks") == 0
    assert store.sizes(name).total == 0
    with pytest.raises(UsageError, match=r"'fix'.* was started with other filters before"):
        replay(url, name, "fix", consumer="etl")
    with pytest.raises(UsageError, match="other filters"):
        replay(url, name, "fix", consumer="checks", to=f"{name}.other", create=True)
    assert replay(url, name, "again", ids=past[:1]) == 1


@pytest.mark.parametrize(("at", "done"), [("stage", 0), ("set_note", 0), ("publish", 0), ("close", 5)])
def test_a_replay_that_is_cut_short_is_completed_by_another(url, store, name, past, monkeypatch, at, done):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    opened = open_store(url)
    with monkeypatch.context() as planted:
        planted.setattr(opened, at, die)
        planted.setattr("spark_queue.admin.common.open_store", lambda url, **how: opened)
        with pytest.raises(Killed):
            replay(url, name, "fix")
    opened.close()
    assert store.sizes(name).total == done
    decided = at in ("publish", "close")
    if decided:  # then what the history says by now does not matter
        store.reserve(name, "c/1", 9)
        store.commit(name, "c/1", history=MINUTE)
    assert replay(url, name, "fix", dry_run=True) == replay(url, name, "fix") == 5 - done
    if not (decided and done):
        assert [one.payload["n"] for one in messages_in_order(store, name)] == [0, 1, 3, 4, 5]
    assert store.staged(Replay(name, "fix", name, None, "").sink) == []


def test_a_replay_of_dead_letters_and_to_another_queue(url, store, name, past):
    other = f"{name}.other"
    with pytest.raises(OptionError, match=r"does not exist .*--create"):
        replay(url, name, "fix", to=other)
    assert replay(url, name, "fix", to=other, create=True, outcome="dead") == 1
    (one,) = messages_in_order(store, other)
    assert one.headers["x-error"] == "no such flight" and one.payload == {"n": 2}
    assert replay(url, name, "again", to=other, limit=2) == 2
    assert {one.payload["n"] for one in messages_in_order(store, other)} == {2, 4, 5}
    with pytest.raises(OptionError, match=f"queue '{name}x' does not exist.*did you mean"):
        replay(url, f"{name}x", "fix")
    assert replay(url, name, "slow", reason="nothing of that kind") == 0
    assert replay(url, name, "slow") == 5, "what found nothing has decided nothing"


@pytest.mark.parametrize("wrong", ["", "a/b", "a b", "x" * 101])
def test_a_replay_has_a_name(url, name, wrong):
    with pytest.raises(OptionError, match="cannot name a replay"):
        replay(url, name, wrong)


def test_a_replay_with_a_rate_matures_bit_by_bit(url, store, name, past):
    for rate in (0, -1, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="rate must be"):
            replay(url, name, "slow", rate=rate)
    before = store.now()
    assert replay(url, name, "slow", rate=0.01) == 5
    moments = sorted(round(one.mature.timestamp() * 1000) for one in messages_in_order(store, name))
    assert before <= moments[0] < before + MINUTE
    assert {later - one for one, later in itertools.pairwise(moments)} == {100_000}
    assert (store.sizes(name).ready, store.sizes(name).scheduled) == (1, 4)


def test_messages_of_buckets_are_replayed(url, store, name):
    batch = pushes([{"n": n} for n in range(10)])
    store.push(name, batch, layout=Buckets(4))
    store.reserve(name, "etl/1", 10)
    assert store.commit(name, "etl/1", history=MINUTE) == 10
    assert {one.consumer for one in history(url, name)} == {"etl"}
    try:
        assert replay(url, name, "fix", ids=batch.column("id").to_pylist()[3:6]) == 3
        assert [one.payload["n"] for one in messages_in_order(store, name)] == [3, 4, 5]
    finally:
        delete_sink(store, Replay(name, "fix", name, None, "").sink)


def test_replayed_ids_keep_the_order_of_those_we_make():
    ids = [*(f"{second:08x}{second * 7:010x}{second:06x}" for second in range(99)), *new_ids(300)]
    made = [replay_id("fix", id) for id in ids]
    assert made == sorted(made) and not set(made) & set(ids)
    assert made != [replay_id("again", id) for id in ids]
    assert all(OBJECT_ID.fullmatch(replay_id("fix", id)) for id in ("mine", "ünï", "x" * 200))


# --- who keeps it ---------------------------------------------------------------------------------


def test_the_client_keeps_a_history_of_what_dies(url, store, name):
    store.push(name, pushes(["tired"], tries=1, mature=DUE))
    with Queue(url, name, consumer="etl", history=60, max_tries=1) as queue:
        queue.push_many(["hopeless", "fails", "waits"])
        one, two, _ = queue.reserve(4)
        queue.dead_letter(one, reason="why")
        queue.rollback(two)
    reported = {(one.payload, one.outcome, one.consumer, one.error, one.tries) for one in history(url, name)}
    unknown = "it was rolled back, or its lease ended; no error is known"
    assert reported == {
        ("tired", "dead", "etl", f"failed 1 time: {unknown}", 1),
        ("hopeless", "dead", "etl", "why", 1),
        ("fails", "dead", "etl", "failed 1 time", 1),
    }


def test_a_message_that_fails_alone_is_history(url, store, name):
    store.push(name, pushes(["alone"]))
    store.reserve(name, "etl/e/1", 1, lease=None)
    isolation = PoisonMessageHandler(store.queue(name, QueuePolicy(lease=None, max_tries=1, history=MINUTE)), "etl/e")
    for _ in range(MAX_FAILED_RUNS + 1):
        isolation.handle_rerun("etl/e/1")
    (one,) = history(url, name)
    assert (one.payload, one.outcome, one.consumer, one.tries) == ("alone", "dead", "etl", 1)
    assert one.error and store.sizes(f"{name}.dead").total == 1


# --- files of an older version --------------------------------------------------------------------


def test_a_history_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        for step in SCHEMA[:3]:
            for statement in step.split(";"):
                db.execute(statement)
        db.execute("PRAGMA user_version = 3")
        db.execute("INSERT INTO queue VALUES (1, 'q')")
        db.execute("INSERT INTO history VALUES (1, 'a', 0, 2, 'json', NULL, '{}', 5000, 99999999999999)")
    db.close()
    (one,) = history(f"sqlite:///{path}", "q")
    assert (one.id, one.consumer, one.outcome, one.processed.timestamp()) == ("a", None, "commit", 5)


def test_what_has_expired_leaves_the_file_without_another_commit(sqlite_url):
    with open_store(sqlite_url) as store:
        for queue in ("q", "other"):
            store.push(queue, pushes([1, 2]))
            store.reserve(queue, "c/1", 2)
            store.commit(queue, "c/1", history=MINUTE)
        path = store.url.removeprefix("sqlite:///")
        with sqlite3.connect(path, timeout=10) as db:
            first = "SELECT min(id) FROM history GROUP BY queue"
            db.execute(f"UPDATE history SET until = until - ? WHERE id IN ({first})", (MINUTE,))
        db.close()
        store.ready("q", 1)
        with sqlite3.connect(path, timeout=10) as db:
            assert db.execute("SELECT queue, count(*) FROM history GROUP BY queue").fetchall() == [(1, 1), (2, 1)]
        db.close()


def test_a_ledger_of_a_replay_is_one_of_a_sink(sqlite_url):
    with open_store(sqlite_url) as store:
        store.push("q", pushes([1]))
        store.reserve("q", "c/1", 1)
        store.commit("q", "c/1", history=MINUTE)
        assert replay(sqlite_url, "q", "fix") == 1
        (sink,) = ledgers(sqlite_url)
        assert (sink.sink, sink.batch, sink.unpublished) == (Replay("q", "fix", "q", None, "").sink, 0, 0)
