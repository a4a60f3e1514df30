"""Messages into buckets and out of them."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue import Buckets, OptionError
from spark_queue.messages.buckets import (
    BUCKET_SCHEMA,
    MAX_BUCKET_BYTES,
    ClaimLimit,
    build_bucket,
    bytes_of,
    count_rows,
    is_bucket,
    open_bucket,
    pack_buckets,
    rows_of,
    select_records,
    unpack_bucket,
)
from spark_queue.messages.columns import with_due_time
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.schema import MESSAGES

START = datetime(2026, 1, 1, tzinfo=UTC)


def stored(batch):
    """Records as a store gives them back."""
    columns = {name: batch.column(name) for name in MESSAGES.names if name != "queue"}
    columns["queue"] = pa.repeat(pa.scalar("q"), batch.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)


def opened(batch):
    records = stored(batch)
    return [one for row in range(records.num_rows) for one in messages(open_bucket(records.slice(row, 1)))]


def facts(one):
    return one.id, one.payload, one.headers, one.mature, one.tries


IDS = st.text(string.printable + "ü🛫", min_size=1, max_size=20)
ROWS = st.lists(
    st.tuples(
        IDS, st.binary(max_size=40) | st.text(max_size=40), st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
        st.integers(0, 2), st.integers(0, 2),
    ),
    min_size=1, max_size=30, unique_by=lambda row: row[0],
)  # fmt: skip


@given(rows=ROWS, size=st.integers(1, 8), compression=st.sampled_from(["lz4", "zstd"]))
def test_what_goes_in_comes_out_and_each_bucket_is_what_its_id_says(rows, size, compression):
    ids, payloads, headers, moments, tries = zip(*rows, strict=True)
    batch = pushes(payloads, ids=ids, headers=headers, mature=[START + timedelta(hours=one) for one in moments])
    batch = batch.set_column(batch.schema.get_field_index("tries"), "tries", pa.array(tries, pa.int32()))
    made = pack_buckets(with_due_time(batch, 0), Buckets(size, compression))
    assert sorted(map(facts, opened(made)), key=str) == sorted(
        (
            (id, payload, head, START + timedelta(hours=moment), tried)
            for id, payload, head, moment, tried in rows
        ),
        key=str,
    )  # fmt: skip
    names = made.column("id").to_pylist()
    assert len(set(names)) == len(names)
    assert count_rows(made.column("id")) == len(rows)
    for row, name in enumerate(names):
        inside = opened(made.slice(row, 1))
        assert is_bucket(name)
        assert rows_of(name) == len(inside) <= size
        assert [one.id for one in inside] == sorted((one.id for one in inside), key=ids.index), (
            "in the order of the rows"
        )
        assert len({(one.mature, one.tries) for one in inside}) == 1


records = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=12)


@given(records=records, limit=st.integers(0, 20), enough=st.integers(0, 20), most=st.none() | st.integers(0, 40))
@pytest.mark.parametrize("allow_empty", [False, True])
def test_what_fits_is_taken_in_order_and_never_too_much(records, limit, enough, most, allow_empty):
    """A message is larger than the limit only if it is the first, and one must be taken."""
    weights, sizes = [one for one, _ in records], [size for _, size in records]
    ids = [f"\x7f{n}\x7f{weight}\x7fabc+{sizes[n]}" if weight > 1 else str(n) for n, weight in enumerate(weights)]
    rows_of_all = zip(range(len(ids)), ids, sizes, strict=True)
    found = select_records(rows_of_all, ClaimLimit(limit, enough, most, allow_empty))
    taken = len(found.keys)
    assert found.keys == list(range(taken))
    assert found.rows == sum(weights[:taken]) <= limit
    assert found.bytes == (0 if most is None else sum(sizes[:taken]))
    if most is not None and found.bytes > most:
        assert taken == weights[0] == 1 and not allow_empty
    following = taken < len(ids)
    if found.full:
        assert following and found.rows < enough and found.bytes + sizes[taken] > most
        assert taken or allow_empty or weights[0] > 1
    elif found.oversized_bucket is None and following:
        assert found.rows >= enough
    if found.oversized_bucket is not None:
        assert found.oversized_bucket == ids[taken]
        assert found.rows < enough
        assert found.rows + weights[taken] > limit or (found.full and not taken and weights[0] > 1)


@given(rows=st.integers(2, 100), size=st.integers(0, 10_000), most=st.integers(0, 10_000))
@pytest.mark.parametrize("has_size", [True, False])
def test_a_bucket_that_is_too_large_is_split_until_it_fits_or_is_one_message(rows, size, most, has_size):
    limit = ClaimLimit(1_000, 1_000, most)
    for _ in range(20):
        id = f"\x7fa\x7f{rows}\x7f0123456789abcdef" + (f"+{size}" if has_size else "")
        found = select_records([(0, id, 5_000)], limit)
        if found.keys:
            break
        assert found.oversized_bucket == id and found.full
        parts = limit.rows_in(id)
        assert 1 <= parts < rows
        rows, size = parts, size * parts // rows
    assert found.keys and (rows == 1 or found.bytes <= most)


@pytest.mark.parametrize(
    ("end", "expected"),
    [("+12", 12), *((end, MAX_BUCKET_BYTES) for end in ("", "+", "+1x", "+" + "9" * 13))],
)
def test_a_bucket_without_its_bytes_counts_as_a_full_one(end, expected):
    assert bytes_of(f"\x7f+7\x7f3\x7f0123456789abcdef{end}", 100) == expected
    assert bytes_of("+7", 100) == 100, "an id of a message says nothing"
    assert bytes_of("\x7fabc\x7f3\x7fid", 100) == 100, "a document of keuss is not compressed"


def test_a_bucket_has_the_bytes_of_its_messages_in_its_id_however_they_are_held():
    batch = with_due_time(pushes(["x" * 50_000] * 8, ids=list("abcdefgh"), headers=[{"k": "v" * 9}] * 8), 0)
    made = pack_buckets(batch, Buckets(4))
    names, packed = made.column("id").to_pylist(), pc.binary_length(made.column("payload")).to_pylist()
    assert [bytes_of(name, length) for name, length in zip(names, packed, strict=True)] == [4 * (50_000 + 1 + 10)] * 2
    assert max(packed) < 5_000, "they are compressed"
    assert pack_buckets(batch.slice(4), Buckets(4)).column("id").to_pylist() == names[1:], "equal rows, equal ids"


def test_of_an_id_that_comes_twice_the_first_stays():
    made = pack_buckets(with_due_time(pushes(["first", "other", "second"], ids=["a", "b", "a"]), 0), Buckets())
    assert [one.payload for one in opened(made)] == ["first", "other"]


def test_messages_of_one_moment_stay_in_their_order_whatever_their_tries():
    batch = with_due_time(pushes(list(range(8))), 5)
    tries = batch.set_column(
        batch.schema.get_field_index("tries"), "tries", pa.array([1, 1, 0, 0, 2, 2, 2, 0], pa.int32())
    )
    packed = pack_buckets(tries.cast(batch.schema), Buckets(2))
    rows = [
        unpack_bucket(*pair) for pair in zip(*(packed.column(n).to_pylist() for n in ("id", "payload")), strict=True)
    ]
    found = [int(one) for page in rows for one in page.column("payload").to_pylist()]
    assert (found, packed.column("tries").to_pylist()) == (list(range(8)), [1, 0, 2, 2, 0])


@pytest.mark.parametrize(
    ("ids", "mark"),
    [
        ([f"{1:024x}", f"{2:024x}"], ""),
        ([f"{2:024x}", f"{1:024x}"], "~"),
        ([f"{1:024x}", "b"], "~"),
        (["b", "a"], ""),
    ],
)
def test_the_id_of_a_bucket_looks_generated_only_if_its_ids_grow(ids, mark):
    (bucket,) = pack_buckets(with_due_time(pushes([1, 2], ids=ids), 5), Buckets(9)).column("id").to_pylist()
    assert bucket.startswith(f"\x7f{ids[0]}{mark}\x7f2\x7f")
    assert rows_of(bucket) == 2


def test_a_bucket_is_not_larger_than_a_database_takes():
    texts = (
        ["x" * 100] * 1000 + ["y" * (MAX_BUCKET_BYTES - 10)] * 3 + ["z" * (3 * MAX_BUCKET_BYTES)] + ["x" * 100] * 5
    )
    made = pack_buckets(with_due_time(pushes(texts), 0), Buckets(100_000))
    sizes = [sum(len(one.payload) for one in opened(made.slice(row, 1))) for row in range(made.num_rows)]
    assert max(sizes) == 3 * MAX_BUCKET_BYTES, "that one is alone"
    assert sorted(sizes)[-2] <= MAX_BUCKET_BYTES
    assert len(opened(made)) == len(texts)


def test_messages_that_were_put_together_keep_when_each_was_due():
    moments = [START + timedelta(seconds=n) for n in (3, 1, 2)]
    rows = stored(with_due_time(pushes(["a", "b", "c"], ids=["a", "b", "c"], mature=moments), 0))
    made = build_bucket(rows, Buckets())
    assert made.column("mature")[0].as_py() == START + timedelta(seconds=3)
    assert [one.mature for one in opened(made)] == moments
    late = made.set_column(4, "mature", pa.array([START + timedelta(hours=1)], made.schema.field("mature").type))
    assert {one.mature for one in opened(late)} == {START + timedelta(hours=1)}, "it was given back"


def of_pushes(moments):
    """Messages that are due at the same moment, and were pushed at these; `None` if that is unknown."""
    batch = with_due_time(pushes([*range(len(moments))], mature=START), 0)
    place = batch.schema.get_field_index("pushed")
    return batch.set_column(place, batch.schema.field(place), pa.array(moments, batch.schema.field(place).type))


@pytest.mark.parametrize("moments", [[START, START + timedelta(seconds=1)], [START, None], [None, START]])
def test_messages_of_different_pushes_keep_their_moments(moments):
    made = build_bucket(of_pushes(moments), Buckets())
    assert [one.pushed for one in opened(made)] == moments
    assert made.column("pushed").to_pylist() == [None], "the bucket as a whole has none"
    assert [one.pushed for one in opened(pack_buckets(of_pushes(moments), Buckets()))] == moments


@pytest.mark.parametrize("moment", [START, None])
def test_messages_of_one_push_share_its_moment_in_a_bucket_that_older_versions_read(moment):
    made = build_bucket(of_pushes([moment] * 3), Buckets())
    assert [one.pushed for one in opened(made)] == [moment] * 3
    assert unpack_bucket(made.column("id")[0].as_py(), made.column("payload")[0].as_py()).schema == BUCKET_SCHEMA


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"size": 0}, "1 to 100000 messages, not 0"),
        ({"size": 100_001}, "not 100001"),
        ({"compression": "gzip"}, "not 'gzip'"),
        ({"compression": "zst"}, "did you mean 'zstd'"),
    ],
)
def test_buckets_that_cannot_be_meant_are_refused(how, told):
    with pytest.raises(OptionError, match=told):
        Buckets(**how)
