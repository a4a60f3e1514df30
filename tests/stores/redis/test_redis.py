"""The Redis store: the layout it shares with keuss, its scripts and their steps, its server."""

from __future__ import annotations

import itertools
import json
import re
import threading
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import redis
from redis.connection import AbstractConnection
from redis.crc import key_slot

from spark_queue.errors import AccessDenied, MessageError, OptionError, StoreError, StoreUnavailable
from spark_queue.messages.buckets import ClaimLimit
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.schema import PUSHES
from spark_queue.options.masking import mask
from spark_queue.stores import open_store
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.redis import documents as redis_documents
from spark_queue.stores.redis import store as redis_store
from spark_queue.stores.redis.keys import Chunk, ids_of, note_key, queue_keys, registry_key
from spark_queue.stores.redis.store import RedisStore
from spark_queue.stores.types import Condition, DeadLetterInfo, Note, Sizes, Staged

MINUTE = 60_000
KEUSS_LEASE = 120_000  # ms: keuss adds it to the score of what it reserves


@pytest.fixture
def store(redis_url):
    with open_store(redis_url) as opened:
        yield opened


@pytest.fixture
def peer(redis_url):
    with open_store(redis_url) as opened:
        yield opened


@pytest.fixture
def small_steps(monkeypatch):
    """A call of a script takes three messages, so that a few messages need many calls."""
    monkeypatch.setattr(redis_store, "SCRIPT_CHUNK", 3)
    monkeypatch.setattr(redis_store, "SCRIPTS", redis_store.load_scripts(chunk=3, run=2, page=300))


def put(raw, queue, id, document, score=1_700_000_000_000):
    """What the push of keuss does."""
    keys = queue_keys(queue)
    raw.hset(keys.hash, id, document)
    raw.zadd(keys.moments, {id: score})


def documents(raw, queue):
    return {id.decode(): text for id, text in raw.hgetall(queue_keys(queue).hash).items()}


def keuss_reserves(raw, queue, id):
    """What the reserve of keuss does, damage to the payload included."""
    keys = queue_keys(queue)
    raw.eval(
        """
        redis.call('ZINCRBY', KEYS[1], ARGV[2], ARGV[1])
        local message = cjson.decode(redis.call('HGET', KEYS[2], ARGV[1]))
        message.reserved = true
        redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(message))
        """,
        2, keys.moments, keys.hash, id, KEUSS_LEASE,
    )  # fmt: skip


def keuss_commits(raw, queue, id):
    """What the commit of keuss does; gives whether it removed the message."""
    keys = queue_keys(queue)
    return raw.eval(
        """
        local message = redis.call('HGET', KEYS[2], ARGV[1])
        if not (message and cjson.decode(message).reserved) then
          return 0
        end
        redis.call('HDEL', KEYS[2], ARGV[1])
        return redis.call('ZREM', KEYS[1], ARGV[1])
        """,
        2, keys.moments, keys.hash, id,
    )  # fmt: skip


def fetched(store, queue, tag):
    return [one for batch in store.fetch(queue, tag) for one in messages(batch)]


def scores(raw, queue):
    """The different moments of the index."""
    return {score for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True)}


def consumed(store, queue):
    """Takes and commits all that is ready; gives the payloads."""
    tag, found = f"end/{uuid.uuid4().hex[:8]}", []
    if store.reserve(queue, tag, 10_000):
        found = [one.payload for one in fetched(store, queue, f"{tag}/0")]
        assert store.commit(queue, tag) == len(found)
    return found


def cuts(monkeypatch, redis_url):
    """Stores to call one operation with: each is cut off at one command, or before its answer.

    It goes on until an operation has as few commands as not to be cut any more.
    """
    execute = redis.Redis.execute_command
    for at in itertools.count():
        for sent in (False, True):
            with open_store(redis_url, retry_timeout=0) as store, monkeypatch.context() as patch:
                turns = itertools.count()

                def cut(self, *words, turns=turns, sent=sent, at=at, **options):
                    turn = next(turns)
                    if turn != at:
                        return execute(self, *words, **options)
                    if sent:
                        execute(self, *words, **options)
                    raise redis.ConnectionError("cut")

                def once(operation, *arguments, patch=patch, cut=cut):
                    patch.setattr(redis.Redis, "execute_command", cut)
                    try:
                        return operation(*arguments)
                    except StoreUnavailable:
                        return None
                    finally:
                        patch.undo()

                yield store, once
                if next(turns) <= at:
                    assert at > 3, "nothing was cut"
                    return


# --- the layout of keuss --------------------------------------------------------------------------


def test_a_push_writes_what_keuss_would_write_and_when_it_was(store, raw, queue):
    moment = 1_700_000_000_123
    due = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_000)
    store.push(
        queue,
        pa.RecordBatch.from_pylist(
            [
                {"id": id, "payload": payload, "payload_kind": kind, "headers": headers, "tries": 2, "mature": due}
                for id, payload, kind, headers in [
                    ("j", b'{"n":12345678901234567890,"f":1.0, "l":[]}', "json", None),
                    ("t", 'a "text" ü\n'.encode(), "text", [("h", 'v"'), ("ü", "")]),
                    ("b", b"\x00\xff", "binary", []),
                    ('q"', b"null", "json", []),
                ]
            ],
            schema=PUSHES,
        ),
    )  # fmt: skip
    found = documents(raw, queue)
    pushed = b"%d" % json.loads(found["j"])["pushed"]
    tail = b',"tries":2,"hdrs":{},"mature":1700000000123,"pushed":' + pushed
    assert found == {
        "j": b'{"_id":"j","payload":{"n":12345678901234567890,"f":1.0, "l":[]}' + tail + b"}",
        "t": '{"_id":"t","payload":"a \\"text\\" ü\\n"'.encode()
        + ',"tries":2,"hdrs":{"h":"v\\"","ü":""},"mature":1700000000123,"pushed":'.encode()
        + pushed
        + b"}",
        "b": b'{"_id":"b","payload":"AP8="' + tail + b',"type":"buffer"}',
        'q"': b'{"_id":"q\\"","payload":null' + tail + b"}",
    }
    scores = dict(raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True))
    assert {id: int(score) for id, score in scores.items()} == dict.fromkeys([b"j", b"t", b"b", b'q"'], moment)


@pytest.mark.parametrize(
    "text",
    [
        b'{"z":1,"a":123456789012345678901234567890,"f":1.50e3}', b"1E100", b' [ 1 , 2 ] ', b'{"a":1,"a":2}', b"[]",
        b'{"d":",\\"tries\\":7,\\"hdrs\\":{","tries":5,"hdrs":{"x":1},"mature":1}', b'{"reserved":true}',
    ],
)  # fmt: skip
def test_not_a_byte_of_a_json_payload_changes(store, queue, text):
    row = {"id": "a", "payload": text, "payload_kind": "json", "tries": 0}
    store.push(queue, pa.RecordBatch.from_pylist([row], schema=PUSHES))
    for seq in range(3):
        store.reserve(queue, f"c/{seq}", 1)
        (batch,) = store.fetch(queue, f"c/{seq}/0")
        assert batch.column("payload").to_pylist() == [text]
        assert batch.column("tries").to_pylist() == [seq]
        store.rollback(queue, f"c/{seq}")


def test_what_keuss_has_pushed_is_read(store, raw, queue):
    end = ',"mature":1700000000000'
    for id, fields in {
        "number": f'"payload":17.5,"tries":0,"hdrs":{{}}{end}',
        "none": f'"payload":null,"tries":0,"hdrs":{{}}{end}',
        "string": f'"payload":"ü","tries":3,"hdrs":{{"i":1,"b":true,"f":1.5,"s":"x","tries":"9"}}{end}',
        "buffer": f'"payload":"AP8=","tries":0,"hdrs":{{}}{end},"type":"buffer"',
        "absent": f'"tries":0,"hdrs":{{}}{end}',
        "half": f'"payload":"\\ud83d","tries":0,"hdrs":{{}}{end}',
    }.items():
        put(raw, queue, id, f'{{"_id":"{id}",{fields}}}')
    store.reserve(queue, "c/1", 9)
    got = {one.id: one for one in fetched(store, queue, "c/1/0")}
    assert {id: one.payload for id, one in got.items()} == {
        "number": 17.5, "none": None, "string": "ü", "buffer": b"\x00\xff", "absent": None, "half": "?",
    }  # fmt: skip
    assert got["string"].headers == {"i": "1", "b": "true", "f": "1.5", "s": "x", "tries": "9"}
    assert (got["string"].tries, got["none"].headers) == (3, {})
    assert got["none"].mature.timestamp() == 1_700_000_000


NASTY = '{"s":"}],{[\\"\\\\","tries":5,"hdrs":{"x":1},"mature":9,"reserved":true,"n":12345678901234567890,"l":[]}'
FIELDS = {"_id": None, "payload": NASTY, "tries": "4", "hdrs": '{"h":"}{\\""}', "mature": "1700000000000"}


@pytest.mark.parametrize("more", [{}, {"reserved": "true"}, {"reserved": "false", "other": '"x"'}])
@pytest.mark.parametrize("comma", [",", " ,\n "])
def test_a_document_is_read_and_given_back_whatever_the_order_of_its_fields(store, raw, queue, more, comma):
    fields = FIELDS | more
    orders = {
        f"m{i:04}": order for i, order in enumerate(itertools.permutations(fields)) if len(fields) == 5 or i % 7 == 0
    }
    for id, order in orders.items():
        put(raw, queue, id, "{" + comma.join(f'"{name}":{fields[name] or json.dumps(id)}' for name in order) + "}")
    assert store.reserve(queue, "c/1", 9999) == [len(orders)]
    for batch in store.fetch(queue, "c/1/0"):
        assert set(batch.column("payload").to_pylist()) == {NASTY.encode()}
        assert {(one.tries, one.headers["h"]) for one in messages(batch)} == {(4, '}{"')}
    assert store.rollback(queue, "c/1") == len(orders)
    moments = dict(raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True))
    for id, text in documents(raw, queue).items():
        assert f'"payload":{NASTY}'.encode() in text
        document = json.loads(text)
        assert list(document) == list(orders[id])
        assert (document["_id"], document["tries"], document["hdrs"]) == (id, 5, {"h": '}{"'})
        assert document["mature"] == moments[id.encode()] > 1_700_000_000_000
        assert document.get("reserved", False) is False


def test_a_document_that_redis_cannot_take_is_refused_with_all_its_batch(store, queue, monkeypatch):
    monkeypatch.setattr(redis_documents, "LARGEST_DOCUMENT", 1000)
    with pytest.raises(MessageError, match=r"'long'.*1,000") as caught:
        store.push(queue, pushes(["short", "\n" * 600], ids=["short", "long"]))
    assert list(caught.value.rows) == [1]
    assert store.sizes(queue).total == 0


# --- sharing a queue with keuss -------------------------------------------------------------------


def test_what_is_held_looks_to_keuss_as_if_it_were_not_due(store, raw, queue):
    store.push(queue, pushes(["a", "b"]))
    store.reserve(queue, "c/1", 1, lease=MINUTE)
    store.reserve(queue, "d/1", 1, lease=None)
    now = store.now()
    for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True):
        assert score > now
        assert f"{score:.0f}" > f"{now}"  # keuss compares the texts


def test_what_keuss_takes_after_the_lease_is_no_longer_held(store, raw, queue):
    store.push(queue, pushes([1, 2, 3], ids=["a", "b", "c"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    assert [one.id for one in fetched(store, queue, "c/1/0")] == ["b", "c"]
    assert [one.rows for one in store.reservations(queue)] == [2]
    assert store.renew(queue, "c/1", MINUTE) == 2
    assert store.rollback(queue, "c/1", ["a"]) == 0
    assert store.move(queue, f"{queue}.other", tag="c/1", ids=["a"]) == 0
    assert store.commit(queue, "c/1") == 2
    assert store.sizes(queue) == Sizes(0, 1, 0)
    assert keuss_commits(raw, queue, "a")


def test_a_tag_of_which_keuss_took_everything_can_reserve_again(store, raw, queue):
    store.push(queue, pushes([1], ids=["a"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    store.push(queue, pushes([2], ids=["b"]))
    assert store.reserve(queue, "c/1", 3) == [1]
    assert [one.id for one in fetched(store, queue, "c/1/0")] == ["b"]


def test_a_late_commit_of_keuss_does_not_remove_what_is_ours(store, raw, queue):
    put(
        raw,
        queue,
        "a",
        '{"_id":"a","payload":{"n":[1]},"tries":0,"hdrs":{},"mature":1600000000000}',
        1_600_000_000_000,
    )
    keuss_reserves(raw, queue, "a")  # and its lease, counted from the old maturity, is over at once
    assert store.reserve(queue, "c/1", 1) == [1]
    assert [one.payload for one in fetched(store, queue, "c/1/0")] == [{"n": [1]}]
    assert not keuss_commits(raw, queue, "a")
    assert store.commit(queue, "c/1") == 1


def test_what_keuss_holds_is_neither_purged_nor_moved(store, raw, queue):
    store.push(queue, pushes([1, 2], ids=["a", "b"]))
    keuss_reserves(raw, queue, "a")
    store.push(queue, pushes([{"reserved": True}], ids=["c"], delay=MINUTE))
    assert store.reserve(queue, "c/1", 9) == [1]
    store.rollback(queue, "c/1")
    assert store.move(queue, f"{queue}.other", limit=1) == 1
    assert store.purge(queue) == 1
    assert list(documents(raw, queue)) == ["a"]
    assert keuss_commits(raw, queue, "a")


# --- scripts that are called in steps -------------------------------------------------------------


def test_a_claim_that_was_cut_short_is_resumed(store, queue, small_steps):
    store.push(queue, pushes(list(range(10))))
    assert store._run("claim", queue, "c/1/0", 8, 8, MINUTE, redis_store.NO_END, 0) == [3, b"more"]
    assert store.reserve(queue, "c/1", 8) == [3]
    assert store.reserve(queue, "c/2", 8) == [7]


OVER = -1_000  #: ms: a lease that ended a second ago


def begin_to_renew(store, queue, tag, lease):
    """The first step of a renewal that then is cut short."""
    rows, cursor, _, _ = store._run("renew", queue, tag, lease, "", "", "")
    assert (rows, bool(cursor)) == (3, True)


@pytest.mark.parametrize("lease", [MINUTE // 2, 2 * MINUTE])
def test_a_tag_holds_everything_in_the_middle_of_a_renewal(store, peer, queue, small_steps, lease):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    begin_to_renew(store, queue, "c/1/0", lease)
    assert len(fetched(peer, queue, "c/1/0")) == 10
    assert [one.rows for one in peer.reservations(queue)] == [10]
    assert len([one for batch in peer.peek(queue, limit=99) for one in messages(batch)]) == 10
    assert peer.commit(queue, "c/1", [fetched(peer, queue, "c/1/0")[i].id for i in (0, 9)]) == 2
    assert peer.rollback(queue, "c/1") == 8
    assert peer.sizes(queue) == Sizes(8, 0, 0, peer.sizes(queue).oldest_ready_age)


def test_a_renewal_that_was_cut_short_is_ended_by_the_next(store, raw, queue, small_steps):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    begin_to_renew(store, queue, "c/1/0", 2 * MINUTE)
    assert store.renew(queue, "c/1", 3 * MINUTE) == 10
    (held,) = store.reservations(queue)
    assert 2 * MINUTE < held.until - store.now() <= 3 * MINUTE
    assert {score for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True)} == {held.until}
    assert raw.zcard(queue_keys(queue).leases) == 1


@pytest.mark.parametrize(("first", "second"), [(OVER, MINUTE), (MINUTE, OVER)])
def test_each_end_of_a_renewal_that_was_cut_short_comes_in_its_time(store, queue, small_steps, first, second):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    store._renew(queue, "c/1", first)
    begin_to_renew(store, queue, "c/1/0", second)
    over = 7 if first == OVER else 3
    assert store.reserve(queue, "d/1", 99) == [over]
    assert {one.tries for one in fetched(store, queue, "d/1/0")} == {1}
    assert store.commit(queue, "c/1") == 10 - over


def test_two_renewals_at_once_leave_one_end(store, peer, raw, queue, small_steps):
    store.push(queue, pushes(list(range(50))))
    store.reserve(queue, "c/1", 50, lease=MINUTE)
    other = threading.Thread(target=lambda: [peer.renew(queue, "c/1", 3 * MINUTE) for _ in range(5)])
    other.start()
    assert [store.renew(queue, "c/1", 2 * MINUTE) for _ in range(5)] == [50] * 5
    other.join()
    assert len({score for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True)}) == 1
    assert store.commit(queue, "c/1") == 50
    assert not raw.exists(*queue_keys(queue))


def test_steps_end_also_where_nothing_meets_the_condition(store, queue, small_steps):
    store.push(queue, pushes(["x" * 200] * 10, tries=1))
    store.push(queue, pushes(["y" * 200], tries=2))
    assert store.move(queue, f"{queue}.other", min_tries=3) == 0
    assert store.move(queue, f"{queue}.other", min_tries=2, limit=5) == 1


@pytest.mark.parametrize("steps", ["large", "small"])
def test_what_has_failed_too_often_is_told_from_payloads_that_look_like_it(store, raw, queue, request, steps):
    if steps == "small":
        request.getfixturevalue("small_steps")
    looks = [{"tries": 9}, {"tries": 0, "hdrs": {}}, '"tries":7', {"a": {"tries": 5}}, {"n": 1}]
    for tries in (0, 1, 3):
        store.push(queue, pushes(looks * 4, tries=tries))
    assert sum(store.reserve(queue, "c/1", 60, partitions=2, min_partitions=2)) == 60
    held = raw.zrange(queue_keys(queue).held, 0, -1)
    assert store.move(queue, f"{queue}.other", tag="c/1", min_tries=4) == 0
    assert raw.zrange(queue_keys(queue).held, 0, -1) == held  # nothing was taken apart for that
    assert store.move(queue, f"{queue}.other", tag="c/1", min_tries=3) == 20
    assert sorted(one.tries for batch in store.peek(queue) for one in messages(batch)) == [0] * 20 + [1] * 20
    assert store.commit(queue, "c/1") == 40


# --- runs -----------------------------------------------------------------------------------------

MOMENT = datetime(2023, 1, 1, tzinfo=UTC)


def runs(raw, queue):
    """The ids that each run names."""
    return [[id.decode() for id in ids_of(run)] for run in raw.zrange(queue_keys(queue).held, 0, -1)]


def push_ids(store, queue, ids, mature=MOMENT):
    store.push(queue, pushes(list(ids), ids=list(ids), mature=mature))


def test_what_is_due_at_one_moment_is_held_in_runs(store, raw, queue):
    push_ids(store, queue, [f"{i:04}" for i in range(600)])
    push_ids(store, queue, ["late"], MOMENT + timedelta(seconds=1))
    store.reserve(queue, "c/1", 1_000)
    assert [len(ids) for ids in runs(raw, queue)] == [250, 250, 100, 1]
    assert [one.id for one in fetched(store, queue, "c/1/0")] == [f"{i:04}" for i in range(600)] + ["late"]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7])
def test_pages_of_any_size_give_each_message_once_and_in_order(store, queue, small_steps, rows):
    push_ids(store, queue, "abcdefg")
    push_ids(store, queue, "ABC", MOMENT + timedelta(seconds=1))
    store.reserve(queue, "c/1", 100)
    pages = [page.column("id").to_pylist() for page in store.fetch(queue, "c/1/0", rows)]
    assert "".join(itertools.chain(*pages)) == "abcdefgABC"
    assert max(map(len, pages)) <= rows


def test_a_page_goes_on_behind_a_message_that_is_gone(store, peer, raw, queue, small_steps):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100)
    pages = store.fetch(queue, "c/1/0", 3)
    assert next(pages).column("id").to_pylist() == ["a", "b", "c"]
    assert peer.commit(queue, "c/1", ["c", "e"]) == 2
    assert [page.column("id").to_pylist() for page in pages] == [["d", "f", "g"]]


@pytest.mark.parametrize("one", "abcdefg")
def test_one_message_of_a_run_is_settled_alone(store, raw, queue, one):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100, lease=MINUTE)
    rest = "abcdefg".replace(one, "")
    assert store.commit(queue, "c/1", [one]) == 1
    assert store.commit(queue, "c/1", [one]) == 0
    assert "".join(message.id for message in fetched(store, queue, "c/1/0")) == rest
    assert store.rollback(queue, "c/1", [rest[0], rest[3]], failed=False) == 2
    assert store.sizes(queue).reserved == 4
    assert store.commit(queue, "c/1") == 4
    assert not raw.zcard(queue_keys(queue).leases)
    assert sorted(consumed(store, queue)) == sorted((rest[0], rest[3]))


def test_runs_of_a_tag_do_not_overlap(store, raw, queue, monkeypatch):
    """A message that is freed between two calls of a claim sorts among those of the first call."""
    monkeypatch.setattr(redis_store, "SCRIPT_CHUNK", 4)
    monkeypatch.setattr(redis_store, "SCRIPTS", redis_store.load_scripts(chunk=4, run=3))
    push_ids(store, queue, "acegikm")
    run, calls = store._run, []

    def with_another(script, *arguments, **more):
        answer = run(script, *arguments, **more)
        if script == "claim" and not calls:
            calls.append(1)
            push_ids(store, queue, "bd")
            raw.zadd(queue_keys(queue).moments, dict.fromkeys("bd", MOMENT.timestamp() * 1000))  # as if freed
        return answer

    monkeypatch.setattr(store, "_run", with_another)
    assert store.reserve(queue, "c/1", 100) == [9]
    spans = sorted((min(ids), max(ids)) for ids in runs(raw, queue))
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(spans))
    for rows in (1, 2, 100):
        pages = [page.column("id").to_pylist() for page in store.fetch(queue, "c/1/0", rows)]
        assert "".join(itertools.chain(*pages)) == "abcdegikm"
    assert store.commit(queue, "c/1", ["d", "e"]) == 2
    assert store.commit(queue, "c/1") == 7


def test_whole_runs_are_settled_by_ids_as_they_are_unless_they_change(store, peer, raw, queue, monkeypatch):
    push_ids(store, queue, "abcdefghi")
    store.reserve(queue, "c/1", 100)
    run = store._run
    named: list[list[bytes] | None] = []

    def after_another(script, *arguments, **more):
        if not named:
            assert peer.commit(queue, "c/1", ["b"]) == 1
        named.append([one for one in arguments if isinstance(one, bytes)])
        return run(script, *arguments, **more)

    monkeypatch.setattr(store, "_run", after_another)
    assert store.commit(queue, "c/1", list("abcdefghi")) == 8, "a run that is another now is looked at again"
    assert runs(raw, queue) == []
    push_ids(store, queue, "abcdefghi")
    store.reserve(queue, "c/2", 100)
    named[:] = [None]
    assert store.rollback(queue, "c/2", list("abcdefghi"), delay=None) == 9
    assert [len(members or ()) for members in named[1:]] == [1], "one run, not nine messages"


def test_what_is_passed_on_takes_its_place_among_runs(store, raw, queue):
    push_ids(store, queue, "acegi")
    store.reserve(queue, "c/1", 100)
    push_ids(store, queue, "bdfhj")
    store.reserve(queue, "d/1", 100)
    assert store.transfer(queue, "d/1", "c/1/0", ["d", "h", "j"], lease=None) == 3
    assert "".join(one.id for one in fetched(store, queue, "c/1/0")) == "acdeghij"
    assert store.commit(queue, "c/1") == 8
    assert "".join(one.id for one in fetched(store, queue, "d/1/0")) == "bf"


#: Five ids of a run that is read id by id, and of one that is long enough to be read as a whole.
FIVE = pytest.mark.parametrize("five", [list("abcde"), [one * 120 for one in "abcde"]], ids=["short", "long"])


@FIVE
def test_what_keuss_took_out_of_a_run_is_lost_and_the_rest_is_held(store, raw, queue, five):
    a, b, c, d, e = five
    push_ids(store, queue, five)
    store.reserve(queue, "c/1", 100)
    raw.zrem(queue_keys(queue).moments, b)
    raw.zadd(queue_keys(queue).moments, {d: 17})
    assert [one.id for one in fetched(store, queue, "c/1/0")] == [a, c, e]
    assert store.renew(queue, "c/1", MINUTE) == 3
    assert runs(raw, queue) == [[a, c, e]]
    assert store.commit(queue, "c/1") == 3
    assert raw.zrange(queue_keys(queue).moments, 0, -1) == [d.encode()]


@FIVE
@pytest.mark.parametrize("at", [0, 2, 4])
def test_one_of_a_run_that_keuss_took_is_lost_wherever_it_stands(store, raw, queue, five, at):
    store.push(queue, pushes([{}] * 5, ids=five))
    store.reserve(queue, "c/1", 100)
    one = five[at]
    keuss_reserves(raw, queue, one)
    assert [one.id for one in fetched(store, queue, "c/1/0")] == five[:at] + five[at + 1 :]
    assert store.commit(queue, "c/1") == 4
    assert raw.zrange(queue_keys(queue).moments, 0, -1) == [one.encode()]
    assert keuss_commits(raw, queue, one)


@pytest.fixture
def before_reading(store, monkeypatch):
    """Gives what lets something happen, once, between the list of a page and its documents."""
    read = store._read_documents

    def let(act):
        acts = [act]

        def late(*arguments):
            if acts:
                acts.pop()()
            return read(*arguments)

        monkeypatch.setattr(store, "_read_documents", late)

    return let


def test_a_page_whose_messages_are_all_gone_is_not_the_end(store, peer, queue, before_reading):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100)
    before_reading(lambda: peer.commit(queue, "c/1", list("abc")))
    pages = [page.column("id").to_pylist() for page in store.fetch(queue, "c/1/0", 3)]
    assert pages == [["d", "e", "f"], ["g"]]


def test_the_mark_of_keuss_stays_on_what_it_takes_while_we_read(store, raw, queue, before_reading):
    store.push(queue, pushes([{"n": 1}, {"n": 2}], ids=["a", "b"]))
    store.reserve(queue, "c/1", 9)
    before_reading(lambda: keuss_reserves(raw, queue, "b"))
    fetched(store, queue, "c/1/0")
    assert keuss_commits(raw, queue, "b")
    assert store.commit(queue, "c/1") == 1


def test_the_rest_of_a_run_is_looked_at_again_for_the_next_page(store, raw, queue):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100)
    pages = store.fetch(queue, "c/1/0", 3)
    assert next(pages).column("id").to_pylist() == ["a", "b", "c"]
    keuss_reserves(raw, queue, "e")
    assert [page.column("id").to_pylist() for page in pages] == [["d", "f", "g"]]


@FIVE
def test_what_others_took_all_at_once_is_lost(store, raw, queue, five):
    push_ids(store, queue, five)
    store.reserve(queue, "c/1", 100)
    raw.zadd(queue_keys(queue).moments, dict.fromkeys(five, 17))
    assert not fetched(store, queue, "c/1/0")
    assert store.commit(queue, "c/1") == 0
    assert raw.zcard(queue_keys(queue).moments) == 5


@FIVE
def test_what_came_into_the_place_of_one_that_is_gone_is_not_held(store, raw, queue, five):
    a, b, c, d, e = five
    push_ids(store, queue, five)
    store.reserve(queue, "c/1", 100, lease=MINUTE)
    end = raw.zscore(queue_keys(queue).moments, a)
    raw.zrem(queue_keys(queue).moments, c)
    raw.zadd(queue_keys(queue).moments, {f"{b}x": end})  # of keuss, reserved until the same moment
    assert [one.id for one in fetched(store, queue, "c/1/0")] == [a, b, d, e]
    assert store.commit(queue, "c/1") == 4
    assert raw.zrange(queue_keys(queue).moments, 0, -1) == [f"{b}x".encode()]


# --- what is staged -------------------------------------------------------------------------------


@pytest.fixture
def sink(store, raw):
    name = f"s{uuid.uuid4().hex[:16]}"
    yield name
    store.unstage(name)
    assert not raw.exists(registry_key(name))


def chunk_keys(raw, queue):
    return sorted(raw.scan_iter(f"spark_queue:{queue}:staged:*"))


def chunk(raw, key):
    """What a chunk holds, as push.lua takes it."""
    return raw.eval("return cmsgpack.unpack(redis.call('GET', KEYS[1]))", 1, key)


def test_what_is_staged_lies_beside_the_queue_as_a_push_would_write_it(store, raw, queue, sink, small_steps):
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


def test_a_writer_who_dies_before_he_writes_leaves_what_can_be_seen_and_removed(store, raw, queue, sink):
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
    peer._stage(queue, f"{sink}/7/a", "part", batch)  # an attempt of which nobody waits for the answer
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


def test_stages_whose_names_begin_alike_are_told_apart(store, queue, sink):
    names = ["1/a", "1/a/b", "1/ab", "10/a"]
    for name in names:
        store.stage(queue, f"{sink}/{name}", pushes([name]))
    assert [one.stage for one in store.staged(f"{sink}/1")] == [f"{sink}/{name}" for name in names[:3]]
    assert store.publish([f"{sink}/1/a"]) == 1
    assert consumed(store, queue) == ["1/a"]
    assert store.unstage(f"{sink}/1") == 2
    assert [one.stage for one in store.staged(sink)] == [f"{sink}/10/a"]


def test_of_one_id_that_is_staged_twice_the_first_counts(store, queue, sink, small_steps):
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


# --- notes ----------------------------------------------------------------------------------------


def test_keys_beside_the_queues_are_those_of_no_queue(store, raw, queue):
    key = f"{queue}:history"
    assert store.set_note(key, {"a": 1}, 0)
    try:
        assert not [name for name in store.queues() if queue in name]
        nasty = ["note", "sink", "note:x", ".note:x", "x:staged:y/z", "{note}"]
        queues = {key for name in nasty for key in queue_keys(name)}
        beside = {note_key(name) for name in ("held", "x:held", *nasty)} | {
            registry_key(name) for name in ("held", "x:held")
        }
        assert not queues & beside
    finally:
        store.set_note(key, None, 1)


def test_a_prefix_of_notes_is_no_pattern(store, queue):
    keys = [f"{queue}{odd}" for odd in ("[a-c]", "a", "\\*", "?", "^", "[", "*", "\n")]
    for key in keys:
        assert store.set_note(key, {}, 0)
    try:
        for key in keys:
            assert list(store.notes(key)) == sorted(one for one in keys if one.startswith(key))
        assert sorted(store.notes(queue)) == sorted(keys)
    finally:
        for key in keys:
            store.set_note(key, None, 1)


# --- passing on -----------------------------------------------------------------------------------


def held_by(raw, queue):
    """How many messages the tags have."""
    found = Counter()
    for run in raw.zrange(queue_keys(queue).held, 0, -1):
        tag, _, *ids = run.split(b"\0")
        found[tag.decode()] += len(ids)
    return found


def test_what_is_passed_on_in_many_steps_has_one_lease(store, raw, queue, small_steps):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 4, lease=MINUTE)
    store.reserve(queue, "c/2", 6, lease=MINUTE)
    ids = [one.id for one in fetched(store, queue, "c/2/0")]
    assert store.transfer(queue, "c/2", "c/1/0", ids[:5], lease=3 * MINUTE) == 5
    (held, rest) = store.reservations(queue)
    assert (held.tag, held.rows, rest.rows) == ("c/1/0", 9, 1)
    assert 2 * MINUTE < held.until - store.now() <= 3 * MINUTE
    assert scores(raw, queue) == {held.until, rest.until}
    assert store.transfer(queue, "c/2", "c/1/0", lease=None) == 1
    assert scores(raw, queue) == {redis_store.NO_END}
    assert raw.zrange(queue_keys(queue).leases, 0, -1) == [b"c/1/0"]
    assert held_by(raw, queue) == {"c/1/0": 10}
    assert store.commit(queue, "c/1") == 10
    assert not raw.exists(*queue_keys(queue))


@pytest.mark.parametrize("lease", [1000, 3 * MINUTE, None])
def test_a_retag_that_is_cut_off_anywhere_is_completed_by_the_next(
    monkeypatch, redis_url, peer, raw, queue, small_steps, lease
):
    for store, once in cuts(monkeypatch, redis_url):
        peer.push(queue, pushes(list(range(12))))
        peer.reserve(queue, "c/1", 4, lease=MINUTE)
        peer.reserve(queue, "c/2", 8, lease=MINUTE)
        once(lambda store=store: store.transfer(queue, "c/2", "c/1/0", lease=lease))
        assert sum(one.rows for one in peer.reservations(queue)) == 12
        assert len(fetched(peer, queue, "c/1/0")) + len(fetched(peer, queue, "c/2/0")) == 12
        passed = len(fetched(peer, queue, "c/1/0")) - 4
        assert peer.transfer(queue, "c/2", "c/1/0", lease=lease) == 8 - passed
        (held,) = peer.reservations(queue)
        assert scores(raw, queue) == {held.until or redis_store.NO_END}
        assert raw.zcard(queue_keys(queue).leases) == 1
        assert [one.payload for one in fetched(peer, queue, "c/1/0")] == list(range(12))
        assert (peer.commit(queue, "c/2"), peer.commit(queue, "c/1")) == (0, 12)


def test_a_tag_of_the_tree_itself_may_get_what_the_tree_holds(store, raw, queue, small_steps):
    store.push(queue, pushes(list(range(12))))
    for partition in range(3):
        store._claim(queue, f"c/1/{partition}", ClaimLimit(4, 4), MINUTE, redis_store.NO_END)
    assert store.transfer(queue, "c/1", "c/1/1", lease=2 * MINUTE) == 8
    assert held_by(raw, queue) == {"c/1/1": 12}
    assert store.transfer(queue, "c/1", "c/1/1", lease=2 * MINUTE) == 0
    assert [one.payload for one in fetched(store, queue, "c/1/1")] == list(range(12))


def test_what_keuss_took_is_not_passed_on(store, raw, queue):
    store.push(queue, pushes([1, 2, 3], ids=["a", "b", "c"]))
    store.reserve(queue, "c/1", 3, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    assert store.transfer(queue, "c/1", "c/2/0", ["a"], lease=None) == 0
    assert store.transfer(queue, "c/1", "c/2/0", lease=None) == 2
    assert held_by(raw, queue) == {"c/2/0": 2}
    assert store.commit(queue, "c") == 2
    assert keuss_commits(raw, queue, "a")
    assert not raw.exists(*queue_keys(queue))


@pytest.mark.parametrize("lease", [MINUTE // 2, 2 * MINUTE])
def test_what_is_passed_on_in_the_middle_of_a_renewal_is_held(store, peer, raw, queue, small_steps, lease):
    store.push(queue, pushes(list(range(20))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    store.reserve(queue, "c/2", 10, lease=MINUTE)
    begin_to_renew(store, queue, "c/1/0", lease)
    assert peer.transfer(queue, "c/2", "c/1/0", lease=3 * MINUTE) == 10
    assert [one.rows for one in peer.reservations(queue)] == [20]
    assert len(scores(raw, queue)) == raw.zcard(queue_keys(queue).leases) == 1
    begin_to_renew(store, queue, "c/1/0", lease)
    assert [one.payload for one in fetched(peer, queue, "c/1/0")] == list(range(20))
    assert peer.commit(queue, "c/1") == 20


def test_renewals_and_retags_at_once_leave_one_end(store, peer, raw, queue, small_steps):
    store.push(queue, pushes(list(range(60))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    store.reserve(queue, "c/2", 50, lease=MINUTE)
    ids = [one.id for one in fetched(store, queue, "c/2/0")]
    other = threading.Thread(target=lambda: [peer.renew(queue, "c/1", 3 * MINUTE) for _ in range(15)])
    other.start()
    passed = [store.transfer(queue, "c/2", "c/1/0", ids[at : at + 10], lease=2 * MINUTE) for at in range(0, 50, 10)]
    other.join()
    assert passed == [10] * 5
    assert len(scores(raw, queue)) == raw.zcard(queue_keys(queue).leases) == 1
    assert store.commit(queue, "c/1") == 60
    assert not raw.exists(*queue_keys(queue))


def test_what_was_passed_on_comes_back_when_its_lease_ends(store, queue, small_steps):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=None)
    assert store.transfer(queue, "c/1", "c/2/0", lease=MINUTE) == 10
    assert store.reserve(queue, "d/1", 99) == []
    end_lease(store, queue, "c/2")
    assert store.reserve(queue, "d/1", 99) == [10]
    assert {one.tries for one in fetched(store, queue, "d/1/0")} == {1}
    assert store.commit(queue, "c") == 0


def test_a_renewal_does_not_hold_again_what_is_lost(store, raw, queue):
    store.push(queue, pushes([1, 2], ids=["a", "b"]))
    store.reserve(queue, "c/1", 2, lease=MINUTE)
    end_lease(store, queue, "c/1")
    keuss_reserves(raw, queue, "a")
    assert store.renew(queue, "c/1", None) == 1
    keys = queue_keys(queue)
    raw.zadd(keys.moments, {"a": 1_700_000_000_000})  # keuss gives it back
    assert store.reserve(queue, "d/1", 9, lease=None) == [1]
    assert [one.id for one in fetched(store, queue, "c/1/0")] == ["b"]
    assert store.commit(queue, "c/1") == 1
    assert store.commit(queue, "d/1") == 1


# --- keys -----------------------------------------------------------------------------------------


def test_scripts_touch_only_the_keys_they_declare(store, raw, queue, sink):
    other, undeclared, touched = f"{queue}.other", set(), set()
    with raw.monitor() as monitor:
        store.push(queue, pushes([1, 2, 3, 4], headers={"h": "v"}))
        store.reserve(queue, "c/1", 3, lease=MINUTE)
        end_lease(store, queue, "c/1")
        ids = [one.id for one in (store.reserve(queue, "d/1", 3) and fetched(store, queue, "d/1/0"))]
        store.renew(queue, "d/1", MINUTE)
        store.transfer(queue, "d/1", "d/2/0", ids[:1], lease=MINUTE)
        store.transfer(queue, "d/2", "d/1/0", lease=MINUTE)
        for number in range(2):
            store.stage(queue, f"{sink}/{number}/a", pushes([number]))
        store.publish([f"{sink}/0/a"])
        store.unstage(sink)
        store.set_note(queue, {}, 0)
        store.set_note(queue, None, 1)
        store.reservations(queue)
        store.commit(queue, "d/1", ids[:1], history=MINUTE)
        store.rollback(queue, "d/1", ids[1:2])
        store.move(queue, other, tag="d/1", dead_letter=DeadLetterInfo("why"))
        store.sizes(queue)
        list(store.peek(queue, limit=3))
        list(store.peek(queue, view="history"))
        store.move(queue, other, limit=1)
        store.purge(queue)
        store.drop(queue)
        store.queues()
        raw.echo(f"end of {queue}")
        declared = []
        for event in monitor.listen():
            command = event["command"]
            if command == f"ECHO end of {queue}":
                break
            words = command.split(" ")
            if words[0] == "EVALSHA" and queue in command:
                declared = words[3 : 3 + int(words[2])]
            elif event["client_type"] == "lua" and queue in command:
                touched.add(words[1])
                undeclared |= {words[1]} - set(declared)
    assert not undeclared
    chunks = {key for key in touched if key.startswith(f"spark_queue:{queue}:staged:{sink}/")}
    assert len(chunks) == 2
    assert touched - chunks == {*queue_keys(queue), *queue_keys(other)[:2], note_key(queue)}


def test_a_hash_tag_keeps_the_keys_of_queues_in_one_slot():
    chunk = Chunk("sink/7/a", "part.000000", "{flights}")
    keys = [*queue_keys("{flights}"), *queue_keys("{flights}.dead"), *queue_keys("late.{flights}"), chunk.key]
    assert len(set(keys)) == 22
    assert len({key_slot(key.encode()) for key in keys}) == 1


def test_an_emptied_queue_leaves_no_key(store, raw, queue):
    store.push(queue, pushes(list(range(10))))
    for seq in range(2):
        store.reserve(queue, f"c/{seq}", 5)
        store.rollback(queue, f"c/{seq}", failed=False)
    store.reserve(queue, "c/9", 10, partitions=4)
    store.commit(queue, "c/9")
    assert not raw.exists(*queue_keys(queue))


def test_the_history_is_forgotten_by_the_server_itself(store, raw, queue):
    store.push(queue, pushes(["a", "b"]))
    store.reserve(queue, "c/1", 2)
    first, second = (one.id for one in fetched(store, queue, "c/1/0"))
    store.commit(queue, "c/1", [first], history=2 * MINUTE)
    store.commit(queue, "c/1", [second], history=MINUTE)
    for key in queue_keys(queue)[4:6]:
        assert MINUTE < raw.pttl(key) <= 2 * MINUTE


def test_a_history_that_was_written_before_it_told_more_is_read(store, raw, queue):
    store.push(queue, pushes(["a", "b"], ids=["a", "b"]))
    store.reserve(queue, "c/1", 2)
    store.commit(queue, "c/1", history=MINUTE)
    key = queue_keys(queue)[4]
    new = raw.hget(key, "a")
    old = new.replace(b',"consumer":"c","outcome":"commit"', b"")
    assert len(old) < len(new)
    raw.hset(key, "a", old)
    (batch,) = store.peek(queue, view="history", limit=5)
    told = zip(*(batch.column(name).to_pylist() for name in ("id", "consumer", "outcome")), strict=True)
    assert list(told) == [("a", None, "commit"), ("b", "c", "commit")]
    assert [one.payload for one in messages(batch)] == ["a", "b"]


def test_a_peek_finds_few_among_many_without_reading_them_all(store, queue, monkeypatch):
    store.push(queue, pushes(list(range(3000)), ids=[f"m{i:05}" for i in range(3000)]))
    store.reserve(queue, "c/1", 1000)
    read, hmget = [], redis.Redis.hmget
    monkeypatch.setattr(redis.Redis, "hmget", lambda *asked: read.append(asked) or hmget(*asked))
    (batch,) = store.peek(queue, limit=2)
    assert batch.column("id").to_pylist() == ["m00000", "m00001"]
    (batch,) = store.peek(
        queue, [Condition("id", "in", ("m02000", "m00500", "stranger")), Condition("tries", "=", 0)]
    )
    assert sorted(batch.column("id").to_pylist()) == ["m00500", "m02000"]
    assert 2 <= sum(len(ids) for _, _, ids in read) <= 20
    assert list(store.peek(queue, view="history", limit=5)) == []


# --- addresses and servers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://", "no server"),
        ("redis:///0", "no server"),
        ("redis://h:port/0", "malformed"),
        ("redis://h:99999/0", "malformed"),
        ("redis://:sesame@h/flights", "'flights' is not a number"),
        ("redis://h/0/1", "not a number"),
        ("redis://h/0#x", "fragment"),
        ("redis://h/0?socket_timeout=1", "'socket_timeout'"),
        ("rediss://h/0?ssl_ca_cert=x", "did you mean 'ssl_ca_certs'"),
        ("redis://user:ses/ame@h/0", "%2F"),
        ("redis://user:7#sesame@h/0", "%23"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url, what):
    with pytest.raises(OptionError, match=what) as caught:
        open_store(url)
    assert "ame@" not in str(caught.value)
    assert caught.value.facts["option"] == "url"


@pytest.mark.parametrize("url", ["redis://h", "redis://h/", "rediss://u:p%2F@[::1]:7000/15?ssl_ca_certs=/ca.pem"])
def test_a_sound_url_stays_as_it_is(url):
    with open_store(url) as store:
        assert store.url == url


def address(redis_url, user, password):
    parts = urlsplit(redis_url)
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


@pytest.fixture
def user(raw, queue):
    """A user who may read one queue and write none."""
    name = f"u{uuid.uuid4().hex[:12]}"
    raw.acl_setuser(name, enabled=True, passwords=["+sesame"], keys=[f"*{queue}*"], categories=["+@read", "+@fast"])
    yield name
    raw.acl_deluser(name)


@pytest.mark.parametrize(
    ("password", "error", "remedy"),
    [("mistaken", StoreError, "the password of the URL"), ("sesame", AccessDenied, "ACL")],
)
def test_who_may_not_is_told_at_once_and_without_the_password(redis_url, queue, user, password, error, remedy):
    with open_store(address(redis_url, user, password)) as store, pytest.raises(error, match=remedy) as caught:
        store.push(queue, pushes(["a"]))
    assert type(caught.value) is error
    assert store.retries == 0
    assert password not in str(caught.value)
    assert mask(store.url) in str(caught.value)


@pytest.fixture
def server(new_server):
    return new_server()


@pytest.fixture
def cluster(new_server):
    """Two servers that share the slots."""
    nodes = [new_server("--cluster-enabled", "yes") for _ in range(2)]
    clients = [redis.Redis.from_url(node.url) for node in nodes]
    for epoch, (client, slots) in enumerate(zip(clients, (range(8192), range(8192, 16384)), strict=True), 1):
        client.execute_command("CLUSTER ADDSLOTS", *slots)
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", epoch)
    clients[0].execute_command("CLUSTER MEET", "127.0.0.1", nodes[1].port)
    wait_until(
        lambda: {client.cluster("info")["cluster_state"] for client in clients} == {"ok"}, description="a cluster"
    )
    for client in clients:
        client.close()
    return nodes


def test_a_queue_on_one_node_of_a_cluster_has_all_it_needs(cluster):
    for queue in ("{a}", "{b}"):
        node = cluster[key_slot(queue[1:2].encode()) // 8192]
        with open_store(node.url) as store:
            for n in range(5):  # they are spread over the nodes
                assert store.set_note(f"n{n}", {"n": n}, 0)
                assert store.stage(queue, f"s{n}/0/a", pushes([n, n])) == 2
                assert store.stage(queue, f"s{n}/1/a", pushes([n, n])) == 2
            assert list(store.notes("n")) == [f"n{n}" for n in range(5)]
            assert sum(one.rows for one in store.staged()) == 20
            assert store.publish([f"s{n}/0/a" for n in range(5)]) == 10
            assert [store.unstage(f"s{n}") for n in range(5)] == [2] * 5
            assert store.staged() == []
            assert store.reserve(queue, "c/1", 20) == [10]
            assert store.transfer(queue, "c/1", "c/2/0", lease=MINUTE) == 10
            assert store.commit(queue, "c") == 10
            for n in range(5):
                assert store.note(f"n{n}") == Note({"n": n}, 1)
                assert store.set_note(f"n{n}", None, 1)


def test_operations_survive_a_server_that_is_killed_and_comes_back(server):
    with open_store(server.url, retry_timeout=120_000) as store:

        def killed(operation):
            server.kill()
            back = threading.Timer(0.1, server.start)
            back.start()
            try:
                return operation()
            finally:
                back.join()

        batch = pushes(list(range(100)))
        store.push("q", batch)
        assert killed(lambda: store.push("q", batch)) == 0
        assert killed(lambda: store.reserve("q", "c/1", 60)) == [60]
        assert len(fetched(store, "q", "c/1/0")) == 60
        assert killed(lambda: store.commit("q", "c/1")) == 60
        assert store.sizes("q").ready == 40
        assert killed(lambda: store.stage("q", "s/0/a", pushes(["x", "y"]))) == 2
        assert killed(lambda: store.set_note("n", {"a": 1}, 0))
        assert killed(lambda: store.publish(["s/0/a"])) == 2
        assert killed(lambda: store.note("n")) == Note({"a": 1}, 1)
        store.reserve("q", "c/2", 40)
        assert killed(lambda: store.transfer("q", "c/2", "c/3/0", lease=None)) == 40
        assert store.sizes("q").ready == 2
        server.kill()
        store.retry_timeout = 300
        with pytest.raises(StoreUnavailable, match=str(server.port)):
            store.sizes("q")
        server.start()


def test_a_full_server_refuses_messages_and_lets_them_be_drained(server):
    with open_store(server.url) as store, redis.Redis.from_url(server.url, protocol=2) as raw:
        store.push("q", pushes(["x" * 100] * 1000))
        raw.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="maxmemory") as caught:
            store.push("q", pushes(["one more"]))
        assert not isinstance(caught.value, StoreUnavailable)
        assert store.reserve("q", "c/1", 500, lease=MINUTE) == [500]
        end_lease(store, "q", "c/1")
        assert store.reserve("q", "d/1", 900, partitions=2) == [450, 450]
        assert store.renew("q", "d/1", MINUTE) == 900
        assert store.rollback("q", "d/1/0") == 450
        assert store.commit("q", "d/1", history=MINUTE) == 450
        assert len([one for batch in store.peek("q", limit=600) for one in messages(batch)]) == 550
        assert store.purge("q") == 550


def test_a_full_server_keeps_what_is_staged(server):
    with RedisStore(server.url) as store, redis.Redis.from_url(server.url, protocol=2) as raw:
        for attempt in "abc":
            store.stage("q", f"s/0/{attempt}", pushes([attempt * 100] * 1000))
        store.push("q", pushes(["held"]))
        store.reserve("q", "c/1", 1)
        raw.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="maxmemory"):
            store.stage("q", "s/0/d", pushes(["one more"]))
        with pytest.raises(StoreError, match="maxmemory"):
            store.publish(["s/0/a"])
        with pytest.raises(StoreError, match="maxmemory"):  # one that was registered before
            store._run("stage", "q", "id", 1, "{}", extra_keys=[Chunk("s/0/d", "part", "q").key])
        assert [one.rows for one in store.staged("s")] == [1000] * 3
        assert store.unstage("s/0/b") == 1000
        assert store.transfer("q", "c/1", "c/2/0", lease=MINUTE) == 1
        assert store.set_note("n", {"a": 1}, 0)
        assert store.set_note("n", {"a": 2}, 1)
        assert store.set_note("n", None, 2)
        assert store.commit("q", "c/2") == 1
        raw.config_set("maxmemory", 0)
        assert store.publish(["s/0/a", "s/0/b", "s/0/c"]) == 2000


def test_a_closed_store_has_no_connection_left(server):
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with open_store(server.url) as store:
            store.push("q", pushes([1]))
            threads = [threading.Thread(target=store.sizes, args=("q",)) for _ in range(5)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            assert len(raw.client_list()) > 1
        wait_until(lambda: len(raw.client_list()) == 1, description="that no other connection is left")
