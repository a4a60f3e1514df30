"""Operations of operators: reservations, dead letters and logs."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from spark_queue import (
    FencedError,
    OptionError,
    Queue,
    StoreError,
    UsageError,
    dead_letters,
    forget_ledger,
    ledgers,
    logs,
    open_store,
    recover,
    redrive,
    release,
    reservations,
    set_ledger,
    trim,
)
from spark_queue.admin import doctor, suggest
from spark_queue.admin import sizes as admin_sizes
from spark_queue.admin.consume import commit, harvest, rollback
from spark_queue.admin.queues import purge
from spark_queue.messages.message import messages, pushes
from spark_queue.stores.conformance.limits import limits_of
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.owner import OWNER_NOTE
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.types import queue_note_key

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def living(url, name):
    """Return a function that makes this process the owner of a consumer."""
    limits = limits_of(url, owner_timeout_ms=600_000)  # a busy machine may be slow
    with open_store(url, limits=limits) as store:

        def take(consumer):
            ownership = Ownership(store, name, consumer)
            ownership.take()
            return ownership

        yield take


def push_to(store, queue, n, **how):
    store.push(queue, pushes(list(range(n)), **how))


def messages_in(store, queue):
    return [one for batch in store.peek(queue) for one in messages(batch)]


def rows_by_tag(store, queue):
    return {one.tag: one.rows for one in store.reservations(queue)}


# --- reservations ---------------------------------------------------------------------------------


def test_reservations_have_their_owner_and_the_end_of_their_lease(url, store, name, living):
    push_to(store, name, 30)
    store.reserve(name, "etl/3fa9c1/7", 10, lease=None)
    store.reserve(name, "py/ab12/1", 5, lease=600_000)
    store.reserve(name, "old/0b51d2/3", 4, lease=None)
    store.transfer(name, "old/0b51d2/3", "old/0b51d2/parked/000000000003-000", lease=None)
    living("etl/3fa9c1")
    etl, old, py = reservations(url, name)
    assert (etl.queue, etl.tag, etl.rows, etl.until, etl.consumer, etl.parked) == (
        name, "etl/3fa9c1/7/0", 10, None, "etl/3fa9c1", False,
    )  # fmt: skip
    assert etl.owner and etl.owner.startswith("process ") and old.owner is None and py.owner is None
    assert (old.consumer, old.parked, old.rows) == ("old/0b51d2", True, 4)
    assert (py.consumer, py.parked) == ("py/ab12", False)
    assert py.until and timedelta(0) < py.until - datetime.fromtimestamp(store.now() / 1000, UTC) <= timedelta(
        seconds=600
    )
    assert reservations(url, name, "py") == [py]
    assert [one for one in reservations(url) if one.queue == name] == [etl, old, py]
    assert reservations(url, f"{name}.other") == []


def test_the_owner_that_died_is_none(url, store, name):
    push_to(store, name, 1)
    store.reserve(name, "etl/3fa9c1/1", 1, lease=None)
    code = (
        "import sys; from spark_queue import open_store\n"
        "from spark_queue.stores.services.ownership import Ownership\n"
        "Ownership(open_store(sys.argv[1]), sys.argv[2], 'etl/3fa9c1').take()"
    )
    subprocess.run([sys.executable, "-c", code, url, name], check=True)
    assert [one.owner for one in reservations(url, name)] == [None]
    assert release(url, name, "etl") == 1


@pytest.mark.parametrize(
    ("tag", "given"),
    [("etl/a/1/0", 10), ("etl/a/1", 20), ("etl/a", 23), ("etl", 26), ("et", 0), ("etl/a/1/0/0", 0), ("etl/a/2", 0)],
)
def test_a_release_gives_back_a_tag_and_those_below_it(url, store, name, tag, given):
    push_to(store, name, 100)
    for holder, rows in {"etl/a/1/0": 10, "etl/a/1/1": 10, "etl/a/10/0": 3, "etl/b/1/0": 3, "etl2/a/1/0": 5}.items():
        store.reserve(name, "taker", rows)
        store.transfer(name, "taker", holder, lease=None)
    assert release(url, name, tag) == given
    assert sum(rows_by_tag(store, name).values()) == 31 - given
    assert release(url, name, tag) == 0, "it may be repeated"


def test_what_is_released_is_ready_with_the_same_tries_unless_asked_otherwise(url, store, name):
    push_to(store, name, 3)
    for n in range(3):
        store.reserve(name, f"c/a/{n}", 1, lease=None)
    assert release(url, name, "c/a/0") == 1
    assert store.sizes(name).ready == 1
    assert release(url, name, "c/a/1", failed=True, delay=600) == 1
    assert (store.sizes(name).ready, store.sizes(name).scheduled) == (1, 1)
    assert sorted(one.tries for one in messages_in(store, name)) == [0, 0, 1]


@pytest.mark.parametrize("tag", ["etl", "etl/a", "etl/a/1", "etl/a/1/0"])
def test_what_a_living_process_runs_is_released_only_with_force(url, store, name, living, tag):
    push_to(store, name, 4)
    store.reserve(name, "etl/a/1", 2, lease=None)
    store.reserve(name, "etl/b/1", 2, lease=None)
    mine = living("etl/a")
    with pytest.raises(UsageError, match=r"etl/a of queue .* is run by process \d+ on .*--force"):
        release(url, name, tag)
    mine.check()
    assert sum(rows_by_tag(store, name).values()) == 4, "nothing has changed"
    assert release(url, name, "etl/b") == 2, "another run of the consumer is not refused"
    assert release(url, name, tag, force=True) == 2
    with pytest.raises(FencedError, match="released manually"):
        mine.check()


def test_force_leaves_other_runs_alone(url, store, name, living):
    push_to(store, name, 1)
    store.reserve(name, "etl/a/1", 1, lease=None)
    living("etl/a")
    other = living("etl/ab")
    assert release(url, name, "etl/a", force=True) == 1
    other.check()


def test_a_release_of_nothing_differs_from_a_wrong_name(url, store, name):
    push_to(store, name, 1)
    store.reserve(name, "nightly/3fa9c1/1", 1, lease=None)
    with pytest.raises(OptionError, match=f"queue '{name}x' does not exist in .*; did you mean .*'{name}'"):
        release(url, f"{name}x", "nightly")
    assert release(url, name, "nigthly") == 0
    assert suggest(url, name, "nigthly") == "; did you mean 'nightly'?"
    assert "'nightly/3fa9c1'" in suggest(url, name, "nightly/3fa9c")
    assert suggest(url, name, "something else") == ""
    assert suggest(url, name) == ""
    assert f"'{name}'" in suggest(url, f"{name}x")


@pytest.mark.parametrize(
    ("tag", "delay"),
    [("", 0), ("a//b", 0), ("a b", 0), ("a", -1), ("a", float("nan")), ("a", float("inf")), ("a", 1e300)],
)
def test_an_invalid_release(url, store, name, living, tag, delay):
    push_to(store, name, 1)
    store.reserve(name, "a/a/1", 1, lease=None)
    mine = living("a/a")
    with pytest.raises(OptionError):
        release(url, name, tag, delay=delay, force=True)
    mine.check()
    assert rows_by_tag(store, name) == {"a/a/1/0": 1}


def test_a_consumer_noted_by_a_newer_version(store, name, url):
    push_to(store, name, 1)
    store.set_note(queue_note_key(name, OWNER_NOTE, "etl/a"), {"v": 3}, 0)
    try:
        with pytest.raises(StoreError, match="upgrade spark_queue"):
            release(url, name, "etl")
        with pytest.raises(StoreError, match="upgrade spark_queue"):
            reservations(url, name)
    finally:
        store.set_note(queue_note_key(name, OWNER_NOTE, "etl/a"), None, 1)


def bury(store, queue, payload, died=None, error=None, *, dead=None, id=None, **facts):
    """Push a dead letter that died at some moment."""
    facts = {"x-dl-from-queue": queue, "x-error": error, "h": "1"} | facts
    if died is not None:
        facts["x-dl-t"] = died.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = {key: value for key, value in facts.items() if value is not None}
    batch = pushes([payload], headers=headers, ids=[id] if id else None)
    store.push(dead or f"{queue}.dead", batch)
    return batch.column("id")[0].as_py()


# --- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_have_the_facts_of_their_death(url, store, name):
    with Queue(url, name) as queue:
        (id,) = queue.push_many([{"seat": "12F"}], headers={"h": "1"})
        queue.rollback(*queue.reserve())
        queue.dead_letter(*queue.reserve(), reason="no such flight")
    now = datetime.fromtimestamp(store.now() / 1000, UTC)
    (letter,) = dead_letters(url, name)
    assert (letter.id, letter.from_queue, letter.tries, letter.error) == (id, name, 2, "no such flight")
    assert letter.payload == {"seat": "12F"} and letter.headers["h"] == "1"
    assert letter.died and abs(now - letter.died) < timedelta(seconds=60)
    assert dead_letters(url, f"{name}.other") == []


def test_dead_letters_come_oldest_first_with_what_headers_they_have(url, store, name):
    late = bury(store, name, b"\0", LONG_AGO + timedelta(days=1))
    early = bury(store, name, "text", LONG_AGO)
    odd = bury(store, name, [1], **{"x-dl-from-queue": None, "x-dl-t": "yesterday", "x-dl-tries": "many"})
    odder = bury(store, name, 2, **{"x-dl-t": "0001-01-01T00:00:00+23:00", "x-dl-tries": "9" * 5_000})
    letters = dead_letters(url, name)
    assert [one.id for one in letters] == [odd, odder, early, late]
    assert [one.payload for one in letters] == [[1], 2, "text", b"\0"]
    assert (letters.pop(1).tries, letters[1].tries) == (None, None)
    assert (letters[0].from_queue, letters[0].died, letters[0].tries, letters[0].error) == (None,) * 4
    assert letters[1].died == LONG_AGO
    assert [one.id for one in dead_letters(url, name, limit=2)] == [odd, odder]


def test_filters_of_dead_letters(url, store, name):
    day = timedelta(days=1)
    a = bury(store, name, 1, LONG_AGO, "Timeout (30 s)")
    b = bury(store, name, 2, LONG_AGO + day, "no [such] flight")
    c = bury(store, name, 3, LONG_AGO + 2 * day)
    d = bury(store, name, 4, error="timeout")
    ago = datetime.fromtimestamp(store.now() / 1000, UTC) - LONG_AGO

    def found(**filters):
        assert redrive(url, name, dry_run=True, **filters) == ({name: n} if (n := len(ids(**filters))) else {})
        return ids(**filters)

    def ids(**filters):
        return [one.id for one in dead_letters(url, name, **filters)]

    assert found() == [d, a, b, c]
    assert found(ids=[a, c, "nobody"]) == [a, c]
    assert found(ids=a) == [a]
    assert found(ids=[]) == []
    assert found(reason="timeout") == [d, a]
    assert found(reason="[SUCH]") == [b]
    assert found(reason="") == [d, a, b, c]
    assert found(since=LONG_AGO + day) == [b, c]
    assert found(until=LONG_AGO + day) == [a]
    assert found(since=ago - day / 2) == [b, c], "so long ago"
    assert found(reason="timeout", since=LONG_AGO, until=LONG_AGO + day, ids=[a, d]) == [a]
    assert found(limit=1) == [d]
    with pytest.raises(OptionError, match="no time zone"):
        ids(since=datetime(2026, 1, 1))
    with pytest.raises(OptionError, match="before the year 1"):
        ids(since=timedelta(days=900_000_000))
    with pytest.raises(OptionError, match="limit"):
        ids(limit=0)
    with pytest.raises(TypeError, match="unknown filter resaon"):
        ids(resaon="x")


def test_a_shared_queue_of_dead_letters(url, store, name):
    mine = bury(store, name, 1, dead=f"{name}.other")
    others = bury(store, "somebody-else", 2, dead=f"{name}.other")
    assert [one.id for one in dead_letters(url, name, dead=f"{name}.other")] == [mine]
    assert {one.id for one in dead_letters(url, dead=f"{name}.other")} == {mine, others}
    assert redrive(url, name, dead=f"{name}.other") == {name: 1}
    assert [one.id for one in messages_in(store, f"{name}.other")] == [others]
    for call in (dead_letters, redrive):
        with pytest.raises(OptionError, match="QUEUE is missing"):
            call(url)


def test_a_redrive_keeps_everything_but_the_tries(url, store, name):
    with Queue(url, name, max_tries=1) as queue:
        queue.push_many([{"n": 1}, "two", b"3"], headers={"h": "1"}, mature=LONG_AGO)
        before = {one.id: one for one in queue.peek()}
        queue.rollback(*queue.reserve(3))
        assert queue.sizes().dead == 3
    assert redrive(url, name, dry_run=True) == {name: 3}
    assert store.sizes(f"{name}.dead").total == 3
    assert redrive(url, name) == {name: 3}
    assert store.sizes(f"{name}.dead").total == 0
    for one in messages_in(store, name):
        was = before[one.id]
        assert (one.payload, one.mature, one.tries) == (was.payload, was.mature, 0)
        assert one.headers["h"] == "1" and one.headers["x-dl-tries"] == "1" and one.headers["x-dl-from-queue"] == name
    assert store.sizes(name).ready == 3
    assert redrive(url, name) == {}, "it may be repeated"


def test_each_letter_goes_where_it_came_from_or_where_it_is_sent(url, store, name):
    dead = f"{name}.dead"
    for n in range(3):
        bury(store, name, n)
        bury(store, f"{name}.other", n, dead=dead)
    assert redrive(url, name, limit=2, to=name) == {name: 2}
    assert sum(redrive(url, name).values()) == 4
    assert store.sizes(name).total + store.sizes(f"{name}.other").total == 6


def test_a_redrive_to_a_queue_that_does_not_exist_needs_create(url, store, name):
    push_to(store, name, 1)
    bury(store, name, 1)
    with pytest.raises(OptionError, match=f"queue '{name}x' does not exist.*did you mean .*'{name}'.* use --create"):
        redrive(url, name, to=f"{name}x")
    with pytest.raises(OptionError, match=r"does not exist.*To create it, use --create"):
        redrive(url, name, to=f"{name}.other", dry_run=True)
    assert store.sizes(f"{name}.dead").total == 1
    assert redrive(url, name, to=f"{name}.other", create=True) == {f"{name}.other": 1}


def test_an_invalid_redrive_moves_nothing(url, store, name):
    dead = f"{name}.dead"
    push_to(store, name, 1)
    bury(store, name, 1)
    homeless = bury(store, name, 2, **{"x-dl-from-queue": None})
    with pytest.raises(UsageError, match=f"'{homeless}' of queue .* has no header x-dl-from-queue.*--to"):
        redrive(url, name)
    with pytest.raises(UsageError, match="would be moved to its own queue"):
        redrive(url, name, to=dead)
    for wrong in ({"rate": 0}, {"rate": -1}, {"rate": float("nan")}, {"to": "a\0b"}, {"limit": -1}):
        with pytest.raises(OptionError):
            redrive(url, name, **wrong)
    assert store.sizes(dead).total == 2
    assert redrive(url, name, to=name) == {name: 2}


def test_a_reserved_dead_letter_is_passed_over(url, store, name):
    for n in range(3):
        bury(store, name, n)
    store.reserve(f"{name}.dead", "looker/a/1", 1)
    seen = []
    assert redrive(url, name, progress=lambda *numbers: seen.append(numbers)) == {name: 2}
    assert seen == [(2, 3)]
    assert store.sizes(f"{name}.dead").total == 1


def test_a_redrive_that_is_cut_short_is_completed_by_another(url, store, name, monkeypatch):
    letters = sys.modules["spark_queue.admin.dead_letters"]
    monkeypatch.setattr(letters, "LETTERS_STEP", 10)  # the steps of a command, which takes no limits
    headers = [{"x-dl-from-queue": name, "x-dl-t": f"2026-01-01T00:00:{n:02}.000Z"} for n in range(55)]
    batch = pushes(list(range(55)), headers=headers)
    store.push(f"{name}.dead", batch)
    seen = []

    def stop(moved, found):
        seen.append((moved, found))
        if moved == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        redrive(url, name, progress=stop)
    assert seen == [(10, 55), (20, 55), (30, 55)]
    assert sorted(one.payload for one in messages_in(store, name)) == list(range(30)), "the oldest first"
    assert redrive(url, name) == {name: 25}
    assert sorted(one.payload for one in messages_in(store, name)) == list(range(55))


def test_two_redrives_at_once_move_each_letter_once(url, store, name, monkeypatch):
    letters = sys.modules["spark_queue.admin.dead_letters"]
    monkeypatch.setattr(letters, "LETTERS_STEP", 20)  # the steps of a command, which takes no limits
    store.push(f"{name}.dead", pushes(list(range(400)), headers={"x-dl-from-queue": name}))
    moved = []
    threads = [threading.Thread(target=lambda: moved.append(redrive(url, name).get(name, 0))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum(moved) == 400
    assert sorted(one.payload for one in messages_in(store, name)) == list(range(400))
    assert store.sizes(f"{name}.dead").total == 0


@pytest.mark.parametrize(("rate", "steps"), [(100, [100, 200, 250]), (0.5, [1, 2, 3]), (10_000, [250])])
def test_a_redrive_keeps_to_its_rate(sqlite_url, monkeypatch, rate, steps):
    """By a clock that shows a tenth of a second more at each look: so long takes a step."""
    slept, seen = [], []
    ticks = itertools.count(0, 0.1)
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=slept.append)
    monkeypatch.setattr(sys.modules["spark_queue.admin.dead_letters"], "time", clock)
    letters = 250 if rate > 1 else 3
    with open_store(sqlite_url) as store:
        store.push("q.dead", pushes(list(range(letters)), headers={"x-dl-from-queue": "q"}))
    redrive(sqlite_url, "q", rate=rate, progress=lambda moved, _: seen.append(moved))
    assert seen == steps
    assert slept == pytest.approx([max(1, 1 / rate) - 0.1] * (len(steps) - 1))


CALLS = [
    lambda url: reservations(url),
    lambda url: release(url, "q", "c"),
    lambda url: dead_letters(url, "q"),
    lambda url: redrive(url, "q"),
    lambda url: ledgers(url),
    lambda url: recover(url, "s"),
    lambda url: set_ledger(url, "s", 1),
    lambda url: forget_ledger(url, "s"),
]

# --- the URL --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_no_file_is_made_and_no_store_guessed(tmp_path, call):
    path = tmp_path / "typo.db"
    with pytest.raises(OptionError, match=r"no file .*typo\.db"):
        call(f"sqlite:///{path}")
    assert not path.exists()
    with pytest.raises(OptionError, match="did you mean 'sqlite'"):
        call("sqlit:///queues.db")


def test_a_password_is_not_shown(store, name):
    store.now()  # it is connected
    store._url = "redis://me:secret@host/0"
    with pytest.raises(OptionError) as error:
        check_exists(store, name)
    assert "secret" not in str(error.value) and "redis://me:***@host/0" in str(error.value)


@pytest.mark.stores(server=True)
def test_a_wrong_password_is_not_shown(url_of, scheme):
    url = url_of(scheme).replace("://", "://me:secret@")
    for call in CALLS:
        with pytest.raises(StoreError) as error:
            call(url)
        assert "secret" not in str(error.value) and scheme in str(error.value)


# --- logs -----------------------------------------------------------------------------------------


def test_messages_that_a_log_retains_are_shown_apart_and_left_alone(url, store, name):
    store.push(name, pushes([{"n": n} for n in range(6)]))
    Log(store, name).latest()
    store.push(name, pushes([{"n": 6}]))
    store.reserve(name, "etl/3fa9c1/1", 1)
    (kept,) = logs(url, name)
    assert (kept.queue, kept.messages, kept.first, kept.end, kept.segments, kept.strays) == (name, 6, 0, 6, 1, [])
    assert [(one.tag.split("/")[0], one.log) for one in reservations(url, name)] == [("etl", False), ("log", True)]
    (level,) = admin_sizes.sizes(url, [name])
    assert (level.reserved, level.retained, level.total) == (1, 6, 7)
    for act in (
        lambda: release(url, name, "log", force=True),
        lambda: rollback(url, name, "log/0"),
        lambda: commit(url, name, "log"),
        lambda: harvest(url, name),
        lambda: purge(url, name, held=True),
    ):
        with pytest.raises(UsageError, match="is read as a log"):
            act()
    assert release(url, name, "etl") == 1
    assert purge(url, name) and logs(url, name) == [kept], "messages that are not reserved are purged"
    assert (trim(url, name, timedelta(days=1)), trim(url, name, timedelta(0))) == (0, 6)
    assert store.sizes(name).total == 0
    with pytest.raises(UsageError, match="is not read as a log"):
        trim(url, f"{name}.other", timedelta(0))
    assert logs(url, f"{name}.other") == []


def test_strays_of_a_log_are_seen_and_may_be_released(url, store, name):
    store.push(name, pushes([{"n": n} for n in range(6)]))
    Log(store, name).latest()
    store.push(name, pushes([{"n": 6}]))
    store.reserve(name, "log/1/abc", 1, lease=None)
    (kept,) = logs(url, name)
    assert kept.strays == ["log/1/abc/0"]
    (found,) = [one for one in doctor.examine(url) if one.what == "log" and name in one.told]
    assert found.state == "worry" and f"release URL {name} log/1/abc/0" in found.todo
    assert release(url, name, "log/1/abc/0") == 1
    assert logs(url, name)[0].strays == []
    (found,) = [one for one in doctor.examine(url) if one.what == "log" and name in one.told]
    assert found.state == "good" and "6 messages in 1 segment," in found.told
