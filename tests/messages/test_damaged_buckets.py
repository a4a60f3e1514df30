"""Damaged buckets: each is refused, none crashes the process or is delivered with others."""

from __future__ import annotations

import json
import mmap
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from spark_queue.messages import arrow_bytes
from spark_queue.messages.arrow_bytes import MAX_UNPACKED_BYTES, DamagedBytes, from_bytes, to_bytes
from spark_queue.messages.buckets import (
    BUCKET_SCHEMA,
    CONVERTED_SUFFIX,
    DIGEST_DIGITS,
    MAX_ROWS_DIGITS,
    Buckets,
    ClaimLimit,
    DamagedBucket,
    build_bucket,
    count_rows,
    open_bucket,
    rows_of,
    select_records,
    unpack_bucket,
)
from spark_queue.messages.columns import no_headers, with_due_time
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.schema import BUCKET_PREFIX, MESSAGES, PUSHES
from tests.damaged_buckets import came_of, flipped, renewed, sample, samples

ROOT = Path(__file__).parents[2]

NO_DIGEST = f"{BUCKET_PREFIX}a{BUCKET_PREFIX}2{BUCKET_PREFIX}"

#: Texts in an id in place of the number of messages, and how many messages the bucket then counts.
LIES = {
    "1": 1,
    "39": 39,
    "41": 41,
    "0040000": 1,
    "9" * MAX_ROWS_DIGITS: 10**MAX_ROWS_DIGITS - 1,
    "9" * (MAX_ROWS_DIGITS + 1): 1,
    "9" * 5000: 1,
    "0": 1,
    "-1": 1,
    "4.0": 1,
    " 40": 1,
    "٤٠": 1,
    "x": 1,
    "": 1,
}


def rows(ids=("a", "b"), payloads=(b"1", b"2"), kinds=("json", "json"), headers=None, mature=None):
    """Two messages of a bucket, one column of which may be odd."""
    columns = [
        pa.array(ids, pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array(kinds, pa.string()),
        no_headers(2) if headers is None else headers,
    ]
    schema = BUCKET_SCHEMA
    if mature is not None:
        columns.append(pa.array(mature, MESSAGES.field("mature").type))
        schema = BUCKET_SCHEMA.append(MESSAGES.field("mature"))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def stream(batches, schema=BUCKET_SCHEMA, compression=None):
    """A stream as another program may write it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for one in batches:
            writer.write_batch(one)
    return sink.getvalue().to_pybytes()


# --- flips ----------------------------------------------------------------------------------------


def check_damaged(count, seed):
    """Damage buckets of each kind `count` times, and a quarter as often with more than a bit."""
    command = [sys.executable, "-m", "tests.damaged_buckets", str(count), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"signal {-done.returncode}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout)
    assert found.keys() == samples().keys()
    for kind in samples():
        if "no digest" not in kind:
            assert found[kind].keys() == {"refused"}, kind
    altered = [kind for kind, came in found.items() if "altered" in came]
    assert any("no digest" in kind for kind in altered), "some payloads are others, or nothing was damaged"
    assert sum(came.get("refused", 0) for came in found.values()) > count * len(samples()) / 2


def test_a_damaged_bucket_is_refused_and_crashes_nothing():
    check_damaged(count=25, seed=1)


@pytest.mark.full
def test_ten_thousand_flips_of_each_kind_of_bucket_crash_nothing_and_alter_no_row():
    check_damaged(count=10_000, seed=2)


def test_a_flip_in_an_id_leaves_the_messages_as_they_are_or_is_noticed():
    one = sample("lz4", at_once=True, digest=True)
    mark = 8  # without the first character the record is no bucket
    for bit in range(mark, 8 * len(one.id)):
        try:
            changed = one._replace(id=flipped(one.id.encode(), bit).decode())
        except UnicodeDecodeError:
            continue
        in_first_id = bit // 8 < one.id.index(BUCKET_PREFIX, 1)
        assert came_of(changed, one.packed) == ("as before" if in_first_id else "refused"), changed.id


@pytest.mark.parametrize("kind", samples())
def test_a_sound_bucket_is_read(kind):
    one = samples()[kind]
    assert came_of(one, one.packed) == "as before"


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
def test_a_number_of_messages_that_lies_is_refused_and_keeps_no_reserve_busy(lie):
    one = sample("lz4", at_once=True, digest=True)
    id = one.id.replace(f"{BUCKET_PREFIX}40{BUCKET_PREFIX}", f"{BUCKET_PREFIX}{lie}{BUCKET_PREFIX}")
    with pytest.raises(DamagedBucket, match="messages"):
        unpack_bucket(id, one.packed)
    assert rows_of(id) == LIES[lie]
    assert count_rows(pa.array([id, "b"])) == LIES[lie] + 1
    found = select_records([(0, id, 0), (1, "b", 0)], ClaimLimit(10, 10))
    expected = ([0, 1], 2, None) if LIES[lie] == 1 else ([], 0, id)
    assert (found.keys, found.rows, found.oversized_bucket) == expected


@pytest.mark.parametrize(
    "id",
    [
        BUCKET_PREFIX,
        f"{BUCKET_PREFIX}a",
        f"{BUCKET_PREFIX}a{BUCKET_PREFIX}b",
        f"{BUCKET_PREFIX}a{BUCKET_PREFIX}{BUCKET_PREFIX}",
        f"{BUCKET_PREFIX}{BUCKET_PREFIX}{BUCKET_PREFIX}",
    ],
)
def test_an_id_that_is_cut_off_is_one_damaged_bucket(id):
    assert rows_of(id) == 1
    with pytest.raises(DamagedBucket, match="does not say how many messages"):
        unpack_bucket(id, b"")


def test_a_bucket_that_was_made_of_a_document_may_be_empty_or_have_more_than_its_document_counts():
    packed = to_bytes(rows())
    assert unpack_bucket(f"{BUCKET_PREFIX}a{BUCKET_PREFIX}1{CONVERTED_SUFFIX}", packed) == rows()
    assert (
        unpack_bucket(f"{BUCKET_PREFIX}a{BUCKET_PREFIX}0{CONVERTED_SUFFIX}", to_bytes(rows().slice(0, 0))).num_rows
        == 0
    )
    assert rows_of(f"{BUCKET_PREFIX}a{BUCKET_PREFIX}0{CONVERTED_SUFFIX}") == 0
    with pytest.raises(DamagedBucket, match="holds 2 messages, but 3 by its id"):
        unpack_bucket(f"{BUCKET_PREFIX}a{BUCKET_PREFIX}3{CONVERTED_SUFFIX}", packed)


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compression", "digest"), [("zstd", True), ("zstd", False), ("lz4", False)])
def test_bytes_that_would_unpack_to_too_much_are_refused_before_they_are_unpacked(compression, digest):
    size = MAX_UNPACKED_BYTES + 1
    with mmap.mmap(-1, size) as zeros:  # of which no page is ever in memory
        payload = pa.Array.from_buffers(
            pa.binary(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, size)), pa.py_buffer(zeros)]
        )
        columns = [pa.array(["a"]), payload, pa.array(["binary"]), no_headers(1)]
        packed = stream([pa.RecordBatch.from_arrays(columns, schema=BUCKET_SCHEMA)], compression=compression)
        del payload, columns
    assert len(packed) < size // 100
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DamagedBytes, match=r"unpacks to 268,4\d\d,\d\d\d bytes, but the limit is 268,435,456"):
        from_bytes(packed, (BUCKET_SCHEMA,), sha256(packed).hexdigest() if digest else None)
    assert pa.default_memory_pool().max_memory() == before


def test_what_would_be_refused_for_its_size_is_not_compressed(monkeypatch):
    texts = pushes(["x" * 1000] * 100)
    assert len(to_bytes(texts, "lz4")) < texts.nbytes // 10
    monkeypatch.setattr(arrow_bytes, "MAX_UNPACKED_BYTES", texts.nbytes)
    packed = to_bytes(texts, "lz4")
    assert len(packed) > texts.nbytes
    assert from_bytes(packed, (PUSHES,)) == texts


@pytest.mark.parametrize("place", [(-8, 8), (0, -1), (0, 1 << 40), (1 << 62, 8), ((1 << 63) - 1, 1)])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_buffer_outside_of_the_bytes_is_refused_before_pyarrow_sees_it(place, compression):
    one = sample(compression, at_once=True, digest=True)
    view = memoryview(one.packed)
    batch = arrow_bytes._IpcMessage(view, arrow_bytes._IpcMessage(view, 0, 1).end, 3)
    first = one.packed.index(struct.pack("<36q", *batch.header.get_integers(2)))
    changed = one.packed[:first] + struct.pack("<qq", *place) + one.packed[first + 16 :]
    with pytest.raises(DamagedBytes, match="a buffer of its columns lies outside of its bytes"):
        from_bytes(changed, (BUCKET_SCHEMA,))


def test_a_buffer_that_unpacks_to_less_than_it_says_brings_no_memory_of_the_process():
    one = sample("lz4", at_once=True, digest=True)
    lengths = [at for at in range(0, len(one.packed) - 8, 8) if one.packed[at : at + 8] == struct.pack("<q", 164)]
    assert lengths, "offsets of 40 rows"
    for at in lengths:
        longer = one.packed[:at] + struct.pack("<q", 100_000) + one.packed[at + 8 :]
        assert came_of(renewed(one, longer), longer) == "refused", "though its digest is right"


#: Buckets of two messages that are none, and what is said of them.
ODD = {
    "no bytes": (None, "it has no bytes"),
    "empty": (b"", "it is cut off"),
    "JSON": (b'{"some": "JSON"}' * 20, "it is cut off|no Arrow stream"),
    "no batch": (stream([]), "it is cut off"),
    "two batches": (stream([rows(), rows()]), "no Arrow stream of one batch"),
    "more behind it": (stream([rows()]) + b"more", "no Arrow stream of one batch"),
    "other columns": (
        stream([pushes([1], ids=["a"])], PUSHES),
        "its columns are not those of messages",
    ),
    "no rows": (to_bytes(rows().slice(0, 0)), "holds 0 messages, but 2 by its id"),
    "NULL id": (to_bytes(rows(ids=("a", None))), "message 1: its id is NULL"),
    "empty id": (to_bytes(rows(ids=("", "b"))), "message 0: its id is empty"),
    "same id": (to_bytes(rows(ids=("a", "a"))), "the same id"),
    "id of a bucket": (to_bytes(rows(ids=("a", f"{BUCKET_PREFIX}b"))), r"message 1: .* marks buckets"),
    "NULL payload": (to_bytes(rows(payloads=(b"1", None))), "message 1: its payload is NULL"),
    "no JSON": (to_bytes(rows(payloads=(b"1", b"{"))), "message 1: its payload is not JSON"),
    "no text": (
        to_bytes(rows(payloads=(b"1", b"\xff"), kinds=("json", "text"))),
        "message 1: its payload is not UTF-8",
    ),
    "unknown kind": (to_bytes(rows(kinds=("json", "jsom"))), "kind 'jsom'"),
    "NULL kind": (to_bytes(rows(kinds=("json", None))), "kind None"),
    "early": (to_bytes(rows(mature=(-1, 1))), "message 0: its mature is before 1970"),
    "late": (to_bytes(rows(mature=(1, 1 << 62))), "message 1: its mature is after 9999"),
    "NULL mature": (to_bytes(rows(mature=(1, None))), "one of its messages has no mature"),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_bucket_without_a_digest_is_validated_by_its_content(odd):
    packed, reason = ODD[odd]
    with pytest.raises(DamagedBucket, match=reason):
        unpack_bucket(NO_DIGEST, packed)


def test_text_that_is_not_utf_8_is_refused_in_each_column():
    text = pa.array(["a", "b\N{LATIN SMALL LETTER E WITH ACUTE}"])
    bad = pa.Array.from_buffers(pa.string(), 2, [None, text.buffers()[1], pa.py_buffer(b"ab\xc3\x28")])
    headers = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), text, bad)
    for odd in (
        rows(headers=headers),
        rows(kinds=bad),
        rows(ids=("c", "d")).set_column(0, BUCKET_SCHEMA.field("id"), bad),
    ):
        with pytest.raises(DamagedBucket, match="UTF8"):
            unpack_bucket(NO_DIGEST, to_bytes(odd))


# --- what is sound --------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["", "no-digest", "id"])
def test_a_bucket_without_a_digest_is_delivered(last):
    made = build_bucket(with_due_time(pushes([1, "two", b"3"], ids=["a", "b", "c"]), 0), Buckets())
    columns = {name: made.column(name) for name in MESSAGES.names if name != "queue"}
    columns |= {"queue": pa.array(["q"]), "id": pa.array([f"{BUCKET_PREFIX}a{BUCKET_PREFIX}3{BUCKET_PREFIX}{last}"])}
    record = pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)
    assert [(one.id, one.payload) for one in messages(open_bucket(record))] == [("a", 1), ("b", "two"), ("c", b"3")]


def test_the_digest_of_a_bucket_is_that_of_its_bytes():
    made = build_bucket(with_due_time(pushes([1, 2]), 0), Buckets())
    digest = made.column("id")[0].as_py().rpartition(BUCKET_PREFIX)[2].partition("+")[0]
    assert sha256(made.column("payload")[0].as_py()).hexdigest().startswith(digest)
    assert len(digest) == DIGEST_DIGITS


def test_headers_may_be_null_as_they_may_be_in_a_push():
    kind = PUSHES.field("headers").type
    headers = pa.array([None, [("key", None)]], kind)
    packed = to_bytes(rows(headers=headers))
    assert unpack_bucket(NO_DIGEST, packed).column("headers") == headers
