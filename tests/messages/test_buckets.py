"""Messages into buckets and out of them."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue import Buckets, OptionError
from spark_queue.messages.buckets import (
    MAX_BUCKET_BYTES,
    build_bucket,
    count_rows,
    is_bucket,
    open_bucket,
    pack_buckets,
    rows_of,
    select_records,
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
        assert [one.id for one in inside] == sorted(one.id for one in inside)
        assert len({(one.mature, one.tries) for one in inside}) == 1


@given(weights=st.lists(st.integers(1, 6), max_size=12), limit=st.integers(0, 20), enough=st.integers(0, 20))
def test_what_fits_is_taken_in_order_and_never_too_much(weights, limit, enough):
    ids = [f"\x7f{n}\x7f{weight}\x7fabc" if weight > 1 else str(n) for n, weight in enumerate(weights)]
    taken, rows, large = select_records(enumerate(ids), limit, enough)
    assert taken == list(range(len(taken)))
    assert rows == sum(weights[: len(taken)]) <= limit
    if large is not None:
        assert large == ids[len(taken)]
        assert rows < enough
        assert rows + weights[len(taken)] > limit
    elif len(taken) < len(ids):
        assert rows >= enough


def test_of_an_id_that_comes_twice_the_first_stays():
    made = pack_buckets(with_due_time(pushes(["first", "other", "second"], ids=["a", "b", "a"]), 0), Buckets())
    assert [one.payload for one in opened(made)] == ["first", "other"]


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
